"""Measurements of a link between two clusters, beside MirrorMaker 2: lag, throughput, catching up, idle cost."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from bench import admin_calls, pairs, wire
from bench.clients.fill import make_topics
from bench.pairs import HeadracePair, Pair
from bench.scenarios import Figures, Row, Scenario, Sizes, client
from bench.servers import cpu_seconds

PARTITIONS = 6
SIZE = 1024
FULL, HALF, EVEN, SLOW = "link-full", "link-half", "link-even", "link-slow"
EVEN_RATE = 20_000.0
"""Records a second that either pair sustains, so that both do the same work."""
SLOW_RATE = 100.0
SHARES = ("p50", "p99", "after_p50", "after_p99")
POLL_S = 0.05
IDLE_TURNS = 2
PAUSED_REST_S = 10.0
"""Seconds after links were paused until their running work is done."""


def _lag(pair: Pair, sizes: Sizes) -> Figures:
    """Measure one topic at full speed, one at half that rate, and two at fixed rates that are the same for all."""
    topics = (FULL, HALF, EVEN, SLOW)
    with wire.Client(pair.source.bootstrap) as admin:
        admin.create_topics(topics, partitions=PARTITIONS)
    for topic in topics:
        wire.wait_for_ack(pair.source.bootstrap, topic=topic, timeout_s=60.0)
    pair.begin()
    records = sizes.link_bytes // SIZE
    full = _measured(pair, FULL, sizes, records=records, warm_up=records // 5)
    rate = full["per_s"] / 2
    half = _measured(pair, HALF, sizes, records=int(rate * sizes.lag_s), rate=rate)
    even = _measured(pair, EVEN, sizes, records=int(EVEN_RATE * sizes.lag_s), rate=EVEN_RATE)
    slow = _measured(pair, SLOW, sizes, records=int(SLOW_RATE * sizes.lag_s), rate=SLOW_RATE)
    half["rate"] = rate
    rows = {"full": full}
    rows |= {f"half_{share}": half for share in ("p50", "p99")}
    rows |= {f"{name}_{share}": each for name, each in (("even", even), ("slow", slow)) for share in SHARES}
    return rows


def _measured(pair: Pair, topic: str, sizes: Sizes, **options: Any) -> dict[str, Any]:
    return client(
        "link_lag",
        source=pair.source.bootstrap,
        target=pair.target.bootstrap,
        topic=topic,
        copy=pair.copy_of(topic),
        partitions=PARTITIONS,
        size=SIZE,
        limit_s=sizes.limit_s,
        **options,
    )


def _catch_up(pair: Pair, sizes: Sizes) -> Figures:
    """Copy a topic that exists already; measured from the start of the copying process, and from the first copied
    record.
    """
    records = sizes.backlog_bytes // SIZE
    client(
        "librdkafka_produce",
        bootstrap=pair.source.bootstrap,
        topic=FULL,
        partitions=PARTITIONS,
        records=records,
        size=SIZE,
        limit_s=sizes.limit_s,
    )
    began = time.monotonic()
    pair.begin()
    deadline = began + sizes.limit_s * 2
    first: float | None = None
    while (held := _held(pair.target.bootstrap, pair.copy_of(FULL))) < records:
        if first is None and held:
            first = time.monotonic()
        if time.monotonic() > deadline:
            raise TimeoutError(f"the copy had {held} of {records} records after {sizes.limit_s * 2:.0f} s")
        time.sleep(POLL_S)
    ended = time.monotonic()
    whole = ended - began
    copying = ended - (began if first is None else first)
    figures = {"seconds": copying, "from_start_s": whole, "records": records, "bytes": records * SIZE}
    return {"copying": figures, "whole": figures}


def _held(bootstrap: str, topic: str) -> int:
    """Return the records of a topic, which may not exist yet."""
    try:
        return wire.count_records(bootstrap, [topic])
    except (OSError, wire.Refused):
        return 0


# --- idle


def _shares(pair: Pair, seconds: float) -> tuple[float, float]:
    """Return the percentage of a core that the source's and the target's nodes use, over `seconds`."""
    before = [cpu_seconds(server.pids) for server in (pair.source, pair.target)]
    began = time.monotonic()
    time.sleep(seconds)
    passed = time.monotonic() - began
    after = [cpu_seconds(server.pids) for server in (pair.source, pair.target)]
    source, target = ((late - early) / passed * 100 for early, late in zip(before, after, strict=True))
    return source, target


def _idle(pair: HeadracePair, sizes: Sizes, links: Sequence[str]) -> Figures:
    """Measure the clusters with these links caught up, and with them paused; in turns, as a machine's speed varies."""
    linked: list[tuple[float, float]] = []
    alone: list[tuple[float, float]] = []
    for turn in range(IDLE_TURNS):
        if turn:
            for name in links:
                pair.target_admin("link.resume", name=name)
        time.sleep(sizes.link_rest_s * (1 + turn))  # a resumed link first checks all topics
        linked.append(_shares(pair, sizes.link_idle_s / IDLE_TURNS))
        for name in links:
            pair.target_admin("link.pause", name=name)
        time.sleep(min(PAUSED_REST_S, sizes.link_rest_s))
        alone.append(_shares(pair, sizes.link_idle_s / IDLE_TURNS))
    figures: dict[str, float] = {"links": len(links)}
    for side, name in enumerate(("source", "target")):
        for turn, (with_links, without) in enumerate(zip(linked, alone, strict=True), 1):
            figures |= {f"{name}_{turn}_percent": with_links[side], f"{name}_{turn}_alone_percent": without[side]}
        share, rest = (sum(each[side] for each in found) / IDLE_TURNS for found in (linked, alone))
        figures |= {f"{name}_percent": share, f"{name}_alone_percent": rest, f"{name}_more_percent": share - rest}
    return {"source": figures, "target": figures}


