"""Connections between nodes with TLS: messages over them, and which are refused."""

import asyncio
import datetime as dt
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.base.ids import ContainerId, Epoch, NodeId, Position
from headrace.peer import client as client_module
from headrace.peer import handshake
from headrace.peer.client import PeerClient
from headrace.peer.handshake import ClientHandshake, ServerHandshake
from headrace.peer.messages import Challenge, Follow, Hello, Message, Proof, Refused, Submit, Submitted, Welcome
from headrace.peer.server import PLAIN_NODE, PeerServer
from headrace.peer.session import MAX_PENDING, PeerUnreachable, Session
from headrace.security.peer_tls import PeerTls, PeerTlsMode
from kit.node_certificates import Authority, trust
from kit.peer import SECRET, ByHand, submitted

AUTHORITY, OTHER = Authority(), Authority("other")
ACCEPT, REQUIRE = PeerTlsMode.ACCEPT, PeerTlsMode.REQUIRE

Tls = Callable[..., PeerTls]


@pytest.fixture
def tls(tmp_path: Path) -> Tls:
    """Creates the TLS of another node with each call."""
    number = 0

    def made(mode: PeerTlsMode = REQUIRE, *, authority: Authority = AUTHORITY, **asked: Any) -> PeerTls:
        nonlocal number
        number += 1
        folder = authority.node(tmp_path / str(number), f"node-{number}", **asked)
        return PeerTls(folder, mode, now=time.time())

    return made


async def answers(client: PeerClient, server: PeerServer, payload: bytes = b"x") -> bool:
    answer, _ = await client.call(server.address, Submit(), [payload], timeout_s=20)
    return bool(answer == Submitted(Position(len(payload))))


# --- messages over TLS


