"""Gaps of partitions, and the gap that each kill causes."""

import pytest
from bench import wire
from bench.clients.mock_broker import mock_broker
from bench.clients.steady_writer import Gaps
from bench.cluster_scenarios import in_sync, longest


class Report:
    def __init__(self, partition: int) -> None:
        self._partition = partition

    def partition(self) -> int:
        return self._partition


def test_a_silence_is_counted_by_partition() -> None:
    clock = iter([0.0, 0.1, 0.15, 2.0, 2.1, 2.1])
    gaps = Gaps(2, 0.2, clock=lambda: next(clock))
    gaps.delivered(None, Report(0))
    gaps.delivered(None, Report(1))
    gaps.delivered(None, Report(0))
    gaps.delivered("refused", Report(0))
    assert gaps.found == [(0, 0.1, 2.0)]
    gaps.end()
    assert gaps.found == [(0, 0.1, 2.0), (1, 0.15, 2.1)]
    assert (gaps.acknowledged, gaps.refused) == (3, 1)


def test_a_kill_is_charged_with_the_longest_silence_after_it() -> None:
    gaps = [(0, 9.9, 11.0), (1, 9.95, 12.5), (0, 3.0, 4.0), (2, 30.0, 39.0)]
    assert longest(gaps, [10.0, 20.0], within_s=5.0) == [pytest.approx(2.55), 0.0]


def test_partitions_without_all_their_replicas_are_not_whole() -> None:
    with mock_broker(None) as bootstrap:
        wire.wait_for_ack(bootstrap, topic="t", timeout_s=20.0)
        assert in_sync(bootstrap, "t") == 1
    assert in_sync(bootstrap, "t") == 0
