"""A whole node inside the test's own loop."""

from kit.admin_calls import call, raw_call, refused
from kit.parts import append, ask, broker, node

__all__ = ["append", "ask", "broker", "call", "node", "raw_call", "refused"]
