"""Fetch sessions while their partitions are looked up, and while other requests arrive behind a waiting fetch."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping
from time import monotonic
from typing import Any

import pytest

from headrace.base.deadlines import Deadline
from headrace.base.errors import Code, KafkaError
from headrace.base.ids import Millis
from headrace.catalog.topics import CreateTopics, NewTopic
from headrace.kafka import fetch
from headrace.kafka.connection import Connection
from headrace.kafka.fetch_sessions import WatchedPartition
from headrace.kafka.reading_pace import LARGE_BYTES, MAX_HELD_S, ReadingPace
from headrace.node.parts import NodeParts
from headrace.partitions.topics import Topic
from headrace.security.access_rules import Kind, Permission
from headrace.wire import fetch as wire
from headrace.wire.api_keys import ApiKey
from headrace.wire.header import read_request_header, request_header
from headrace.wire.primitives import Buffer
from kit.access import Slot, User, codes_of, put, secure
from kit.one_node import until
from kit.replaced_methods import replace_method

Append = Callable[..., Awaitable[int]]


class Answered:
    """A slot whose answer can be awaited."""

    timed = None
    throttle_ms = 0

    def __init__(self) -> None:
        self.future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.is_followed = False

    def failed(self, code: int) -> None:
        """Does nothing."""

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
    broker.topics._by_name[connection.default_stream].pop("new")
    response = await ask(broker, connection, (begun.session_id, 2), {"new": 0}).response()
    held = {topic.topic: topic.partitions[0] for topic in response.topics}
    assert held["quiet"].high_watermark == 2
    assert held["quiet"].records
    assert held["new"].error == 0
    assert not connection.closed


async def test_a_session_finds_a_topic_that_is_made_after_it_was_asked_for(broker: NodeParts, append: Append) -> None:
    """A client does not name a partition again if its offset has not moved."""
    connection = Connection(broker.dispatcher)
    begun = await ask(broker, connection, (0, 0), {"late": 0}).response()
    assert begun.topics[0].partitions[0].error == Code.UNKNOWN_TOPIC_OR_PARTITION
    ((container, epoch),) = broker.placement.place(1, "default")
    item = NewTopic("/default", "late", uuid.uuid4().bytes, 1, {}, [container], [epoch])  # as if by another node
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


@pytest.mark.parametrize("most_counted", [0, fetch.MAX_COUNTED], ids=["beside the loop", "on the loop"])
async def test_records_are_counted_that_are_read_from_disk(
    broker: NodeParts, append: Append, monkeypatch: pytest.MonkeyPatch, most_counted: int
) -> None:
    monkeypatch.setattr(fetch, "MAX_COUNTED", most_counted)
    (topic,) = await broker.topics.resolve(["cold"], create=True)
    assert isinstance(topic, Topic)
    for count in (3, 1, 2):
        await append("cold", *([b"a"] * count))
    topic.partitions[0].container.log.forget_tail()
    response = await ask(broker, Connection(broker.dispatcher), (0, -1), {"cold": 0}).response()
    assert topic.traffic.out_records == 6
    assert topic.traffic.out_bytes == sum(map(len, response.topics[0].partitions[0].records))


async def test_a_fetch_that_waits_is_answered_when_its_session_is_ended(broker: NodeParts, append: Append) -> None:
    await broker.topics.resolve(["t"], create=True)
    first, second = Connection(broker.dispatcher), Connection(broker.dispatcher)
    begun = await ask(broker, first, (0, 0), {"t": 0}).response()
    waits = ask(broker, first, (begun.session_id, 1), {}, wait_ms=600_000)
    assert not waits.future.done()
    again = await ask(broker, second, (begun.session_id, 0), {"t": 0}).response()  # its client starts a new session
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
    """The result, and how often other tasks had a turn on the loop meanwhile."""
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
    monkeypatch.setattr(fetch, "MAX_SERVED", 2)
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
    monkeypatch.setattr(fetch, "MAX_WAIT_MS", 20)
    await broker.topics.resolve(["quiet"], create=True)
    await append("quiet", b"a")
    answered = await ask(broker, Connection(broker.dispatcher), (0, 0), {"quiet": 1}, wait_ms=2**31 - 1).response()
    assert answered.topics[0].partitions[0].error == Code.NONE


# --- what a client may read


@pytest.fixture
async def shared(broker: NodeParts, append: Append) -> str:
    """A topic of a secured node with one record, which alice and the members of group ops may read."""
    await broker.topics.resolve(["shared"], create=True)
    await append("shared", b"a")
    await put(
        broker,
        {
            (Kind.STREAM, "/default", Permission.CONSUME): "u:alice | g:ops",
            (Kind.CLUSTER, "", Permission.ADMIN): "u:root",
        },
    )
    await secure(broker)
    return "shared"


async def may_read(broker: NodeParts, text: str) -> None:
    await put(broker, {(Kind.STREAM, "/default", Permission.CONSUME): text})


def parts_of(response: wire.FetchResponse) -> list[wire.FetchResult]:
    return [part for topic in response.topics for part in topic.partitions]


async def response_of(slot: Slot) -> wire.FetchResponse:
    return wire.decode_response(await slot.body(), 0, 12)


async def test_a_waiting_fetch_ends_at_once_when_its_client_may_no_longer_read_and_others_wait_on(
    broker: NodeParts, append: Append, shared: str
) -> None:
    alice, ops = User(broker, "alice"), User(broker, "carol", groups=["ops"])
    ends, waits = (each.start_fetch(shared, offset=1, wait_ms=300_000) for each in (alice, ops))
    await may_read(broker, "g:ops")
    (told,) = parts_of(await response_of(ends))
    assert (told.error, told.high_watermark, told.log_start, told.records) == (29, -1, -1, [])
    assert not waits.future.done()
    await append(shared, b"b")
    assert [part.error for part in parts_of(await response_of(waits))] == [0]


async def test_a_waiting_fetch_ends_when_security_is_turned_on(broker: NodeParts, shared: str) -> None:
    await secure(broker, on=False)
    waits = User(broker).start_fetch(shared, offset=1, wait_ms=300_000)
    await secure(broker)
    assert codes_of(await response_of(waits)) == [29]


async def test_a_session_tells_once_more_what_may_no_longer_be_read_and_gives_it_out_again_when_it_may(
    broker: NodeParts, append: Append, shared: str
) -> None:
    alice = User(broker, "alice")
    begun = await alice.fetch(shared, session=(0, 0), offset=1)
    assert codes_of(await alice.fetch(session=(begun.session_id, 1))) == [], "nothing is new"
    await may_read(broker, "g:ops")
    await append(shared, b"b")
    (told,) = parts_of(await alice.fetch(session=(begun.session_id, 2)))
    assert (told.error, told.records) == (29, [])
    assert codes_of(await alice.fetch(session=(begun.session_id, 3))) == [29], "it is asked for still"
    await may_read(broker, "u:alice")
    (told,) = parts_of(await alice.fetch(session=(begun.session_id, 4)))
    assert told.error == 0
    assert told.records


async def test_a_quiet_partition_of_an_open_session_is_told_of_without_anything_new_in_it(
    broker: NodeParts, shared: str
) -> None:
    alice = User(broker, "alice")
    begun = await alice.fetch(shared, session=(0, 0), offset=1)
    await alice.fetch(session=(begun.session_id, 1))
    await may_read(broker, "")
    looked = broker.fetch._recheck_task
    assert looked is not None
    await looked
    assert codes_of(await alice.fetch(session=(begun.session_id, 2))) == [29]


async def test_what_is_read_from_disk_meanwhile_is_not_given_out(
    broker: NodeParts, shared: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (topic,) = await broker.topics.resolve([shared])
    assert isinstance(topic, Topic)
    partition = await broker.partitions.leader(topic, 0)
    monkeypatch.setattr(partition.container.log, "read_tail", lambda *_, **__: None)
    read, loop = partition.container.log.read, asyncio.get_running_loop()

    def changed(*args: Any, **more: Any) -> Any:
        found = read(*args, **more)
        asyncio.run_coroutine_threadsafe(may_read(broker, "g:ops"), loop).result()
        return found

    replace_method(monkeypatch, partition.container.log, "read", changed)
    (told,) = parts_of(await User(broker, "alice").fetch(shared))
    assert (told.error, told.records, told.high_watermark) == (29, [], -1)


async def test_an_answer_without_a_session_tells_no_end_of_what_may_no_longer_be_read(
    broker: NodeParts, append: Append, shared: str
) -> None:
    """The partition is quiet while the fetch waits for another topic's partition."""
    await secure(broker, on=False)
    await broker.topics.resolve(["own"], create=True)
    await secure(broker)
    alice = User(broker, "alice")
    await put(broker, {(Kind.TOPIC, "/default:own", Permission.CONSUME): "u:alice"})
    waits = alice.start_fetch("own", shared, offset=0, wait_ms=0)
    assert codes_of(await response_of(waits)) == [0, 0]
    waits = alice.start_fetch(shared, "own", offset=1, wait_ms=300_000)
    assert codes_of(await response_of(waits)) == [0, Code.OFFSET_OUT_OF_RANGE]
    await append("own", b"x")
    waits = alice.start_fetch(shared, "own", offset=1, wait_ms=300_000)
    await may_read(broker, "g:ops")
    told = {topic.topic: topic.partitions[0] for topic in (await response_of(waits)).topics}
    assert (told[shared].error, told[shared].high_watermark) == (29, -1)
    assert (told["own"].error, told["own"].high_watermark) == (0, 1)


