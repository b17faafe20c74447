"""Traces of a cluster of processes: a failover as the controller saw it, and a node that goes in good order."""

from collections.abc import Iterator

import pytest

from kit.cluster_nodes import MakeCluster, until
from kit.collector import Collector, Received

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as made:
        yield made


def changes(collector: Collector, cause: str, number: int) -> list[Received]:
    """Changes of leaders that came to an end, for a cause, from a node."""
    return [
        each
        for each in collector.named("headrace.failover")
        if each.attributes["headrace.cause"] == cause
        and each.attributes["headrace.from_node"] == number
        and not each.is_error
    ]


def test_a_failover_and_a_hand_over_are_traced(make_cluster: MakeCluster, collector: Collector) -> None:
    cluster = make_cluster(f"--tracing-endpoint={collector.endpoint}")
    lease = cluster.lease()
    assert lease is not None
    killed, stopped = (node for node in cluster.nodes.values() if node.node_id != lease.node)
    led = {each.container_id for each in cluster.containers() if each.leader == killed.node_id}
    cluster.kill(killed.number)
    until("a failover is told", lambda: changes(collector, "failure", killed.node_id))
    others = {node.node_id for node in cluster.nodes.values()} - {killed.node_id}
    for each in changes(collector, "failure", killed.node_id):
        told = each.attributes
        steps = [told[f"headrace.{step}_seconds"] for step in ("notice", "appoint", "lead")]
        assert all(took_s >= 0 for took_s in steps)
        assert abs(sum(steps) - each.took_s) < 0.001
        assert told["headrace.container"] in led
        assert told["headrace.to_node"] in others
        assert told["headrace.epoch"] > 1
        assert each.is_root
        assert each.resource["headrace.node"] in set(map(str, others))
    cluster.start(killed.number)
    cluster.await_ready(killed.number)
    cluster.await_whole()
    cluster.terminate(stopped.number)
    until("a hand-over is told", lambda: changes(collector, "hand_over", stopped.node_id))
