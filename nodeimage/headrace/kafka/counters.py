"""Counts of one node's Kafka port."""

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Counts since the start of the node, for `status`."""

    connections: int = 0
    requests: int = 0
    produce_requests: int = 0
    fetch_requests: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
