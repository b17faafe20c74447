"""When a write begins beside another, what does not, and that a hanging disk is reported while it hangs."""

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import KafkaError
from headrace.base.ids import ContainerId, Epoch, NodeId, Position
from headrace.container import replica_folder, sync_cycle
from headrace.container.leader import Leader
from headrace.container.leader_state import Member
from headrace.container.sync_cycle import SyncCycle
from headrace.container.writer_pool import Done, Written
from headrace.log.container_log import ContainerLog, LogOptions, WriteJob
from headrace.log.synced_mark import read_mark
from headrace.log.writing import DirectWrite
from kit.log_writes import LogWrites, Threads
from kit.several_replicas import Several, Unheard, handed_to, until

OPTIONS = LogOptions(chunk_bytes=1 << 20, checkpoint_bytes=8 << 10, parallel_write_after_s=0.0, mark_s=3600.0)


class PlentyOfRoom:
    def check(self, length: int, *, from_reserve: bool = False) -> None:
        pass

    def lacked(self) -> None:
        pass


class HeldPool:
    """Carries out requests when the test allows it."""

    is_native = True

    def __init__(self) -> None:
        self.writes: list[tuple[DirectWrite, Written]] = []
        self.jobs: list[tuple[ContainerLog, WriteJob, Done]] = []

    def write(self, write: DirectWrite, written: Written) -> None:
        self.writes.append((write, written))

    def write_job(self, container_log: ContainerLog, job: WriteJob, done: Done) -> None:
        self.jobs.append((container_log, job, done))

    def mark(self, container_log: ContainerLog, done: Done) -> None:
        container_log.mark_synced()
        done(None)

    @property
    def under_way(self) -> tuple[int, int]:
        """Writes, and jobs for threads, in progress."""
        return len(self.writes), len(self.jobs)

    def end_write(self, row: int = 0, *, failing: int = 0) -> None:
        """End the write at this index, counted from the oldest."""
        write, written = self.writes.pop(row)
        written(-failing if failing else os.pwritev(write.file.fd, write.buffers, write.offset, write.flags), 0.001)

    def end_job(self) -> None:
        container_log, job, done = self.jobs.pop(0)
        container_log.write_job(job)
        done(None)


class Led:
    """A container with one replica, whose disk is controlled by the test."""

    def __init__(self, folder: Path, threads: Threads, options: LogOptions = OPTIONS) -> None:
        self.pool = HeldPool()
        self.failures: list[str] = []
        self.folder = folder
        self.threads = threads
        self.log = ContainerLog.open(folder, options)
        self.leader = Leader(
            container_id=ContainerId(2),
            member=Member(NodeId(1), "format"),
            epoch=Epoch(1),
            container_log=self.log,
            executor=threads,
            pool=self.pool,
            events=Unheard(),
            room=PlentyOfRoom(),
            fatal=self.failures.append,
        )

    @property
    def cycle(self) -> SyncCycle:
        return self.leader.cycle

    async def append(self, payload: bytes) -> asyncio.Future[Position]:
        """Return a future of the commit; when it returns, what is to be written is with the pool."""
        done = self.leader.append_command(payload)
        await self.turns()
        return done

    async def turns(self) -> None:
        """Let the loop run what is due, and the threads what is requested of them."""
        for _ in range(5):
            await asyncio.sleep(0)
        await asyncio.get_running_loop().run_in_executor(self.threads, int)
        for _ in range(5):
            await asyncio.sleep(0)

    async def first(self) -> None:
        """The chunk exists, and its file is opened twice."""
        done = await self.append(b"0")
        assert self.pool.under_way == (0, 1)
        self.pool.end_job()
        assert done.done()
        for payload in (b"1", b"2"):
            done = await self.append(payload)
        self.pool.end_write()
        self.pool.end_write()
        await done

    async def close(self) -> None:
        closing = asyncio.ensure_future(self.leader.close())
        while not closing.done():
            while self.pool.writes:
                self.pool.end_write()
            while self.pool.jobs:
                self.pool.end_job()
            await self.turns()
        await closing


@pytest.fixture
async def new_led(tmp_path: Path) -> AsyncIterator[Callable[..., Led]]:
    with Threads(1) as threads:
        yield lambda options=OPTIONS: Led(tmp_path / "1", threads, options)


