"""Nodes in the test's own loop."""

from kit.storage import new_node

__all__ = ["new_node"]
