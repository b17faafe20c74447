"""What an operator does under load: restarts, a node that joins, one that is drained; topics that come and go."""

import threading
import time

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from kit.cluster_clients import CALL_S, Follower, Load, Reader, Writer, at, incarnation_of, make_topics, read_back
from kit.cluster_history import Commit, CursorSeen, History, Log, Making, Outcome, Where, faults_of
from kit.cluster_nodes import Cluster, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LIVES = 5
LIFE_PARTITIONS = 3
PARKED = "parked"
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
    until("the new node leads a container", lambda: any(each.leader == fourth.node_id for each in three.containers()))
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
    removed = three.nodes[three.number_of(three.catalog().leader)]
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


@pytest.mark.alone
def test_a_node_that_joins_carries_its_share_of_the_writes_and_no_byte_is_copied(three: Cluster) -> None:
    """Measures how long a node that joins takes to lead a fifth of what is written to."""
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


class Lives:
    """A topic that is deleted and made again, and its readers. A history of its incarnations."""

    def __init__(self, cluster: Cluster, topic: str, history: History) -> None:
        self._cluster = cluster
        self._topic = topic
        self._history = history
        self._admin = AdminClient(at(cluster.bootstrap))
        self._parked = Consumer({**at(cluster.bootstrap), "group.id": PARKED, "enable.auto.commit": False})
        self.final: dict[Where, Log] = {}

    def make(self) -> Making:
        """Another life, of which a group knows nothing."""
        made = Making(self._topic, LIFE_PARTITIONS, time.monotonic())
        self._history.topics.append(made)
        make_topics(self._cluster, [self._topic], LIFE_PARTITIONS)
        made.outcome, made.returned = Outcome.OK, time.monotonic()
        earlier = {each.incarnation for each in self._history.topics if each is not made}
        told = until("its id is told", lambda: {incarnation_of(self._admin, self._topic)} - {"", *earlier})
        (made.incarnation,) = told
        self._see_committed_offsets(made)
        return made

    def read(self, made: Making, writer: Writer) -> None:
        """Let it be written to and read; then all of it. What was written in this life alone is known by it."""
        places = [Where(self._topic, number, made.incarnation) for number in range(LIFE_PARTITIONS)]
        reader = Reader(f"reader-{made.incarnation}", self._history, self._cluster.bootstrap, places)
        reader.start()
        newest = self._history.newest
        written = [each._replace(incarnation="") for each in places]
        until(
            "each partition is written to and read",
            lambda: (
                self._history.errors
                or (all(newest.get(each, 0.0) > made.returned for each in written) and reader.given == set(places))
            ),
        )
        known = time.monotonic()
        reader.stopping.set()
        reader.join(CALL_S)
        self.final |= read_back(self._cluster, places)
        mine = [each for each in list(writer.writes) if each.called > made.returned and each.returned < known]
        for write in mine:
            write.where = write.where._replace(incarnation=made.incarnation)
        assert any(each.outcome is Outcome.OK for each in mine)
        self._park(places)
        self._see_committed_offsets(made)

    def delete(self, made: Making) -> None:
        """Its end."""
        made.deleted = Outcome.UNKNOWN
        self._admin.delete_topics([self._topic], operation_timeout=CALL_S)[self._topic].result(60)
        made.deleted = Outcome.OK

    def close(self) -> None:
        """The group's consumer."""
        self._parked.close()

    def _park(self, places: list[Where]) -> None:
        commits = [Commit(PARKED, where, 1, time.monotonic()) for where in places]
        self._history.commits += commits
        self._parked.commit(
            offsets=[TopicPartition(each.topic, each.partition, 1) for each in places], asynchronous=False
        )
        for each in commits:
            each.outcome, each.returned = Outcome.OK, time.monotonic()

    def _see_committed_offsets(self, made: Making) -> None:
        called = time.monotonic()
        asked = [TopicPartition(self._topic, number) for number in range(LIFE_PARTITIONS)]
        for each in self._parked.committed(asked, timeout=CALL_S):
            where, offset = Where(self._topic, each.partition, made.incarnation), max(each.offset, -1)
            self._history.committed_offsets.append(CursorSeen(PARKED, where, offset, called, time.monotonic()))


def test_topics_deleted_and_made_again_under_live_clients_keep_their_lives_apart(three: Cluster) -> None:
    """Records, committed offsets and offsets of one are never seen in the next, by readers that are new or have
    stayed."""
    three.admin("stream.create", {"path": "/churn", "policy": {"auto_create": False}})
    topic = "/churn:again"
    history = History()
    lives = Lives(three, topic, history)
    made = lives.make()
    writer = Writer("churner", history, three.bootstrap, [Where(topic, number) for number in range(LIFE_PARTITIONS)])
    follower = Follower("follower", history, three.bootstrap, topic)
    gone = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
    writer.forgives = follower.forgives = lambda error: error.code() in gone
    writer.start()
    follower.start()
    try:
        lives.read(made, writer)
        for _ in range(LIVES - 1):
            lives.delete(made)
            made = lives.make()
            lives.read(made, writer)

        def mine() -> set[bytes]:
            """It goes on, past where the consumer stood in the life before too."""
            return {each.value for each in list(writer.writes) if each.where.incarnation == made.incarnation}

        until(
            "the consumer that has stayed reads the last life",
            lambda: history.errors or mine() & {each.value for each in list(history.across)},
        )
    finally:
        lives.close()
        for client in (writer, follower):
            client.stopping.set()
            client.abandoned.set()
        for client in (writer, follower):
            client.join(CALL_S)
    faults = faults_of(history, lives.final)
    assert not faults, "\n".join(faults)
    assert len({each.where.incarnation for each in history.reads}) == LIVES
