"""kill -9 of one node, of two in a moment, and of all: nothing is lost, and writes go on (invariants 1 to 8)."""

import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from cluster_clients import Load
from cluster_nodes import Cluster
from cluster_targets import TARGETS, Target, busiest_primary

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize("target", TARGETS, ids=lambda each: each.__name__)
def test_a_node_that_is_killed_takes_nothing_with_it(three: Cluster, target: Target) -> None:
    load = Load(three)
    victim = target(three, load)
    killed = time.monotonic()
    three.kill(victim)
    load.await_writes(time.monotonic())
    load.await_topics(killed)
    three.start(victim)
    three.await_ready(victim)
    three.await_whole()
    load.await_writes(time.monotonic())
    load.finish()


def test_all_nodes_killed_at_once_come_back_with_everything(three: Cluster) -> None:
    load = Load(three)
    three.kill(1, 2, 3)
    three.start()
    three.await_ready()
    load.await_writes(time.monotonic(), within_s=30.0)
    three.await_whole()
    load.finish()


def test_two_nodes_killed_within_a_round_trip_lose_nothing_that_was_acknowledged(three: Cluster) -> None:
    """With two of three gone nothing is acknowledged; what was before is there when one of them is back."""
    load = Load(three)
    first = busiest_primary(three, load)
    second = next(number for number in three.nodes if number != first)
    three.kill(first, second)
    three.start(second)
    three.await_ready(second)
    load.await_writes(time.monotonic())
    three.start(first)
    three.await_ready(first)
    three.await_whole()
    load.finish()


def test_the_same_node_killed_again_as_soon_as_it_serves_loses_nothing(three: Cluster) -> None:
    load = Load(three)
    for _ in range(4):
        victim = busiest_primary(three, load)
        three.kill(victim)
        three.start(victim)
        three.await_ready(victim)
    load.await_writes(time.monotonic())
    three.await_whole()
    load.finish()
