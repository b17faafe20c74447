"""Calls between two nodes over loopback: answers, refusals, concurrent calls, and connections that end meanwhile."""

import asyncio
import os
import random
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from headrace.base.errors import Code, CorruptLog, KafkaError
from headrace.base.ids import ContainerId, Epoch, Offset, PartitionletId, Position
from headrace.base.sockets import endpoints
from headrace.peer.client import PeerClient, PeerRefused
from headrace.peer.messages import (
    Message,
    Prepare,
    RangeRead,
    ReadRange,
    Refused,
    RollAway,
    Rolled,
    Submit,
    Submitted,
)
from headrace.peer.session import PeerUnreachable, Session
from kit.peer import Gate, roll, submitted

READ = ReadRange(ContainerId(1), PartitionletId(2), Offset(0), Offset(9), 100)


async def test_a_call_is_answered(nodes: Any) -> None:
    server = await nodes.server({Submit: submitted})
    client = nodes.client()
    answer, payload = await client.call(server.address, Submit(), [b"com", b"mand"], timeout_s=5)
    assert answer == Submitted(Position(7))
    assert payload == b""
    assert {call: times.count for call, times in client.times.items()} == {"Submit": 1}


async def test_large_payloads_travel_both_ways_whole(nodes: Any) -> None:
    pieces = [random.randbytes(size) for size in (3_000_000, 10, 100_000, 1 << 20, 1)]

    async def back(message: ReadRange, payload: memoryview, session: Session) -> Any:
        return RangeRead([len(payload)]), [payload[:1_000_000], payload[1_000_000:]]

    server = await nodes.server({ReadRange: back})
    answer, payload = await nodes.client().call(server.address, READ, pieces, timeout_s=20)
    assert answer.lengths == [sum(map(len, pieces))]
    assert payload == b"".join(pieces)


async def test_many_calls_share_a_connection_and_are_answered_in_any_order(nodes: Any) -> None:
    gate, sessions = Gate(), set()

    async def at_once(message: Submit, payload: memoryview, session: Session) -> Any:
        sessions.add(session)
        return Submitted(Position(int(bytes(payload)))), [payload]

    server, client = await nodes.server({RollAway: gate, Submit: at_once}), nodes.client()
    slow = [asyncio.ensure_future(client.call(server.address, roll(i), timeout_s=20)) for i in range(50)]
    fast = [client.call(server.address, Submit(), [b"%d" % i], timeout_s=20) for i in range(500)]
    assert [(a.position, int(bytes(p))) for a, p in await asyncio.gather(*fast)] == [(i, i) for i in range(500)]
    assert not any(each.done() for each in slow)
    gate.opened.set()
    assert [answer.count for answer, _ in await asyncio.gather(*slow)] == list(range(50))
    assert len(sessions | gate.sessions) == 1


class NotHere(CorruptLog):
    """An error whose code is set by its class."""


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (KafkaError(Code.NOT_CONTROLLER, "ask node 3"), Code.NOT_CONTROLLER, "^ask node 3$"),
        (NotHere("a bad chunk"), Code.KAFKA_STORAGE_ERROR, "^a bad chunk$"),
        (KafkaError(Code.INVALID_REQUEST, "x\udc80" * 2_000_000), Code.INVALID_REQUEST, r"^x\?x\?"),
        (ZeroDivisionError("one by nought"), Code.UNKNOWN_SERVER_ERROR, "Submit failed on node 1.*one by nought"),
    ],
)
async def test_a_handlers_error_reaches_the_caller(
    nodes: Any, lines: list[Any], error: Exception, code: Code, words: str
) -> None:
    async def fails(message: Submit, payload: memoryview, session: Session) -> Message:
        raise error

    server, client = await nodes.server({Submit: fails, Prepare: submitted}), nodes.client()
    with pytest.raises(KafkaError, match=words) as caught:
        await client.call(server.address, Submit(), timeout_s=5)
    assert caught.value.code is code
    assert [each["event"] for each in lines] == (["call failed"] if code is Code.UNKNOWN_SERVER_ERROR else [])


