"""Nodes that join a cluster whose catalog has trimmed its log: each gets a snapshot, as a process that may die, from
one that may, of this version or of the first one."""

from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.store.records import CATALOG_ID
from kit.cluster_nodes import Cluster, MakeCluster, until
from kit.old_versions import LEVEL_0, needs_level_0, old_version

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PARTITIONS = 200
OFTEN = ("--chunk-bytes=65536",)
"""The log of the catalog goes in small steps."""


def run_by(cluster: Cluster, code: Path | None) -> None:
    """The first three nodes run another version from now on, or are started again."""
    for number in (1, 2, 3):
        cluster.terminate(number)
        cluster.nodes[number].code = code
        cluster.start(number)
        cluster.await_ready(number)
        cluster.await_whole()


def snapshots_often(cluster: Cluster) -> None:
    """Nodes that are started from now on write a snapshot for each 64 KiB of the catalog's log; see faulty_node.py."""
    for node in cluster.nodes.values():
        (node.faults / "snapshot-bytes").write_text("65536")


def commit_until_trimmed(cluster: Cluster) -> None:
    """The catalog's log begins behind what a new node lacks, on every node."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for made in admin.create_topics([NewTopic("t", PARTITIONS)]).values():
        made.result(60)
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "g", "enable.auto.commit": False})
    running = list(cluster.nodes)
    try:
        for offset in range(1, 100):
            places = [TopicPartition("t", each, offset, "m" * 3000) for each in range(PARTITIONS)]
            consumer.commit(offsets=places, asynchronous=False)
            if all(first_chunk(cluster, number) > 0 for number in running):
                return
    finally:
        consumer.close()
    pytest.fail("the log is not trimmed")


def first_chunk(cluster: Cluster, number: int) -> int:
    """Where the catalog's log begins on a node; `.begin`: it is empty."""
    files = (cluster.nodes[number].data / "containers" / str(CATALOG_ID)).iterdir()
    return min((int(each.stem) for each in files if each.suffix in (".chunk", ".begin")), default=0)


def offsets(cluster: Cluster, number: int) -> list[int]:
    """What one node says that the group has committed; each node's tables have it, wherever it is coordinated."""
    consumer = Consumer({"bootstrap.servers": f"127.0.0.1:{cluster.nodes[number].port}", "group.id": "g"})
    try:
        found = consumer.committed([TopicPartition("t", each) for each in range(PARTITIONS)], timeout=30)
        return [each.offset for each in found]
    finally:
        consumer.close()


def received(cluster: Cluster, number: int) -> int:
    """Bytes of a snapshot that have come to a node, and are not in its tables yet."""
    return sum(each.stat().st_size for each in (cluster.nodes[number].data / "catalog").glob("received-*"))


def begins_behind(cluster: Cluster, number: int) -> bool:
    """A node has what only a snapshot gives, and nothing on its way any more."""
    return first_chunk(cluster, number) > 0 and not received(cluster, number)


def test_nodes_that_die_while_they_get_a_snapshot_get_it_again_and_nobody_waits_for_them(
    make_cluster: MakeCluster,
) -> None:
    three = make_cluster(*OFTEN, "--snapshot-rate=300000")
    snapshots_often(three)
    run_by(three, None)
    commit_until_trimmed(three)
    joins = three.add()
    three.start(joins.number)
    until("some of it has come", lambda: received(three, joins.number) > 0)
    three.kill(joins.number)
    assert set(offsets(three, 1)) == set(offsets(three, 2))
    left = received(three, joins.number)
    three.start(joins.number)
    until("it is begun again", lambda: 0 < received(three, joins.number) != left)
    leads = three.number_of(three.catalog().leader)
    three.kill(leads)
    three.await_ready(joins.number)
    until("it has a snapshot, of the next primary", lambda: begins_behind(three, joins.number))
    three.start(leads)
    three.await_ready(leads)
    assert offsets(three, joins.number) == offsets(three, 1)
    assert not list((joins.data / "catalog").glob("*.tmp"))


@needs_level_0
def test_versions_that_hold_snapshots_in_memory_give_them_to_this_one_and_get_them(make_cluster: MakeCluster) -> None:
    old = old_version(LEVEL_0)
    three = make_cluster(*OFTEN, code=old)
    snapshots_often(three)
    run_by(three, None)
    commit_until_trimmed(three)
    late = three.add()
    late.code = old
    three.start(late.number)
    three.await_ready(late.number)
    until("it has a snapshot", lambda: begins_behind(three, late.number))
    assert offsets(three, late.number) == offsets(three, 1)
    run_by(three, old)
    new = three.add()
    three.start(new.number)
    three.await_ready(new.number)
    until("it has a snapshot", lambda: begins_behind(three, new.number))
    assert offsets(three, new.number) == offsets(three, 1)
