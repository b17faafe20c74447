"""Produce requests with many partitions, or for partitions that are not ready."""

import asyncio
import time

import pytest

from headrace.base.errors import Code
from headrace.base.ids import Millis
from headrace.catalog.topics import DeleteTopics
from headrace.kafka import produce
from headrace.kafka.connection import Connection
from headrace.node.parts import NodeParts
from headrace.partitions.partition import Partition
from headrace.partitions.topics import Topic
from headrace.security.access_rules import Kind, Permission
from headrace.wire import produce as wire
from headrace.wire.api_keys import ApiKey
from headrace.wire.batch import build_batch
from headrace.wire.header import read_request_header, request_header
from kit.access import AuditTold, User, put, secure


class Answered:
    """A slot whose answer can be awaited."""

    timed = None
    throttle_ms = 0

    def __init__(self) -> None:
        self.future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def failed(self, code: int) -> None:
        """Does nothing."""

    def answer(self, body: list[bytes]) -> None:
        self.future.set_result(b"".join(body))


async def test_a_request_for_very_many_partitions_lets_others_have_their_turn(broker: NodeParts) -> None:
    (topic,) = await broker.topics.resolve(["t"], create=True)
    assert isinstance(topic, Topic)
    await broker.partitions.leader(topic, 0)  # loads the partition, so that the request need not wait
    count, stored = 20_000, (0, 7_000, 19_999)
    batch = build_batch([(int(time.time() * 1000), None, b"x", [])])
    parts = [
        wire.PartitionRecords("t", 0, memoryview(batch)) if row in stored else wire.PartitionRecords("t", row, None)
        for row in range(count)
    ]
    body = wire.encode_request(9, wire.ProduceRequest(None, -1, 1000, parts))
    request = memoryview(bytearray(request_header(ApiKey.PRODUCE, 9, 1, "test") + body))
    slot, connection, turns = Answered(), Connection(broker.dispatcher), 0
    broker.produce.handle(connection, read_request_header(request), request, slot)  # type: ignore[arg-type]
    while connection.parked:
        turns += 1
        await asyncio.sleep(0)
    assert turns >= count // produce.MANY
    async with asyncio.timeout(20):
        results, _ = wire.decode_response(await slot.future, 0, 9)
    assert [(row, each.base_offset) for row, each in enumerate(results) if not each.error] == [
        (row, offset) for offset, row in enumerate(stored)
    ]
    assert len(results) == count
    assert {each.error for each in results if each.error} == {Code.UNKNOWN_TOPIC_OR_PARTITION}


async def test_a_producer_is_told_what_its_partition_waits_for(
    broker: NodeParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    (topic,) = await broker.topics.resolve(["t"], create=True)
    assert isinstance(topic, Topic)
    partition = await broker.partitions.leader(topic, 0)

    async def never(_partition: Partition) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(partition, "rolling", True)
    monkeypatch.setattr(broker.rolls, "wait_for_roll", never)
    monkeypatch.setattr(produce, "MAX_WAIT_S", 0.01)
    batch = build_batch([(int(time.time() * 1000), None, b"x", [])])
    parts = [wire.PartitionRecords("t", 0, memoryview(batch))]
    body = wire.encode_request(9, wire.ProduceRequest(None, -1, 1000, parts))
    request = memoryview(bytearray(request_header(ApiKey.PRODUCE, 9, 1, "test") + body))
    slot = Answered()
    broker.produce.handle(Connection(broker.dispatcher), read_request_header(request), request, slot)  # type: ignore[arg-type]
    async with asyncio.timeout(20):
        ((result,), _) = wire.decode_response(await slot.future, 0, 9)
    assert result.error == Code.LEADER_NOT_AVAILABLE
    assert result.message == "the partition is not ready to be written to: it is about to be rolled; try again"


# --- what a client may write


@pytest.fixture
async def secured(broker: NodeParts) -> NodeParts:
    """Two topics that alice may write to, and one that she may not."""
    await broker.topics.resolve(["a", "b", "other"], create=True)
    await put(
        broker,
        {
            (Kind.STREAM, "/default", Permission.PRODUCE): "u:alice | g:ops",
            (Kind.TOPIC, "/default:other", Permission.PRODUCE): "",
        },
    )
    await secure(broker)
    return broker


async def test_what_is_allowed_of_a_request_goes_on_and_the_rest_is_refused(secured: NodeParts) -> None:
    alice = User(secured, "alice")
    results = await alice.produce("other", "a", "/default:none", "b", "default..other")
    assert {name: result.error for name, result in results.items()} == {
        "other": 29,
        "a": 0,
        "/default:none": Code.UNKNOWN_TOPIC_OR_PARTITION,
        "b": 0,
        "default..other": 29,
    }
    refused = results["other"]
    assert (refused.base_offset, refused.log_start) == (-1, -1)
    assert (
        refused.message == "User:alice may not write topic other: it requires produce, which an administrator can grant"
    )


async def test_a_request_of_which_nothing_is_allowed_is_answered_too(secured: NodeParts) -> None:
    results = await User(secured, "mallory").produce("a", "b")
    assert {result.error for result in results.values()} == {29}
    assert (await User(secured).produce("a"))["a"].error == 29


async def test_a_change_holds_from_the_next_request_on_the_same_connection(secured: NodeParts) -> None:
    alice = User(secured, "alice")
    for _ in range(2):
        assert (await alice.produce("a"))["a"].error == 0
    assert list(alice.connection.write_grants) == ["a"]
    await put(secured, {(Kind.STREAM, "/default", Permission.PRODUCE): "g:ops"})
    assert (await alice.produce("a"))["a"].error == 29
    alice.connection.principal = User(secured, "alice", groups=["ops"]).connection.principal
    assert (await alice.produce("a"))["a"].error == 0
    alice.connection.principal = User(secured, "alice").connection.principal
    assert (await alice.produce("a"))["a"].error == 29, "what was granted to one principal is not another's"
    await secure(secured, on=False)
    assert (await alice.produce("a"))["a"].error == 0


async def test_a_topic_that_takes_the_place_of_another_has_its_own_expressions(secured: NodeParts) -> None:
    alice = User(secured, "alice")
    await put(secured, {(Kind.TOPIC, "/default:a", Permission.PRODUCE): "u:alice"})
    assert (await alice.produce("a"))["a"].error == 0
    (topic,) = await secured.topics.resolve(["a"])
    assert isinstance(topic, Topic)
    await put(secured, {(Kind.STREAM, "/default", Permission.PRODUCE): "u:root"})
    assert (await alice.produce("a"))["a"].error == 0, "its own"
    await secured.catalog.submit(DeleteTopics(topic_ids=[topic.topic_id], now=Millis(1)))
    assert (await alice.produce("a"))["a"].error == 29, "its stream's"


async def test_a_transactional_id_is_refused_for_all_of_a_request(secured: NodeParts) -> None:
    await put(secured, {(Kind.TRANSACTIONAL_ID_PREFIX, "pay-", Permission.PRODUCE): "u:bob"})
    alice, audit = User(secured, "alice"), AuditTold(secured)
    for _ in range(2):
        results = await alice.produce("a", transactional_id="pay-1")
        assert results["a"].error == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert (await alice.produce("a"))["a"].error == 0
    assert audit.denials() == [("alice", "produce", "transactional-id", "pay-1")] * 2
