"""A chunk or container that cannot be maintained does not delay the others; the results are tested with whole nodes
(tests/storage)."""

import asyncio
import errno
import signal
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from structlog.testing import capture_logs

from headrace.base.errors import Code, CorruptLog, KafkaError, StorageFull
from headrace.base.ids import ContainerId
from headrace.storage.chunk_closing import ChunkClosing
from headrace.storage.chunk_gc import ChunkGc
from headrace.storage.chunk_inventory import ChunkInventory
from headrace.storage.container_closing import ContainerClosing
from headrace.storage.scrub import SUSPECT_AGAIN_S, Scrub

T = TypeVar("T")

DAMAGE = CorruptLog("no gap frame where the index knows nothing")
FAILURES = [DAMAGE, StorageFull("no room on the disk"), OSError(errno.EIO, "input/output error")]


class OneChunk:
    """A log of one chunk: full, or open and long enough to be scanned for dead bytes."""

    def __init__(self, *, full: bool, failure: Exception | None = None) -> None:
        self.start, self.end = 0, 10 << 20
        self.failure = failure
        self.tries = 0
        self.chunk = SimpleNamespace(start=0, end=self.end if full else None, body=SimpleNamespace(closed=False))

    def chunks(self) -> list[Any]:
        return [self.chunk]

    def chunks_to_close(self, _committed: int) -> list[Any]:
        return [] if self.chunk.end is None or self.chunk.body.closed else [self.chunk]

    def close_chunk(self, chunk: Any) -> None:
        self.look()
        chunk.body.closed = True

    def look(self) -> None:
        self.tries += 1
        if self.failure is not None:
            raise self.failure


class Node:
    """A node that leads these logs' containers. `suspected`: the containers reported to the scrub."""

    def __init__(self, *logs: OneChunk, closing: bool = False) -> None:
        self.suspected: list[int] = []
        containers = {
            serial: SimpleNamespace(
                id=serial, log=log, committed=log.end, kick=lambda: None, closing=closing, serves=True, refuses=""
            )
            for serial, log in enumerate(logs, start=1)
        }
        self.containers: Any = containers
        self.runtime: Any = SimpleNamespace(loop=asyncio.get_running_loop(), executor=None)
        self.cluster: Any = SimpleNamespace(replicas=SimpleNamespace(led=containers, followed=list))
        self.suspect: Callable[[ContainerId], None] = self.suspected.append
        catalog: Any = None
        self.inventory = ChunkInventory(
            runtime=self.runtime,
            catalog=catalog,
            cluster=self.cluster,
            catalog_id=ContainerId(0),
            suspect=lambda container: self.suspect(container),
        )
        self.inventory.blocking = _at_once  # type: ignore[method-assign]
        self.closing = ChunkClosing(
            runtime=self.runtime,
            catalog=catalog,
            inventory=self.inventory,
            chunk_gc=ChunkGc(runtime=self.runtime, catalog=catalog, inventory=self.inventory),
        )

    def container_closing(self, changes: Any = None) -> ContainerClosing:
        nothing: Any = None
        return ContainerClosing(
            runtime=self.runtime,
            catalog=nothing,
            cluster=self.cluster,
            topics=nothing,
            partitions=nothing,
            rolls=nothing,
            changes=changes,
            container_bytes=1 << 20,
            inventory=self.inventory,
            wake=lambda: None,
        )


async def _at_once(work: Callable[[], T]) -> T:
    return work()


@pytest.mark.parametrize("failure", FAILURES, ids=repr)
async def test_a_full_chunk_that_cannot_be_closed_keeps_no_other_open(failure: Exception) -> None:
    bad, good = OneChunk(full=True, failure=failure), OneChunk(full=True)
    node = Node(bad, good)
    with capture_logs() as logged:
        for _ in range(3):
            await node.closing.close_full()
    assert good.chunk.body.closed
    assert bad.tries == 3, "it is tried again"
    assert [each["container"] for each in logged] == [1], "and told once"
    assert node.suspected == ([1, 1, 1] if failure is DAMAGE else []), "a scrub may come to nothing"


async def test_damage_is_told_also_of_a_chunk_that_had_no_room_before() -> None:
    bad = OneChunk(full=True, failure=StorageFull("no room on the disk"))
    node = Node(bad)
    await node.closing.close_full()
    bad.failure = DAMAGE
    await node.closing.close_full()
    assert node.suspected == [1]


