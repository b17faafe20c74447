"""A home continues with fewer records than it had acknowledged, and its copies have the others."""

import pytest
from confluent_kafka import Producer

from kit.cluster_clients import at
from kit.cluster_nodes import Cluster, until
from kit.last_disk import go_on_from, left_behind, lose_others
from kit.linked_clusters import Linked, await_same, ends, link, make, records, shown
from kit.moving_clients import quarantined

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TOPIC = "t"
PARTITIONS = 2
LEFT = 3


def test_what_a_home_has_lost_is_set_aside_where_it_was_copied(linked: Linked) -> None:
    """No offset means one record in one cluster and another in the other."""
    (north,) = linked.start("north", count=3)
    (south,) = linked.start("south")
    make(north, TOPIC, partitions=PARTITIONS)
    link(south, north)
    _send(north, "early")
    await_same(south, north, TOPIC)
    north.await_whole()
    with left_behind(north, LEFT):
        _send(north, "lost", "lost, too")
        until("all of it is in the south", lambda: ends(south, TOPIC) == [3] * PARTITIONS)
        lose_others(north, LEFT)
    go_on_from(north, LEFT)
    _send(north, "late", "late, too", "last")
    await_same(south, north, TOPIC)
    for partition in range(PARTITIONS):
        values = [each.value for each in records(south, TOPIC, partition)]
        assert values == [b"early", b"late", b"late, too", b"last"]
    assert sorted(quarantined(south, TOPIC).values()) == sorted([b"lost", b"lost, too"] * PARTITIONS)
    assert [each["records"] for each in shown(south)["diverged"]] == [2] * PARTITIONS


def _send(cluster: Cluster, *values: str) -> None:
    """Send each value to each partition, in separate batches; fails if one is refused."""
    failed: list[object] = []
    producer = Producer({**at(cluster.bootstrap), "enable.idempotence": True, "linger.ms": 0})
    for value in values:
        for partition in range(PARTITIONS):
            producer.produce(
                TOPIC, value, partition=partition, on_delivery=lambda error, _: failed.append(error) if error else None
            )
        assert producer.flush(60) == 0
    assert not failed
