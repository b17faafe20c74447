"""A server's reaction to junk: one log line, and it continues to serve the others."""

import asyncio
import random
import struct
from typing import Any

import msgspec
import pytest

from headrace.base.admission import Admission
from headrace.base.ids import ContainerId, Epoch, NodeId, Position
from headrace.peer import session as session_module
from headrace.peer.framing import encode_frame, encode_message
from headrace.peer.handshake import MAX_HANDSHAKE_FRAME, ClientHandshake
from headrace.peer.messages import Answer, Call, Commit, Follow, Message, Proof, Refused, RollAway, Submit, Submitted
from headrace.peer.server import PeerServer
from headrace.peer.session import Session
from kit.peer import ByHand, submitted


async def still_serves(nodes: Any, server: PeerServer) -> bool:
    answer, _ = await nodes.client().call(server.address, Submit(), [b"x"], timeout_s=20)
    return bool(answer == Submitted(Position(1)))


def raw(header: bytes, payload: bytes = b"") -> bytes:
    return struct.pack(">II", 4 + len(header) + len(payload), len(header)) + header + payload


STRANGE = {
    "http": b"GET / HTTP/1.1\r\nHost: headrace\r\n\r\n",
    "tls": bytes.fromhex("160301020001000 1fc0303".replace(" ", "")) + bytes(300),
    "kafka": struct.pack(">ihhih", 100, 18, 3, 1, 4) + b"rdka" + bytes(88),
    "zeros": bytes(64),
    "ones": b"\xff" * 64,
    "nothing in it": struct.pack(">II", 4, 0),
    "junk in a frame": raw(b"\xc1\xc1\xc1"),
    "not a map": raw(msgspec.msgpack.encode([1, 2, 3])),
    "an unknown message": raw(msgspec.msgpack.encode({"type": "Greetings"})),
    "a known one, too early": b"".join(encode_frame(Proof(b"p" * 32))),
    "a call": b"".join(encode_frame(Call(1, msgspec.Raw(b"\x80")))),
    "a stream": b"".join(encode_frame(Commit(Position(1)))),
}


@pytest.mark.parametrize("data", STRANGE.values(), ids=STRANGE)
async def test_a_stranger_is_let_go_with_one_line(nodes: Any, lines: list[Any], data: bytes) -> None:
    server = await nodes.server({Submit: submitted})
    stranger = await ByHand.connect(server)
    stranger.send(data)
    assert await stranger.hear() is None
    assert [each["peer"] for each in lines] == [stranger.name]
    stranger.end()
    assert await still_serves(nodes, server)


async def test_a_long_frame_is_not_taken_from_one_who_has_not_proven_himself(nodes: Any, lines: list[Any]) -> None:
    server = await nodes.server({})
    stranger = await ByHand.connect(server)
    stranger.send(struct.pack(">II", MAX_HANDSHAKE_FRAME + 1, 10))
    assert await stranger.hear() is None
    (line,) = lines
    assert line["reason"] == f"a frame of {MAX_HANDSHAKE_FRAME + 1} bytes; the limit is {MAX_HANDSHAKE_FRAME}"
    stranger.end()


async def test_who_cannot_prove_himself_is_told_so(nodes: Any, lines: list[Any]) -> None:
    server = await nodes.server({})
    stranger = await ByHand.connect(server)
    hello = ClientHandshake(nodes.identity()).first()
    assert hello is not None
    stranger.say(hello)
    await stranger.hear()
    stranger.say(Proof(b"p" * 32))
    stranger.say(Call(1, msgspec.Raw(b"\x80")))
    answer = await stranger.hear()
    assert isinstance(answer, Refused)
    assert "another secret" in answer.reason
    assert await stranger.hear() is None
    assert len(lines) == 1
    stranger.end()


async def test_a_handshake_that_takes_too_long_ends(
    nodes: Any, lines: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "HANDSHAKE_S", 0.2)
    server = await nodes.server({Submit: submitted})
    slow, silent = await ByHand.connect(server), await ByHand.connect(server)
    (hello,) = encode_frame(ClientHandshake(nodes.identity()).first())
    slow.send(bytes(hello[:20]))
    assert await slow.hear() is None
    assert await silent.hear() is None
    assert sorted(each["peer"] for each in lines) == sorted([slow.name, silent.name])
    assert all("no handshake" in each["reason"] for each in lines)
    slow.end()
    silent.end()


async def test_the_limit_for_the_handshake_is_none_for_what_follows(
    nodes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "HANDSHAKE_S", 0.1)
    server, client = await nodes.server({Submit: submitted}), nodes.client()
    session = await client.open(server.address, 5)
    await asyncio.wait([session.closed], timeout=0.3)
    assert not session.is_closed


