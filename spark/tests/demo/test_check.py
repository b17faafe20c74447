from dataclasses import replace

from headrace_spark.demo import check
from headrace_spark.demo.check import FlaggedWindow, StateRow
from headrace_spark.demo.failover import ClusterState, ContainerState, Failover
from headrace_spark.demo.ledger import Aggregates, Entry, Expected, expect
from headrace_spark.demo.reports import FeedReport, PressReport, SparkReport

ENTRIES = [Entry("core-0", offset, "busy", offset + 1, offset * 500, offset + 0.5, offset + 7) for offset in range(20)]


def expected() -> Expected:
    return expect(ENTRIES, window_ms=2_000)


def flagged(aggregates: Aggregates, *, anomaly: bool = False) -> FlaggedWindow:
    return FlaggedWindow(aggregates, aggregates.mean, 0.0, anomaly)


def test_the_producer_is_held_to_its_own_record() -> None:
    fed = FeedReport(20, 20, 0, 1, 1, 0.0, 0, 0)
    assert check.check_feed(fed, expected()).ok
    assert not check.check_feed(FeedReport(21, 20, 1, 1, 1, 0.0, 0, 0), expected()).ok
    assert not check.check_feed(FeedReport(21, 21, 0, 1, 1, 0.0, 0, 0), expected()).ok


def test_a_topic_must_hold_each_offset_once_and_no_more() -> None:
    assert check.check_topics(expected(), {"core-0": 20}).ok
    assert not check.check_topics(expected(), {"core-0": 21}).ok
    assert not check.check_topics(expected(), {}).ok
    assert not check.check_topics(expected(), {"core-0": 20, "core-1": 1}).ok
    assert not check.check_topics(expect([*ENTRIES, ENTRIES[3]], window_ms=2_000), {"core-0": 20}).ok


def test_a_lost_or_doubled_reading_shows_in_the_state() -> None:
    good = StateRow(20, 20, 9_500, 19.5, 0.5, 19.5, 200.0)
    assert check.check_state({("core-0", "busy"): good}, expected()).ok
    assert not check.check_state({}, expected()).ok
    assert not check.check_state({("core-0", "busy"): good._replace(readings=21)}, expected()).ok
    assert not check.check_state({("core-0", "busy"): good._replace(total=200.5)}, expected()).ok
    assert not check.check_state({("core-0", "busy"): good, ("core-9", "busy"): good}, expected()).ok


def test_spark_must_have_read_the_very_same_records() -> None:
    read = SparkReport("running", readings=20, checksum=sum(entry.crc for entry in ENTRIES))
    assert check.check_spark_input(read, expected()).ok
    assert not check.check_spark_input(SparkReport("running", readings=20, checksum=read.checksum + 1), expected()).ok
    assert not check.check_spark_input(SparkReport("running", readings=19, checksum=read.checksum), expected()).ok


def test_each_closed_window_must_be_there_once_with_its_figures() -> None:
    due = expected().closed_windows(window_ms=2_000, watermark_ms=1_000)
    assert len(due) == 4
    found = {key: flagged(aggregates) for key, aggregates in due.items()}
    assert check.check_windows(found, due, repeated=0).ok
    assert not check.check_windows(found, due, repeated=1).ok
    key = next(iter(found))
    assert not check.check_windows({other: found[other] for other in found if other != key}, due, repeated=0).ok
    one = found[key]
    assert not check.check_windows({**found, key: replace(one, mean=one.mean + 2**-20)}, due, repeated=0).ok
    more = Aggregates(one.aggregates.count + 1, one.aggregates.total, one.aggregates.lowest, one.aggregates.highest)
    assert not check.check_windows({**found, key: replace(one, aggregates=more)}, due, repeated=0).ok
    open_window = {("core-0", "busy", 8_000): flagged(Aggregates(1, 1.0, 1.0, 1.0))}
    assert not check.check_windows(found | open_window, due, repeated=0).ok


def test_the_topic_of_windows_must_hold_what_parquet_holds_once() -> None:
    keys = [("core-0", "busy", start) for start in (0, 2_000)]
    assert check.check_window_topic(keys, keys).ok
    assert not check.check_window_topic([*keys, keys[0]], keys).ok
    assert not check.check_window_topic(keys[:1], keys).ok


def test_the_load_spike_must_be_flagged_while_it_lasts() -> None:
    press = PressReport(began=4_100, ended=9_000)
    aggregates = Aggregates(1, 1.0, 1.0, 1.0)

    def verdict(*starts: int) -> bool:
        found = {
            (*check.PRESS, start): flagged(aggregates, anomaly=start in starts) for start in range(0, 20_000, 2_000)
        }
        return check.check_spike(found, press, window_ms=2_000).ok

    assert verdict(6_000, 8_000)
    assert not verdict()
    assert not verdict(0, 2_000)
    assert not verdict(14_000)


def test_all_that_a_dead_node_led_must_be_led_by_others_and_be_whole_again() -> None:
    def look(at: float, leader: int, *, whole: bool) -> ClusterState:
        return ClusterState(
            at, (ContainerState(1, "catalog", leader, 1, 3, 3), ContainerState(2, "data", 3, 1, 3, 3)), whole
        )

    fed = FeedReport(20, 20, 0, 1, 1, 0.0, 0, 0, 1.5)
    failover = Failover(2, look(99.0, 2, whole=True), killed_at=100.0)
    assert not check.check_failover(failover, fed).ok
    failover.see(look(101.0, 1, whole=False))
    assert not check.check_failover(failover, fed).ok
    failover.starts_again(110.0)
    failover.see(look(112.0, 1, whole=True))
    assert check.check_failover(failover, fed) == check.Check(
        True,
        "Failover",
        "node 1 leads the catalog, 1.0 s after the kill of node 2; the slowest acknowledgement took 1.5 s; "
        "all 2 containers had full redundancy 2.0 s after its start",
    )


def test_every_cursor_must_stand_at_the_end() -> None:
    assert check.check_cursors({"demo-state": 0, "demo-spark": 0}).ok
    assert not check.check_cursors({"demo-state": 0, "demo-spark": 1}).ok
    assert not check.check_cursors({}).ok


def test_only_the_first_differences_are_told() -> None:
    wrong = check.check_topics(expected(), {f"core-{number}": 5 for number in range(10)})
    assert wrong.found.endswith("and 7 more")
