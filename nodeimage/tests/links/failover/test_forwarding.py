"""Writes to a copy reach its home: once each, in order, whatever happens to the network and to the home."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import Message, Producer

from headrace.base.addresses import parse_addresses
from headrace.base.errors import Code, KafkaError
from headrace.base.ids import NodeId
from headrace.kafka_client.client import Client
from headrace.kafka_client.errors import SourceUnreachable
from headrace.local.processes import free_port
from headrace.node import Node, Options
from headrace.partitions.cluster_layout import NodeSettings
from headrace.security.client_security import Security
from headrace.wire.batch import build_batch
from headrace.wire.produce import PartitionRecords, ProduceResult
from kit.cut_network import LARGE, CutNetwork
from kit.one_node import OneNode, until

StartCluster = Callable[[str], Awaitable[OneNode]]
ADVERTISED, LISTENING = "127.0.0.2", "127.0.0.1"


@pytest.fixture
async def network() -> AsyncIterator[CutNetwork]:
    """The network between the clusters, on the way to north."""
    network = CutNetwork(advertised=ADVERTISED, listening=LISTENING, port=free_port(LISTENING))
    await network.start()
    yield network
    await network.stop()


@pytest.fixture
async def north(tmp_path: Path, network: CutNetwork) -> AsyncIterator[OneNode]:
    """The home, with a stream /s and a topic t; the other cluster reaches it over the network."""
    folder = tmp_path / "north"
    folder.mkdir()
    node = Node(
        Options(
            data=folder / "node-1",
            store=folder / "cluster.sqlite",
            host=ADVERTISED,
            bind=LISTENING,
            peer_host=LISTENING,
            port=network.port,
            ready_file=None,
            settings=NodeSettings(chunk_bytes=1 << 20, disk_reserve=0, fsync=False),
        )
    )
    await node.start()
    cluster = OneNode(node)
    await cluster.admin("stream.create", path="/s")
    await cluster.append("t", b"first")
    yield cluster
    await node.stop()


@pytest.fixture
async def copy(south: OneNode, north: OneNode) -> OneNode:
    """South, with a copy of t whose link forwards writes."""
    await linked(south, north)
    await until(lambda: has(south, [b"first"]))
    return south


async def linked(target: OneNode, source: OneNode, **params: Any) -> None:
    fields = {"name": "l", "source": [f"{source.parts.node.host}:{source.parts.node.port}"], "source_stream": "/s"}
    await target.admin("link.create", **{**fields, "stream": "/s", "forward_writes": True, **params})


async def has(cluster: OneNode, values: list[bytes], name: str = "t") -> bool:
    return await cluster.row(name) is not None and await cluster.values(name) == values


async def written(
    cluster: OneNode,
    *values: bytes,
    client: Client | None = None,
    name: str = "/s:t",
    producer: dict[str, int] | None = None,
    **options: Any,
) -> ProduceResult:
    """The node's answer to one Produce request. `producer`: the fields of an idempotent producer."""
    used = client or Client(parse_addresses([cluster.bootstrap]), security=Security())
    batch = build_batch([(int(time.time() * 1000), None, value, []) for value in values], **producer or {})
    try:
        (result,) = await used.produce(NodeId(1), [PartitionRecords(name, 0, memoryview(batch))], **options)
        return result
    finally:
        if client is None:
            await used.close()