async def test_a_session_goes_on_with_the_groups_that_its_user_has_now(broker: NodeParts, shared: str) -> None:
    carol = User(broker, "carol", groups=["ops"])
    begun = await carol.fetch(shared, session=(0, 0), offset=1)
    assert codes_of(begun) == [0]
    carol.connection.principal = User(broker, "carol", groups=["dev"]).connection.principal
    assert codes_of(await carol.fetch(session=(begun.session_id, 1))) == [29]
    other = User(broker, "carol", groups=["ops"])
    assert codes_of(await other.fetch(session=(begun.session_id, 2))) == [0], "by another connection of that user"


async def test_a_topic_that_a_waiting_client_knows_by_its_id_is_refused_by_name_of_the_error(
    broker: NodeParts, shared: str
) -> None:
    (topic,) = await broker.topics.resolve([shared])
    assert isinstance(topic, Topic)
    alice = User(broker, "alice")
    waits = alice.start_fetch(topic.topic_id, offset=1, wait_ms=300_000)
    await may_read(broker, "g:ops")
    response = wire.decode_response(await waits.body(), 0, 16)
    assert codes_of(response) == [29]
    assert await alice.fetch_codes(topic.topic_id) == [Code.UNKNOWN_TOPIC_ID], "from then on there is none for it"
    await put(broker, {(Kind.STREAM, "/default", Permission.PRODUCE): "u:alice"})
    assert await alice.fetch_codes(topic.topic_id) == [29], "it may describe the topic"


