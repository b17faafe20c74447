"""Three nodes of one cluster in the test's own loop, called as clients call them."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from headrace.base.errors import Code, KafkaError
from headrace.kafka.connection import Connection
from headrace.node import Node, Options
from headrace.node.parts import NodeParts
from headrace.partitions.cluster_layout import NodeSettings
from headrace.partitions.partition import Partition
from headrace.store.sqlite import SqliteStore
from headrace.wire import generic_codec
from headrace.wire import metadata as wire_metadata
from headrace.wire import produce as wire_produce
from headrace.wire.api_keys import ApiKey
from headrace.wire.batch import build_batch
from headrace.wire.header import read_request_header, request_header
from headrace.wire.primitives import Buffer
from kit.parts import handler

T = TypeVar("T")

PARTITIONS = 9


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[list[Node]]:
    """Three serving nodes, which have replicas of each other's containers."""
    SqliteStore(tmp_path / "cluster.sqlite").close()
    made = [
        Node(
            Options(
                data=tmp_path / f"node-{number}",
                store=tmp_path / "cluster.sqlite",
                host="127.0.0.1",
                port=0,
                ready_file=None,
                settings=NodeSettings(chunk_bytes=1 << 20, disk_reserve=0, fsync=False, rebalance_delay_ms=10),
                first_nodes=3,
                failure_host=f"host-{number}",
                zone=f"zone-{number}",
            )
        )
        for number in (1, 2, 3)
    ]
    await asyncio.gather(*(node.start() for node in made))
    try:
        yield made
    finally:
        await asyncio.gather(*(node.stop() for node in made))


@pytest.fixture
def brokers(nodes: list[Node]) -> list[NodeParts]:
    return [node.parts for node in nodes]


async def ask(broker: NodeParts, key: ApiKey, version: int, /, **fields: Any) -> Any:
    """Call a node as a client would."""
    request = generic_codec.decode_request(key, version, generic_codec.encode_request(key, version, fields))
    answer = await handler(broker, key)(request, session(broker))
    return generic_codec.decode_response(key, version, generic_codec.encode_response(key, version, answer))


def session(broker: NodeParts) -> Connection:
    connection = Connection(broker.dispatcher)
    connection.client_id, connection.peer = "app", "127.0.0.1:5000"
    return connection


async def described(broker: NodeParts, *names: str) -> wire_metadata.MetadataResponse:
    """A node's answer to Metadata 12."""
    asked = wire_metadata.MetadataRequest([(name, None) for name in names], False)
    slot = Answered()
    await broker.metadata._answer(session(broker), asked, 12, slot)  # type: ignore[arg-type]
    return wire_metadata.decode_response(slot.future.result(), 0, 12)


class Answered:
    """A slot whose answer can be awaited."""

    timed = None
    throttle_ms = 0

    def __init__(self) -> None:
        self.future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def failed(self, code: int) -> None:
        """Counts nothing."""

    def answer(self, body: list[Buffer]) -> None:
        self.future.set_result(b"".join(bytes(piece) for piece in body))

    def lose(self) -> None:
        self.future.set_exception(ConnectionError("cut off"))


def batch(*values: bytes, producer: int = -1, epoch: int = -1, sequence: int = -1) -> memoryview:
    records = [(int(time.time() * 1000), None, value, []) for value in values]
    return memoryview(build_batch(records, producer_id=producer, producer_epoch=epoch, base_sequence=sequence))


def send(broker: NodeParts, connection: Connection, partitions: int | Sequence[int], records: memoryview) -> Answered:
    """Start a Produce request to the topic `t`."""
    each = [partitions] if isinstance(partitions, int) else partitions
    parts = [wire_produce.PartitionRecords("t", partition, records) for partition in each]
    body = wire_produce.encode_request(9, wire_produce.ProduceRequest(None, -1, 6_000, parts))
    request = memoryview(bytearray(request_header(ApiKey.PRODUCE, 9, 1, "test") + body))
    slot = Answered()
    broker.produce.handle(connection, read_request_header(request), request, slot)  # type: ignore[arg-type]
    return slot


async def result(slot: Answered) -> wire_produce.ProduceResult:
    async with asyncio.timeout(100):
        ((found,), _) = wire_produce.decode_response(await slot.future, 0, 9)
    return found


