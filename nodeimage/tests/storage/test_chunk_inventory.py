"""The contents of closed chunks are read once, and a failure with a chunk is logged once."""

import os
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from headrace.base.errors import CorruptLog, StorageFull
from headrace.base.ids import ContainerId, Position
from headrace.storage.chunk_inventory import ChunkInventory, Held

ID = ContainerId(7)


class Chunks:
    """Chunks with contents chosen by the test, and the number of times that they were read."""

    def __init__(self) -> None:
        self.held_by_stream = {1: 300, 2: 900}
        self.reads = 0
        self.fails: Exception | None = None
        self.suspected: list[ContainerId] = []
        nothing: Any = None

        async def blocking(work: Any) -> Any:
            return work()

        self.inventory = ChunkInventory(
            runtime=nothing, catalog=nothing, cluster=nothing, catalog_id=ContainerId(1), suspect=self.suspected.append
        )
        self.inventory.blocking = blocking  # type: ignore[method-assign]
        log: Any = SimpleNamespace(oldest=self.oldest)
        self.held = Held(ID, log, Position(0), None, lambda: None)

    def oldest(self, chunk: Any, *, bits: int, untimed: int) -> dict[int, int]:
        """See ContainerLog."""
        assert (bits, untimed) == (40, int(os.fstat(chunk.body.opened().fd).st_mtime * 1000))
        self.reads += 1
        if self.fails is not None:
            raise self.fails
        return self.held_by_stream


@pytest.fixture
def chunks() -> Chunks:
    return Chunks()


def chunk(*, closed: bool = True) -> Any:
    return SimpleNamespace(start=100, body=SimpleNamespace(closed=closed, opened=lambda: SimpleNamespace(fd=0)))


async def test_how_old_records_are_is_known_by_stream(chunks: Chunks) -> None:
    closed = chunk()
    assert chunks.inventory.known_oldest(chunks.held, closed) is None
    assert await chunks.inventory.oldest(chunks.held, closed) == {1: 300, 2: 900}
    assert chunks.inventory.known_oldest(chunks.held, closed) == {1: 300, 2: 900}


async def test_a_closed_chunk_is_read_once_until_its_body_is_another(chunks: Chunks) -> None:
    closed, growing = chunk(), chunk(closed=False)
    growing.start = 200
    for _ in range(2):
        await chunks.inventory.oldest(chunks.held, closed)
    assert chunks.reads == 1
    for _ in range(2):
        await chunks.inventory.oldest(chunks.held, growing)
    assert chunks.reads == 3, "an open one has more each time"
    closed.body = chunk().body
    await chunks.inventory.oldest(chunks.held, closed)
    assert chunks.reads == 4
    chunks.inventory.keep({})
    await chunks.inventory.oldest(chunks.held, closed)
    assert chunks.reads == 5, "it was forgotten with the others that are gone"


async def test_damage_is_said_once_and_suspected_each_time(chunks: Chunks) -> None:
    chunks.fails = CorruptLog("a bad footer")
    with capture_logs() as lines:
        for _ in range(3):
            assert await chunks.inventory.oldest(chunks.held, chunk()) is None
    assert (len(lines), chunks.suspected) == (1, [ID] * 3)


def test_another_reason_is_said_again_and_what_could_be_done_is_forgotten(chunks: Chunks) -> None:
    key = (ID, 100)
    with capture_logs() as lines:
        for error in (StorageFull("full"), StorageFull("full"), OSError("gone"), StorageFull("full")):
            chunks.inventory.failed(key, error)
        chunks.inventory.done(key)
        chunks.inventory.failed(key, StorageFull("full"))
    assert [line["error"] for line in lines] == ["full", "gone", "full", "full"]
    assert chunks.suspected == [], "want of room is no damage"
