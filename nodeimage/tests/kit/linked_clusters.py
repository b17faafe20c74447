"""Several clusters of node processes, the routes between them, and what tests read from them and from their links.

Everything is in the stream /default, so that stock clients use bare names. A link's connections from a node of one
cluster to a node of another pass through a route (cluster_ways.py), for which nodes are numbered over all clusters.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from headrace.base.errors import KafkaError
from headrace.kafka_client.blocking_client import BrokerConnection
from headrace.links.serving.params import VERSIONS
from headrace.wire import fetch, metadata
from headrace.wire.api_keys import ApiKey
from headrace.wire.batch import Record, iter_batches, iter_records
from kit.cluster_clients import at, make_topics
from kit.cluster_nodes import HOST, POLL_S, Cluster, until
from kit.cluster_ways import Ways

STREAM = "/default"
COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
CALL_S = 30.0
FETCH_VERSION = 10
"""The last version in which a node forwards reads to another node."""
METADATA_VERSION = 12
EPOCH_AT = slice(12, 16)
"""The place of the leader epoch in a batch, which each cluster sets itself. The checksum does not cover it."""
HEADRACE = str(Path(sys.executable).with_name("headrace"))


class Refused(Exception):
    """An admin call's error."""


class Said(NamedTuple):
    """The output of the command line."""

    code: int
    output: str
    error: str


class Linked:
    """The clusters, by name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.clusters: dict[str, Cluster] = {}
        self.ways = Ways({})
        self._numbers: dict[tuple[str, int], int] = {}

    def start(self, *names: str, count: int = 1, options: tuple[str, ...] = ()) -> list[Cluster]:
        """Start clusters of `count` nodes each; all serve, and every container is whole."""
        made = []
        for name in names:
            cluster = Cluster(self._folder / name, count, options)
            self.clusters[name] = cluster
            for node in cluster.nodes.values():
                number = len(self._numbers) + 1
                self._numbers[name, node.number] = number
                self.ways.add(number, node.port)
            made.append(cluster)
        self._route()
        for cluster in made:
            cluster.start()
        for cluster in made:
            cluster.await_ready()
            cluster.await_whole()
        return made

    def _route(self) -> None:
        """Route a cluster's nodes to the others: they share the routes of the first node."""
        for name, cluster in self.clusters.items():
            own = {node.port for node in cluster.nodes.values()}
            routes = self.ways.routes_of(self._numbers[name, 1])
            cluster.beyond = {port: way for port, way in routes.items() if port not in own}
            cluster._write_routes()

    def between(self, one: str, other: str) -> Iterable[tuple[int, int]]:
        """The routes from a cluster to another and back."""
        there = [(self._numbers[one, 1], number) for (name, _), number in self._numbers.items() if name == other]
        back = [(self._numbers[other, 1], number) for (name, _), number in self._numbers.items() if name == one]
        return [*there, *back]

    def _each_way(self, one: str, other: str, change: Callable[[int, int], None]) -> None:
        for near, far in self.between(one, other):
            change(near, far)
            change(far, near)

    def cut(self, one: str, other: str) -> None:
        """The two clusters no longer hear each other. Connections stay, and new ones seem to open."""
        self._each_way(one, other, self.ways.cut)

    def slow(self, one: str, other: str, delay_s: float) -> None:
        """Delay each route by so many seconds."""
        self._each_way(one, other, lambda near, far: self.ways.slow(near, far, delay_s))

    def narrow(self, one: str, other: str, rate: int) -> None:
        """Limit each route and connection to so many bytes a second."""
        self._each_way(one, other, lambda near, far: self.ways.narrow(near, far, rate))

    def silence(self, one: str, other: str) -> None:
        """Existing connections are half open from now on."""
        for near, far in self.between(one, other):
            self.ways.silence(near, far)

    def drop(self, one: str, other: str) -> None:
        """Reset existing connections."""
        for near, far in self.between(one, other):
            self.ways.drop(near, far)

    def close(self) -> None:
        """End everything."""
        for cluster in self.clusters.values():
            cluster.close()
        self.ways.close()


# --- links


def call(cluster: Cluster, method: str, **params: Any) -> Any:
    """The result of an admin call to any serving node. Raises Refused."""
    number = next(each.number for each in cluster.nodes.values() if each.is_up and not each.stopped)
    with BrokerConnection(HOST, cluster.nodes[number].port, "test", 180.0) as connection:
        try:
            return connection.admin(method, params)
        except KafkaError as error:
            raise Refused(str(error)) from error


