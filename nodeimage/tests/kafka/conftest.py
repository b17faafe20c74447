"""A whole node inside the test's own loop."""

from kit.group_calls import orders
from kit.parts import append, ask, broker, node

__all__ = ["append", "ask", "broker", "node", "orders"]
