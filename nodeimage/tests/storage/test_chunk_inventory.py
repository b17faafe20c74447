"""What closed chunks hold is noted once, and what cannot be done with one is said once."""

from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from headrace.base.errors import CorruptLog, StorageFull
from headrace.base.ids import ContainerId, PartitionletId, Position, StreamNumber, partitionlet_id
from headrace.storage import chunk_inventory
from headrace.storage.chunk_inventory import ChunkInventory, Held
from headrace.storage.retention_rules import Share

ID = ContainerId(7)
ONE, TWO = (partitionlet_id(stream=StreamNumber(stream), serial=1) for stream in (1, 2))


class Chunks:
    """Chunks whose contents the test says, and how often they were read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shares: list[Share] = []
        self.reads = 0
        self.fails: Exception | None = None
        self.suspected: list[ContainerId] = []
        nothing: Any = None

        def shares_of(log: object, chunk: object, streams: Any = None) -> list[Share]:
            self.reads += 1
            if self.fails is not None:
                raise self.fails
            return list(self.shares)

        async def blocking(work: Any) -> Any:
            return work()

        monkeypatch.setattr(chunk_inventory, "_shares_of", shares_of)
        self.inventory = ChunkInventory(
            runtime=nothing, catalog=nothing, cluster=nothing, catalog_id=ContainerId(1), suspect=self.suspected.append
        )
        self.inventory.blocking = blocking  # type: ignore[method-assign]
        log: Any = None
        self.held = Held(ID, log, Position(0), None, lambda: None)


@pytest.fixture
def chunks(monkeypatch: pytest.MonkeyPatch) -> Chunks:
    return Chunks(monkeypatch)


def chunk(*, closed: bool = True) -> Any:
    return SimpleNamespace(start=100, body=SimpleNamespace(closed=closed))


def share(partitionlet: PartitionletId, newest: int, *, last: int = 9) -> Share:
    return Share(partitionlet, 0, last, newest, 100)


async def test_a_stream_is_as_old_as_the_partitionlet_that_ends_first(chunks: Chunks) -> None:
    other = partitionlet_id(stream=StreamNumber(1), serial=2)
    chunks.shares = [share(ONE, 500), share(other, 300), share(TWO, 900)]
    assert await chunks.inventory.oldest(chunks.held, chunk()) == {1: 300, 2: 900}


async def test_control_frames_alone_have_no_age(chunks: Chunks) -> None:
    chunks.shares = [share(ONE, 0, last=-1)]
    (age,) = (await chunks.inventory.oldest(chunks.held, chunk()) or {}).values()
    assert age > 2**60


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
