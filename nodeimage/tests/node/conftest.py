"""Nodes that run in the test's own event loop."""

from kit.storage import new_node

__all__ = ["new_node"]