async def test_a_chunk_that_stays_damaged_is_scrubbed_again_where_the_first_scrub_came_to_nothing() -> None:
    """The scrub's helper process was killed. Until damage is found, the replica is not rebuilt."""
    node = Node(OneChunk(full=True, failure=DAMAGE))
    now, damaged = 0.0, set[int]()
    replica = SimpleNamespace(id=1, log=SimpleNamespace(folder="1", synced=0), cycle=SimpleNamespace(is_closed=False))
    runtime: Any = SimpleNamespace(loop=SimpleNamespace(time=lambda: now), spawn=asyncio.create_task)
    replicas: Any = SimpleNamespace(
        add_replica_listener=lambda _listener: None,
        replica=lambda _id: replica,
        damaged=damaged.add,
        is_damaged=damaged.__contains__,
    )
    scrub = Scrub(runtime=runtime, replicas=replicas)
    node.suspect = scrub.suspect
    ends = asyncio.Queue[tuple[list[bytes], int]]()
    begun = 0

    async def read(*_: object) -> tuple[list[bytes], int]:
        nonlocal begun
        begun += 1
        return await ends.get()

    scrub._read = read  # type: ignore[method-assign]

    async def rounds() -> int:
        """Run two rounds; returns the number of scrubs so far."""
        for _ in range(2):
            await node.closing.close_full()
            await asyncio.sleep(0.001)
        return begun

    with capture_logs():
        assert await rounds() == 1
        now = 2 * SUSPECT_AGAIN_S
        assert await rounds() == 1, "it is under way"
        ends.put_nowait(([], -signal.SIGKILL))
        assert await rounds() == 1, "it has just been tried"
        now += SUSPECT_AGAIN_S
        assert await rounds() == 2
        ends.put_nowait(([b'{"finding": "no frame where one must be"}'], 1))
        assert await rounds() == 2
        assert damaged == {1}
        now += SUSPECT_AGAIN_S
        assert await rounds() == 2, "what is wrong is known"


async def test_an_open_chunk_that_cannot_be_read_keeps_no_other_from_being_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bad, good = OneChunk(full=False, failure=DAMAGE), OneChunk(full=False, failure=DAMAGE)
    node = Node(bad, good)
    monkeypatch.setattr("headrace.storage.chunk_closing.EARLY_EVERY_S", 0.0)

    async def shares(held: Any, _chunk: object) -> None:
        held.log.look()

    monkeypatch.setattr(node.inventory, "shares", shares)
    for _ in range(3):
        await node.closing.close_early()
    assert (bad.tries, good.tries) == (3, 3)
    assert node.suspected == [1, 2, 1, 2, 1, 2]


async def test_a_container_that_cannot_be_looked_at_keeps_no_other_from_being_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bad, good = OneChunk(full=True, failure=DAMAGE), OneChunk(full=True)
    node = Node(bad, good, closing=True)
    closing = node.container_closing()

    async def delete(held: Any, _container: object) -> None:
        held.log.look()

    monkeypatch.setattr(closing, "_delete_if_empty", delete)
    await closing.delete_empty()
    assert good.tries == 1
    assert node.suspected == [1]


async def test_a_full_container_that_cannot_be_closed_keeps_no_other_open() -> None:
    """For example, no other container can be created for one volume because its hosts are down."""
    node = Node(OneChunk(full=True), OneChunk(full=True), OneChunk(full=True))
    node.cluster.node_id, node.cluster.node = 1, lambda _id: None
    node.cluster.open_data = lambda volume: []
    for container, volume in zip(node.containers.values(), ("away", "here", "away"), strict=True):
        container.volume = volume
    closed, made = [], []
    hosts_are_away = True

    async def new(volume: str) -> None:
        made.append(volume)
        if volume == "away" and hosts_are_away:
            raise KafkaError(Code.INVALID_REPLICATION_FACTOR, "too few hosts")

    async def close(container: Any) -> None:
        container.closing = True
        closed.append(container.id)

    closing = node.container_closing(SimpleNamespace(new=new, close=close))
    with capture_logs() as logged:
        for _ in range(3):
            await closing.close_full()
    assert closed == [2]
    assert made == ["away", "here", "away", "away"], "it is tried again, for one of its containers"
    assert [each["container"] for each in logged if each["log_level"] == "warning"] == [1], "and told once"
    hosts_are_away = False
    await closing.close_full()
    assert closed == [2, 1, 3]
