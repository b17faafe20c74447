"""One disk of three is left, and it was behind: after an unclean recovery of all containers clients go on."""

import time

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from headrace.store.records import ContainerRecord
from kit.cluster_clients import at, make_topics
from kit.cluster_nodes import Cluster, until
from kit.last_disk import go_on_from, left_behind, lose_others, recover

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PARTITIONS = 4
LEFT = 3


def test_clients_go_on_from_the_one_disk_that_is_left(three: Cluster) -> None:
    make_topics(three, ["kept"], PARTITIONS)
    producer = Producer({**at(three.bootstrap), "enable.idempotence": True, "linger.ms": 0, "socket.timeout.ms": 3000})
    _send(producer, "kept", "early")
    three.await_whole()
    with left_behind(three, LEFT):
        for _ in range(2):  # as long as it stands still, what it led goes on elsewhere
            _send(producer, "kept", "lost")
            for partition in range(PARTITIONS):
                _roll(three, partition)
        make_topics(three, ["lost"], 1)
        lose_others(three, LEFT)
    go_on_from(three, LEFT)
    try:
        _send(producer, "kept", "late")
    except AssertionError:
        pytest.fail(three.events())
    make_topics(three, ["lost"], 1)
    _send(producer, "lost", "anew", partitions=1)
    assert _read(three, "lost", 0, b"anew") == [b"anew"]
    for partition in range(PARTITIONS):
        found = _read(three, "kept", partition, b"late")
        assert [each for each in found if each != b"lost"] == [b"early", b"late"]


def test_what_a_removed_node_alone_had_can_be_given_up(three: Cluster) -> None:
    """Of a volume without redundancy. It waited for that node for ever."""
    three.admin("volume.create", {"name": "plain", "replicas": 1})
    three.admin("stream.create", {"path": "/plain", "policy": {"volume": "plain"}})
    until("each node leads a container of it", lambda: len(_of_plain(three)) == len(three.nodes))
    topic = "/plain:kept"
    make_topics(three, [topic], PARTITIONS)
    producer = Producer({**at(three.bootstrap), "enable.idempotence": True, "linger.ms": 0, "socket.timeout.ms": 3000})
    _send(producer, topic, "early")
    gone = three.nodes[1].node_id
    lost = next(each for each in _of_plain(three) if each.leader == gone)
    three.kill(1)
    three.admin("node.remove", {"node": gone, "force": True}, node=LEFT)
    del three.nodes[1]
    recover(three, lost.container_id, by=LEFT)
    _send(producer, topic, "late")
    found = [_read(three, topic, partition, b"late") for partition in range(PARTITIONS)]
    assert sorted(map(len, found)) != [2] * PARTITIONS, "what it had is gone"
    assert all(each in ([b"early", b"late"], [b"late"]) for each in found)
    assert not three.admin("cluster.status", node=LEFT)["redundancy"]["below_minimum"]


def _of_plain(cluster: Cluster) -> list[ContainerRecord]:
    return [each for each in cluster.containers() if each.volume == "plain"]


def _send(producer: Producer, topic: str, value: str, *, partitions: int = PARTITIONS) -> None:
    failed: list[object] = []
    for partition in range(partitions):
        producer.produce(
            topic, value, partition=partition, on_delivery=lambda error, _: failed.append(error) if error else None
        )
    assert producer.flush(60) == 0
    assert not failed


def _roll(cluster: Cluster, partition: int) -> None:
    """Asks each node, since only the one that leads it rolls it."""

    def rolled() -> bool:
        for node in cluster.nodes.values():
            if node.is_up and not node.stopped:
                try:
                    cluster.admin("roll", {"topic": "kept", "partition": partition}, node=node.number)
                except AssertionError:
                    continue
                return True
        return False

    until(f"partition {partition} rolls", rolled)


def _read(cluster: Cluster, topic: str, partition: int, last: bytes) -> list[bytes | None]:
    """All values from the first offset on, until `last` comes."""
    consumer = Consumer({**at(cluster.bootstrap), "group.id": "g", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        found: list[bytes | None] = []
        deadline = time.monotonic() + 60
        while last not in found:
            assert time.monotonic() < deadline, (partition, found, cluster.events())
            found += [each.value() for each in consumer.consume(100, 0.2) if each.error() is None]
        return found
    finally:
        consumer.close()