async def test_a_write_begins_beside_another_and_is_committed_behind_it(new_led: Callable[..., Led]) -> None:
    """Invariant 1; also, the synced mark would turn a hole into damage."""
    led = new_led()
    await led.first()
    before = led.leader.committed
    one, two = await led.append(b"one"), await led.append(b"two")
    assert led.pool.under_way == (2, 0)
    three = await led.append(b"three")
    assert led.pool.under_way == (2, 0), "two at most"
    led.pool.end_write(1)
    await led.turns()
    led.log.mark_synced()
    assert led.leader.committed == led.log.synced == led.log.written == read_mark(led.folder) == before
    assert not one.done()
    assert not two.done()
    led.pool.end_write()
    assert led.leader.committed == led.log.synced == led.log.written == two.result() > one.result()
    assert led.pool.under_way == (1, 0)
    assert not three.done()
    await led.close()
    assert await three == led.log.end
    assert led.failures == []


@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("other_first", [False, True])
async def test_a_failed_write_ends_the_process_and_nothing_is_acknowledged_behind_it(
    new_led: Callable[..., Led], failing: int, other_first: bool
) -> None:
    """Invariant 13."""
    led = new_led()
    await led.first()
    one, two = await led.append(b"one"), await led.append(b"two")
    if other_first:
        led.pool.end_write(1 - failing)
    led.pool.end_write(0 if other_first else failing, failing=errno.EIO)
    assert len(led.failures) == 1
    if not other_first:
        led.pool.end_write()
    assert one.done() is (other_first and failing == 1)
    three = await led.append(b"three")
    assert led.pool.under_way == (0, 0)
    assert not two.done()
    assert not three.done()
    assert led.log.synced == led.log.written == led.leader.committed
    assert len(led.failures) == 1


async def test_what_takes_more_than_a_write_waits_and_nothing_goes_beside_it(new_led: Callable[..., Led]) -> None:
    """A checkpoint: it claims that all below it was synced."""
    led = new_led()
    await led.first()
    await led.append(b"one")
    await led.append(bytes(8 << 10))
    await led.append(b"two")
    assert led.pool.under_way == (1, 0)
    assert led.log.pending_bytes > 8 << 10, "what comes meanwhile joins it"
    led.pool.end_write()
    await led.turns()
    assert led.pool.under_way == (0, 1)
    await led.append(b"three")
    await led.append(b"four")
    assert led.pool.under_way == (0, 1)
    led.pool.end_job()
    await led.turns()
    assert led.pool.under_way == (1, 0)
    await led.close()
    assert led.log.synced == led.log.end


async def test_a_new_chunk_waits_for_both_writes_to_the_one_before(new_led: Callable[..., Led]) -> None:
    """Only the newest chunk may have a torn tail."""
    led = new_led(LogOptions(chunk_bytes=4096, open_file_bytes=4096, parallel_write_after_s=0.0, mark_s=3600.0))
    await led.first()
    for payload in (b"one", b"two"):
        await led.append(payload)
    assert led.pool.under_way == (2, 0)
    await led.leader.make_room()
    last = await led.append(bytes(4000))
    assert len(led.log.chunks()) == 2
    led.pool.end_write(1)
    await led.turns()
    assert led.pool.under_way == (1, 0)
    assert led.log.chunks_to_close() == []
    led.pool.end_write()
    await led.turns()
    assert led.pool.under_way == (0, 1)
    assert led.log.chunks_to_close() == [], "its checkpoint is still to be written"
    led.pool.end_job()
    assert await last == led.log.synced
    assert len(led.log.chunks_to_close()) == 1
    await led.close()


async def test_on_a_fast_disk_what_comes_meanwhile_goes_together(new_led: Callable[..., Led]) -> None:
    led = new_led(LogOptions(chunk_bytes=1 << 20, parallel_write_after_s=3600.0, mark_s=3600.0))
    done = await led.append(b"0")
    led.pool.end_job()
    await done
    for _ in range(3):
        await led.append(b"more")
    assert led.pool.under_way == (1, 0)
    led.pool.end_write()
    await led.turns()
    assert led.pool.under_way == (1, 0)
    assert led.log.pending_bytes == 0
    await led.close()


async def test_what_waits_long_enough_begins_though_nothing_more_comes(new_led: Callable[..., Led]) -> None:
    led = new_led(LogOptions(chunk_bytes=1 << 20, parallel_write_after_s=0.05, mark_s=3600.0))
    done = await led.append(b"0")
    led.pool.end_job()
    await done
    await led.append(b"one")
    await led.append(b"two")
    assert led.pool.under_way == (1, 0)
    async with asyncio.timeout(60):
        while led.pool.under_way != (2, 0):  # noqa: ASYNC110
            await asyncio.sleep(0.005)  # a timer has no event
    await led.close()


