"""Clusters of one node each, in the test's own loop."""

from kit.linked_nodes import north, schemas, south, start_cluster
from kit.two_clusters import north_cluster

__all__ = ["north", "north_cluster", "schemas", "south", "start_cluster"]
