"""A node's status as Prometheus's text format (version 0.0.4). Pure. Every sample says of which node it is."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_GAUGES: Final = (
    ("ready", ("ready",), "Whether the node has its containers and is not behind"),
    ("controller", ("controller",), "Whether the node is the cluster's controller"),
    ("store_silent_seconds", ("store_silent_s",), "How long the cluster store has not answered"),
    ("catalog_damaged", ("catalog", "damaged"), "Whether the catalog's tables of this node are damaged"),
    ("streams", ("streams",), "Streams in the catalog"),
    ("topics", ("topics",), "Topics in the catalog"),
    ("partitions", ("partitions",), "Partitions in the catalog"),
    ("topics_in_memory", ("topics_in_memory",), "Topics that this node holds in memory"),
    ("connections", ("clients", "connected"), "Connections of clients"),
    ("connections_limit", ("clients", "most_connections"), "Most connections of clients"),
    ("open_descriptors", ("descriptors", "open"), "File descriptors in use"),
    ("descriptors_limit", ("descriptors", "limit"), "Most file descriptors"),
    ("resident_bytes", ("memory", "resident_bytes"), "Resident memory of the process"),
    ("disk_free_bytes", ("disk", "free_bytes"), "Room on the disk"),
    ("disk_total_bytes", ("disk", "total_bytes"), "Size of the disk"),
    ("stored_bytes", ("disk", "stored_bytes"), "Bytes on disk of all replicas of this node"),
    ("waiting_bytes", ("disk", "waiting_bytes"), "Bytes that wait for the disk"),
)
_COUNTERS: Final = (
    ("connections_total", ("clients", "connections_since_start"), "Connections of clients since the start"),
    ("connections_refused_total", ("clients", "refused_since_start"), "Connections of clients closed at a limit"),
    ("connections_made_way_total", ("clients", "made_way_since_start"), "Silent or idle connections closed for others"),
    ("connections_silent_total", ("clients", "silent_since_start"), "Connections closed for want of a first request"),
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
    """What `/metrics` answers: of a `node_status`, with `ready`, `controller` and `store_silent_s`."""
    return "\n".join(_lines(status)) + "\n"


def merged(expositions: Sequence[str]) -> str:
    """Several nodes' as one: each metric's samples stand together."""
    metrics: dict[str, list[str]] = {}
    for each in expositions:
        for metric in each.split("# HELP ")[1:]:
            name, _, rest = metric.partition(" ")
            head = metrics.setdefault(name, [])
            lines = f"# HELP {name} {rest}".splitlines()
            head += lines if not head else [line for line in lines if not line.startswith("#")]
    return "".join(f"{line}\n" for lines in metrics.values() for line in lines)


def _lines(status: Mapping[str, Any]) -> Iterator[str]:
    node = {"node": str(status["node"])}
    for kind, metrics in (("gauge", _GAUGES), ("counter", _COUNTERS)):
        for name, path, what in metrics:
            yield from _metric(name, kind, what, [(node, _at(status, path))])
    containers = [(node | _labels_of(each), each) for each in status["containers"]]
    for name, field, what in _OF_CONTAINERS:
        values = [(labels, each[field]) for labels, each in containers if each[field] is not None]
        yield from _metric(name, "gauge", what, values)
    leads = [(labels, int(each["role"] == "primary")) for labels, each in containers]
    yield from _metric("container_leads", "gauge", "Whether this node leads a container", leads)


def _metric(name: str, kind: str, what: str, values: Iterable[tuple[Mapping[str, str], object]]) -> Iterator[str]:
    yield f"# HELP headrace_{name} {what}."
    yield f"# TYPE headrace_{name} {kind}"
    for labels, value in values:
        shown = ",".join(f'{label}="{text}"' for label, text in labels.items())
        yield f"headrace_{name}{{{shown}}} {value}"


def _labels_of(container: Mapping[str, Any]) -> dict[str, str]:
    return {"container": str(container["id"]), "kind": str(container["kind"])}


def _at(status: Mapping[str, Any], path: Iterable[str]) -> object:
    found: Any = status
    for name in path:
        found = found[name]
    return found