async def test_a_refusal_may_name_an_epoch_and_a_code_that_is_not_known_yet(nodes: Any) -> None:
    async def refuses(message: Submit, payload: memoryview, session: Session) -> Message:
        return Refused(9_999, "too old", Epoch(8))

    server = await nodes.server({Submit: refuses})
    with pytest.raises(PeerRefused, match="too old") as caught:
        await nodes.client().call(server.address, Submit(), timeout_s=5)
    assert caught.value.epoch == 8
    assert caught.value.code is Code.UNKNOWN_SERVER_ERROR


async def test_an_answer_of_another_type_is_an_error(nodes: Any) -> None:
    async def astray(message: Submit, payload: memoryview, session: Session) -> Message:
        return Rolled(1)

    server = await nodes.server({Submit: astray})
    with pytest.raises(KafkaError, match="answered Submit with Rolled"):
        await nodes.client().call(server.address, Submit(), timeout_s=5)


async def test_an_answer_that_is_too_large_is_refused(nodes: Any) -> None:
    part = bytes(1 << 20)

    async def much(message: ReadRange, payload: memoryview, session: Session) -> Any:
        return RangeRead([]), [part] * 81

    server, client = await nodes.server({ReadRange: much, Submit: submitted}), nodes.client()
    with pytest.raises(KafkaError) as caught:
        await client.call(server.address, READ, timeout_s=5)
    assert caught.value.code is Code.MESSAGE_TOO_LARGE
    await client.call(server.address, Submit(), timeout_s=5)


async def test_a_late_answer_is_dropped_and_other_calls_go_on(nodes: Any) -> None:
    gate = Gate()
    server, client = await nodes.server({RollAway: gate, Submit: submitted}), nodes.client()
    late = asyncio.ensure_future(client.call(server.address, roll(1), timeout_s=0.1))
    other = asyncio.ensure_future(client.call(server.address, roll(2), timeout_s=20))
    with pytest.raises(PeerUnreachable, match=r"did not answer RollAway within 0\.1 s") as caught:
        await late
    assert caught.value.timed_out
    assert not caught.value.refused
    gate.opened.set()
    assert (await other)[0] == Rolled(2)
    assert gate.ended == 2
    assert (await client.call(server.address, Submit(), timeout_s=5))[0] == Submitted(Position(0))


async def test_a_call_that_is_cancelled_leaves_nothing_behind(nodes: Any) -> None:
    gate = Gate()
    server, client = await nodes.server({RollAway: gate}), nodes.client()
    call = asyncio.ensure_future(client.call(server.address, roll(1), timeout_s=20))
    await gate.until(1)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    gate.opened.set()
    assert (await client.call(server.address, roll(2), timeout_s=20))[0] == Rolled(2)
    assert len(gate.sessions) == 1


MANY_TURNS = 10_000


async def test_an_attempt_given_up_at_the_moment_of_connecting_leaves_nothing_behind(nodes: Any) -> None:
    """uvloop does not notify the protocol of the end then, so `close` of a client waited for that session forever."""
    server = await nodes.server({})
    for turns in range(12):
        client = nodes.client()
        attempt = asyncio.ensure_future(client.open(server.address, 5))
        for _ in range(turns if turns % 2 else MANY_TURNS):
            await asyncio.sleep(0)
            if client._sessions and not turns % 2:
                break
        attempt.cancel()
        await asyncio.wait([attempt])
        async with asyncio.timeout(5):
            await client.close()
        assert not client._sessions


async def test_where_nobody_listens_a_call_is_refused_at_once(nodes: Any) -> None:
    free = socket.socket()
    free.bind(("127.0.0.1", 0))
    with pytest.raises(PeerUnreachable, match="cannot be reached") as caught:
        await nodes.client().call(free.getsockname(), Submit(), timeout_s=20)
    assert caught.value.refused
    free.close()


async def test_a_reset_counts_as_refused(nodes: Any) -> None:
    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        raw = writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    async with await asyncio.start_server(reset, "127.0.0.1", 0) as listening:
        with pytest.raises(PeerUnreachable) as caught:
            await nodes.client().call(listening.sockets[0].getsockname(), Submit(), timeout_s=20)
    assert caught.value.refused