def link(target: Cluster, source: Cluster, name: str = "l", **params: Any) -> dict[str, Any]:
    """Create a link from `source` to `target`, of all topics by default."""
    fields: dict[str, Any] = {"name": name, "source": source.bootstrap.split(","), "source_stream": STREAM}
    made: dict[str, Any] = call(target, "link.create", **{**fields, "stream": STREAM, **params})
    return made


def shown(cluster: Cluster, name: str = "l") -> dict[str, Any]:
    """The output of `headrace link show`."""
    found: dict[str, Any] = call(cluster, "link.show", name=name)
    return found


def cluster_id(cluster: Cluster) -> str:
    """The cluster's id, according to its nodes."""
    return str(call(cluster, "link.hello", version=VERSIONS[1], stream=STREAM)["cluster_id"])


def await_caught_up(cluster: Cluster, *names: str, timeout_s: float = 60.0) -> None:
    """Wait until links report that they have caught up, with nothing missing."""
    for name in names or ("l",):

        def caught_up(name: str = name) -> bool:
            told = shown(cluster, name)
            return told["state"] == "CaughtUp" and not told["lag_records"]

        until(f"link {name} has caught up", caught_up, timeout_s=timeout_s)


def headrace(cluster: Cluster, *words: str, timeout_s: float = 180.0) -> Said:
    """Run the command line, as a user does against a cluster."""
    command = [HEADRACE, *words, "--bootstrap", cluster.bootstrap]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout_s)
    return Said(done.returncode, done.stdout, done.stderr)


def headrace_json(cluster: Cluster, *words: str) -> Any:
    """The command line's output with `--output json`; fails if the command fails."""
    said = headrace(cluster, *words, "--output", "json")
    assert said.code == 0, said
    return json.loads(said.output)


# --- records


def make(cluster: Cluster, *topics: str, partitions: int = 3, **configs: str) -> None:
    """Create topics."""
    make_topics(cluster, list(topics), partitions, configs)