class Librdkafka:
    """A producer of numbered records, with the answer to each."""

    def __init__(self, cluster: OneNode, **config: Any) -> None:
        settings = {
            "bootstrap.servers": cluster.bootstrap,
            "linger.ms": 1,
            "batch.num.messages": 10,
            "retry.backoff.ms": 20,
            "retry.backoff.max.ms": 100,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 100,
            "log_level": 0,
        }
        self._producer = Producer({**settings, **config})
        self.sent: list[bytes] = []
        self.offsets: dict[bytes, int] = {}
        self.errors: list[ClientError] = []

    def send(self, count: int) -> None:
        for _ in range(count):
            value = b"%0*d" % (LARGE, len(self.sent))
            self._producer.produce("s..t", value, partition=0, on_delivery=self._delivered)
            self.sent.append(value)

    def _delivered(self, error: ClientError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(error)
        else:
            self.offsets[message.value() or b""] = int(message.offset() or 0)

    async def settled(self, at_least: int) -> None:
        """Wait until that many records are acknowledged or given up."""

        def holds() -> bool:
            self._producer.poll(0)
            return len(self.offsets) + len(self.errors) >= at_least

        await until(holds, 60)


async def test_the_producer_gets_the_homes_acknowledgement(copy: OneNode, north: OneNode) -> None:
    result = await written(copy, b"a", b"b")
    assert (result.error, result.base_offset, result.topic) == (0, 1, "/s:t")
    assert await has(north, [b"first", b"a", b"b"])
    await until(lambda: has(copy, [b"first", b"a", b"b"]))


async def test_an_idempotent_producer_at_the_copy_loses_and_doubles_nothing_over_cuts(
    copy: OneNode, north: OneNode, network: CutNetwork
) -> None:
    producer = Librdkafka(copy, **{"enable.idempotence": True})
    for round_ in range(4):
        producer.send(200)
        await producer.settled(len(producer.sent) - 150)
        if round_ % 2:  # records on their way are stored, but the answers are lost
            network.answers_get_lost = True
            lost = network.lost_answers
            producer.send(50)
            await until(lambda lost=lost: network.lost_answers > lost)  # type: ignore[misc]
            network.answers_get_lost = False
        network.cut()
        producer.send(200)
        await asyncio.gather(producer.settled(0), until(lambda: copy.node.links.forwarding.waiting_bytes > 0))
        network.heal()
    await producer.settled(len(producer.sent))
    assert producer.errors == []
    assert await north.values("t") == [b"first", *producer.sent]
    assert [producer.offsets[value] for value in producer.sent] == list(range(1, len(producer.sent) + 1))
    await until(lambda: has(copy, [b"first", *producer.sent]))


async def test_a_producer_that_calls_the_copys_topic_by_two_names_is_refused_the_second(
    copy: OneNode, north: OneNode
) -> None:
    """The home sees one name only, and would take a batch under the second name for a repeat of the first."""
    producer = {"producer_id": 77_777, "producer_epoch": 0, "base_sequence": 0}
    assert (await written(copy, b"by one name", producer=producer)).error == Code.NONE
    refused = await written(copy, b"by another", producer=producer, name="s..t")
    assert refused.error == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert "use one name" in (refused.message or "")
    again = await written(copy, b"by one name", producer=producer)
    while again.error == Code.LEADER_NOT_AVAILABLE:  # the link may have copied the batch: records are compared
        await asyncio.sleep(0.05)
        again = await written(copy, b"by one name", producer=producer)
    assert (again.error, again.base_offset) == (Code.NONE, 1)
    assert await has(north, [b"first", b"by one name"])


async def test_a_home_that_stays_away_is_an_error_to_try_again_after(copy: OneNode, network: CutNetwork) -> None:
    network.cut()
    result = await written(copy, b"a", timeout_ms=1000)
    assert result.error == Code.LEADER_NOT_AVAILABLE
    assert "cannot be reached" in (result.message or "")
    network.heal()
    await until(lambda: accepted(copy, b"b"))


async def accepted(cluster: OneNode, value: bytes) -> bool:
    return (await written(cluster, value)).error == 0


async def test_a_producer_without_sequences_is_cut_off_where_nobody_knows(
    copy: OneNode, north: OneNode, network: CutNetwork
) -> None:
    assert (await written(copy, b"a")).error == 0
    network.answers_get_lost = True
    with pytest.raises(SourceUnreachable, match="closed by the other side"):
        await written(copy, b"b" * LARGE)
    assert network.lost_answers == 1
    assert await has(north, [b"first", b"a", b"b" * LARGE]), "it was not sent twice"


async def test_without_acknowledgements_records_arrive_too(copy: OneNode, north: OneNode) -> None:
    producer = Librdkafka(copy, acks=0)
    producer.send(30)
    await producer.settled(30)
    await until(lambda: has(north, [b"first", *producer.sent]))


async def test_a_paused_link_passes_nothing_on(copy: OneNode, north: OneNode) -> None:
    await copy.admin("link.pause", name="l")
    await until(lambda: refused(copy, Code.POLICY_VIOLATION))
    assert north.cluster_id in ((await written(copy, b"x")).message or "")
    before = await north.values("t")
    await copy.admin("link.resume", name="l")
    await until(lambda: accepted(copy, b"a"))
    assert await has(north, [*before, b"a"])  # type: ignore[list-item]


async def refused(cluster: OneNode, code: Code) -> bool:
    return (await written(cluster, b"x")).error == code


async def test_what_the_home_refuses_for_good_is_passed_through(copy: OneNode, north: OneNode) -> None:
    result = await written(copy, b"x" * (2 << 20))
    assert result.error == Code.MESSAGE_TOO_LARGE
    assert "max.message.bytes" in (result.message or "")
    assert (await written(copy, b"a")).error == 0
    assert await has(north, [b"first", b"a"])


async def test_a_link_that_does_not_forward_refuses_as_ever(south: OneNode, north: OneNode) -> None:
    await linked(south, north, forward_writes=False)
    await until(lambda: has(south, [b"first"]))
    with pytest.raises(KafkaError, match=north.cluster_id):
        await south.produce("t", b"x")


async def test_a_producer_goes_on_while_the_home_moves_to_the_copy(copy: OneNode, north: OneNode) -> None:
    producer = Librdkafka(copy, **{"enable.idempotence": True})
    producer.send(100)
    await producer.settled(50)
    moving = asyncio.ensure_future(copy.admin("home.move", stream="/s"))
    while not moving.done():
        producer.send(5)
        await producer.settled(len(producer.sent) - 100)
        await asyncio.sleep(0.01)
    (moved,) = await moving
    assert moved["moved"], moved
    producer.send(50)
    await producer.settled(len(producer.sent))
    assert producer.errors == []
    assert await copy.values("t") == [b"first", *producer.sent]
    await until(lambda: has(north, [b"first", *producer.sent]))


async def test_a_home_that_moved_to_a_third_cluster_is_found(
    copy: OneNode, north: OneNode, start_cluster: StartCluster
) -> None:
    east = await start_cluster("east")
    await linked(east, north, forward_writes=False)
    await linked(copy, east, name="east")
    await until(lambda: has(east, [b"first"]))
    (moved,) = await east.admin("home.move", stream="/s")
    assert moved["moved"], moved
    await until(lambda: accepted(copy, b"a"))
    assert await has(east, [b"first", b"a"])
    await until(lambda: has(copy, [b"first", b"a"]))


async def test_no_more_than_the_limit_waits_and_the_rest_is_not_started(
    copy: OneNode, north: OneNode, network: CutNetwork
) -> None:
    forwarding = copy.node.links.forwarding
    forwarding.limit_bytes = 150_000
    network.cut()
    client = Client(parse_addresses([copy.bootstrap]), security=Security())
    values = [b"%d" % number * 100_000 for number in range(5)]
    most = 0
    try:
        answers = [asyncio.ensure_future(written(copy, value, client=client)) for value in values]
        await until(lambda: forwarding.full and any(each.parked for each in copy.parts.connections.open))
        session = next(each for each in copy.parts.connections.open if each.parked)
        most = forwarding.waiting_bytes
        network.heal()
        while not all(answer.done() for answer in answers):
            most = max(most, forwarding.waiting_bytes)
            await asyncio.sleep(0.002)
        assert [answer.result().error for answer in answers] == [0] * 5
    finally:
        await client.close()
    assert not session.parked
    assert 150_000 < most < 250_000
    assert await has(north, [b"first", *values])
    assert forwarding.waiting_bytes == 0


async def test_a_link_that_is_altered_refuses_nobody(copy: OneNode, north: OneNode) -> None:
    producer = Librdkafka(copy, **{"enable.idempotence": True})
    for round_ in range(4):
        producer.send(100)
        await copy.admin("link.alter", name="l", throttle=(round_ + 1) * 10_000_000)
        await producer.settled(len(producer.sent) - 50)
    await producer.settled(len(producer.sent))
    assert producer.errors == []
    assert await has(north, [b"first", *producer.sent])


async def test_before_a_node_knows_its_links_writes_wait(copy: OneNode, north: OneNode) -> None:
    home_links = copy.node.links.forwarding._home_links
    home_links.is_known = False  # as just after a start
    answer = asyncio.ensure_future(written(copy, b"a"))
    await until(lambda: copy.node.links.forwarding.waiting_bytes > 0)
    home_links.is_known = True
    assert (await answer).error == 0
    assert await has(north, [b"first", b"a"])


async def test_what_stands_behind_a_batch_that_was_refused_for_the_moment_is_refused_too(
    copy: OneNode, north: OneNode, network: CutNetwork
) -> None:
    network.cut()
    client = Client(parse_addresses([copy.bootstrap]), security=Security())
    try:
        first = asyncio.ensure_future(written(copy, b"a", client=client, timeout_ms=1000))
        await until(lambda: copy.node.links.forwarding.waiting_bytes > 0)
        behind = asyncio.ensure_future(written(copy, b"b", client=client, timeout_ms=20_000))
        assert (await first).error == Code.LEADER_NOT_AVAILABLE
        network.heal()
        assert (await behind).error == Code.LEADER_NOT_AVAILABLE
    finally:
        await client.close()
    assert await accepted(copy, b"c")
    assert await has(north, [b"first", b"c"])
