"""SIGSTOP: a node that stands still is silent but closes nothing, and believes itself in its role when it goes on."""

import threading
import time

import pytest

from kit.cluster_clients import GO_ON_S, Load, leaders
from kit.cluster_nodes import Cluster, until
from kit.cluster_targets import TARGETS, Target, busiest_leader

SHORT_S = 0.6
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize("target", TARGETS, ids=lambda each: each.__name__)
def test_a_node_that_stands_still_is_replaced_and_does_no_harm_when_it_goes_on(three: Cluster, target: Target) -> None:
    load = Load(three)
    victim = target(three, load)
    stands_still = three.nodes[victim].node_id
    with three.paused(victim):
        until(
            "others lead everything",
            lambda: (
                all(each.leader != stands_still for each in three.containers())
                and stands_still not in leaders(three, load.topics)  # a client told so would wait there for 10 s
            ),
            timeout_s=GO_ON_S,
        )
        load.fresh_writes_go_on()
    load.await_writes(time.monotonic())
    three.await_whole()
    load.finish()


def test_a_pause_shorter_than_a_failover_costs_nobody_a_role(three: Cluster) -> None:
    load = Load(three)
    leads = {each.container_id: (each.leader, each.epoch) for each in three.containers()}
    victim = busiest_leader(three, load)
    with three.paused(victim):
        threading.Event().wait(SHORT_S)
    load.await_writes(time.monotonic())
    three.await_whole()
    load.finish()
    assert {each.container_id: (each.leader, each.epoch) for each in three.containers()} == leads
