"""Turns a node's status, and what its parts count, into readings of its metrics. Pure functions."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from headrace.base.errors import Code
from headrace.base.ids import ContainerId
from headrace.base.loop_lag import LoopLag
from headrace.container.leader import Leader
from headrace.control.observations import Life
from headrace.metrics import declarations as declared
from headrace.metrics.histogram import Histogram
from headrace.metrics.log_times import LogTimes
from headrace.metrics.metric import Metric
from headrace.metrics.readings import Reading
from headrace.metrics.requests import ApiTimes, errors_of
from headrace.metrics.traffic import Flow, Traffic
from headrace.store.records import ContainerRecord

_OF_STATUS: Final = (
    (declared.READY, ("ready",)),
    (declared.CONTROLLER, ("controller",)),
    (declared.START_TIME, ("started_s",)),
    (declared.CPU_SECONDS, ("cpu_s",)),
    (declared.STORE_SILENT, ("store_silent_s",)),
    (declared.CATALOG_DAMAGED, ("catalog", "damaged")),
    (declared.STREAMS, ("streams",)),
    (declared.TOPICS, ("topics",)),
    (declared.PARTITIONS, ("partitions",)),
    (declared.TOPICS_IN_MEMORY, ("topics_in_memory",)),
    (declared.CONNECTIONS, ("clients", "connected")),
    (declared.CONNECTIONS_LIMIT, ("clients", "most_connections")),
    (declared.OPEN_DESCRIPTORS, ("descriptors", "open")),
    (declared.DESCRIPTORS_LIMIT, ("descriptors", "limit")),
    (declared.RESIDENT_BYTES, ("memory", "resident_bytes")),
    (declared.DISK_FREE, ("disk", "free_bytes")),
    (declared.DISK_TOTAL, ("disk", "total_bytes")),
    (declared.STORED, ("disk", "stored_bytes")),
    (declared.WAITING, ("disk", "waiting_bytes")),
    (declared.CONNECTIONS_TOTAL, ("clients", "connections_since_start")),
    (declared.CONNECTIONS_REFUSED, ("clients", "refused_since_start")),
    (declared.CONNECTIONS_MADE_WAY, ("clients", "made_way_since_start")),
    (declared.CONNECTIONS_SILENT, ("clients", "silent_since_start")),
    (declared.REQUESTS, ("clients", "requests_since_start")),
    (declared.PRODUCE_REQUESTS, ("clients", "produce_requests_since_start")),
    (declared.FETCH_REQUESTS, ("clients", "fetch_requests_since_start")),
    (declared.IN_BYTES, ("clients", "in_since_start_bytes")),
    (declared.OUT_BYTES, ("clients", "out_since_start_bytes")),
    (declared.GIVEN_BACK, ("maintenance", "given_back_since_start_bytes")),
    (declared.CHUNKS_REGROUPED, ("maintenance", "chunks_regrouped_since_start")),
    (declared.SCRUB_RUNNING, ("scrub", "running")),
)
_OF_CONTAINERS: Final = (
    (declared.CONTAINER_EPOCH, "epoch"),
    (declared.CONTAINER_END, "end"),
    (declared.CONTAINER_COMMITTED, "committed"),
    (declared.CONTAINER_STORED, "on_disk_bytes"),
)
_LIVES: Final = tuple(life.value for life in Life)
_BY_STREAM: Final = (
    *(declared.STREAM_IN_BYTES, declared.STREAM_IN_RECORDS),
    *(declared.STREAM_OUT_BYTES, declared.STREAM_OUT_RECORDS),
)
_BY_TOPIC: Final = (
    *(declared.TOPIC_IN_BYTES, declared.TOPIC_IN_RECORDS),
    *(declared.TOPIC_OUT_BYTES, declared.TOPIC_OUT_RECORDS),
)
"""Metrics of streams and of topics, in the order of a flow's counts."""


def of_status(status: Mapping[str, Any]) -> Iterator[Reading]:
    """The readings of a `node_status`, with `ready`, `controller`, `store_silent_s`, `started_s`, `cpu_s` and
    `now_s`."""
    for metric, path in _OF_STATUS:
        yield Reading(metric, float(_at(status, path)))
    yield Reading(declared.NODE_INFO, 1.0, (str(status["version"]), str(status["cluster"])))
    for container in status["containers"]:
        labels = (str(container["id"]), str(container["kind"]))
        for metric, field in _OF_CONTAINERS:
            if container[field] is not None:
                yield Reading(metric, float(container[field]), labels)
        yield Reading(declared.CONTAINER_LEADS, float(container["role"] == "primary"), labels)
    yield from _of_listeners(status["listeners"], now_s=status["now_s"])


