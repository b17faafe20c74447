"""What `headrace top` shows, of what a cluster told at two or more times: rates are differences of counters. Pure.

A node counts since its start, by its own clock; one that was started again since has no rates for once. What a cluster
does not tell (a node that is silent, an older version) is None. Names end in their unit.
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
"""Rates of a node, by the counter in its status."""
SUMMED: Final = (*COUNTED, "connections", "resident_bytes")
EVENTS: Final = 50
QUIET_S: Final = 60.0
"""A stream whose content has not changed for so long is not written to."""


@dataclass(frozen=True, slots=True)
class StreamContent:
    """How much is in a stream."""

    records: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What a cluster told at one time."""

    at_s: float
    """By a monotonic clock."""
    cluster: Mapping[str, Any]
    """`cluster.status`."""
    nodes: Mapping[int, Mapping[str, Any]]
    """`status` of each node that answers."""
    groups: Sequence[Mapping[str, Any]] | None
    """`groups.list`; None: nobody coordinates them at present."""
    streams: Mapping[str, StreamContent]
    """Those whose content is known, by path."""
    events: Iterable[Sequence[dict[str, Any]]]
    """`cluster.events` of each node that answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What is shown, by panel. Rows are by column."""

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
        """All of it, by name."""
        return asdict(self)


@dataclass(slots=True)
class _Stream:
    """What is known of a stream since its content changed last."""

    content: StreamContent
    changed_at: float
    records_rate: float | None = None
    bytes_rate: float | None = None


class Rates:
    """Remembers the last sample, for the rates of the next one."""

    def __init__(self) -> None:
        self._last: Sample | None = None
        self._streams: dict[str, _Stream] = {}

    def take(self, sample: Sample) -> Shown:
        """What is shown from now on."""
        nodes = [self._node(each, sample) for each in sample.cluster["nodes"]]
        shown = Shown(
            cluster=str(sample.cluster["cluster"]),
            controller=controller_in_words(sample.cluster["controller"], sample.cluster["nodes"]),
            redundancy=redundancy_in_words(sample.cluster["redundancy"]),
            totals={name: _sum(each[name] for each in nodes) for name in SUMMED},
            nodes=nodes,
            containers=containers(sample),
            streams=self._streams_shown(sample),
            groups=self._groups(sample),
            events=list(reversed(newest_events(sample.events, EVENTS))),
        )
        self._last = sample
        return shown

    def _node(self, node: Mapping[str, Any], sample: Sample) -> dict[str, Any]:
        number = node["node"]
        now = sample.nodes.get(number)
        before = self._last.nodes.get(number) if self._last is not None else None
        told = now or {}
        lag_ms = told.get("loop_lag_ms") or {}
        cpu = rate(before, now, ("process", "cpu_since_start_ms"))
        return {
            "node": number,
            "state": node["state"],
            "roles": ", ".join(node["roles"]),
            "cpu_percent": None if cpu is None else round(cpu / 10, 1),  # ms a second
            "resident_bytes": (told.get("memory") or {}).get("resident_bytes"),
            **{name: _whole(rate(before, now, path)) for name, path in COUNTED.items()},
            "connections": (told.get("clients") or {}).get("connected"),
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

    def _streams_shown(self, sample: Sample) -> list[dict[str, Any]]:
        self._streams = {path: each for path, each in self._streams.items() if path in sample.streams}
        return [
            {
                "stream": path,
                "records": content.records,
                "bytes": content.bytes,
                "records_per_second": _whole(known.records_rate),
                "written_per_second_bytes": _whole(known.bytes_rate),
            }
            for path, content in sample.streams.items()
            for known in [self._stream(path, content, sample.at_s)]
        ]

    def _stream(self, path: str, content: StreamContent, now: float) -> _Stream:
        """Nodes count what is in a stream now and then: between two counts lies more than one sample."""
        known = self._streams.get(path)
        if known is None:
            known = self._streams[path] = _Stream(content, now)
        elif known.content != content:
            passed = max(now - known.changed_at, 0.001)
            known.records_rate = max(0.0, (content.records - known.content.records) / passed)
            known.bytes_rate = max(0.0, (content.bytes - known.content.bytes) / passed)
            known.content, known.changed_at = content, now
        elif now - known.changed_at >= QUIET_S:
            known.records_rate = known.bytes_rate = 0.0
        return known


def rate(before: Mapping[str, Any] | None, now: Mapping[str, Any] | None, path: Sequence[str]) -> float | None:
    """How much a counter in a node's status grew a second, by the node's clock; None: that is not known."""
    if before is None or now is None:
        return None
    was, count = _at(before, path), _at(now, path)
    passed_ms: int = now["uptime_ms"] - before["uptime_ms"]
    if was is None or count is None or passed_ms <= 0 or count < was:  # it was started again
        return None
    grown: int = count - was
    return grown * 1000 / passed_ms


def containers(sample: Sample) -> list[dict[str, Any]]:
    """Containers, those first whose redundancy lacks something."""
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
    """Rows by a column: numbers from the largest on, texts from A on, what is not known last. `reverse`: from the
    smallest, from Z."""
    known = [each for each in rows if each[column] is not None]
    falls = any(isinstance(each[column], (int, float)) for each in known) and column not in ("node", "container")
    known.sort(key=lambda each: each[column], reverse=falls != reverse)
    return known + [each for each in rows if each[column] is None]


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
