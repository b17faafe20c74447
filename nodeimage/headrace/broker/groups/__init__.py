"""Consumer groups, the classic protocol: a state machine without I/O or clock, and the asyncio shell around it."""
