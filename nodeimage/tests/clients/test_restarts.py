"""Clients that go on while their node restarts, is killed, and rolls."""

import json
import threading
import time
import uuid
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from headrace.wire.api_keys import ApiKey
from kit.clients import until
from kit.patience import PATIENCE

SMALL = ("--partitionlet-bytes=1048576", "--chunk-bytes=4194304", "--rebalance-delay-ms=0")
RECORDS = 3_000
GO_ON_S = 60.0
"""A group whose member was lost may wait for its session to time out (45 s) before it goes on."""


class Feed:
    """An idempotent producer in a thread of its own, and what was acknowledged to it."""

    def __init__(self, cluster: Any, topic: str, *, value_bytes: int) -> None:
        self.acknowledged: dict[int, int] = {}
        self.failed: list[Any] = []
        self._topic = topic
        self._filling = b"x" * value_bytes
        self._producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "reconnect.backoff.max.ms": 200,
                "batch.num.messages": 50,
            }
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for number in range(RECORDS):
            self._producer.produce(self._topic, b"%06d" % number + self._filling, on_delivery=self._delivered)
            self._producer.poll(0)
            time.sleep(0.001)  # a rate, so that what happens to the node happens meanwhile
        self._producer.flush(60)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failed.append(error)
        else:
            self.acknowledged[message.offset()] = int(message.value()[:6])

    def finish(self) -> None:
        """Waits until all is acknowledged."""
        self._thread.join(60)
        assert not self._thread.is_alive()
        assert not self.failed
        assert len(self.acknowledged) == RECORDS


class Reader:
    """A group's consumer in a thread of its own: commits behind each batch, keeps what it got."""

    def __init__(self, cluster: Any, topic: str, group: str) -> None:
        self.got: list[tuple[int, int]] = []
        self.errors: list[object] = []
        self._stop = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "reconnect.backoff.max.ms": 200,
                "session.timeout.ms": 30_000,
            }
        )
        self._consumer.subscribe([topic])
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                for message in self._consumer.consume(200, 0.1):
                    if message.error() is None:
                        self.got.append((message.offset(), int(message.value()[:6])))
                    else:
                        self.errors.append(message.error())
        except Exception as error:
            self.errors.append(error)
            raise

    def __str__(self) -> str:
        """Where it stands, for a test that waited for it in vain."""
        assigned = self._consumer.assignment()
        missing = sorted(set(range(RECORDS)) - {offset for offset, _ in self.got})
        return (
            f"{len(missing)} offsets were not read, from {missing[:3]}; it is at {self._consumer.position(assigned)}, "
            f"and had {self.errors[-3:]}"
        )

    def close(self) -> None:
        """Commits and leaves."""
        self._stop.set()
        self._thread.join(30)
        self._consumer.commit(asynchronous=False)
        self._consumer.close()


@pytest.mark.slow
@pytest.mark.parametrize("crash", [False, True], ids=["restart", "kill -9"])
def test_clients_go_on_when_their_node_comes_back(new_cluster: Any, raw: Any, crash: bool) -> None:
    cluster = new_cluster(*SMALL)
    topic, group = "/default:running", uuid.uuid4().hex
    raw(cluster).create(topic)  # librdkafka looks again after 5 minutes for a topic that it did not find
    feed = Feed(cluster, topic, value_bytes=2_000)
    reader = Reader(cluster, topic, group)
    for share in (1, 2, 3):
        until(lambda share=share: len(feed.acknowledged) > RECORDS * share // 4, within=GO_ON_S)
        if crash:
            cluster.kill()
            cluster.start()
        else:
            cluster.restart()
    feed.finish()
    until(lambda: len({offset for offset, _ in reader.got}) >= RECORDS, within=GO_ON_S, told=reader)
    reader.close()
    expected = [(number, number) for number in range(RECORDS)]
    assert sorted(feed.acknowledged.items()) == expected, "each record is there once, in order"
    assert sorted(set(reader.got)) == expected
    assert len(cluster.admin("chain", {"topic": topic})) >= 4, "it rolled meanwhile"

    again = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
    (committed_offset,) = again.committed([TopicPartition(topic, 0)], timeout=10)
    assert committed_offset.offset == RECORDS
    again.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])  # through all partitionlets
    found: list[int] = []
    while len(found) < RECORDS:
        messages = again.consume(500, 10)
        assert messages
        found += [message.offset() for message in messages if message.error() is None]
    again.close()
    assert found == list(range(RECORDS))