def _await_caught_up(pair: HeadracePair, topics: Callable[[], int], wanted: int, *, limit_s: float) -> float:
    """Wait until all links have caught up and `wanted` topics exist; return the seconds. Raises TimeoutError."""
    began = time.monotonic()
    while True:
        shown = pair.target_admin("link.list")
        states = {each["state"] for each in shown}
        lag = sum(each["lag_records"] or 0 for each in shown)
        if states == {"CaughtUp"} and not lag and topics() >= wanted:
            return time.monotonic() - began
        if time.monotonic() - began > limit_s:
            raise TimeoutError(f"after {limit_s:.0f} s {states}, {lag} records behind, {topics()} of {wanted} topics")
        time.sleep(1.0)


def _idle_topics(pair: HeadracePair, sizes: Sizes) -> Figures:
    filled = client("fill", bootstrap=pair.source.bootstrap, topics=sizes.many_topics, limit_s=sizes.fill_limit_s)
    if filled["ended"] is not None:
        raise RuntimeError(f"the source took {filled['topics']} topics: {filled['ended']}")
    pair.link(["filled-*"])

    def copied() -> int:
        return int(pair.target_admin("link.show", name="bench")["partitions"])

    copying = _await_caught_up(pair, copied, sizes.many_topics, limit_s=sizes.fill_limit_s)
    found = _idle(pair, sizes, ["bench"])
    return {row: figures | {"topics": sizes.many_topics, "copied_s": copying} for row, figures in found.items()}


