"""A node whose disk a test can inspect, copy as a crash would leave it, and start again.

`Client` sends Kafka requests to any node, in the caller's thread. `Running` is a node inside the test's own loop, where
a test can stop the world between two steps.
"""

import asyncio
import itertools
import shutil
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import Code
from headrace.kafka_client.blocking_client import BrokerConnection
from headrace.node import Node, Options
from headrace.node.parts import NodeParts
from headrace.partitions.cluster_layout import NodeSettings
from headrace.wire import fetch, generic_codec, produce
from headrace.wire.api_keys import ApiKey
from headrace.wire.batch import build_batch, iter_records

PRODUCE, FETCH = 8, 11
MIB = 1 << 20


class Client:
    """Plain blocking calls on one connection."""

    def __init__(self, port: int, *, timeout_s: float = 30.0) -> None:
        self.connection = BrokerConnection("127.0.0.1", port, "storage-test", timeout_s)

    def close(self) -> None:
        self.connection.close()

    def ask(self, key: ApiKey, version: int, **fields: Any) -> Any:
        body = self.connection.call(key, version, generic_codec.encode_request(key, version, fields))
        return generic_codec.decode_response(key, version, body)

    def admin(self, method: str, **params: Any) -> Any:
        return self.connection.admin(method, params)

    def produce(
        self,
        topic: str,
        values: Sequence[bytes],
        *,
        partition: int = 0,
        producer: tuple[int, int, int] = (-1, -1, -1),
        time_ms: int | None = None,
    ) -> produce.ProduceResult:
        """Produce one batch; `producer` is (id, epoch, base sequence). Its time is now, or derived from its sequence,
        so that a repeated batch has the same one.
        """
        if time_ms is None:
            time_ms = int(time.time() * 1000) if producer[0] == -1 else 1_700_000_000_000 + producer[2]
        batch = build_batch(
            [(time_ms, None, value, []) for value in values],
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=producer[2],
        )
        part = produce.PartitionRecords(topic, partition, memoryview(batch))
        body = produce.encode_request(PRODUCE, produce.ProduceRequest(None, -1, 20_000, [part]))
        (result,), _ = produce.decode_response(self.connection.call(ApiKey.PRODUCE, PRODUCE, body), 0, PRODUCE)
        return result

    def put(self, topic: str, *values: bytes, partition: int = 0, **more: Any) -> int:
        """The base offset of an accepted batch; the topic is created if it does not exist."""
        result = self.produce(topic, values, partition=partition, **more)
        if result.error == Code.UNKNOWN_TOPIC_OR_PARTITION:
            self.create(topic)
            result = self.produce(topic, values, partition=partition, **more)
        assert result.error == 0, result
        return result.base_offset

    def fetch(
        self, *asked: tuple[str, int, int], max_bytes: int = 4 << 20, wait_ms: int = 0
    ) -> dict[tuple[str, int], fetch.FetchResult]:
        """The values that each (topic, partition, offset) returns."""
        topics = [
            fetch.FetchTopic(topic, None, [fetch.FetchPartition(partition, -1, offset, -1, -1, 1 << 20)])
            for topic, partition, offset in asked
        ]
        request = fetch.FetchRequest(wait_ms, 1, max_bytes, 0, 0, -1, topics, [], "")
        body = self.connection.call(ApiKey.FETCH, FETCH, fetch.encode_request(FETCH, request))
        answer = fetch.decode_response(body, 0, FETCH)
        return {(topic.topic or "", each.partition): each for topic in answer.topics for each in topic.partitions}

    def read(self, topic: str, partition: int = 0) -> list[tuple[int, bytes]]:
        """(offset, value) of all records from the log start to the high watermark."""
        (result,) = self.fetch((topic, partition, 0)).values()
        offset = max(0, result.log_start)
        found: list[tuple[int, bytes]] = []
        while True:
            (result,) = self.fetch((topic, partition, offset)).values()
            assert result.error == 0, result
            before = offset
            for buffer in result.records:
                for record in iter_records(memoryview(buffer)):
                    if record.offset >= offset:
                        found.append((record.offset, bytes(record.value or b"")))
                        offset = record.offset + 1
            if offset == before:
                assert offset == result.high_watermark, f"{topic}/{partition}: stuck at {offset}"
                return found

    def offsets(self, topic: str, partition: int = 0) -> tuple[int, int]:
        """The partition's log start and high watermark."""
        found = []
        for timestamp in (-2, -1):
            part = {"partition_index": partition, "current_leader_epoch": -1, "timestamp": timestamp}
            asked = [{"name": topic, "partitions": [part]}]
            answer = self.ask(ApiKey.LIST_OFFSETS, 5, replica_id=-1, isolation_level=0, topics=asked)
            (one,) = answer.topics[0].partitions
            assert int(one.error_code) == 0, one
            found.append(int(one.offset))
        return found[0], found[1]

    def delete_records(self, topic: str, offset: int, partition: int = 0) -> int:
        """Delete records below the offset; returns the new log start."""
        asked = [{"name": topic, "partitions": [{"partition_index": partition, "offset": offset}]}]
        answer = self.ask(ApiKey.DELETE_RECORDS, 1, topics=asked, timeout_ms=20_000)
        (one,) = answer.topics[0].partitions
        assert int(one.error_code) == 0, one
        return int(one.low_watermark)

    def create(self, *names: str, partitions: int = 1, **configs: str) -> None:
        topics = [
            {
                "name": name,
                "num_partitions": partitions,
                "replication_factor": -1,
                "assignments": [],
                "configs": [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()],
            }
            for name in names
        ]
        answer = self.ask(ApiKey.CREATE_TOPICS, 4, topics=topics, timeout_ms=30_000, validate_only=False)
        assert all(int(topic.error_code) == 0 for topic in answer.topics), answer

    def delete(self, *names: str) -> None:
        answer = self.ask(ApiKey.DELETE_TOPICS, 3, topic_names=list(names), timeout_ms=30_000)
        assert all(int(topic.error_code) == 0 for topic in answer.responses), answer

    def producer_id(self) -> int:
        answer = self.ask(ApiKey.INIT_PRODUCER_ID, 1, transactional_id=None, transaction_timeout_ms=60_000)
        return int(answer.producer_id)