def fill(cluster: Cluster, topic: str, count: int = 50, *, partitions: int = 3, size: int = 100) -> None:
    """Write records with distinct keys, headers and timestamps; batches in all compressions, in each partition."""
    failed: list[object] = []
    for turn, compression in enumerate(COMPRESSIONS):
        producer = Producer({**at(cluster.bootstrap), "compression.type": compression, "linger.ms": 50})
        for number in range(count // len(COMPRESSIONS)):
            value = f"{topic}/{compression}/{number}/".encode() + b"x" * size
            headers = [("number", str(number).encode()), ("none", None)]
            for partition in range(partitions):
                producer.produce(
                    topic,
                    value,
                    key=None if number % 3 == 0 else str(number).encode(),
                    partition=partition,
                    timestamp=1_700_000_000_000 + 1_000 * turn + number,
                    headers=headers,
                    on_delivery=lambda error, _: error and failed.append(error),
                )
        assert producer.flush(60) == 0
        assert not failed, failed[:3]


def ends(cluster: Cluster, topic: str) -> list[int]:
    """The end of each partition; [] if the topic does not exist."""
    listed = _listed(cluster, topic)
    if listed.error:
        return []
    return [_partition_end(cluster, TopicPartition(topic, index)) for index in range(len(listed.partitions))]


def _partition_end(cluster: Cluster, partition: TopicPartition) -> int:
    """The end of a partition, requested by a new client after a node has just been killed.

    A librdkafka client that reads nothing keeps the first leader that it was told, and keeps asking it after its death.
    """
    for _ in range(3):
        consumer = Consumer({**at(cluster.bootstrap), "group.id": "ends"})
        try:
            return int(consumer.get_watermark_offsets(partition, timeout=CALL_S / 4, cached=False)[1])
        except KafkaException as error:
            last = error
        finally:
            consumer.close()
    raise last


def await_same(target: Cluster, source: Cluster, *topics: str, timeout_s: float = 60.0) -> None:
    """Wait until topics end at the target where they end at the source; fails if their bytes differ."""
    for topic in topics:
        wanted = ends(source, topic)
        assert wanted, topic
        until(f"{topic} ends at {wanted}", lambda: ends(target, topic) == wanted, timeout_s=timeout_s)  # noqa: B023
        for partition in range(len(wanted)):
            here, there = batches(target, topic, partition), batches(source, topic, partition)
            assert here == there, f"{topic} {partition} differs: {len(here)} batches, and {len(there)} at the source"
        assert _listed(target, topic).topic_id == _listed(source, topic).topic_id


def batches(cluster: Cluster, topic: str, partition: int, *, since: int = -1) -> list[bytes]:
    """All batches of a partition, except for their leader epochs: with offsets, timestamps and compression."""
    found: list[bytes] = []
    for raw, _ in _raw(cluster, topic, partition, since):
        batch = bytearray(raw)
        batch[EPOCH_AT] = bytes(4)
        found.append(bytes(batch))
    return found


def records(cluster: Cluster, topic: str, partition: int, *, since: int = -1) -> list[Record]:
    """All records of a partition."""
    return [each for raw, start in _raw(cluster, topic, partition, since) for each in iter_records(raw)]


def _raw(cluster: Cluster, topic: str, partition: int, since: int) -> Iterable[tuple[bytes, int]]:
    deadline = time.monotonic() + CALL_S
    place = since
    while True:
        listed = _listed(cluster, topic)
        part = listed.partitions[partition]
        node = next((each for each in cluster.nodes.values() if each.node_id == part.leader and each.is_up), None)
        wanted = fetch.FetchPartition(partition, -1, max(place, 0), -1, -1, 8 << 20)
        asked = fetch.FetchRequest(0, 1, 8 << 20, 0, 0, -1, [fetch.FetchTopic(topic, None, [wanted])], [], "")
        if node is not None:
            with BrokerConnection(node.host, node.port, "test", CALL_S) as connection:
                body = connection.call(ApiKey.FETCH, FETCH_VERSION, fetch.encode_request(FETCH_VERSION, asked))
            result = fetch.decode_response(body, 0, FETCH_VERSION).topics[0].partitions[0]
            if result.error == 1 and place < result.log_start:  # out of range
                place = result.log_start
                continue
            if result.error == 0:
                came = [bytes(batch) for records in result.records for _, batch in iter_batches(records)]
                last = place
                for raw in came:
                    header = next(iter_batches(raw))[0]
                    if header.base_offset >= place:
                        yield raw, header.base_offset
                        last = max(last, header.base_offset + header.last_offset_delta + 1)
                if last >= result.high_watermark or not came:
                    return
                place = last
                continue
        if time.monotonic() > deadline:
            pytest.fail(f"cannot read {topic} {partition}\n{cluster.events()}")
        time.sleep(POLL_S)


def _listed(cluster: Cluster, topic: str) -> metadata.TopicMeta:
    number = next(each.number for each in cluster.nodes.values() if each.is_up and not each.stopped)
    request = metadata.encode_request(METADATA_VERSION, metadata.MetadataRequest([(topic, None)], False))
    with BrokerConnection(HOST, cluster.nodes[number].port, "test", CALL_S) as connection:
        body = connection.call(ApiKey.METADATA, METADATA_VERSION, request)
    return metadata.decode_response(body, 0, METADATA_VERSION).topics[0]


def sent(cluster: Cluster) -> int:
    """Bytes of records that the cluster's nodes have returned to fetches."""
    total = 0
    for node in cluster.nodes.values():
        with BrokerConnection(HOST, node.port, "test", CALL_S) as connection:
            total += connection.admin("status")["clients"]["out_since_start_bytes"]
    return total


def committed(cluster: Cluster, group: str, topic: str, partitions: int) -> list[int]:
    """A group's committed offsets; -1001 if there is none."""
    consumer = Consumer({**at(cluster.bootstrap), "group.id": group})
    try:
        found = consumer.committed([TopicPartition(topic, index) for index in range(partitions)], timeout=CALL_S)
        return [each.offset for each in found]
    finally:
        consumer.close()


def commit(cluster: Cluster, group: str, topic: str, offsets: list[int]) -> None:
    """Commit these offsets for a group."""
    consumer = Consumer({**at(cluster.bootstrap), "group.id": group, "enable.auto.commit": False})
    try:
        places = [TopicPartition(topic, index, offset) for index, offset in enumerate(offsets)]
        done = consumer.commit(offsets=places, asynchronous=False)
        assert all(each.error is None for each in done), done
    finally:
        consumer.close()
