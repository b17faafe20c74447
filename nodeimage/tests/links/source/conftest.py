"""Clusters of one node each, in the test's own loop."""

from kit.linked_nodes import north, schemas, south, start_cluster

__all__ = ["north", "schemas", "south", "start_cluster"]