MISBEHAVED = {
    "a huge length": struct.pack(">II", 0xFFFFFFFF, 10),
    "a huge header": struct.pack(">II", 50 << 20, 49 << 20),
    "a header beyond its frame": struct.pack(">II", 10, 11),
    "a header that does not decode": raw(b"\xc1" * 10),
    "a call without a number": raw(msgspec.msgpack.encode({"type": "Call", "message": {}})),
    "a message that begins nothing": b"".join(encode_frame(Commit(Position(1)))),
    "nesting without end": raw(b"\x82\xa4type\xa4Call\xa1z" + b"\x91" * 200_000),
}


@pytest.mark.parametrize("data", MISBEHAVED.values(), ids=MISBEHAVED)
async def test_a_node_that_misbehaves_loses_its_session_with_one_line(
    nodes: Any, lines: list[Any], data: bytes
) -> None:
    server = await nodes.server({Submit: submitted})
    node = await ByHand.connect(server)
    await node.greet(nodes.identity())
    node.send(data)
    assert await node.hear() is None
    assert [(each["peer"], each["node"]) for each in lines] == [(node.name, 2)]
    node.end()
    assert await still_serves(nodes, server)


@pytest.mark.parametrize("size", [3, 20, 50_000])
async def test_a_frame_that_is_cut_short_is_not_taken_for_a_whole_one(nodes: Any, lines: list[Any], size: int) -> None:
    handled = []

    async def handle(message: Submit, payload: memoryview, session: Session) -> Message:
        handled.append(message)
        return Submitted(Position(0))

    server = await nodes.server({Submit: handle})
    node = await ByHand.connect(server)
    await node.greet(nodes.identity())
    frame = b"".join(encode_frame(Call(1, msgspec.Raw(msgspec.msgpack.encode({"type": "Submit"}))), [bytes(100_000)]))
    node.send(frame[:size])
    node.end_writing()
    assert await node.hear() is None
    (line,) = lines
    assert line["reason"] == "closed by the other side within a frame"
    assert handled == []
    node.end()


async def test_a_stream_on_a_session_with_calls_under_way_ends_it(nodes: Any, lines: list[Any]) -> None:
    async def never(message: RollAway, payload: memoryview, session: Session) -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    begun: list[Follow] = []
    server = await nodes.server({RollAway: never}, {Follow: lambda message, session: begun.append(message)})
    session = await nodes.client().open(server.address, 5)
    session.send(Call(1, msgspec.Raw(msgspec.msgpack.encode(RollAway(ContainerId(1), 1)))))
    session.send(Follow(ContainerId(1), Epoch(1), NodeId(2), "f", False, [], Position(0), Position(0)))
    await asyncio.wait_for(session.closed, 20)
    assert len(lines) == 1
    assert begun == []


async def test_a_server_survives_whatever_proven_nodes_send(nodes: Any) -> None:
    server = await nodes.server({Submit: submitted})
    chance = random.Random(11)
    whole = b"".join(encode_frame(Call(1, msgspec.Raw(msgspec.msgpack.encode({"type": "Submit"}))), [b"some payload"]))
    for _ in range(100):
        node = await ByHand.connect(server)
        await node.greet(nodes.identity())
        damaged = bytearray(whole * 2)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        node.send(bytes(damaged))
        node.end_writing()
        while await node.hear() is not None:
            pass
        node.end()
    assert await still_serves(nodes, server)


@pytest.mark.parametrize(
    "data", [b"SSH-2.0-OpenSSH_9.6\r\n", bytes(64), b"".join(encode_frame(Commit(Position(1)))), b""]
)
async def test_a_client_led_to_something_else_says_so(nodes: Any, data: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1_000)
        writer.write(data)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
        with pytest.raises(session_module.PeerUnreachable) as caught:
            await nodes.client().call(listening.sockets[0].getsockname(), Submit(), timeout_s=20)
    assert not caught.value.timed_out


async def test_strangers_that_say_nothing_keep_no_node_out(nodes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    few = Admission(kind="nodes", most=5, most_of_address=100, descriptors=1 << 20, time=loop.time)
    monkeypatch.setattr("headrace.base.admission.LOCAL", 0)
    server = await nodes.server({Submit: submitted}, admission=few)
    known = await ByHand.connect(server)
    await known.greet(nodes.identity())
    strangers = [await ByHand.connect(server) for _ in range(30)]
    assert await still_serves(nodes, server)
    assert few.made_way >= 27
    known.say(Call(1, msgspec.Raw(encode_message(Submit()))))
    assert isinstance(await known.hear(), Answer)  # a proven session stays
    for each in (known, *strangers):
        each.end()
