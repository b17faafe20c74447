"""Certificates for the tests of links."""

from kit.certificates import certificates
from kit.linked_nodes import schemas, south, start_cluster
from kit.two_clusters import north_cluster

__all__ = ["certificates", "north_cluster", "schemas", "south", "start_cluster"]