async def test_a_link_reads_with_copy_alone(broker: NodeParts, shared: str) -> None:
    await put(broker, {(Kind.STREAM, "/default", Permission.COPY): "u:link"})
    assert await User(broker, "link").fetch_codes(shared) == [0]


async def test_thousands_of_waiting_fetches_are_looked_through_beside_others(broker: NodeParts, shared: str) -> None:
    users = [User(broker, "alice") if index % 2 else User(broker, f"u{index}", groups=["ops"]) for index in range(1000)]
    waiting = [each.start_fetch(shared, offset=1, wait_ms=300_000) for each in users]
    await may_read(broker, "g:ops")
    answers = await asyncio.gather(*(response_of(slot) for slot in waiting[1::2]))
    assert {code for each in answers for code in codes_of(each)} == {29}
    assert not any(slot.future.done() for slot in waiting[::2])


async def test_a_longer_request_of_a_replica_is_refused_as_well(
    broker: NodeParts, shared: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "LONG_BYTES", 1)
    assert await User(broker, "root").fetch_codes(shared, replica_id=1, version=12) == [29]
    assert await User(broker, "alice").fetch_codes(shared) == [0]
    assert await User(broker, "mallory").fetch_codes(shared, "none") == [29, 29]
    await secure(broker, on=False)
    assert await User(broker).fetch_codes(shared, replica_id=1, version=12) == [0], "as ever, while security is off"


