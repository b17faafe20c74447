"""Derives what `headrace top` shows from two or more samples of a cluster: rates are differences of counters. Pure.

A node counts from its start, by its own clock; a node that was restarted has no rates for one sample. Data that a
cluster does not provide (a node is silent, or an older version) is None. Names end in their unit.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from headrace.cli.cluster_status import controller_in_words, newest_events, redundancy_in_words

COUNTED: Final = {
    "requests_per_second": ("clients", "requests_since_start"),
    "in_per_second_bytes": ("clients", "in_since_start_bytes"),
    "out_per_second_bytes": ("clients", "out_since_start_bytes"),
}
"""Rates of a node, and the paths of their counters in its status."""
SUMMED: Final = (*COUNTED, "connections", "resident_bytes")
FLOWS: Final = {
    "in_per_second_bytes": "in_since_start_bytes",
    "out_per_second_bytes": "out_since_start_bytes",
    "in_per_second_records": "in_since_start_records",
    "out_per_second_records": "out_since_start_records",
}
"""Rates of a stream, and their counters in each node's status."""
EVENTS: Final = 50


@dataclass(frozen=True, slots=True)
class StreamContent:
    """The number of records and bytes in a stream."""

    records: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The state of a cluster at one time."""

    at_s: float
    """Seconds of a monotonic clock."""
    cluster: Mapping[str, Any]
    """The answer of `cluster.status`."""
    nodes: Mapping[int, Mapping[str, Any]]
    """The answer of `status`, of each node that answers."""
    groups: Sequence[Mapping[str, Any]] | None
    """The answer of `groups.list`; None: no node coordinates groups at present."""
    streams: Mapping[str, StreamContent]
    """Streams whose content is known, by path."""
    events: Iterable[Sequence[dict[str, Any]]]
    """The answers of `cluster.events`, of each node that answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The data to show, by panel. Rows are mappings by column."""

    cluster: str
    controller: str
    redundancy: str
    totals: dict[str, Any]
    nodes: list[dict[str, Any]]
    containers: list[dict[str, Any]]
    streams: list[dict[str, Any]]
    groups: list[dict[str, Any]]
    events: list[dict[str, Any]]

    def as_json(self) -> dict[str, Any]:
        """All panels as a JSON object."""
        return asdict(self)


class Rates:
    """Remembers the last sample, for the rates of the next one."""

    def __init__(self) -> None:
        self._last: Sample | None = None

    def take(self, sample: Sample) -> Shown:
        """The data to show for a new sample."""
        nodes = [self._node(each, sample) for each in sample.cluster["nodes"]]
        shown = Shown(
            cluster=str(sample.cluster["cluster"]),
            controller=controller_in_words(sample.cluster["controller"], sample.cluster["nodes"]),
            redundancy=redundancy_in_words(sample.cluster["redundancy"]),
            totals={name: _sum(each[name] for each in nodes) for name in SUMMED},
            nodes=nodes,
            containers=containers(sample),
            streams=self._streams(sample),
            groups=self._groups(sample),
            events=list(reversed(newest_events(sample.events, EVENTS))),
        )
        self._last = sample
        return shown

    def _node(self, node: Mapping[str, Any], sample: Sample) -> dict[str, Any]:
        number = node["node"]
        now = sample.nodes.get(number)
        before = self._last.nodes.get(number) if self._last is not None else None
        status = now or {}
        lag_ms = status.get("loop_lag_ms") or {}
        cpu = rate(before, now, ("process", "cpu_since_start_ms"))
        return {
            "node": number,
            "state": node["state"],
            "roles": ", ".join(node["roles"]),
            "cpu_percent": None if cpu is None else round(cpu / 10, 1),  # in ms per second
            "resident_bytes": (status.get("memory") or {}).get("resident_bytes"),
            **{name: _whole(rate(before, now, path)) for name, path in COUNTED.items()},
            "connections": (status.get("clients") or {}).get("connected"),
            "loop_lag_p99_ms": lag_ms.get("p99"),
            "leads": node["leads"],
            "in_sync": node["in_sync"],
            "replicas": node["replicas"],
            "disk_used_bytes": node["disk_used_bytes"],
        }

    def _groups(self, sample: Sample) -> list[dict[str, Any]]:
        last = self._last
        before = {each["group"]: each["lag"] for each in (last.groups or ())} if last is not None else {}
        passed = sample.at_s - last.at_s if last is not None else 0.0
        rows = []
        for each in sample.groups or ():
            was = before.get(each["group"])
            grown = None if was is None or passed <= 0 else _whole((each["lag"] - was) / passed)
            rows.append(
                {
                    "group": each["group"],
                    "state": each["state"],
                    "partitions": each["partitions"],
                    "lag": each["lag"],
                    "lag_per_second": grown,
                }
            )
        return rows

    def _streams(self, sample: Sample) -> list[dict[str, Any]]:
        """Rows of streams whose content is known, and of others with traffic."""
        rates = stream_rates(self._last.nodes if self._last is not None else {}, sample.nodes)
        moving = sorted(path for path, each in (rates or {}).items() if any(each.values()))
        rows = []
        for path in dict.fromkeys((*sample.streams, *moving)):
            content = sample.streams.get(path)
            rows.append(
                {
                    "stream": path,
                    **{name: None if rates is None else round(rates.get(path, {}).get(name, 0.0)) for name in FLOWS},
                    "records": content and content.records,
                    "bytes": content and content.bytes,
                }
            )
        return rows


def rate(before: Mapping[str, Any] | None, now: Mapping[str, Any] | None, path: Sequence[str]) -> float | None:
    """The growth per second of a counter in a node's status, by the node's clock; None: unknown."""
    if before is None or now is None:
        return None
    was, count = _at(before, path), _at(now, path)
    passed_ms: int = now["uptime_ms"] - before["uptime_ms"]
    if was is None or count is None or passed_ms <= 0 or count < was:  # the node was restarted
        return None
    grown: int = count - was
    return grown * 1000 / passed_ms


def stream_rates(
    before: Mapping[int, Mapping[str, Any]], now: Mapping[int, Mapping[str, Any]]
) -> dict[str, dict[str, float]] | None:
    """Rates into and out of each stream, by name: the sum over the nodes that report them.

    Each node's clock is used. None: no node has reported in two samples without a restart in between.
    """
    found: dict[str, dict[str, float]] = {}
    is_known = False
    for node, status in now.items():
        flows, former = _flows(status), _flows(before.get(node))
        if flows is None or former is None:
            continue
        passed_ms = status["uptime_ms"] - before[node]["uptime_ms"]
        grown = {path: _grown(former.get(path, {}), counters) for path, counters in flows.items()}
        if passed_ms <= 0 or any(each < 0 for counters in grown.values() for each in counters.values()):
            continue  # the node was restarted
        is_known = True
        for path, counters in grown.items():
            sums = found.setdefault(path, dict.fromkeys(FLOWS, 0.0))
            for name, count in counters.items():
                sums[name] += count * 1000 / passed_ms
    return found if is_known else None


def containers(sample: Sample) -> list[dict[str, Any]]:
    """Rows of containers, those without full redundancy first."""
    lacking = {each["container"]: each for each in sample.cluster["lacking"]}
    leaders: dict[int, Mapping[str, Any]] = {}
    known: dict[int, Mapping[str, Any]] = {}
    for status in sample.nodes.values():
        for each in status["containers"]:
            known.setdefault(each["id"], each)
            if each["role"] == "primary":
                leaders[each["id"]] = each
    rows = []
    for number in sorted({*known, *lacking}, key=lambda number: (number not in lacking, number)):
        replica = leaders.get(number) or known.get(number) or {}
        lack = lacking.get(number)
        in_sync = str(replica.get("in_sync") or "")
        rows.append(
            {
                "container": number,
                "kind": lack["kind"] if lack else replica.get("kind"),
                "state": "in sync" if lack is None else "stalled" if lack.get("stalled") else "behind",
                "primary": lack["primary"] if lack else replica.get("primary"),
                "in_sync": lack["in_sync"] if lack else len(in_sync.split(",")) if in_sync else 0,
                "wanted": lack["wanted"] if lack else len(in_sync.split(",")) if in_sync else 0,
                "behind_bytes": lack["behind_bytes"] if lack else 0,
                "on_disk_bytes": replica.get("on_disk_bytes"),
                "reason": lack["reason"] if lack else None,
            }
        )
    return rows


def ordered(rows: Sequence[dict[str, Any]], column: str, *, reverse: bool) -> list[dict[str, Any]]:
    """Rows sorted by a column: numbers from the largest down, texts from A on, unknown values last. `reverse`: from the
    smallest, from Z."""
    known = [each for each in rows if each[column] is not None]
    falls = any(isinstance(each[column], (int, float)) for each in known) and column not in ("node", "container")
    known.sort(key=lambda each: each[column], reverse=falls != reverse)
    return known + [each for each in rows if each[column] is None]


def _flows(status: Mapping[str, Any] | None) -> dict[str, Mapping[str, int]] | None:
    """Counters by stream in a node's status; None: it has none, as with older nodes."""
    flows = None if status is None else _at(status, ("traffic", "streams"))
    return None if flows is None else {each["stream"]: each for each in flows}


def _grown(before: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    """The growth of a stream's counters; a counter that the node had not reported before started at 0."""
    return {name: now[counter] - before.get(counter, 0) for name, counter in FLOWS.items()}


def _at(status: Mapping[str, Any], path: Sequence[str]) -> Any:
    found: Any = status
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _sum(values: Iterable[float | None]) -> float | None:
    known = [each for each in values if each is not None]
    return sum(known) if known else None


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
