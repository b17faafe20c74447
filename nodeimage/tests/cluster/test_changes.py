"""What an operator does under load: restarts, a node that joins, one that is drained; topics that come and go."""

import sys
import threading
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from cluster_clients import CALL_S, Load, Writer, at, make_topics, read_back
from cluster_history import History, Where, faults_of
from cluster_nodes import Cluster, until
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LIVES = 5
PARTITIONS = 24
JOINED_S = 10.0
EXIT_REFUSED = 2


class Pressure(threading.Thread):
    """An idempotent producer that writes 6 MB a second to the partitions of a topic in turn."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        self.stopping = threading.Event()
        self.acknowledged = [0] * PARTITIONS
        self.refused: list[KafkaError] = []
        self._topic = topic
        self._producer = Producer({**at(bootstrap), "enable.idempotence": True, "linger.ms": 20})

    def run(self) -> None:
        value, sent, began = bytes(2_000), 0, time.monotonic()
        while not self.stopping.is_set():
            while sent < (time.monotonic() - began) * 3_000:
                try:
                    self._producer.produce(self._topic, value, partition=sent % PARTITIONS, on_delivery=self._delivered)
                except BufferError:
                    break
                sent += 1
            self._producer.poll(0.005)
        self._producer.flush(CALL_S)

    def led_by(self, node_id: int) -> int:
        """How many of the partitions a node leads."""
        found = self._producer.list_topics(self._topic, timeout=CALL_S).topics[self._topic]
        return sum(each.leader == node_id for each in found.partitions.values())

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.refused.append(error)
        else:
            self.acknowledged[message.partition()] += 1


def test_nodes_restarted_one_after_another_are_noticed_by_no_program(three: Cluster) -> None:
    load = Load(three)
    for number in three.nodes:
        three.terminate(number)
        load.await_writes(time.monotonic())
        three.start(number)
        three.await_ready(number)
        three.await_whole()
    load.await_writes(time.monotonic())
    load.finish()


def test_a_node_that_joins_takes_part_and_another_is_drained_empty(three: Cluster) -> None:
    load = Load(three)
    fourth = three.add()
    three.start(fourth.number)
    three.await_ready(fourth.number)
    until("the new node leads a container", lambda: any(each.primary == fourth.node_id for each in three.containers()))
    load.await_writes(time.monotonic())
    leaving = three.nodes[1]
    three.admin("node.drain", {"node": leaving.node_id})
    until(
        "the drained node has no replica",
        lambda: all(leaving.node_id not in each.replicas for each in three.containers() if each.state != "deleted"),
        timeout_s=90,
    )
    load.await_writes(time.monotonic())
    three.terminate(leaving.number)
    load.await_writes(time.monotonic())
    three.await_whole()
    load.finish()


def test_a_node_that_was_removed_is_refused_with_the_folder_that_it_kept(three: Cluster) -> None:
    load = Load(three)
    removed = three.nodes[three.number_of(three.catalog().primary)]
    three.kill(removed.number)
    load.await_writes(time.monotonic())
    asked = next(number for number in three.nodes if number != removed.number)
    three.admin("node.remove", {"node": removed.node_id, "force": True}, node=asked)
    before = len(removed.log())
    three.start(removed.number)
    assert removed.wait() == EXIT_REFUSED
    (line,) = removed.log()[before:].splitlines()
    assert f"node {removed.node_id}" in line
    assert "the node was removed" in line
    three.ways.down(removed.number)
    load.await_writes(time.monotonic())
    three.await_whole()
    load.finish()


def test_a_node_that_joins_carries_its_share_of_the_writes_and_no_byte_is_copied(three: Cluster) -> None:
    topic = "/default:spread"
    make_topics(three, [topic], PARTITIONS)
    pressure = Pressure(three.bootstrap, topic)
    pressure.start()
    try:
        until("every partition is written to", lambda: min(pressure.acknowledged) > 100)
        before = {each.container_id for each in three.containers()}
        fourth = three.add()
        began = time.monotonic()
        three.start(fourth.number)
        three.await_ready(fourth.number)
        until(
            f"node {fourth.node_id} leads a fifth of what is written to",
            lambda: pressure.led_by(fourth.node_id) >= 0.2 * PARTITIONS,
            every_s=0.2,
        )
        took = time.monotonic() - began
        print(f"a fifth of the writes after {took:.1f} s")
        assert took < JOINED_S, three.events()
        written = list(pressure.acknowledged)
        until(
            "they go on",
            lambda: min(now - then for now, then in zip(pressure.acknowledged, written, strict=True)) > 100,
            timeout_s=10,
        )
        three.await_whole()
        copied = [
            each for each in three.containers() if each.container_id in before and fourth.node_id in each.replicas
        ]
        assert not copied
    finally:
        pressure.stopping.set()
        pressure.join(CALL_S)
    assert not pressure.refused, pressure.refused[:3]


def test_topics_deleted_and_made_again_under_a_live_producer_keep_their_lives_apart(three: Cluster) -> None:
    three.admin("stream.create", {"path": "/churn", "policy": {"auto_create": False}})
    topic = "/churn:again"
    admin = AdminClient(at(three.bootstrap))
    make_topics(three, [topic], 3)
    places = [Where(topic, number) for number in range(3)]
    history = History()
    writer = Writer("churner", history, three.bootstrap, places)
    gone = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
    writer.forgives = lambda error: error.code() in gone
    writer.start()
    try:
        for life in range(LIVES):
            began = time.monotonic()
            until(
                "each partition is written to",
                lambda began=began: history.errors or all(history.newest.get(each, 0.0) > began for each in places),
            )
            assert not history.errors, history.errors[:5]
            known = time.monotonic()
            final = read_back(three, places)
            one = History()
            one.writes = [each for each in list(writer.writes) if each.called > began and each.returned < known]
            assert one.writes
            assert faults_of(one, final) == []
            if life < LIVES - 1:
                admin.delete_topics([topic], operation_timeout=CALL_S)[topic].result(60)
                make_topics(three, [topic], 3)
    finally:
        writer.stopping.set()
        writer.abandoned.set()
        writer.join(CALL_S)
    assert not history.errors, history.errors[:5]
