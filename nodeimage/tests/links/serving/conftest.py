"""A whole node inside the test's own loop."""

from kit.pair import start
from kit.parts import append, ask, broker, node

__all__ = ["append", "ask", "broker", "node", "start"]
