"""Nodes for storage tests: `new_node` starts them in the test's own loop, `connect` opens clients."""

from kit.filled_nodes import early
from kit.pair import start
from kit.parts import append, ask, broker, node
from kit.storage import connect, new_node

__all__ = ["append", "ask", "broker", "connect", "early", "new_node", "node", "start"]
