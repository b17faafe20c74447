"""Compares what every consumer has with the producer's own record: line by line, exactly, without sampling.

The comparisons are pure functions over what outcome.py reads. A check describes what it compared in a sentence that a
person can follow, and if it fails, the first differences.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from headrace_spark.demo.failover import Failover, summary
from headrace_spark.demo.ledger import Aggregates, Expected, SensorKey, WindowKey
from headrace_spark.demo.reports import FeedReport, LiveReport, PressReport, SparkReport

DIFFERENCES: Final = 3
"""The maximum number of differences that a failed check shows."""
PRESS: Final = ("demo-press", "cpu_percent")
"""The device and sensor in which the load spike must show."""


class Check(NamedTuple):
    """The result of one check."""

    ok: bool
    what: str
    found: str


class StateRow(NamedTuple):
    """A sensor's row in the database."""

    readings: int
    sequence: int
    time: int
    value: float
    lowest: float
    highest: float
    total: float


@dataclass(frozen=True, slots=True)
class FlaggedWindow:
    """A window as written by Spark."""

    aggregates: Aggregates
    mean: float
    baseline: float
    """The usual mean, from earlier windows."""
    anomaly: bool


def check_feed(feed: FeedReport, expected: Expected) -> Check:
    """Check that everything sent was acknowledged, once."""
    ok = feed.failed == 0 and feed.sent == feed.acknowledged == expected.readings > 0
    return Check(
        ok,
        "Producer",
        f"{feed.sent:,} readings of {feed.sensors} sensors sent, {feed.acknowledged:,} acknowledged, "
        f"{feed.failed:,} failed",
    )


def check_topics(expected: Expected, ends: Mapping[str, int]) -> Check:
    """Check that each offset was acknowledged once, and the topics hold nothing else."""
    wrong = [
        f"{device}: {len(offsets):,} acknowledged, end {ends.get(device, 0):,}"
        for device, offsets in sorted(expected.offsets.items())
        if sorted(offsets) != list(range(len(offsets))) or ends.get(device) != len(offsets)
    ]
    wrong += [f"{device}: never acknowledged, end {end:,}" for device, end in sorted(ends.items())
              if end and device not in expected.offsets]  # fmt: skip
    return _verdict(
        wrong, "Topics", f"{len(expected.offsets)} topics hold each acknowledged reading at its offset, and no other"
    )


def check_live(live: LiveReport, expected: Expected, *, steady: LiveReport) -> Check:
    """Check that the live consumer saw every sequence number. `steady` is its report from before the kill."""
    ok = live.readings == expected.readings and live.missing == 0
    return Check(
        ok,
        "Live",
        f"{live.readings:,} readings seen, {live.missing:,} missing; sensor to screen {steady.all_p50_ms:.0f} ms "
        f"(p50), {steady.all_p99_ms:.0f} ms (p99) before the kill, its longest pause {live.longest_gap_s:.1f} s",
    )


def check_state(rows: Mapping[SensorKey, StateRow], expected: Expected) -> Check:
    """Check that each sensor's count, sum, lowest, highest and newest value are those of the ledger."""
    wrong = [f"{device}/{sensor}: not in the producer's record" for device, sensor in rows.keys() - expected.sensors]
    for (device, sensor), history in expected.sensors.items():
        last, aggregates = history.last, history.aggregates
        assert last is not None
        due = StateRow(
            aggregates.count,
            last.sequence,
            last.time,
            last.value,
            aggregates.lowest,
            aggregates.highest,
            aggregates.total,
        )
        row = rows.get((device, sensor))
        if row != due or row.readings != row.sequence:
            wrong.append(f"{device}/{sensor}: {row} instead of {due}")
    return _verdict(
        wrong,
        "SQLite",
        f"{sum(row.readings for row in rows.values()):,} readings in {len(rows)} rows: each sensor's count, sum, "
        "lowest, highest and newest value agree",
    )


def check_spark_input(spark: SparkReport, expected: Expected) -> Check:
    """Check that Spark read each record once, by the number and the sum of checksums."""
    ok = (spark.readings, spark.checksum) == (expected.readings, expected.checksum)
    found = f"{spark.readings:,} readings read, " + (
        "the sum of their checksums agrees"
        if spark.checksum == expected.checksum
        else f"checksums {spark.checksum} instead of {expected.checksum}"
    )
    return Check(ok, "Spark in", found)