async def test_silence_runs_into_the_callers_timeout(nodes: Any) -> None:
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen()  # the kernel accepts, but nothing answers
    client = nodes.client()
    with pytest.raises(PeerUnreachable) as caught:
        await client.call(listening.getsockname(), Submit(), timeout_s=0.1)
    assert caught.value.timed_out
    with pytest.raises(PeerUnreachable) as caught:
        await client.open(listening.getsockname(), 0.1)
    assert caught.value.timed_out
    listening.close()


ONE_NODE = """
import asyncio, sys, uuid
from headrace.peer.messages import RollAway
from headrace.peer.server import PeerServer
from kit.peer import CLUSTER, SECRET, bound

async def never(message, payload, session):
    print("asked", flush=True)
    await asyncio.Event().wait()

async def main():
    shared = dict(cluster_id=CLUSTER, secret=SECRET)
    server = PeerServer(bound(), **shared, node=1, run=uuid.uuid4(), handlers={RollAway: never})
    await server.start()
    print(server.address[1], flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_a_server_that_is_killed_fails_its_calls_at_once_and_refuses_the_next(nodes: Any, request: Any) -> None:
    paths = os.pathsep.join([str(request.path.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    node = await asyncio.create_subprocess_exec(
        sys.executable, "-c", ONE_NODE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": paths}
    )
    try:
        assert node.stdout is not None
        address = ("127.0.0.1", int(await node.stdout.readline()))
        client = nodes.client()
        call = asyncio.ensure_future(client.call(address, roll(1), timeout_s=60))
        assert await node.stdout.readline() == b"asked\n"
    finally:
        node.kill()
        await node.wait()
    with pytest.raises(PeerUnreachable) as caught:
        await asyncio.wait_for(call, 20)
    assert not caught.value.timed_out
    with pytest.raises(PeerUnreachable) as caught:
        await client.call(address, roll(1), timeout_s=20)
    assert caught.value.refused


async def test_the_next_call_after_an_end_connects_again(nodes: Any) -> None:
    server, client = await nodes.server({Submit: submitted}), nodes.client()
    await client.call(server.address, Submit(), timeout_s=5)
    address = server.address
    await server.close()
    with pytest.raises(PeerUnreachable):
        await client.call(address, Submit(), timeout_s=5)
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(address)
    await nodes.server({Submit: submitted}, listening=listening)
    assert (await client.call(address, Submit(), timeout_s=5))[0] == Submitted(Position(0))


class Proxy:
    """Forwards bytes to a server, until it is told to swallow the bytes of its present connections."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self.connections = 0
        self.swallowed = 0
        self.ends: list[asyncio.StreamReader] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        far_reader, far_writer = await asyncio.open_connection(*self._target)

        async def pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            while piece := await source.read(65_536):
                if number > self.swallowed:
                    sink.write(piece)
            sink.close()

        self.ends.append(reader)
        await asyncio.gather(pass_on(reader, far_writer), pass_on(far_reader, writer))


@pytest.fixture
async def proxy(nodes: Any) -> AsyncIterator[tuple[Proxy, tuple[str, int]]]:
    server = await nodes.server({Submit: submitted})
    proxy = Proxy(server.address)
    async with await asyncio.start_server(proxy, "127.0.0.1", 0) as listening:
        yield proxy, listening.sockets[0].getsockname()


async def test_a_connection_that_leads_nowhere_is_given_up(nodes: Any, proxy: Any) -> None:
    path, address = proxy
    client = nodes.client()
    await client.call(address, Submit(), timeout_s=5)
    path.swallowed = path.connections
    with pytest.raises(PeerUnreachable) as caught:
        await client.call(address, Submit(), timeout_s=0.1)
    assert caught.value.timed_out
    await client.call(address, Submit(), timeout_s=5)
    assert path.connections == 2
    async with asyncio.timeout(100):
        assert await path.ends[0].read() == b""  # it was closed


