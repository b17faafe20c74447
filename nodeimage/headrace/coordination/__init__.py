"""Consumer groups: a pure coordinator, the asyncio shell around it, and its take-over by a new leader."""
