"""A Kafka server of a few lines inside the test's loop, which misbehaves where the test wants it to.

It answers ApiVersions and Metadata itself (with one node, or those in `nodes`), and passes any other request to
`answer`, which returns the answer's body, or an `Act`. A test may replace `answer` at any time.
"""

import asyncio
import ssl
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from headrace.wire import metadata
from headrace.wire.api_keys import ApiKey
from headrace.wire.header import RequestHeader, read_request_header, response_header
from headrace.wire.metadata import Broker, TopicMeta
from kit.kafka_versions import KAFKA

_LENGTH = struct.Struct(">i")


@dataclass(frozen=True)
class Act:
    """Instead of a valid answer: these bytes, then, if requested, the end of the connection."""

    raw: bytes = b""
    hang_up: bool = False


LONGEST = 100 << 20
SILENCE = Act()
HANG_UP = Act(hang_up=True)

Answer = Callable[[RequestHeader, memoryview], bytes | Act | Awaitable[bytes | Act]]


def framed(header: RequestHeader, body: bytes, *, correlation_id: int | None = None) -> bytes:
    """A response as it is sent over the wire."""
    number = header.correlation_id if correlation_id is None else correlation_id
    head = response_header(header.api_key, header.api_version, number)
    return _LENGTH.pack(len(head) + len(body)) + head + body


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition without a notification."""
    async with asyncio.timeout(100):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


@dataclass
class FakeKafka:
    """Start it by `async with`."""

    answer: Answer = lambda header, body: SILENCE
    nodes: dict[int, tuple[str, int]] = field(default_factory=dict)
    topics: list[TopicMeta] = field(default_factory=list)
    cluster_id: str = "fake"
    context: ssl.SSLContext | None = None
    versions: dict[int, tuple[int, int]] = field(
        default_factory=lambda: {int(key): span for key, span in KAFKA.items()}
    )
    port: int = 0
    seen: list[RequestHeader] = field(default_factory=list)
    connections: int = 0
    """The number of connections so far."""
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def __aenter__(self) -> "FakeKafka":
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self.context)
        self.port = self._server.sockets[0].getsockname()[1]
        self.nodes = self.nodes or {1: ("127.0.0.1", self.port)}
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Close all connections and stop listening."""
        self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        self.writers.append(writer)
        try:
            while True:
                (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
                if not 0 < length < LONGEST:  # as Kafka does
                    return
                request = memoryview(await reader.readexactly(length))
                header = read_request_header(request)
                self.seen.append(header)
                said = await self._said(header, request[header.body :])
                if isinstance(said, bytes):
                    writer.write(framed(header, said))
                    continue
                writer.write(said.raw)
                if said.hang_up:
                    return
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _said(self, header: RequestHeader, body: memoryview) -> bytes | Act:
        if header.api_key == ApiKey.API_VERSIONS:
            spans = [struct.pack(">hhh", key, *span) for key, span in self.versions.items()]
            return struct.pack(">hi", 0, len(spans)) + b"".join(spans)
        if header.api_key == ApiKey.METADATA:
            return metadata.encode_response(
                header.api_version,
                brokers=[Broker(node, host, port, None) for node, (host, port) in self.nodes.items()],
                cluster_id=self.cluster_id,
                controller_id=-1,
                topics=self.topics,
            )
        said = self.answer(header, body)
        return said if isinstance(said, bytes | Act) else await said