async def held_up(broker: NodeParts, append: Append) -> tuple[Connection, Topic]:
    """A client whose requests are delayed for the longest time, and a topic with a record."""
    (topic,) = await broker.topics.resolve(["t"], create=True)
    assert isinstance(topic, Topic)
    await append("t", b"a")
    connection = Connection(broker.dispatcher)
    pace = connection.reading_pace = ReadingPace(monotonic())
    pace.rate = 1.0
    pace.answered(monotonic(), 1_000_000)
    return connection, topic


@pytest.mark.parametrize("cold", [False, True])
async def test_a_request_that_is_held_up_is_answered_in_time_though_there_is_something_to_read(
    broker: NodeParts, append: Append, cold: bool
) -> None:
    connection, topic = await held_up(broker, append)
    if cold:
        topic.partitions[0].container.log.forget_tail()
    began = broker.runtime.loop.time()
    held = ask(broker, connection, (0, 0), {"t": 0}, wait_ms=600_000)
    await append("t", b"b")
    assert not held.future.done(), "what is committed meanwhile does not answer it"
    response = await held.response()
    assert len(response.topics[0].partitions[0].records) > 0
    assert broker.runtime.loop.time() - began >= MAX_HELD_S
    held = ask(broker, connection, (response.session_id, 1), {"t": 2}, wait_ms=1)
    assert (await held.response()).topics == [], "it waits for no longer than it may"


async def test_a_request_that_was_held_up_waits_for_records_like_any_other(
    broker: NodeParts, append: Append, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, topic = await held_up(broker, append)
    waits: list[float] = []
    after = broker.runtime.deadlines.after

    def noted(seconds: float, callback: Callable[[], None]) -> Deadline:
        waits.append(seconds)
        return after(seconds, callback)

    monkeypatch.setattr(broker.runtime.deadlines, "after", noted)
    held = ask(broker, connection, (0, -1), {"t": 1}, wait_ms=600_000)
    (watcher,) = topic.partitions[0].watchers or ()
    assert isinstance(watcher, WatchedPartition)
    await until(lambda: watcher.session._wake is not fetch._ignore_wake)
    assert not held.future.done()
    hold_s, rest_s = waits
    assert 0 < hold_s <= MAX_HELD_S
    assert hold_s + rest_s == fetch.MAX_WAIT_MS / 1000, "as long as one that is not held up"
    await append("t", b"b")
    assert (await held.response()).topics[0].partitions[0].records
    assert topic.partitions[0].idle


async def test_a_request_is_not_held_up_where_it_may_not_wait_or_another_waits_behind_it(
    broker: NodeParts, append: Append
) -> None:
    connection, _ = await held_up(broker, append)
    assert (await ask(broker, connection, (0, -1), {"t": 0}).response()).topics[0].partitions[0].records
    held = ask(broker, connection, (0, -1), {"t": 0}, wait_ms=600_000)
    assert not held.future.done()
    assert connection.has_waiting_fetches
    for answer in list(connection._waiting_fetches):
        answer()  # as for a request behind it
    assert held.future.done()
    assert not connection.has_waiting_fetches


async def test_a_client_that_leaves_while_it_is_held_up_leaves_nothing_behind(
    broker: NodeParts, append: Append
) -> None:
    connection, topic = await held_up(broker, append)
    ask(broker, connection, (0, 0), {"t": 0}, wait_ms=600_000)
    connection.connection_lost(None)
    assert topic.partitions[0].idle
    assert not len(broker.fetch_sessions)


async def test_the_pace_of_a_client_is_looked_at_from_its_first_large_answer_on(
    broker: NodeParts, append: Append
) -> None:
    await broker.topics.resolve(["t"], create=True)
    await append("t", b"a")
    connection = Connection(broker.dispatcher)
    await ask(broker, connection, (0, -1), {"t": 0}).response()
    assert connection.reading_pace is None
    await append("t", b"x" * LARGE_BYTES)
    await ask(broker, connection, (0, -1), {"t": 0}).response()
    assert connection.reading_pace is not None
    assert not connection.reading_pace.rate