def _idle_links(pair: HeadracePair, sizes: Sizes) -> Figures:
    streams = [f"/many-{index:04d}" for index in range(sizes.links)]
    for stream in streams:
        admin_calls.admin(pair.source.addresses[0], "stream.create", path=stream)
    deadline = time.monotonic() + sizes.fill_limit_s
    with wire.ToLeaders(pair.source.bootstrap, timeout_s=sizes.limit_s) as admin:
        for at in range(0, len(streams), 500):
            names = [f"{stream}:t" for stream in streams[at : at + 500]]
            make_topics(admin, names=names, value=b"x" * 100, deadline=deadline)
    names = [stream[1:] for stream in streams]
    began = time.monotonic()
    for name, stream in zip(names, streams, strict=True):
        pair.link(["*"], name=name, stream=stream)
        if time.monotonic() - began > sizes.fill_limit_s:
            raise TimeoutError(
                f"{name} of {sizes.links} links was the last that was created within {sizes.fill_limit_s:.0f} s"
            )
    made = time.monotonic() - began

    def copied() -> int:
        return sum(each["partitions"] for each in pair.target_admin("link.list"))

    _await_caught_up(pair, copied, sizes.links, limit_s=sizes.fill_limit_s)
    return {row: figures | {"made_s": made} for row, figures in _idle(pair, sizes, names).items()}


def _lag_rows(name: str, rate: str) -> Iterator[Row]:
    """Yield the rows for a rate that both sides share: the whole lag and its part after the acknowledgement."""
    for share in ("p50", "p99"):
        yield Row(f"{name}_{share}", f"lag at {rate}, {share}", f"{share}_ms", "ms", more_is_better=False, reach=2.0)
    for share in ("p50", "p99"):
        label = f"the same from the acknowledgement on, {share}"
        yield Row(f"{name}_after_{share}", label, f"after_ack_{share}_ms", "ms", more_is_better=False, reach=2.0)


_LAG_ROWS: Final = (
    Row("full", "copied while produced flat out, 6 partitions, 1 KiB", "per_s", "records/s", reach=1.0),
    Row("half_p50", "lag at half of that rate, p50", "p50_ms", "ms", more_is_better=False, reach=2.0),
    Row("half_p99", "lag at half of that rate, p99", "p99_ms", "ms", more_is_better=False, below=1_000.0),
    *_lag_rows("even", "20,000 records/s"),
    *_lag_rows("slow", "100 records/s"),
)
_REPLICATED: Final = "three brokers on each side: "

LINK_SCENARIOS: tuple[Scenario, ...] = (
    Scenario(
        "link-lag",
        _LAG_ROWS,
        _lag,
        nodes=pairs.NODES,
        paired=True,
    ),
    Scenario(
        "link-lag-replicated",
        tuple(replace(row, title=_REPLICATED + row.title) for row in _LAG_ROWS),
        _lag,
        nodes=pairs.NODES,
        paired=True,
        brokers=pairs.NODES,
    ),
    Scenario(
        "link-catch-up",
        (
            Row(
                "copying",
                "catching up with 1 GB, from the first copied record on",
                "seconds",
                "s",
                more_is_better=False,
                reach=2.0,
            ),
            Row("whole", "the same, from the start of the link on", "from_start_s", "s", more_is_better=False),
        ),
        _catch_up,
        nodes=pairs.NODES,
        paired=True,
    ),
    Scenario(
        "link-idle-100000",
        (
            Row(
                "source",
                "an idle link over 100,000 topics: share of a core at the source",
                "source_more_percent",
                "%",
                more_is_better=False,
                below=1.0,
            ),
            Row(
                "target",
                "the same at the target",
                "target_more_percent",
                "%",
                more_is_better=False,
                below=1.0,
            ),
        ),
        _idle_topics,
        runs_at_most=1,
        nodes=pairs.NODES,
        paired=True,
        only=("headrace",),
    ),
    Scenario(
        "link-idle-1000-links",
        (
            Row(
                "source",
                "1,000 idle links: share of a core at the source",
                "source_more_percent",
                "%",
                more_is_better=False,
            ),
            Row("target", "the same at the target", "target_more_percent", "%", more_is_better=False),
        ),
        _idle_links,
        runs_at_most=1,
        nodes=pairs.NODES,
        paired=True,
        only=("headrace",),
    ),
)