def test_a_committed_offset_survives_kill_9_as_soon_as_it_is_acknowledged(
    new_cluster: Any, raw: Any, batch_of: Any
) -> None:
    cluster = new_cluster("--rebalance-delay-ms=0")
    raw(cluster).create("/default:t")
    raw(cluster).produce("/default:t", batch_of(*[b"x"] * 10))
    part = TopicPartition("/default:t", 0)
    for offset in (3, 4, 7):
        consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "g", "reconnect.backoff.max.ms": 200})
        consumer.commit(offsets=[TopicPartition("/default:t", 0, offset)], asynchronous=False)
        cluster.kill()
        cluster.start()
        (held,) = consumer.committed([part], timeout=20)
        consumer.close()
        assert held.offset == offset


def test_a_consumer_at_the_start_of_an_emptied_partition_gets_what_comes_after_a_restart(
    new_cluster: Any, raw: Any, batch_of: Any
) -> None:
    """It has the epoch of its position checked: did that end before, it would take the log for cut."""
    cluster = new_cluster()
    raw(cluster).create("/default:t")
    raw(cluster).produce("/default:t", batch_of(b"a", b"b"))
    cluster.stop()
    cluster.start()
    client = raw(cluster)
    client.produce("/default:t", batch_of(b"c", b"d"))
    gone = [{"name": "/default:t", "partitions": [{"partition_index": 0, "offset": -1}]}]
    client.ask(ApiKey.DELETE_RECORDS, 2, topics=gone, timeout_ms=10_000)
    positions: list[int] = []

    def figures(told: str) -> None:
        topics = json.loads(told)["topics"]
        if "t" in topics:
            positions.append(topics["t"]["partitions"]["0"]["next_offset"])

    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "g",
            "auto.offset.reset": "latest",
            "enable.auto.commit": False,
            "reconnect.backoff.max.ms": 200,
            "statistics.interval.ms": 100,
            "stats_cb": figures,
        }
    )
    consumer.assign([TopicPartition("t", 0, OFFSET_BEGINNING)])
    deadline = time.monotonic() + 30 * PATIENCE
    while positions[-1:] != [4]:
        assert consumer.poll(0.1) is None
        assert time.monotonic() < deadline, positions
    cluster.stop()
    cluster.start()
    raw(cluster).produce("/default:t", batch_of(b"e", b"f", b"g"))
    got: list[bytes | None] = []
    while len(got) < 3:
        assert time.monotonic() < deadline + 30 * PATIENCE, got
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            got.append(message.value())
    consumer.close()
    assert got == [b"e", b"f", b"g"]


def test_a_reader_of_old_offsets_is_not_disturbed_by_rolls(new_cluster: Any, raw: Any, batch_of: Any) -> None:
    cluster = new_cluster(*SMALL)
    writer, reader = raw(cluster), raw(cluster)
    writer.create("/default:t")
    for number in range(30):
        assert writer.produce("/default:t", batch_of(*[b"%02d" % number + b"x" * 9_000] * 10)).error == 0
    rolling = threading.Event()

    def roll() -> None:
        while not rolling.is_set():
            cluster.admin("roll", {"topic": "/default:t", "partition": 0})

    rolls = threading.Thread(target=roll, daemon=True)
    rolls.start()
    try:
        for _ in range(10):
            records = reader.records("/default:t")
            assert [record.value[:2] for record in records] == [b"%02d" % (each // 10) for each in range(300)]
    finally:
        rolling.set()
        rolls.join(30)
    assert writer.produce("/default:t", batch_of(b"after")).base_offset == 300
