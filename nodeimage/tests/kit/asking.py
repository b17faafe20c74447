"""Fetches as a client's connection passes them to a node, and their answers."""

import asyncio
from collections.abc import Mapping

from headrace.kafka.connection import Connection
from headrace.node.parts import NodeParts
from headrace.wire import fetch as wire
from headrace.wire.api_keys import ApiKey
from headrace.wire.batch import iter_records
from headrace.wire.header import read_request_header, request_header
from headrace.wire.primitives import Buffer


class Answered:
    """A slot whose answer can be awaited."""

    timed = None
    throttle_ms = 0

    def __init__(self) -> None:
        self.future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.is_followed = False

    def failed(self, code: int) -> None:
        """Counts nothing."""

    def answer(self, body: list[Buffer]) -> None:
        self.future.set_result(b"".join(bytes(piece) for piece in body))

    async def response(self) -> wire.FetchResponse:
        async with asyncio.timeout(20):
            return wire.decode_response(memoryview(await self.future), 0, 12)


def ask(
    broker: NodeParts,
    offsets: Mapping[str, int],
    *,
    session: tuple[int, int] = (0, -1),
    wait_ms: int = 0,
    most: int = 1 << 20,
    connection: Connection | None = None,
) -> Answered:
    topics = [
        wire.FetchTopic(name, None, [wire.FetchPartition(0, -1, offset, -1, -1, most)])
        for name, offset in offsets.items()
    ]
    body = wire.encode_request(12, wire.FetchRequest(wait_ms, 1, most, 0, *session, topics, [], ""))
    request = memoryview(request_header(ApiKey.FETCH, 12, 1, "test") + body)
    slot = Answered()
    where = connection or Connection(broker.dispatcher)
    broker.fetch.handle(where, read_request_header(request), request, slot)  # type: ignore[arg-type]
    return slot


def values(response: wire.FetchResponse) -> list[bytes | None]:
    return [
        None if record.value is None else bytes(record.value)
        for topic in response.topics
        for part in topic.partitions
        for batch in part.records
        for record in iter_records(memoryview(batch))
    ]
