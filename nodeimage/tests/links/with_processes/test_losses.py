"""Nodes that are killed while a link copies, full disks, and records that the source no longer has."""

import random
import time

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from kit.cluster_clients import at
from kit.cluster_nodes import Cluster, until
from kit.linked_clusters import (
    STREAM,
    Linked,
    await_caught_up,
    await_same,
    call,
    ends,
    fill,
    link,
    make,
    records,
    shown,
)
from kit.moving_clients import PARTITIONS, Clients

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TOPIC = "t"


def test_nodes_of_source_and_target_are_killed_in_mid_copy(linked: Linked) -> None:
    north, south = linked.start("north", "south", count=3)
    make(north, TOPIC, partitions=PARTITIONS)
    clients = Clients(TOPIC)
    writers = clients.write_at(north)
    link(south, north)
    for cluster, number in ((south, 1), (north, 2), (south, 3), (north, 1)):
        cluster.kill(number)
        clients.await_writes(writers, time.monotonic())
        _goes_on(south)
        cluster.start(number)
        cluster.await_ready(number)
        cluster.await_whole()
    await_caught_up(south)
    clients.stop(writers)
    await_same(south, north, TOPIC)
    clients.check(south)
    assert not shown(south)["diverged"]


def test_a_target_whose_disk_is_full_goes_on_when_there_is_room(linked: Linked) -> None:
    (north,) = linked.start("north")
    (south,) = linked.start("south", options=("--chunk-bytes=262144",))
    make(north, TOPIC)
    fill(north, TOPIC)
    link(south, north)
    await_same(south, north, TOPIC)
    node = south.nodes[1]
    with node.fault("full"):
        _fill_randomly(north, 8_000_000)
        until("the copy stands still", lambda: south.is_full(1) and "disk full" in node.log())
        assert ends(south, TOPIC) != ends(north, TOPIC)
        fill(north, TOPIC)  # the source gets more records
        until("the link tells of it", lambda: shown(south)["lag_records"])
    await_same(south, north, TOPIC)
    await_caught_up(south)


def test_each_side_keeps_records_as_long_as_it_says(linked: Linked) -> None:
    north, south = linked.start("north", "south")
    make(north, TOPIC)
    fill(north, TOPIC)
    link(south, north)
    await_same(south, north, TOPIC)
    before = [records(south, TOPIC, index) for index in range(3)]
    _set(north, "retention.ms", "86400000")
    _set(north, "max.message.bytes", "400000")
    until("a config follows", lambda: _configs(south).get("max.message.bytes") == "400000")
    assert "retention.ms" not in _configs(south)
    _expire(north)
    assert [records(south, TOPIC, index)[: len(part)] for index, part in enumerate(before)] == before
    fill(north, TOPIC)
    until("what comes later is here too", lambda: ends(south, TOPIC) == ends(north, TOPIC))
    assert [_first(south, index) for index in range(3)] == [0, 0, 0]


def test_a_copy_that_is_behind_what_the_source_has_left_says_so_and_goes_on(linked: Linked) -> None:
    north, south = linked.start("north", "south")
    make(north, TOPIC)
    fill(north, TOPIC)
    link(south, north)
    await_same(south, north, TOPIC)
    call(south, "link.pause", name="l")
    fill(north, TOPIC)
    _expire(north)
    make(north, "other")
    fill(north, "other")
    _expire(north, "other")
    starts = [_first(north, index) for index in range(3)]
    assert min(starts) >= 100
    call(south, "link.resume", name="l")
    fill(north, TOPIC, 25)
    until("the copy goes on", lambda: ends(south, TOPIC) == ends(north, TOPIC))
    await_caught_up(south)
    for index, start in enumerate(starts):
        here = [each for each in records(south, TOPIC, index) if each.offset >= start]
        assert here == [each for each in records(north, TOPIC, index) if each.offset >= start]
        assert _first(south, index) == 0, "what the copy has it keeps"
    assert "a copy continues after records" in south.nodes[1].log()
    # A copy without records begins where the source does.
    until("the other one is here", lambda: ends(south, "other") == ends(north, "other"))
    assert [_first(south, index, "other") for index in range(3)] == [50] * 3


def _goes_on(south: Cluster) -> None:
    """Wait until each partition of the copy gets more records."""
    since = ends(south, TOPIC) or [0] * PARTITIONS
    until("the link goes on", lambda: all(now > then for now, then in zip(_ends(south), since, strict=True)))


def _ends(cluster: Cluster) -> list[int]:
    return ends(cluster, TOPIC) or [0] * PARTITIONS


def _fill_randomly(cluster: Cluster, size: int) -> None:
    producer = Producer({**at(cluster.bootstrap), "linger.ms": 20, "batch.size": 100_000})
    chance = random.Random(1)
    for number in range(size // 20_000):
        producer.produce(TOPIC, chance.randbytes(20_000), partition=number % 3)
        producer.poll(0)
    assert producer.flush(60) == 0


def _expire(cluster: Cluster, topic: str = TOPIC) -> None:
    """Delete all existing records, so that the log starts after them."""
    wanted = ends(cluster, topic)
    admin = AdminClient(at(cluster.bootstrap))
    places = [TopicPartition(topic, index, end) for index, end in enumerate(wanted)]
    for future in admin.delete_records(places).values():
        future.result(30)
    assert [_first(cluster, index, topic) for index in range(3)] == wanted


def _first(cluster: Cluster, partition: int, topic: str = TOPIC) -> int:
    told = call(cluster, "topic.show", topic=f"{STREAM}:{topic}")["partitions"]
    return int(told[partition]["first"])


def _configs(cluster: Cluster) -> dict[str, str]:
    found: dict[str, str] = call(cluster, "topic.show", topic=f"{STREAM}:{TOPIC}")["configs"]
    return found


def _set(cluster: Cluster, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=[entry])
    admin = AdminClient(at(cluster.bootstrap))
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)