def of_requests(times: Mapping[str, ApiTimes]) -> Iterator[Reading]:
    """The latencies and errors of requests, by API, for APIs that have been called."""
    for api, each in times.items():
        if not each.total.count:
            continue
        yield Reading(declared.REQUEST_SECONDS, each.total, (api,))
        for phase, histogram in each.phases():
            if histogram.count:
                yield Reading(declared.REQUEST_PHASE_SECONDS, histogram, (api, phase))
    for api, code, count in errors_of(times):
        yield Reading(declared.REQUEST_ERRORS, float(count), (api, _named(code)))


def of_log(times: LogTimes) -> Iterator[Reading]:
    """How long syncs to disk and commits took."""
    yield Reading(declared.LOG_SYNC_SECONDS, times.sync)
    yield Reading(declared.COMMIT_SECONDS, times.commit)


def of_loop(lag: LoopLag) -> Iterator[Reading]:
    """How late the event loop runs its callbacks."""
    histogram = Histogram(lag.bounds_s)
    histogram.counts, histogram.sum = list(lag.counts), lag.sum_s
    yield Reading(declared.LOOP_LAG, histogram)


def of_peers(times: Mapping[str, Histogram]) -> Iterator[Reading]:
    """How long calls to other nodes took, by call."""
    for call, histogram in list(times.items()):
        yield Reading(declared.PEER_CALL_SECONDS, histogram, (call,))


def of_containers(
    led: Mapping[ContainerId, Leader], records: Mapping[ContainerId, ContainerRecord], *, waiting: int
) -> Iterable[Reading]:
    """The containers that this node leads, by their state. `waiting`: containers without a possible leader; 0 unless
    this node is the controller."""
    found = dict.fromkeys(("in_sync", "behind", "stalled"), 0)
    for container, leader in led.items():
        record = records.get(container)
        if leader.stalled:
            found["stalled"] += 1
        elif record is not None and len(record.in_sync) < record.wanted:
            found["behind"] += 1
        else:
            found["in_sync"] += 1
    return counts(declared.CONTAINERS, {**found, "waiting": waiting})


def of_nodes(lives: Iterable[str]) -> Iterable[Reading]:
    """The number of registered nodes by their state, as the controller sees them (control.observations.Life)."""
    found = dict.fromkeys(_LIVES, 0)
    for life in lives:
        found[life] += 1
    return counts(declared.NODES, {life.replace(" ", "_"): count for life, count in found.items()})


def of_traffic(traffic: Traffic) -> Iterator[Reading | None]:
    """What clients wrote and read, by stream and by topic."""
    for told in traffic.flow_reports():
        if told is None:
            yield None
        elif told.topic is None:
            yield from _of_flow(told.flow, _BY_STREAM, (told.stream,))
        else:
            yield from _of_flow(told.flow, _BY_TOPIC, (told.stream, told.topic))
    yield from counts(declared.SERIES_DROPPED, traffic.dropped)


def _of_flow(flow: Flow, metrics: Sequence[Metric], labels: tuple[str, ...]) -> Iterator[Reading]:
    for metric, value in zip(metrics, flow.counts, strict=True):
        yield Reading(metric, float(value), labels)


def counts(metric: Metric, found: Mapping[str, float]) -> Iterable[Reading]:
    """The readings of a metric with one label, from its values by that label."""
    return [Reading(metric, float(value), (label,)) for label, value in found.items()]


def _of_listeners(listeners: Iterable[Mapping[str, Any]], *, now_s: float) -> Iterator[Reading]:
    for each in listeners:
        name = (str(each["name"]),)
        if each["certificate_expires_ms"] is not None:
            yield Reading(declared.CERTIFICATE_EXPIRY, round(each["certificate_expires_ms"] / 1000 - now_s), name)
        yield Reading(declared.TLS_FAILED, float(each["failed_handshakes_since_start"]), name)


def _named(code: int) -> str:
    try:
        return Code(code).name
    except ValueError:
        return str(code)


def _at(status: Mapping[str, Any], path: Iterable[str]) -> Any:
    found: Any = status
    for name in path:
        found = found[name]
    return found
