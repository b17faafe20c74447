"""Shared by tests with Spark: one session, one node, separate topics."""

import itertools
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.kafka_client.blocking_client import BrokerConnection
from headrace.local.cluster import Started, StartOptions, start
from headrace.local.processes import free_port

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONNECTOR = Path(__file__).parent / "connector" / "pom.xml"
JARS = Path("~/.cache/headrace/spark-kafka-connector-4.2.0").expanduser()
_serial = itertools.count()


class Node:
    """A Headrace node, and the plain Kafka clients with which tests verify it and Spark."""

    def __init__(self, data: Path, *node_options: str) -> None:
        self.data = data
        self._options = node_options
        self._started: Started | None = None
        self.port = free_port("127.0.0.1")
        self.start()

    def start(self) -> None:
        """Start, on the same port as before."""
        options = StartOptions(port=self.port, node_options=self._options)
        self._started = start(self.data, options, progress=lambda _: None)

    def stop(self) -> None:
        """Stop cleanly."""
        assert self._started is not None
        self._started.stop()
        self._started = None

    def kill(self) -> None:
        """Kill the node (SIGKILL), and wait."""
        assert self._started is not None
        os.kill(self._started.cluster.nodes[0].pid, signal.SIGKILL)
        for child in self._started.children.values():
            child.wait()
        self._started = None

    @property
    def bootstrap(self) -> str:
        """The address for clients."""
        return f"127.0.0.1:{self.port}"

    def topic(self, *, partitions: int = 1, name: str | None = None) -> str:
        """Return a new topic of the default stream."""
        name = name or f"test-{next(_serial)}"
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for made in admin.create_topics([NewTopic(name, partitions, 1)]).values():
            made.result()
        return name

    def produce(self, topic: str, rows: list[dict[str, Any]]) -> None:
        """Send records, each with the arguments of confluent-kafka's produce, and wait for all."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 5})
        errors: list[object] = []
        for row in rows:
            producer.produce(topic, on_delivery=lambda error, _: error and errors.append(error), **row)
        assert producer.flush(60) == 0
        assert not errors, errors[0]

    def consume(self, topic: str) -> list[Any]:
        """Return all records of a topic, read by a consumer without a group, ordered by partition and offset."""
        consumer = Consumer(
            {"bootstrap.servers": self.bootstrap, "group.id": "unused", "enable.auto.commit": False,
             "isolation.level": "read_committed"}
        )  # fmt: skip
        partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        ends = {number: consumer.get_watermark_offsets(TopicPartition(topic, number)) for number in partitions}
        consumer.assign([TopicPartition(topic, number, low) for number, (low, _) in ends.items()])
        records, open_ends = [], {number: high for number, (low, high) in ends.items() if high > low}
        while open_ends:
            record = consumer.poll(30)
            assert record is not None, "the consumer got nothing for 30 s"
            assert record.error() is None, record.error()
            records.append(record)
            if record.offset() + 1 >= open_ends.get(record.partition(), 1 << 62):
                del open_ends[record.partition()]
        consumer.close()
        return sorted(records, key=lambda record: (record.partition(), record.offset()))

    def cursors(self, group: str, topic: str, partitions: int) -> list[int]:
        """Return the group's committed offset of each partition, -1001 if it has none."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": group})
        found = consumer.committed([TopicPartition(topic, number) for number in range(partitions)], timeout=30)
        consumer.close()
        return [one.offset for one in found]

    def admin(self, method: str, params: Mapping[str, Any]) -> Any:
        """Return the result of one of Headrace's own admin calls."""
        with BrokerConnection("127.0.0.1", self.port, "test", 30.0) as connection:
            return connection.admin(method, params)


def wait_until(condition: Callable[[], bool], *, timeout_s: float = 60.0) -> None:
    """Wait for a condition; fail if it does not become true in time."""
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until, "it did not come true in time"
        time.sleep(0.05)


@pytest.fixture
def eventually() -> Callable[..., None]:
    """`wait_until`, for tests in importlib mode."""
    return wait_until


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """One node for the whole run; leave it running."""
    shared = Node(tmp_path_factory.mktemp("node") / "data", "--rebalance-delay-ms=0")
    yield shared
    shared.stop()


@pytest.fixture
def new_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Node]]:
    """Starts nodes for one test, which may stop and kill them."""
    made: list[Node] = []

    def make(*options: str) -> Node:
        made.append(Node(tmp_path_factory.mktemp("node") / "data", *options))
        return made[-1]

    yield make
    for each in made:
        if each._started is not None:
            each.stop()


@pytest.fixture(scope="session")
def connector_jars() -> list[Path]:
    """Spark's own Kafka connector, by Maven, kept in the cache folder between runs; empty if unavailable."""
    if not JARS.is_dir():
        maven = shutil.which("mvn")
        if maven is None:
            return []
        partial = JARS.with_name(f"{JARS.name}.{os.getpid()}.partial")  # several runs may download them concurrently
        command = [
            maven,
            "-q",
            "-B",
            "-f",
            str(CONNECTOR),
            "dependency:copy-dependencies",
            f"-DoutputDirectory={partial}",
        ]
        if subprocess.run(command, capture_output=True, timeout=300, check=False).returncode != 0:
            return []
        try:
            partial.rename(JARS)
        except OSError:  # another run was faster
            shutil.rmtree(partial)
            if not JARS.is_dir():
                raise
    return sorted(JARS.glob("*.jar"))


@pytest.fixture(scope="session")
def spark(connector_jars: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """One session for the whole run; skips without Java."""
    from headrace_spark.session import SHORT_LIVED, NoJava, build_session

    try:
        session = build_session(
            "headrace-tests",
            master="local[2]",
            conf={
                "spark.jars": ",".join(map(str, connector_jars)),
                "spark.sql.shuffle.partitions": "2",
                "spark.local.dir": str(tmp_path_factory.mktemp("spark")),
                "spark.sql.streaming.noDataProgressEventInterval": "500",
                **SHORT_LIVED,
            },
        )
    except NoJava as error:
        pytest.skip(str(error))
    yield session
    session.stop()
