"""A whole node in the test's own event loop."""

from kit.pair import start
from kit.parts import append, ask, broker, node
from kit.storage import connect, new_node
from kit.three_nodes import brokers, nodes, topic, unmoved

__all__ = ["append", "ask", "broker", "brokers", "connect", "new_node", "node", "nodes", "start", "topic", "unmoved"]
