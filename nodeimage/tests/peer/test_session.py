"""Sessions handed over to a stream: order, large payloads, back-pressure in both directions, faults, and ends."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from headrace.base.ids import ContainerId, Epoch, NodeId, Position
from headrace.peer.client import PeerClient
from headrace.peer.messages import Acked, Commit, Follow, Following, Frames, Message, Submit
from headrace.peer.server import PeerServer
from headrace.peer.session import MAX_PENDING, PeerUnreachable, Session
from kit.peer import submitted

FOLLOW = Follow(
    container=ContainerId(1),
    epoch=Epoch(1),
    node=NodeId(2),
    format="f",
    observer=False,
    history=[],
    end=Position(0),
    start=Position(0),
)
FOLLOWING = Following(Epoch(1), [], Position(0), Position(0))


class End:
    """One end of a stream, with the messages that it has received."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.heard: list[tuple[Message, memoryview]] = []
        self.ended = 0
        self.changed = asyncio.Event()
        session.hand_to(self)

    def message_received(self, message: Message, payload: memoryview) -> None:
        self.heard.append((message, payload))
        self.changed.set()

    def session_closed(self) -> None:
        self.ended += 1
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(100):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    async def until_heard(self, count: int) -> None:
        await self.until(lambda: len(self.heard) >= count)


class OneAtATime(End):
    """An end that pauses at each message."""

    def message_received(self, message: Message, payload: memoryview) -> None:
        super().message_received(message, payload)
        self.session.pause()


class FaultyAtMessages(End):
    def message_received(self, message: Message, payload: memoryview) -> None:
        raise ZeroDivisionError


class FaultyAtTheEnd(End):
    def session_closed(self) -> None:
        raise ZeroDivisionError


class Primary:
    """The serving side: each Follow becomes an End, answered with Following."""

    def __init__(self) -> None:
        self.ends: list[End] = []

    def follow(self, message: Follow, session: Session) -> None:
        self.ends.append(End(session))
        session.send(FOLLOWING)


class Pair:
    def __init__(self, server: PeerServer, client: PeerClient, near: End, far: End) -> None:
        self.server = server
        self.client = client
        self.near = near
        """The client's end."""
        self.far = far


async def opened(nodes: Any, server: PeerServer, leader: Primary) -> Pair:
    client = nodes.client()
    near = End(await client.open(server.address, 5))
    near.session.send(FOLLOW)
    await near.until_heard(1)
    return Pair(server, client, near, leader.ends[-1])


@pytest.fixture
async def pair(nodes: Any) -> Pair:
    leader = Primary()
    server = await nodes.server({Submit: submitted}, {Follow: leader.follow})
    return await opened(nodes, server, leader)


async def test_both_ends_know_each_other(pair: Pair) -> None:
    assert pair.near.heard[0][0] == FOLLOWING
    assert pair.near.session.node == 1
    assert pair.far.session.node == 2
    assert pair.far.session.peer.startswith("127.0.0.1:")


async def test_messages_of_any_size_arrive_in_order_and_payloads_stay_as_they_were(pair: Pair) -> None:
    chance = random.Random(5)
    pair.near.heard.clear()
    sent: list[tuple[Message, bytes]] = []
    for i in range(300):
        sizes = chance.choice([(), (1,), (100, 200), (5_000,) * 5, (200_000, 7, 800_000), (1 << 20,)])
        buffers = [chance.randbytes(size) for size in sizes]
        sent.append((Frames(Position(i)), b"".join(buffers)))
        pair.far.session.send(sent[-1][0], [memoryview(each) for each in buffers])
        await pair.far.session.drained()
    await pair.near.until_heard(len(sent))
    assert pair.near.heard == sent


async def test_both_ends_may_talk_at_a_time(pair: Pair) -> None:
    payload = bytes(300_000)

    async def talk(end: End) -> None:
        for i in range(100):
            end.session.send(Acked(Position(i), Epoch(1)), [payload])
            await end.session.drained()

    async with asyncio.timeout(100):
        await asyncio.gather(talk(pair.near), talk(pair.far))
    await pair.near.until_heard(101)
    await pair.far.until_heard(100)
    assert [each.position for each, _ in pair.far.heard if isinstance(each, Acked)] == list(range(100))