def allocated(folder: Path) -> int:
    """Disk space of the files below `folder`, without holes."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_blocks * 512 if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total


class Gate:
    """Stops a blocking function in its thread, before or after it has done its work, until `open`."""

    def __init__(self, work: Callable[..., Any], *, after: bool = False) -> None:
        self._work = work
        self._after = after
        self._entered = threading.Event()
        self._opened = threading.Event()

    def __call__(self, *args: Any, **more: Any) -> Any:
        if not self._after:
            self._stop()
        result = self._work(*args, **more)
        if self._after:
            self._stop()
        return result

    def _stop(self) -> None:
        self._entered.set()
        assert self._opened.wait(60)

    async def entered(self) -> None:
        assert await asyncio.to_thread(self._entered.wait, 60)

    def open(self) -> None:
        self._opened.set()


class Running:
    """A node inside the test's loop."""

    def __init__(self, folder: Path, settings: NodeSettings) -> None:
        self.folder = folder
        self.settings = settings
        self._photos = itertools.count()
        self._clients: list[Client] = []

    def options(self) -> Options:
        return Options(
            data=self.folder / "node-1",
            store=self.folder / "cluster.sqlite",
            host="127.0.0.1",
            port=0,
            ready_file=None,
            settings=self.settings,
        )

    async def start(self) -> None:
        self.node = Node(self.options())
        identity = await self.node.start()
        self.port = identity.port
        self.client = await asyncio.to_thread(Client, self.port)

    @property
    def parts(self) -> NodeParts:
        return self.node.parts

    @property
    def containers(self) -> Path:
        return self.folder / "node-1" / "containers"

    async def call(self, method: str, *args: Any, **more: Any) -> Any:
        """Call a method of `Client`, in a thread."""
        return await asyncio.to_thread(getattr(self.client, method), *args, **more)

    async def stop(self) -> None:
        self.client.close()
        await self.node.stop()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    def photograph(self) -> Path:
        """The present files: what a kill -9 at this moment leaves."""
        photo = self.folder.with_name(f"{self.folder.name}-photo-{next(self._photos)}")
        for _ in range(100):
            try:
                shutil.copytree(self.folder, photo)
            except (shutil.Error, FileNotFoundError):  # a file was renamed meanwhile
                shutil.rmtree(photo)
                continue
            return photo
        raise AssertionError("the folder never keeps still")


async def until(met: Callable[[], Any], *, seconds: float = 100, what: str = "") -> None:
    """Return when `met()` is true; checks every few milliseconds."""
    end = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < end, f"not within {seconds} s: {what or met}"
        await asyncio.sleep(0.01)


def wait_until(met: Callable[[], Any], *, seconds: float = 100, what: str = "") -> None:
    """`until`, for tests without a loop."""
    end = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < end, f"not within {seconds} s: {what or met}"
        time.sleep(0.02)


NewNode = Callable[..., Awaitable[Running]]


@pytest.fixture
async def new_node(tmp_path: Path) -> AsyncIterator[NewNode]:
    """`await new_node(folder=None, **settings)`; by default with small chunks and no fsync. Stopped at the end."""
    made: list[Running] = []
    serial = itertools.count()

    async def make(folder: Path | None = None, **settings: Any) -> Running:
        given = {"chunk_bytes": MIB, "disk_reserve": 0, "fsync": False, "rebalance_delay_ms": 0, **settings}
        running = Running(folder or tmp_path / f"node-{next(serial)}", NodeSettings(**given))
        running.folder.mkdir(parents=True, exist_ok=True)
        await running.start()
        made.append(running)
        return running

    yield make
    for running in made:
        if not running.node._executor._shutdown:
            await running.stop()


@pytest.fixture
def connect() -> Iterator[Callable[[int], Client]]:
    """Clients of nodes, closed at the end."""
    made: list[Client] = []

    def to(port: int) -> Client:
        made.append(Client(port))
        return made[-1]

    yield to
    for client in made:
        client.close()