async def test_calls_that_come_while_it_connects_share_the_attempt_each_with_its_own_timeout(
    nodes: Any, proxy: Any
) -> None:
    path, address = proxy
    client = nodes.client()
    answers = await asyncio.gather(*(client.call(address, Submit(), timeout_s=5) for _ in range(20)))
    assert len(answers) == 20
    assert path.connections == 1


async def test_closing_the_client_fails_what_waits(nodes: Any) -> None:
    gate = Gate()
    server, client = await nodes.server({RollAway: gate}), nodes.client()
    silent = socket.socket()
    silent.bind(("127.0.0.1", 0))
    silent.listen()
    connected = asyncio.ensure_future(client.call(server.address, roll(1), timeout_s=60))
    connecting = asyncio.ensure_future(client.call(silent.getsockname(), roll(1), timeout_s=60))
    await gate.until(1)
    await asyncio.wait_for(client.close(), 20)
    for call in (connected, connecting):
        with pytest.raises(PeerUnreachable):
            await call
    with pytest.raises(PeerUnreachable):
        await client.call(server.address, roll(1), timeout_s=60)
    with pytest.raises(PeerUnreachable):
        await client.open(server.address, 60)
    silent.close()


@pytest.mark.parametrize(
    ("identity", "words"),
    [
        ({"secret": "f" * 32}, "node 1 has another secret for cluster cluster-of-the-tests"),
        ({"cluster_id": "elsewhere"}, "node 2 belongs to cluster 'elsewhere', node 1 to 'cluster-of-the-tests'"),
    ],
)
async def test_a_node_that_does_not_belong_gets_one_clear_line_on_both_sides(
    nodes: Any, lines: list[Any], identity: dict[str, str], words: str
) -> None:
    server = await nodes.server({Submit: submitted})
    stranger: PeerClient = nodes.client(**identity)
    with pytest.raises(PeerUnreachable, match=words) as caught:
        await stranger.call(server.address, Submit(), timeout_s=5)
    assert not caught.value.refused
    assert not caught.value.timed_out
    await server.close()
    assert [each["event"] for each in lines] == ["peer handshake failed"] * 2
    assert sum(words in each["reason"] for each in lines) >= 1
    assert all(each["peer"].startswith("127.0.0.1:") for each in lines)


async def test_a_connection_that_is_reset_as_it_is_made_is_made_anew(nodes: Any) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    listening.settimeout(0.1)
    ends = threading.Event()

    def reset() -> None:
        while not ends.is_set():
            try:
                connected, _ = listening.accept()
            except TimeoutError:
                continue
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connected.close()

    resetting = asyncio.create_task(asyncio.to_thread(reset))
    client, address = nodes.client(), listening.getsockname()
    for _ in range(200):
        with pytest.raises(PeerUnreachable) as unreachable:
            await client.call(address, Submit(), timeout_s=10)
        assert not unreachable.value.timed_out
    ends.set()
    await resetting
    await nodes.server({Submit: submitted}, listening=listening)
    await client.call(address, Submit(), timeout_s=10)


@pytest.mark.parametrize("error", [OSError(107, "not connected"), ValueError("negative file descriptor")])
async def test_a_socket_that_cannot_be_asked_who_is_there_is_a_connection_like_others(
    nodes: Any, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    class Silent:
        def get_extra_info(self, name: str) -> Any:
            raise error

    assert endpoints(Silent()) == (None, None)  # type: ignore[arg-type]
    server, client = await nodes.server({Submit: submitted}), nodes.client()
    monkeypatch.setattr("headrace.peer.session.endpoints", lambda _: endpoints(Silent()))  # type: ignore[arg-type]
    await client.call(server.address, Submit(), timeout_s=10)


async def test_a_fault_of_ours_while_connecting_does_not_keep_the_address_from_being_tried_again(
    nodes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_args: Any) -> Session:
        raise ValueError("negative file descriptor")

    server, client = await nodes.server({Submit: submitted}), nodes.client()
    with monkeypatch.context() as faulty:
        faulty.setattr(client, "_connect", fails)
        with pytest.raises(PeerUnreachable, match="internal error: ValueError"):
            await client.call(server.address, Submit(), timeout_s=10)
    await client.call(server.address, Submit(), timeout_s=10)
