"""Ports of a pod of storage nodes: those of shard 0, on which the operator and the pod's own process agree."""

from typing import Final

CLIENT_PORT: Final = 9092
PEER_PORT: Final = 7092
EXTERNAL_PORT: Final = 19092
ADMIN_PORT: Final = 8080
"""One for the pod, whatever the number of its shards."""
