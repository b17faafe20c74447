"""How long nothing is acknowledged when a leader fails: the median and the worst of HEADRACE_GAPS times (5)."""

import os
import statistics
import time
from collections.abc import Callable

import pytest

from kit.cluster_clients import Load
from kit.cluster_nodes import Cluster
from kit.cluster_targets import busiest_leader

TIMES = int(os.environ.get("HEADRACE_GAPS", "5"))
MEDIAN_S = 2.5
WORST_S = 5.0
RECONNECT = {"reconnect.backoff.max.ms": 1000}
SETTLED_S = 2.0
"""Between two failures, so that the next one meets a writer that is connected to every node: one that found a node down
waits before it tries that node again, whoever leads (up to 10 s by librdkafka's default, `RECONNECT` here)."""

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(100 + 20 * TIMES)]


def gaps(cluster: Cluster, fail: Callable[[int], None], mend: Callable[[int], None]) -> list[float]:
    """For each failure, the longest time without an acknowledgement of a partition that the node led."""
    load = Load(cluster, topics=1, partitions=12, writer_settings=RECONNECT)
    found = []
    for _ in range(TIMES):
        victim = busiest_leader(cluster, load)
        since = time.monotonic()
        fail(victim)
        took = load.await_writes(since, within_s=30.0)
        found.append(took)
        mend(victim)
        cluster.await_whole()
        load.await_writes(time.monotonic(), within_s=30.0)
        time.sleep(SETTLED_S)
    load.finish()
    print(f"median {statistics.median(found):.2f} s, worst {max(found):.2f} s of {sorted(round(x, 2) for x in found)}")
    return found


def test_a_killed_leader_costs_its_partitions_a_few_seconds(three: Cluster) -> None:
    """Measures how long partitions are without an acknowledgement when their leader is killed."""

    def mend(victim: int) -> None:
        three.start(victim)
        three.await_ready(victim)

    found = gaps(three, lambda victim: three.kill(victim), mend)
    assert statistics.median(found) < MEDIAN_S
    assert max(found) < WORST_S


def test_an_isolated_leader_costs_its_partitions_a_few_seconds(three: Cluster) -> None:
    """Measures how long partitions are without an acknowledgement when nobody hears their leader."""
    found = gaps(three, three.ways.isolate, lambda _: three.ways.heal())
    assert statistics.median(found) < 2 * MEDIAN_S
    assert max(found) < 2 * WORST_S