async def test_a_receiver_that_pauses_holds_the_sender_up_and_loses_nothing(pair: Pair) -> None:
    part = bytes(1 << 20)
    pair.near.session.pause()
    count = 0
    while pair.far.session.pending_bytes <= MAX_PENDING:
        pair.far.session.send(Frames(Position(count)), [part])
        count += 1
        if pair.far.session.pending_bytes > MAX_PENDING:
            await asyncio.sleep(0)  # the operating system may still accept it
        assert count < 1_000
    drained = asyncio.ensure_future(pair.far.session.drained())
    await asyncio.wait([drained], timeout=0.1)
    assert not drained.done()
    assert pair.far.session.pending_bytes > 0
    assert len(pair.near.heard) == 1
    pair.near.session.resume()
    await asyncio.wait_for(drained, 20)
    assert pair.far.session.pending_bytes <= MAX_PENDING
    await pair.near.until_heard(1 + count)
    assert [each.committed for each, _ in pair.near.heard[1:] if isinstance(each, Frames)] == list(range(count))


async def test_a_pause_from_within_a_callback_holds_at_once_though_more_has_come(pair: Pair) -> None:
    near = OneAtATime(pair.near.session)
    for i in range(5):
        pair.far.session.send(Commit(Position(i)))
    for i in range(5):
        await near.until_heard(i + 1)
        await asyncio.sleep(0)
        assert len(near.heard) == i + 1
        near.session.resume()
    assert [each for each, _ in near.heard] == [Commit(Position(i)) for i in range(5)]


async def test_an_end_that_closes_ends_both_once_what_was_sent_has_arrived(pair: Pair) -> None:
    payload = bytes(3 << 20)
    pair.far.session.send(Frames(Position(1)), [payload])
    pair.far.session.close("moved on")
    assert pair.far.ended == 0
    await pair.near.until(lambda: pair.near.ended == 1)
    await pair.far.until(lambda: pair.far.ended == 1)
    assert pair.near.heard[-1] == (Frames(Position(1)), payload)
    assert await pair.far.session.closed == "moved on"
    assert await pair.near.session.closed == "closed by the other side"


async def test_a_session_that_has_ended_takes_and_delivers_nothing(pair: Pair) -> None:
    pair.near.session.abort("enough")
    pair.near.session.send(Commit(Position(1)))
    assert pair.near.session.is_closed
    with pytest.raises(PeerUnreachable, match="enough"):
        await pair.near.session.drained()
    await pair.far.until(lambda: pair.far.ended == 1)
    await pair.near.until(lambda: pair.near.ended == 1)
    assert pair.far.heard == []
    assert pair.near.session.pending_bytes == 0


async def test_who_waits_for_room_hears_of_the_end(pair: Pair) -> None:
    pair.near.session.pause()
    part = bytes(1 << 20)
    for i in range(64):
        pair.far.session.send(Frames(Position(i)), [part])
    drained = asyncio.ensure_future(pair.far.session.drained())
    pair.near.session.abort("gone")
    with pytest.raises(PeerUnreachable):
        await asyncio.wait_for(drained, 20)


async def test_cancelling_who_waits_for_the_end_does_no_harm(pair: Pair) -> None:
    async def wait() -> None:
        await pair.near.session.closed

    waiting = asyncio.ensure_future(wait())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    pair.near.session.close("done")
    assert await asyncio.wait_for(pair.near.session.closed, 20) == "done"


async def test_a_listener_that_comes_too_late_hears_of_the_end_still(pair: Pair) -> None:
    pair.near.session.abort("gone")
    await pair.near.session.closed
    late = End(pair.near.session)
    assert late.ended == 0, "not from within"
    await asyncio.wait_for(late.until(lambda: late.ended == 1), 20)


