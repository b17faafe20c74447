"""A node's status as Prometheus's text format (version 0.0.4). Pure."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_GAUGES: Final = (
    ("streams", ("streams",), "Streams in the catalog"),
    ("topics", ("topics",), "Topics in the catalog"),
    ("partitions", ("partitions",), "Partitions in the catalog"),
    ("topics_in_memory", ("topics_in_memory",), "Topics that this node holds in memory"),
    ("connections", ("clients", "connected"), "Connections of clients"),
    ("resident_bytes", ("memory", "resident_bytes"), "Resident memory of the process"),
    ("disk_free_bytes", ("disk", "free_bytes"), "Room on the disk"),
    ("disk_total_bytes", ("disk", "total_bytes"), "Size of the disk"),
    ("stored_bytes", ("disk", "stored_bytes"), "Bytes on disk of all replicas of this node"),
    ("waiting_bytes", ("disk", "waiting_bytes"), "Bytes that wait for the disk"),
)
_COUNTERS: Final = (
    ("connections_total", ("clients", "connections_since_start"), "Connections of clients since the start"),
    ("requests_total", ("clients", "requests_since_start"), "Requests since the start"),
    ("produce_requests_total", ("clients", "produce_requests_since_start"), "Produce requests since the start"),
    ("fetch_requests_total", ("clients", "fetch_requests_since_start"), "Fetch requests since the start"),
    ("in_bytes_total", ("clients", "in_since_start_bytes"), "Bytes of records produced here since the start"),
    ("out_bytes_total", ("clients", "out_since_start_bytes"), "Bytes of records fetched here since the start"),
    ("given_back_bytes_total", ("maintenance", "given_back_since_start_bytes"), "Disk given back since the start"),
    ("chunks_regrouped_total", ("maintenance", "chunks_regrouped_since_start"), "Chunks regrouped since the start"),
)
_OF_CONTAINERS: Final = (
    ("container_epoch", "epoch", "Epoch of a container, as last seen"),
    ("container_end_position", "end", "Where a replica's log ends"),
    ("container_committed_position", "committed", "Up to where a replica knows its log to be committed"),
    ("container_stored_bytes", "on_disk_bytes", "Bytes on disk of a replica"),
)


def exposition(status: Mapping[str, Any]) -> str:
    """What `/metrics` answers, of a `node_status`."""
    return "\n".join(_lines(status)) + "\n"


def _lines(status: Mapping[str, Any]) -> Iterator[str]:
    for kind, metrics in (("gauge", _GAUGES), ("counter", _COUNTERS)):
        for name, path, what in metrics:
            yield from _metric(name, kind, what, [("", _at(status, path))])
    containers = status["containers"]
    for name, field, what in _OF_CONTAINERS:
        values = [(_labels(each), each[field]) for each in containers if each[field] is not None]
        yield from _metric(name, "gauge", what, values)
    leads = [(_labels(each), int(each["role"] == "primary")) for each in containers]
    yield from _metric("container_leads", "gauge", "Whether this node leads a container", leads)


def _metric(name: str, kind: str, what: str, values: Iterable[tuple[str, object]]) -> Iterator[str]:
    yield f"# HELP headrace_{name} {what}."
    yield f"# TYPE headrace_{name} {kind}"
    for labels, value in values:
        yield f"headrace_{name}{labels} {value}"


def _labels(container: Mapping[str, Any]) -> str:
    return f'{{container="{container["id"]}",kind="{container["kind"]}"}}'


def _at(status: Mapping[str, Any], path: Iterable[str]) -> object:
    found: Any = status
    for name in path:
        found = found[name]
    return found
