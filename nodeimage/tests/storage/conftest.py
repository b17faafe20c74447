"""Nodes for storage tests: `new_node` starts them in the test's own loop, `connect` opens clients."""

from kit.filled_nodes import early
from kit.log_writes import log_writes
from kit.pair import start
from kit.parts import append, ask, broker, node
from kit.storage import connect, new_node

__all__ = ["append", "ask", "broker", "connect", "early", "log_writes", "new_node", "node", "start"]