@pytest.fixture
async def topic(brokers: list[NodeParts]) -> str:
    """A topic that all nodes know, with partitions on each of them."""
    await each_leads(brokers)
    made = await ask(
        brokers[0],
        ApiKey.CREATE_TOPICS,
        7,
        topics=[{"name": "t", "num_partitions": PARTITIONS, "replication_factor": -1}],
        timeout=100_000,
    )
    assert made.topics[0].error_code == 0
    assert made.topics[0].replication_factor == 3

    async def known(broker: NodeParts) -> bool:
        (found,) = await broker.topics.resolve(["t"])
        return not isinstance(found, KafkaError)

    for broker in brokers:
        await until(lambda broker=broker: known(broker))
    return "t"


@pytest.fixture
async def unmoved(nodes: list[Node], topic: str) -> list[NodeParts]:
    """The brokers, with containers that stay where they are: a pause of the machine would otherwise move them."""
    for node in nodes:
        await node.controller.close()
    return [node.parts for node in nodes]


async def until(check: Callable[[], Awaitable[T]]) -> T:
    """Wait for a result of `check`, and return it."""
    async with asyncio.timeout(100):
        while True:
            found = await check()
            if found:
                return found
            await asyncio.sleep(0.001)


async def each_leads(brokers: list[NodeParts]) -> None:
    """Wait until every node knows that each leads a container which takes new partitions."""

    async def known() -> bool:
        return all(
            {each.leader for each in broker.cluster.open_data()} == {other.node.node_id for other in brokers}
            for broker in brokers
        )

    await until(known)


@contextlib.asynccontextmanager
async def applying_nothing(broker: NodeParts) -> AsyncIterator[None]:
    """Within the context this node does not learn of committed commands, in any way."""
    async with broker.catalog._applier._turn:
        yield


async def led_by(broker: NodeParts) -> list[int]:
    """Partitions of `t` that a node leads."""
    (shown,) = (await described(broker, "t")).topics
    return [each.partition for each in shown.partitions if each.leader == broker.node.node_id]


async def held(broker: NodeParts, index: int) -> Partition:
    (found,) = await broker.topics.resolve(["t"])
    assert not isinstance(found, KafkaError)
    return await broker.partitions.leader(found, index)


async def coordinator(brokers: list[NodeParts]) -> NodeParts:
    (found,) = [broker for broker in brokers if broker.cluster.catalog_container is not None]
    await found.coordination.service()
    return found


async def join(broker: NodeParts, member_id: str = "") -> Any:
    joined = await ask(
        broker,
        ApiKey.JOIN_GROUP,
        9,
        group_id="g",
        session_timeout=30_000,
        rebalance_timeout=60_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[{"name": "range", "metadata": b"\0\0\0\0\0\1\0\1t\0\0\0\0"}],
    )
    return await join(broker, joined.member_id) if joined.error_code == Code.MEMBER_ID_REQUIRED else joined


async def sync(broker: NodeParts, joined: Any) -> Any:
    return await ask(
        broker,
        ApiKey.SYNC_GROUP,
        5,
        group_id="g",
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[{"member_id": joined.member_id, "assignment": b"all"}],
    )


async def commit(broker: NodeParts, joined: Any, offset: int) -> int:
    answer = await ask(
        broker,
        ApiKey.OFFSET_COMMIT,
        8,
        group_id="g",
        generation_id_or_member_epoch=joined.generation_id,
        member_id=joined.member_id,
        topics=[{"name": "t", "partitions": [{"partition_index": 0, "committed_offset": offset}]}],
    )
    return int(answer.topics[0].partitions[0].error_code)


async def committed_offset(broker: NodeParts) -> int:
    answer = await ask(
        broker,
        ApiKey.OFFSET_FETCH,
        7,
        group_id="g",
        topics=[{"name": "t", "partition_indexes": [0]}],
        require_stable=True,
    )
    assert answer.error_code == 0
    return int(answer.topics[0].partitions[0].committed_offset)


async def find(broker: NodeParts) -> tuple[int, int]:
    found = await ask(broker, ApiKey.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=["g"])
    return found.coordinators[0].error_code, found.coordinators[0].node_id


async def stored_by_anyone(
    brokers: list[NodeParts], index: int, records: memoryview
) -> wire_produce.ProduceResult | None:
    """The answer of the partition's leader."""
    for broker in brokers:
        answer = await result(send(broker, session(broker), index, records))
        if answer.error == 0:
            return answer
        assert answer.error in (Code.NOT_LEADER_OR_FOLLOWER, Code.LEADER_NOT_AVAILABLE)
    return None
