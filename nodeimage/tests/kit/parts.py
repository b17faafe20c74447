"""A whole node inside the test's own loop: real folder, containers, catalog and broker; small chunks, and no fsync."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from headrace.kafka.api import Api, Handler
from headrace.kafka.connection import Connection
from headrace.node import Node, Options
from headrace.node.parts import NodeParts
from headrace.partitions.cluster_layout import NodeSettings
from headrace.wire import generic_codec
from headrace.wire.api_keys import ApiKey
from headrace.wire.batch import build_batch, read_batch

Ask = Callable[..., Awaitable[Any]]


def options(folder: Path) -> Options:
    return Options(
        data=folder / "node-1",
        store=folder / "cluster.sqlite",
        host="127.0.0.1",
        port=0,
        ready_file=None,
        settings=NodeSettings(chunk_bytes=1 << 20, disk_reserve=0, fsync=False),
    )


@contextlib.asynccontextmanager
async def running(options: Options) -> AsyncIterator[Node]:
    """A node that serves, and is stopped at the end."""
    node = Node(options)
    await node.start()
    try:
        yield node
    finally:
        await node.stop()


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    """A node that serves; stopped at the end."""
    async with running(options(tmp_path)) as started:
        yield started


@pytest.fixture
def broker(node: Node) -> NodeParts:
    return node.parts


def handler(broker: NodeParts, key: ApiKey) -> Handler:
    """The handler of an API that has no hand-written codec."""
    api = broker.dispatcher.apis[key]
    assert isinstance(api, Api)
    return api.handler


@pytest.fixture
def ask(broker: NodeParts) -> Ask:
    """Call the broker as a client would: through the request's bytes, its handler, and the response's bytes."""

    async def asked(key: ApiKey, version: int, fields: Mapping[str, Any]) -> Any:
        request = generic_codec.decode_request(key, version, generic_codec.encode_request(key, version, fields))
        answer = await handler(broker, key)(request, Connection(broker.dispatcher))
        return generic_codec.decode_response(key, version, generic_codec.encode_response(key, version, answer))

    return asked


class Committed:
    """A future like that of a caller who waits for a commit."""

    def __init__(self) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def committed(self) -> None:
        self.future.set_result(None)

    def lost(self) -> None:
        self.future.set_exception(AssertionError("the node ceased to lead"))


@pytest.fixture
def append(broker: NodeParts) -> Callable[..., Awaitable[int]]:
    """Append records to a partition as a producer's batch, and return its high watermark once they are committed.

    `times`: the records' timestamps, in milliseconds; else they are of now.
    """

    async def appended(name: str, *values: bytes, partition: int = 0, times: Sequence[int] = ()) -> int:
        (topic,) = await broker.topics.resolve([name])
        leader = await broker.partitions.leader(topic, partition)
        times = times or [int(time.time() * 1000)] * len(values)
        batch = build_batch([(at, None, value, []) for at, value in zip(times, values, strict=True)])
        if not leader.container.has_room(len(batch)):
            await leader.container.make_room()
        waiting = Committed()
        leader.append(memoryview(batch), read_batch(batch), append_time=None, now=0, request=waiting)
        await waiting.future
        return leader.high_watermark

    return appended