async def test_a_session_that_was_handed_on_tells_its_listener_alone(pair: Pair) -> None:
    before, after = pair.near, End(pair.near.session)
    before.heard.clear()
    pair.far.session.send(Commit(Position(1)))
    pair.far.session.close("moved on")
    await after.until(lambda: after.ended == 1)
    assert [each for each, _ in after.heard] == [Commit(Position(1))]
    assert (before.heard, before.ended) == ([], 0)


async def test_a_fault_in_a_callback_ends_its_session_alone(nodes: Any, lines: list[Any]) -> None:
    leader = Primary()
    server = await nodes.server({Submit: submitted}, {Follow: leader.follow})
    faulty, sound = await opened(nodes, server, leader), await opened(nodes, server, leader)
    far = FaultyAtMessages(faulty.far.session)
    for each in (faulty, sound):
        each.near.session.send(Commit(Position(1)))
    await faulty.near.until(lambda: faulty.near.ended == 1)
    await far.until(lambda: far.ended == 1)
    await sound.far.until_heard(1)
    assert not sound.near.session.is_closed
    (line,) = lines
    assert line["event"] == "callback of a session failed"
    assert line["peer"] == faulty.far.session.peer


async def test_a_fault_at_the_end_of_a_session_is_logged_and_the_server_still_closes(
    nodes: Any, pair: Pair, lines: list[Any]
) -> None:
    FaultyAtTheEnd(pair.far.session)
    await asyncio.wait_for(pair.server.close(), 20)
    assert [each["event"] for each in lines] == ["callback of a closed session failed"]


async def test_a_fault_in_the_beginning_of_a_stream_ends_its_session(nodes: Any, lines: list[Any]) -> None:
    def fails(message: Follow, session: Session) -> None:
        raise ZeroDivisionError

    server = await nodes.server({}, {Follow: fails})
    near = End(await nodes.client().open(server.address, 5))
    near.session.send(FOLLOW)
    await near.until(lambda: near.ended == 1)
    assert len(lines) == 1


class Later(Message, frozen=True):
    """A message from a future version."""


@pytest.mark.parametrize("message", [Later(), Commit(Position(1))])
async def test_a_message_that_begins_nothing_ends_the_session(nodes: Any, lines: list[Any], message: Message) -> None:
    server = await nodes.server({}, {Follow: Primary().follow})
    near = End(await nodes.client().open(server.address, 5))
    near.session.send(message)
    await near.until(lambda: near.ended == 1)
    (line,) = lines
    assert line["node"] == 2
    assert type(message).__name__ in line["reason"]


async def test_a_message_that_is_not_known_ends_the_stream(pair: Pair, lines: list[Any]) -> None:
    pair.near.session.send(Later())
    await pair.near.until(lambda: pair.near.ended == 1)
    assert pair.far.heard == []
    assert len(lines) == 1


async def test_closing_the_server_ends_streams(pair: Pair) -> None:
    await asyncio.wait_for(pair.server.close(), 20)
    assert pair.far.ended == 1
    await pair.near.until(lambda: pair.near.ended == 1)


async def test_closing_the_server_does_not_wait_for_a_follower_that_does_not_read(pair: Pair) -> None:
    pair.near.session.pause()
    part = bytes(1 << 20)
    for i in range(64):
        pair.far.session.send(Frames(Position(i)), [part])
    await asyncio.wait_for(pair.server.close(), 10)
    assert pair.far.ended == 1


async def test_closing_the_client_ends_streams(pair: Pair) -> None:
    await asyncio.wait_for(pair.client.close(), 20)
    assert pair.near.ended == 1
    await pair.far.until(lambda: pair.far.ended == 1)


async def test_a_session_tells_when_it_last_heard(pair: Pair) -> None:
    before = pair.near.session.heard_at
    await asyncio.wait([pair.near.session.closed], timeout=0.02)
    pair.far.session.send(Commit(Position(1)))
    await pair.near.until_heard(2)
    assert pair.near.session.heard_at > before
