"""A cluster's nodes on loopback: servers and clients that share a secret."""

import asyncio
import socket
import ssl
import uuid
from collections.abc import Mapping
from typing import Any

from headrace.base.ids import ContainerId, NodeId, Position
from headrace.peer.client import PeerClient
from headrace.peer.framing import FrameReader, decode_message, encode_frame
from headrace.peer.handshake import ClientHandshake, Identity
from headrace.peer.messages import Message, RollAway, Rolled, Submit, Submitted
from headrace.peer.server import Handler, PeerServer, StreamHandler
from headrace.peer.session import Session
from headrace.security.peer_tls import channel_binding

CLUSTER = "cluster-of-the-tests"
SECRET = "5ec4e7" * 5 + "00"


def bound() -> socket.socket:
    """A socket on a free port of loopback."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", 0))
    return listening


class Nodes:
    """Creates servers and clients, and closes them at the end."""

    def __init__(self) -> None:
        self._servers: list[PeerServer] = []
        self._clients: list[PeerClient] = []

    async def server(
        self,
        handlers: Mapping[type[Message], Handler],
        streams: Mapping[type[Message], StreamHandler] | None = None,
        *,
        listening: socket.socket | None = None,
        **identity: Any,
    ) -> PeerServer:
        identity = {"cluster_id": CLUSTER, "secret": SECRET, "node": NodeId(1), "run": uuid.uuid4(), **identity}
        server = PeerServer(listening or bound(), handlers=handlers, streams=streams, **identity)
        await server.start()
        self._servers.append(server)
        return server

    def client(self, **identity: Any) -> PeerClient:
        identity = {"cluster_id": CLUSTER, "secret": SECRET, "node": NodeId(2), "run": uuid.uuid4(), **identity}
        client = PeerClient(**identity)
        self._clients.append(client)
        return client

    async def close(self) -> None:
        async with asyncio.timeout(20):
            for client in self._clients:
                await client.close()
            for server in self._servers:
                await server.close(grace_s=0)

    def identity(self, node: int = 2) -> Identity:
        """The identity of a node that the test drives by hand."""
        return Identity(CLUSTER, SECRET, NodeId(node), uuid.uuid4())


class Gate:
    """A handler that waits until it is released."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.changed = asyncio.Event()
        self.begun = 0
        self.ended = 0
        self.cancelled = 0
        self.sessions: set[Session] = set()

    async def __call__(self, message: RollAway, payload: memoryview, session: Session) -> Message:
        self.begun += 1
        self.sessions.add(session)
        self.changed.set()
        try:
            await self.opened.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        self.ended += 1
        return Rolled(message.most)

    async def until(self, begun: int) -> None:
        async with asyncio.timeout(100):
            while self.begun < begun:
                self.changed.clear()
                await self.changed.wait()


class ByHand:
    """A connection whose bytes the test controls."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._frames = FrameReader()

    @classmethod
    async def connect(cls, server: PeerServer, context: ssl.SSLContext | None = None) -> "ByHand":
        """`context`: use TLS with it."""
        return cls(
            *await asyncio.open_connection(
                *server.address, ssl=context, server_hostname=None if context is None else ""
            )
        )

    @property
    def name(self) -> str:
        host, port = self._writer.get_extra_info("sockname")
        return f"{host}:{port}"

    @property
    def channel(self) -> bytes:
        """The value that binds a proof to this connection's TLS."""
        return channel_binding(self._writer.get_extra_info("ssl_object"))

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    def say(self, message: Message | None) -> None:
        assert message is not None
        self._writer.writelines(encode_frame(message))

    async def hear(self) -> Message | None:
        """The next message; None at the end."""
        async with asyncio.timeout(20):
            while (frame := self._frames.next()) is None:
                try:
                    piece = await self._reader.read(1_000)
                except OSError:
                    return None
                if not piece:
                    return None
                self._frames.get_buffer()[: len(piece)] = piece
                self._frames.came(len(piece))
            return decode_message(frame[0])

    async def greet(self, identity: Identity) -> None:
        """Complete the handshake."""
        handshake = ClientHandshake(identity)
        self.say(handshake.first())
        while handshake.met is None:
            message = await self.hear()
            assert message is not None
            answer = handshake.receive(message)
            if answer is not None:
                self.say(answer)

    def abort(self) -> None:
        self._writer.transport.abort()

    def end(self) -> None:
        self._writer.close()

    def end_writing(self) -> None:
        self._writer.write_eof()


def roll(count: int) -> RollAway:
    return RollAway(ContainerId(1), count)


async def submitted(message: Submit, payload: memoryview, session: Session) -> Message:
    return Submitted(Position(len(payload)))