async def test_calls_go_both_ways_over_tls(nodes: Any, tls: Tls) -> None:
    async def turned_round(message: Submit, payload: memoryview, session: Session) -> tuple[Message, list[bytes]]:
        return Submitted(Position(len(payload))), [bytes(payload)[::-1]]

    server, client = await nodes.server({Submit: turned_round}, tls=tls()), nodes.client(tls=tls())
    for size in (0, 1, 100_000, 20 << 20):
        sent = (b"0123456789abcdef" * (size // 16 + 1))[:size]
        answer, payload = await client.call(server.address, Submit(), [sent], timeout_s=60)
        assert answer == Submitted(Position(size))
        assert bytes(payload) == sent[::-1]
    assert server.handshakes is not None
    assert (server.handshakes.failed, server.handshakes.plain) == (0, 0)


async def test_a_stream_over_tls_waits_for_its_reader(nodes: Any, tls: Tls) -> None:
    """Long transfers are paced by the reader: unread data neither piles up nor is withheld."""
    opened: list[Session] = []
    taken: list[int] = []
    came = asyncio.Event()

    class Reader:
        def message_received(self, message: Message, payload: memoryview) -> None:
            taken.append(len(payload))
            came.set()

        def session_closed(self) -> None:
            came.set()

    def follow(message: Follow, session: Session) -> None:
        opened.append(session)
        session.hand_to(Reader())
        session.pause()

    server = await nodes.server({}, {Follow: follow}, tls=tls())
    session = await nodes.client(tls=tls()).open(server.address, 20)
    session.send(Follow(ContainerId(1), Epoch(1), NodeId(2), "f", False, [], Position(0), Position(0)))
    many, large = 64, bytes(1 << 20)

    async def send() -> None:
        for _ in range(many):
            await session.drained()
            session.send(Submit(), [large])

    sending = asyncio.ensure_future(send())
    done, _ = await asyncio.wait([sending], timeout=0.5)
    assert not done
    assert taken == []
    assert session.pending_bytes <= 2 * MAX_PENDING
    opened[0].resume()
    async with asyncio.timeout(60):
        await sending
        while len(taken) < many:
            came.clear()
            await came.wait()
    assert taken == [len(large)] * many


async def test_a_long_answer_is_encrypted_step_by_step(nodes: Any, tls: Tls) -> None:
    server = await nodes.server({}, {Follow: lambda message, session: session.hand_to(_Ignores())}, tls=tls())
    session = await nodes.client(tls=tls()).open(server.address, 20)
    session.send(Follow(ContainerId(1), Epoch(1), NodeId(2), "f", False, [], Position(0), Position(0)))
    session.send(Submit(), [bytes(40 << 20)])
    assert session.pending_bytes > 38 << 20
    async with asyncio.timeout(60):
        await session.drained()


class _Ignores:
    def message_received(self, message: Message, payload: memoryview) -> None:
        pass

    def session_closed(self) -> None:
        pass


async def test_certificates_change_while_connections_live(nodes: Any, tls: Tls, tmp_path: Path) -> None:
    server_tls, client_tls = tls(), tls()
    server, client = await nodes.server({Submit: submitted}, tls=server_tls), nodes.client(tls=client_tls)
    lasting = await client.open(server.address, 20)
    assert await answers(client, server)
    for number, each in ((1, server_tls), (2, client_tls)):
        trust(tmp_path / str(number), AUTHORITY, OTHER)
        assert each.look(now=time.time())
    for number, each in ((1, server_tls), (2, client_tls)):
        OTHER.node(tmp_path / str(number), trusted=[AUTHORITY])
        assert each.look(now=time.time())
        assert not (await client.open(server.address, 20)).is_closed
    for number, each in ((1, server_tls), (2, client_tls)):
        trust(tmp_path / str(number), OTHER)
        assert each.look(now=time.time())
        assert not (await client.open(server.address, 20)).is_closed
    assert not lasting.is_closed
    with pytest.raises(PeerUnreachable):
        await nodes.client(tls=tls()).open(server.address, 20)


# --- refused connections


async def test_another_secret_is_refused_over_tls_too(nodes: Any, tls: Tls) -> None:
    server = await nodes.server({Submit: submitted}, tls=tls())
    with pytest.raises(PeerUnreachable, match="another secret"):
        await nodes.client(tls=tls(), secret="another").open(server.address, 20)
    with pytest.raises(PeerUnreachable, match="belongs to cluster"):
        await nodes.client(tls=tls(), cluster_id="another").open(server.address, 20)
    assert await answers(nodes.client(tls=tls()), server)


async def test_a_certificate_alone_opens_nothing(nodes: Any, tls: Tls) -> None:
    server = await nodes.server({Submit: submitted}, tls=tls())
    stranger = await ByHand.connect(server, tls().connecting)
    stranger.say(ClientHandshake(nodes.identity()).first(stranger.channel))
    await stranger.hear()
    stranger.say(Proof(b"p" * 32))
    assert isinstance(await stranger.hear(), Refused)
    assert await stranger.hear() is None
    stranger.abort()


async def test_a_proof_for_another_connection_is_refused(nodes: Any, tls: Tls) -> None:
    """A proof for a connection without TLS, or for another connection with TLS."""
    server, mine = await nodes.server({Submit: submitted}, tls=tls()), tls()
    other = await ByHand.connect(server, mine.connecting)
    for channel, is_taken in ((b"", False), (other.channel, False), (None, True)):
        end = await ByHand.connect(server, mine.connecting)
        identity = nodes.identity()
        hello = ClientHandshake(identity).first(end.channel)
        end.say(hello)
        challenge = await end.hear()
        assert isinstance(hello, Hello)
        assert isinstance(challenge, Challenge)
        bound_to = end.channel if channel is None else channel
        end.say(Proof(handshake._proof(SECRET, "client", identity, hello, challenge, bound_to)))
        assert isinstance(await end.hear(), Welcome if is_taken else Refused)
        end.abort()
    other.abort()


async def relayed(server: PeerServer, shown: PeerTls, asked: PeerTls) -> asyncio.Server:
    """A man in the middle that terminates TLS on both sides and relays all messages."""

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while piece := await reader.read(65_536):
                writer.write(piece)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(
            *server.address, ssl=asked.connecting, server_hostname=""
        )
        await asyncio.gather(pipe(reader, far_writer), pipe(far_reader, writer))

    return await asyncio.start_server(pass_on, "127.0.0.1", 0, ssl=shown.context)


async def test_nobody_stands_between_two_nodes(nodes: Any, tls: Tls) -> None:
    """Even with a certificate of the cluster's authority, and even with the one that all its nodes share."""
    server_tls = tls()
    server = await nodes.server({Submit: submitted}, tls=server_tls)
    for shown, client in ((tls(), tls()), (server_tls, server_tls)):
        async with await relayed(server, shown, shown) as middle:
            with pytest.raises(PeerUnreachable, match="another secret"):
                await nodes.client(tls=client).open(middle.sockets[0].getsockname()[:2], 20)


async def test_a_certificate_of_another_authority_is_refused(nodes: Any, tls: Tls, lines: list[Any]) -> None:
    known, foreign = tls(), tls(authority=OTHER)
    server = await nodes.server({Submit: submitted}, tls=known)
    with pytest.raises(PeerUnreachable, match=r"the other node's certificate is refused: (self-signed|unable)"):
        await nodes.client(tls=foreign).open(server.address, 20)
    impostor = await nodes.server({Submit: submitted}, tls=foreign)
    with pytest.raises(PeerUnreachable, match=r"the other node's certificate is refused"):
        await nodes.client(tls=known).open(impostor.address, 20)
    said = [each["reason"] for each in lines if each["event"] == "peer handshake failed"]
    assert len(said) == 2
    assert all(each.startswith("the other node's certificate is refused") for each in said)


async def test_a_client_hears_that_its_certificate_is_refused(nodes: Any, tls: Tls, lines: list[Any]) -> None:
    foreign = tls(authority=OTHER, trusted=[AUTHORITY])
    server = await nodes.server({Submit: submitted}, tls=tls())
    with pytest.raises(PeerUnreachable, match=r"refuses this node's certificate: its ca\.crt lacks") as caught:
        await nodes.client(tls=foreign).open(server.address, 20)
    assert not caught.value.refused  # a node is there
    assert any(
        "refuses this node's certificate" in each["reason"] for each in lines if "handshake failed" in each["event"]
    )
    assert server.handshakes is not None
    assert server.handshakes.failed == 1


async def test_a_certificate_that_expired_meanwhile_is_refused(nodes: Any, tls: Tls, tmp_path: Path) -> None:
    expired = AUTHORITY.node(tmp_path / "expired", left=dt.timedelta(seconds=-1))
    server = await nodes.server({Submit: submitted}, tls=tls())
    client = nodes.client(tls=(stale := tls()))
    stale.connecting.load_cert_chain(expired / "tls.crt", expired / "tls.key")
    with pytest.raises(PeerUnreachable, match="it has expired"):
        await client.open(server.address, 20)
    stale.context.load_cert_chain(expired / "tls.crt", expired / "tls.key")
    impostor = await nodes.server({Submit: submitted}, tls=stale)
    with pytest.raises(PeerUnreachable, match="certificate has expired"):
        await nodes.client(tls=tls()).open(impostor.address, 20)


async def test_a_client_without_a_certificate_is_refused(nodes: Any, tls: Tls) -> None:
    server = await nodes.server({Submit: submitted}, tls=tls())
    bare = ssl.create_default_context()
    bare.check_hostname = False
    bare.verify_mode = ssl.CERT_NONE
    stranger = await ByHand.connect(server, bare)
    assert await stranger.hear() is None
    stranger.abort()
    assert await answers(nodes.client(tls=tls()), server)


async def test_a_plain_node_is_refused_where_tls_is_required(nodes: Any, tls: Tls, lines: list[Any]) -> None:
    server = await nodes.server({Submit: submitted}, tls=tls())
    with pytest.raises(PeerUnreachable):
        await nodes.client().open(server.address, 20)
    assert [each["reason"] for each in lines if each["event"] == "TLS handshakes failed"] == [PLAIN_NODE]


async def test_nothing_is_said_in_clear_where_tls_is_required(nodes: Any, tls: Tls) -> None:
    heard = bytearray()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.extend(await reader.read(65_536))
        writer.close()

    async with await asyncio.start_server(listen, "127.0.0.1", 0) as listening:
        with pytest.raises(PeerUnreachable) as caught:
            await nodes.client(tls=tls()).open(listening.sockets[0].getsockname(), 20)
    assert "may not use TLS" in str(caught.value)
    assert heard[0] == 0x16
    assert b"cluster-of-the-tests" not in heard
    assert not caught.value.refused
    plain = await nodes.server({Submit: submitted})
    with pytest.raises(PeerUnreachable):
        await nodes.client(tls=tls()).open(plain.address, 20)


async def test_where_nobody_listens_that_is_said(nodes: Any, tls: Tls) -> None:
    async with await asyncio.start_server(_nobody, "127.0.0.1", 0) as listening:
        address = listening.sockets[0].getsockname()
    for mode in PeerTlsMode:
        with pytest.raises(PeerUnreachable) as caught:
            await nodes.client(tls=tls(mode)).open(address, 20)
        assert caught.value.refused


async def _nobody(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


# --- the transition to TLS


@pytest.mark.parametrize(
    ("server", "client", "has_tls"),
    [
        (None, ACCEPT, False),
        (ACCEPT, None, False),
        (ACCEPT, ACCEPT, True),
        (ACCEPT, REQUIRE, True),
        (REQUIRE, ACCEPT, True),
        (REQUIRE, REQUIRE, True),
    ],
)
async def test_nodes_of_two_steps_meet(
    nodes: Any, tls: Tls, server: PeerTlsMode | None, client: PeerTlsMode | None, has_tls: bool
) -> None:
    serving = await nodes.server({Submit: submitted}, tls=None if server is None else tls(server))
    asking = nodes.client(tls=None if client is None else tls(client))
    assert await answers(asking, serving)
    session = await asking.open(serving.address, 20)
    assert (session._paced is not None) == has_tls
    assert bool(asking.spoken_plainly()) == (client is ACCEPT and not has_tls)


async def test_a_node_that_gets_tls_is_spoken_to_with_it_soon(
    nodes: Any, tls: Tls, monkeypatch: pytest.MonkeyPatch, lines: list[Any]
) -> None:
    serving, asking = await nodes.server({Submit: submitted}), nodes.client(tls=tls(ACCEPT))
    for _ in range(3):
        assert (await asking.open(serving.address, 20))._paced is None
    assert sum(each["event"] == "a node is contacted without TLS" for each in lines) == 1
    tried = sum("the other side speaks TLS" in each.get("reason", "") for each in lines)
    assert tried == 1
    address = serving.address
    await serving.close(grace_s=0)
    listening = _bound(address)
    again = await nodes.server({Submit: submitted}, listening=listening, tls=tls(ACCEPT))
    assert (await asking.open(again.address, 20))._paced is None
    monkeypatch.setattr(client_module, "PLAIN_S", -1.0)
    asking._plain = {key: each._replace(until=0.0) for key, each in asking._plain.items()}
    assert (await asking.open(again.address, 20))._paced is not None
    assert asking.spoken_plainly() == {}


def _bound(address: tuple[str, int]) -> socket.socket:
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(address)
    return listening


async def test_a_bad_certificate_stops_nobody_who_accepts_both(nodes: Any, tls: Tls) -> None:
    """The bad certificate is reported before TLS is required."""
    serving = await nodes.server({Submit: submitted}, tls=tls(ACCEPT))
    for trusted in ([], [AUTHORITY]):
        asking = nodes.client(tls=tls(ACCEPT, authority=OTHER, trusted=trusted))
        assert await answers(asking, serving)
        ((_, reason),) = asking.spoken_plainly().items()
        assert "certificate" in reason


async def test_secrets_change_while_connections_live(nodes: Any, tls: Tls) -> None:
    server, client = await nodes.server({Submit: submitted}, tls=tls()), nodes.client(tls=tls())
    lasting = await client.open(server.address, 20)
    steps: list[tuple[PeerServer | PeerClient, str, str]] = [
        (server, "new", SECRET),
        (client, "new", SECRET),
        (client, "new", ""),
        (server, "new", ""),
    ]
    for node, secret, former in steps:
        node.use_secrets(secret, former)
        await client.open(server.address, 20)
    assert not lasting.is_closed
    with pytest.raises(PeerUnreachable, match="another secret"):
        await nodes.client(tls=tls()).open(server.address, 20)


async def test_strangers_keep_no_node_out_of_a_port_with_tls(
    nodes: Any, tls: Tls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.peer.server.MAX_UNPROVEN", 8)
    server, mine = await nodes.server({Submit: submitted}, tls=tls()), tls()
    known = await nodes.client(tls=mine).open(server.address, 20)
    silent = [await asyncio.open_connection(*server.address) for _ in range(30)]
    for _, writer in silent[:10]:
        writer.write(b"\x16\x03\x01")  # it begins a handshake, but does not continue
    unproven = [await ByHand.connect(server, mine.connecting) for _ in range(10)]
    assert await answers(nodes.client(tls=tls()), server)
    assert not known.is_closed
    assert len(server._admission) <= 8 + 4
    for each in unproven:
        each.abort()
    for _, writer in silent:
        writer.transport.abort()


async def test_a_server_side_handshake_by_hand_has_the_same_channel(nodes: Any, tls: Tls) -> None:
    """The state machines and the sessions use the same channel binding."""
    mine = tls()
    theirs = tls()
    met: asyncio.Future[NodeId] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        end = ByHand(reader, writer)
        serving = ServerHandshake(nodes.identity(1))
        serving.first(end.channel)
        while serving.met is None:
            message = await end.hear()
            assert message is not None
            end.say(serving.receive(message))
        met.set_result(serving.met.node)
        await end.hear()
        end.abort()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=theirs.context) as listening:
        session = await nodes.client(tls=mine).open(listening.sockets[0].getsockname(), 20)
        assert await asyncio.wait_for(met, 20) == 2
        session.close()
        await session.closed
