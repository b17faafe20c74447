"""The output of Kafka's performance programs is parsed, or an error is raised."""

import pytest
from bench.java_tools import ToolFailed, read_consumer_line, read_producer_summary

PRODUCED = """\
Warmup first 500000 records. Steady state results will print after the complete test summary.
85013 records sent, 16999.2 records/sec (1.62 MB/sec), 1550.4 ms avg latency, 1952.0 ms max latency.
1500000 records sent, 100060.036022 records/sec (9.54 MB/sec), 1998.04 ms avg latency, 2847.00 ms max latency, \
1934 ms 50th, 2688 ms 95th, 2807 ms 99th, 2842 ms 99.9th.
"""
STEADY = """\
1000000 steady state records sent, 112981.584002 records/sec (10.77 MB/sec), 1933.20 ms avg latency, 2666.00 ms max \
latency, 1881 ms 50th, 2515 ms 95th, 2636 ms 99th, 2663 ms 99.9th.
"""
CONSUMED = """\
start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, fetch.time.ms, \
fetch.MB.sec, fetch.nMsg.sec
2026-11-21 08:07:29:881, 2026-11-21 08:07:32:263, 143.0511, 60.0551, 1500000, 629722.9219, 891, 1491, 95.9431, \
1006036.2173
"""


def test_the_steady_state_counts_where_there_was_a_warm_up() -> None:
    assert read_producer_summary(PRODUCED)["per_s"] == 100060.036022
    steady = read_producer_summary(PRODUCED + STEADY)
    assert (steady["records"], steady["per_s"], steady["p99_ms"]) == (1_000_000, 112981.584002, 2636)
    assert steady["mb_per_s"] == pytest.approx(11.29, abs=0.01)


def test_consumption_is_told_with_and_without_joining_the_group() -> None:
    found = read_consumer_line(CONSUMED)
    assert (found["records"], found["per_s"], found["per_s_with_join"]) == (1_500_000, 1006036.2173, 629722.9219)
    assert (found["seconds"], found["join_s"]) == (1.491, 0.891)


@pytest.mark.parametrize("read", [read_producer_summary, read_consumer_line])
def test_text_without_figures_is_an_error(read: object) -> None:
    with pytest.raises(ToolFailed):
        read("Exception in thread main\n1, 2, 3\n")  # type: ignore[operator]
