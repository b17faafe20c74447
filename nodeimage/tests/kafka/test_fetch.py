"""Fetch sessions while their partitions are looked up, and while other requests come in behind a waiting fetch."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import Millis
from headrace.catalog.topics import CreateTopics, NewTopic
from headrace.kafka import fetch
from headrace.kafka.connection import Connection
from headrace.node.parts import NodeParts
from headrace.partitions.topics import Topic
from headrace.wire import fetch as wire
from headrace.wire.api_keys import ApiKey
from headrace.wire.header import read_request_header, request_header
from headrace.wire.primitives import Buffer

Append = Callable[..., Awaitable[int]]


class Answered:
    """A slot whose answer can be waited for."""

    throttle_ms = 0

    def __init__(self) -> None:
        self.future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.is_followed = False

    def answer(self, body: list[Buffer]) -> None:
        self.future.set_result(b"".join(bytes(piece) for piece in body))

    async def response(self) -> wire.FetchResponse:
        async with asyncio.timeout(20):
            return wire.decode_response(memoryview(await self.future), 0, 12)


def ask(
    broker: NodeParts,
    connection: Connection,
    session: tuple[int, int],
    offsets: Mapping[str, int],
    *,
    wait_ms: int = 0,
) -> Answered:
    """Start an incremental fetch."""
    topics = [
        wire.FetchTopic(name, None, [wire.FetchPartition(0, -1, offset, -1, -1, 1 << 20)])
        for name, offset in offsets.items()
    ]
    body = wire.encode_request(12, wire.FetchRequest(wait_ms, 1, 1 << 20, 0, *session, topics, [], ""))
    request = memoryview(request_header(ApiKey.FETCH, 12, 1, "test") + body)
    slot = Answered()
    broker.fetch.handle(connection, read_request_header(request), request, slot)  # type: ignore[arg-type]
    return slot


async def test_records_that_come_while_a_session_looks_up_another_topic_are_given_out(
    broker: NodeParts, append: Append, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.topics.resolve(["quiet", "new"], create=True)
    await append("quiet", b"a")
    connection = Connection(broker.dispatcher)
    begun = await ask(broker, connection, (0, 0), {"quiet": 1}).response()
    await ask(broker, connection, (begun.session_id, 1), {}).response()  # nothing is left to look at

    resolve = broker.topics.resolve

    async def slowly(*args: Any, **options: Any) -> Any:
        monkeypatch.undo()
        await append("quiet", b"b")
        return await resolve(*args, **options)

    monkeypatch.setattr(broker.topics, "resolve", slowly)
    broker.topics._by_name.pop("new")
    response = await ask(broker, connection, (begun.session_id, 2), {"new": 0}).response()
    held = {topic.topic: topic.partitions[0] for topic in response.topics}
    assert held["quiet"].high_watermark == 2
    assert held["quiet"].records
    assert held["new"].error == 0
    assert not connection.closed


async def test_a_session_finds_a_topic_that_is_made_after_it_was_asked_for(broker: NodeParts, append: Append) -> None:
    """A client does not name a partition again whose offset has not moved."""
    connection = Connection(broker.dispatcher)
    begun = await ask(broker, connection, (0, 0), {"late": 0}).response()
    assert begun.topics[0].partitions[0].error == Code.UNKNOWN_TOPIC_OR_PARTITION
    ((container, epoch),) = broker.placement.place(1, "default")
    item = NewTopic("/default", "late", uuid.uuid4().bytes, 1, {}, [container], [epoch])  # as another node makes it
    (outcome,) = await broker.catalog.submit(CreateTopics([item], Millis(1)))
    assert outcome.code is Code.NONE
    found = await ask(broker, connection, (begun.session_id, 1), {}).response()
    assert [(topic.topic, part.error) for topic in found.topics for part in topic.partitions] == [("late", 0)]
    assert await append("late", b"a") == 1
    found = await ask(broker, connection, (begun.session_id, 2), {}).response()
    assert found.topics[0].partitions[0].records


async def test_a_partition_that_is_forgotten_while_another_request_loads_one_is_not_given_out(
    broker: NodeParts, append: Append, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await broker.topics.resolve(["first", "second"], create=True)
    assert isinstance(first, Topic)
    assert isinstance(second, Topic)
    await append("first", b"a")
    second.partitions.clear()
    query = broker.catalog.query

    async def crowded(look: Any) -> Any:
        both = asyncio.ensure_future(broker.partitions.leaders([(first, 0), (second, 0)]))
        results.append(both)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        broker.topics._forget(first)
        return await query(look)

    results: list[asyncio.Future[Any]] = []
    monkeypatch.setattr(broker.catalog, "query", crowded)
    await broker.partitions.leader(second, 0)
    forgotten, loaded = await results[0]
    assert isinstance(forgotten, KafkaError), "who watched that one would wait for ever: nobody appends to it any more"
    assert forgotten.code == Code.LEADER_NOT_AVAILABLE
    assert not isinstance(loaded, KafkaError)


async def test_a_client_that_leaves_before_its_read_from_disk_begins_leaves_nothing_behind(
    broker: NodeParts, append: Append
) -> None:
    (topic,) = await broker.topics.resolve(["cold"], create=True)
    assert isinstance(topic, Topic)
    await append("cold", b"a")
    partition = topic.partitions[0]
    partition.container.log.forget_tail()
    for session_epoch in (-1, 0):
        connection = Connection(broker.dispatcher)
        ask(broker, connection, (0, session_epoch), {"cold": 0})
        assert connection.parked
        connection.connection_lost(None)
        assert partition.idle, "it can never be forgotten again"
    assert not len(broker.fetch_sessions)


async def test_a_fetch_that_waits_is_answered_when_its_session_is_ended(broker: NodeParts, append: Append) -> None:
    await broker.topics.resolve(["t"], create=True)
    first, second = Connection(broker.dispatcher), Connection(broker.dispatcher)
    begun = await ask(broker, first, (0, 0), {"t": 0}).response()
    waits = ask(broker, first, (begun.session_id, 1), {}, wait_ms=600_000)
    assert not waits.future.done()
    again = await ask(broker, second, (begun.session_id, 0), {"t": 0}).response()  # its client begins anew
    assert again.session_id != begun.session_id
    assert (await waits.response()).topics == []
    gone = await ask(broker, first, (begun.session_id, 2), {}).response()
    assert gone.error == Code.FETCH_SESSION_ID_NOT_FOUND


async def test_without_room_for_a_session_all_partitions_are_named_each_time(
    broker: NodeParts, append: Append, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.topics.resolve(["t"], create=True)
    connection = Connection(broker.dispatcher)
    begun = await ask(broker, connection, (0, 0), {"t": 0}).response()
    monkeypatch.setattr(broker.fetch_sessions, "_most", 1)
    waits = ask(broker, connection, (begun.session_id, 1), {}, wait_ms=600_000)
    others = [ask(broker, Connection(broker.dispatcher), (0, 0), {"t": 0}, wait_ms=600_000) for _ in range(3)]
    await append("t", b"a")
    for answered in (waits, *others):
        response = await answered.response()
        assert response.topics[0].partitions[0].records
        assert response.session_id == (begun.session_id if answered is waits else 0)


async def turns_during(work: Awaitable[Any]) -> tuple[Any, int]:
    """What came of it, and how often others had their turn on the loop meanwhile."""
    task, turns = asyncio.ensure_future(work), 0
    while not task.done():
        turns += 1
        await asyncio.sleep(0)
    return task.result(), turns


async def test_a_fetch_of_very_many_partitions_lets_others_have_their_turn(broker: NodeParts, append: Append) -> None:
    await broker.topics.resolve(["t"], create=True)
    await append("t", b"a")
    connection, count = Connection(broker.dispatcher), 20_000
    parts = [wire.FetchPartition(number, -1, 0, -1, -1, 1000) for number in range(count)]
    body = wire.encode_request(
        12, wire.FetchRequest(0, 1, 1 << 20, 0, 0, 0, [wire.FetchTopic("t", None, parts)], [], "")
    )
    request = memoryview(request_header(ApiKey.FETCH, 12, 1, "test") + body)
    slot = Answered()
    broker.fetch.handle(connection, read_request_header(request), request, slot)  # type: ignore[arg-type]
    response, turns = await turns_during(slot.response())
    assert [part.partition for part in response.topics[0].partitions] == list(range(count))
    assert response.topics[0].partitions[0].records
    assert {part.error for part in response.topics[0].partitions[1:]} == {Code.UNKNOWN_TOPIC_OR_PARTITION}
    assert turns > 2 * count // 256
    again = await ask(broker, connection, (response.session_id, 1), {"t": 1}).response()
    assert len(again.topics[0].partitions) == count - 1, "errors are told again"


async def test_one_answer_has_records_of_so_many_partitions_and_the_next_of_others(
    broker: NodeParts, append: Append, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "MOST_SERVED", 2)
    names = [f"t-{number}" for number in range(5)]
    await broker.topics.resolve(names, create=True)
    for name in names:
        await append(name, b"a")
    connection, session, served = Connection(broker.dispatcher), (0, 0), []
    offsets = dict.fromkeys(names, 0)
    while len(served) < len(names):
        response = await ask(broker, connection, session, offsets, wait_ms=600_000).response()
        offsets = {str(topic.topic): 1 for topic in response.topics if topic.partitions[0].records}
        assert len(offsets) == min(2, len(names) - len(served))
        served += offsets
        session = response.session_id, session[1] + 1
    assert served == names


async def test_a_fetch_that_may_wait_for_weeks_is_answered_within_minutes(
    broker: NodeParts, append: Append, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "MOST_WAIT_MS", 20)
    await broker.topics.resolve(["quiet"], create=True)
    await append("quiet", b"a")
    answered = await ask(broker, Connection(broker.dispatcher), (0, 0), {"quiet": 1}, wait_ms=2**31 - 1).response()
    assert answered.topics[0].partitions[0].error == Code.NONE