async def test_page_caches_take_one_write_at_a_time(new_led: Callable[..., Led]) -> None:
    """`durability: memory`: there is nothing to wait for."""
    led = new_led(LogOptions(chunk_bytes=1 << 20, parallel_write_after_s=0.0, fsync=False))
    await led.append(b"0")
    led.pool.end_job()
    for payload in (b"one", b"two"):
        await led.append(payload)
    assert led.pool.under_way == (1, 0)
    await led.close()


async def test_without_a_descriptor_for_it_there_is_one_write_at_a_time(
    new_led: Callable[..., Led], monkeypatch: pytest.MonkeyPatch
) -> None:
    led = new_led()
    await led.append(b"0")
    led.pool.end_job()
    opened, asked = os.open, []

    def none_left(path: Any, *arguments: Any, **named: Any) -> int:
        if Path(path).suffix == ".chunk":
            asked.append(path)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return opened(path, *arguments, **named)

    monkeypatch.setattr(os, "open", none_left)
    for _ in range(4):
        await led.append(b"more")
    assert led.pool.under_way == (1, 0)
    assert asked
    tried = len(asked)
    await led.append(b"more")
    assert len(asked) == tried, "it is not asked for again at once"
    monkeypatch.undo()
    await led.close()
    assert led.failures == []


async def test_jobs_under_way_are_waited_for_and_not_those_that_begin_later(new_led: Callable[..., Led]) -> None:
    """They may have begun without a sync."""
    led = new_led()
    await led.first()
    await led.append(b"one")
    await led.append(b"two")
    waits = asyncio.ensure_future(led.cycle.jobs_under_way())
    await led.turns()
    led.pool.end_write()
    await led.append(b"three")
    assert led.pool.under_way == (2, 0)
    assert not waits.done()
    led.pool.end_write()
    await led.turns()
    assert waits.done()
    assert led.pool.under_way == (1, 0)
    await led.close()
    await led.cycle.jobs_under_way()


async def test_a_disk_that_hangs_is_no_less_stuck_for_a_write_that_began_beside(new_led: Callable[..., Led]) -> None:
    led = new_led()
    await led.first()
    led.cycle.tick(0.1)
    await led.append(b"one")
    led.cycle.tick(sync_cycle.HANGS_S - 0.1)
    await led.append(b"two")
    assert led.pool.under_way == (2, 0)
    led.pool.end_write(1)
    led.cycle.tick(0.2)
    assert led.cycle.is_stuck, "the first has not got on"
    led.pool.end_write()
    led.cycle.tick(0.1)
    assert not led.cycle.is_stuck
    await led.close()


async def test_a_leader_whose_disk_hangs_says_so_and_another_leads_while_it_does(
    log_writes: LogWrites, three: Several, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting callers are notified at once, and all other work of the node continues; once the disk writes, the replica
    follows."""
    monkeypatch.setattr(sync_cycle, "HANGS_S", 0.3)
    first, threads = three.nodes[0], 3
    containers = [await three.create(replicas=3, min_in_sync=2) for _ in range(threads + 1)]
    led = [await three.led(container_id) for container_id in containers]
    for container in led:
        await container.append_command(b"before")
        await until(lambda container=container: len(container.state.in_sync) == 3 or None)  # type: ignore[misc]
    goes_on = threading.Event()

    def hang_if_first(path: Path) -> None:
        if path.is_relative_to(first.folder):
            assert goes_on.wait(30)

    write = replica_folder.write

    def writes(folder: Path, state: replica_folder.ReplicaFile) -> None:
        hang_if_first(folder)
        write(folder, state)

    log_writes.after(hang_if_first)
    monkeypatch.setattr(replica_folder, "write", writes)
    try:
        waiting = led[0].append_command(b"under way")
        stuck = await until(lambda: [each.container for each in first.replicas.states() if each.stuck] or None)
        assert stuck == containers[:1]
        for container_id in containers:
            await three.change(container_id, handed_to(1, three))  # type: ignore[arg-type]
        with pytest.raises(KafkaError):
            await asyncio.wait_for(waiting, 100)
        for container_id in containers:
            second = await three.led(container_id, by=three.nodes[1])
            await asyncio.wait_for(second.append_command(b"after"), 100)
        assert not first.replicas.led
        async with asyncio.timeout(5):
            assert await asyncio.get_running_loop().run_in_executor(first.executor, lambda: "a thread")
    finally:
        goes_on.set()
    for container_id in containers:
        second = await three.led(container_id, by=three.nodes[1])
        await until(lambda second=second: len(second.state.in_sync) == 3 or None)  # type: ignore[misc]
        await three.same(container_id, [0, 1, 2], end=second.end)
        assert three.payloads(0, container_id)[-1] == b"after"
    assert not any(each.stuck for each in first.replicas.states())