def check_windows(
    found: Mapping[WindowKey, FlaggedWindow], due: Mapping[WindowKey, Aggregates], *, repeated: int
) -> Check:
    """Check that each window that had to close was emitted once, with the ledger's count, mean, lowest and highest."""
    wrong = [f"{repeated} windows are there more than once"] if repeated else []
    wrong += [f"{key}: not due" for key in found.keys() - due.keys()]
    for key, aggregates in due.items():
        window = found.get(key)
        if window is None:
            wrong.append(f"{key}: missing")
            continue
        has, want = window.aggregates, aggregates
        if (has.count, has.lowest, has.highest, window.mean) != (want.count, want.lowest, want.highest, want.mean):
            wrong.append(f"{key}: {has} mean {window.mean} instead of {want} mean {want.mean}")
    readings = sum(aggregates.count for aggregates in due.values())
    return _verdict(
        wrong,
        "Parquet",
        f"{len(found):,} closed windows over {readings:,} readings: each there once, count, mean, min and max agree",
    )


def check_window_topic(topic: Sequence[WindowKey], parquet: Iterable[WindowKey]) -> Check:
    """Check that the topic holds each window of the Parquet files once."""
    ok = len(topic) == len(set(topic)) and set(topic) == set(parquet)
    return Check(ok, "Topic out", f"{len(topic):,} windows in the topic, {len(set(topic)):,} different, as in Parquet")


def check_cursors(lags: Mapping[str, int]) -> Check:
    """Check that every group has committed up to the end."""
    ok = bool(lags) and not any(lags.values())
    return Check(ok, "Cursors", ", ".join(f"{group} {lag:,} behind" for group, lag in sorted(lags.items())))


def check_spike(found: Mapping[WindowKey, FlaggedWindow], press: PressReport, *, window_ms: int) -> Check:
    """Check that Spark flagged the load spike in the press's own CPU while it lasted."""
    flagged = {start: window for (*key, start), window in found.items() if tuple(key) == PRESS and window.anomaly}
    during = [window for start, window in flagged.items() if press.began - window_ms < start < press.ended]
    if not during:
        return Check(False, "Anomaly", f"the load spike was not flagged ({len(flagged)} other windows were)")
    top = max(during, key=lambda window: window.mean)
    return Check(
        True,
        "Anomaly",
        f"the load spike of {(press.ended - press.began) / 1000:.0f} s was flagged in {len(during)} windows: "
        f"{top.mean:.0f} % CPU where {top.baseline:.1f} % is usual",
    )


def check_failover(failover: Failover, feed: FeedReport) -> Check:
    """Check that other nodes lead everything that the dead node led, and that redundancy was restored."""
    if not failover.taken_over:
        return Check(
            False,
            "Failover",
            f"only some of node {failover.node}'s containers were taken over: {_new_leaders(failover)}",
        )
    took = f"{_new_leaders(failover)}, {failover.took_over_s:.1f} s after the kill of node {failover.node}; "
    took += f"the slowest acknowledgement took {feed.slowest_s:.1f} s"
    if failover.whole_s is None:
        return Check(False, "Failover", f"{took}; redundancy was not restored")
    whole = f"all {failover.containers} containers had full redundancy {failover.whole_s:.1f} s after its start"
    return Check(True, "Failover", f"{took}; {whole}")


def _new_leaders(failover: Failover) -> str:
    return summary(failover.new_leaders.values()) or "nothing"


def check_gone(left: Sequence[int]) -> Check:
    """Check that no process is left."""
    return Check(not left, "Stopped", f"processes {left} are left" if left else "every process has ended")


def _verdict(wrong: Sequence[str], what: str, good: str) -> Check:
    if not wrong:
        return Check(True, what, good)
    more = f" and {len(wrong) - DIFFERENCES} more" if len(wrong) > DIFFERENCES else ""
    return Check(False, what, "; ".join(wrong[:DIFFERENCES]) + more)
