"""A container over a real log: what is committed and when, and what a failing disk causes."""

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from headrace.base.errors import StorageFull, TrimmedLog
from headrace.base.ids import ContainerId, Epoch, NodeId, PartitionletId, Position
from headrace.container.leader import Leader
from headrace.container.leader_state import Member
from headrace.container.sync_cycle import HANGS_S
from headrace.container.writer_pool import WriterPool
from headrace.log.container_log import ContainerLog, LogOptions, WriteJob
from headrace.log.frames import FrameType
from headrace.node.catalog_log import commands_in
from kit.log_writes import LogWrites, Threads
from kit.several_replicas import Unheard


class PlentyOfRoom:
    def check(self, length: int, *, from_reserve: bool = False) -> None:
        pass

    def lacked(self) -> None:
        pass


@pytest.fixture
async def executor() -> AsyncIterator[Threads]:
    with Threads(1) as threads:
        yield threads


def lead(folder: Path, executor: Threads, *, fatal: Callable[[str], None]) -> Leader:
    return Leader(
        container_id=ContainerId(2),
        member=Member(NodeId(1), "format"),
        epoch=Epoch(1),
        container_log=ContainerLog.open(folder, LogOptions(chunk_bytes=1 << 20)),
        executor=executor,
        pool=executor.pool,
        events=Unheard(),
        room=PlentyOfRoom(),
        fatal=fatal,
    )


async def test_what_is_committed_is_there_after_a_new_start(tmp_path: Path, executor: Threads) -> None:
    failures: list[str] = []
    container = lead(tmp_path, executor, fatal=failures.append)
    ends = [await container.append_command(payload) for payload in (b"one", b"two")]
    assert container.committed == ends[-1]
    await container.close()
    again = lead(tmp_path, executor, fatal=failures.append)
    assert again.committed == ends[-1]
    assert [payload for _, payload in commands_in(again.log, again.log.start, again.committed)] == [b"one", b"two"]
    await again.close()
    assert failures == []


async def test_a_log_that_is_closed_while_it_is_read_does_not_seem_to_hold_no_more_commands(
    tmp_path: Path, executor: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower's log is replaced when it is cut, while earlier frames are still being applied from it."""
    container = lead(tmp_path, executor, fatal=lambda _: None)
    end = await container.append_command(b"one")
    read, start = container.log, container.log.start

    def closed(_: ContainerLog) -> Position:
        monkeypatch.undo()
        read.close()
        return start

    monkeypatch.setattr(ContainerLog, "start", property(closed))
    assert [payload for _, payload in commands_in(read, start, end)] == [b"one"]
    with pytest.raises(TrimmedLog):
        list(commands_in(read, Position(start), end))


async def test_a_disk_that_gives_no_bytes_is_told_to_who_keeps_the_room(
    tmp_path: Path, executor: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quota does not show in any number that could be queried in advance."""
    told: list[bool] = []
    monkeypatch.setattr(PlentyOfRoom, "lacked", lambda _: told.append(True))
    container = lead(tmp_path, executor, fatal=pytest.fail)

    def over_quota(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(os, "posix_fallocate", over_quota)
    assert not container.has_room(4 << 20)  # the spare that it has is smaller
    with pytest.raises(StorageFull):
        await container.make_room()
    assert told == [True]
    await container.close()


async def test_on_a_full_disk_records_leave_a_place_for_what_lets_partitions_leave(
    tmp_path: Path, executor: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other software may have filled the disk, so that nothing is left of the reserve."""
    container = lead(tmp_path, executor, fatal=pytest.fail)
    await container.append_command(b"the first chunk is there")

    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    while container.has_room(5_000):
        await container.append_command(b"." * 5_000)
    with pytest.raises(StorageFull):
        await container.append_command(b"." * 5_000)
    waiting = [container.append_command(b"." * 5_000), container.append_command(b"fits, but comes behind it")]
    # Other frames that wait all the time would keep it out while the disk is full.
    end = await container.append_control(
        FrameType.SEAL, b"." * 5_000, partitionlet=PartitionletId(7), from_reserve=True
    )
    assert container.committed == end
    for each in waiting:
        with pytest.raises(StorageFull):
            await each
    assert not container.cramped

    async def fill() -> None:
        for _ in range(10):
            await container.append_control(
                FrameType.SEAL, b"." * 50_000, partitionlet=PartitionletId(8), from_reserve=True
            )

    with pytest.raises(StorageFull):
        await fill()
    assert container.cramped, "partitions do not get out"
    await container.append_control(FrameType.SEAL, b".", partitionlet=PartitionletId(9), from_reserve=True)
    assert not container.cramped
    await container.close()


async def test_a_disk_that_hangs_shows_once_the_loop_has_seen_a_job_get_on_with_nothing_for_long(
    tmp_path: Path, executor: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the process is suspended meanwhile."""
    monkeypatch.setattr(WriterPool, "is_native", False)  # a single write makes progress only when it completes
    container = lead(tmp_path, executor, fatal=pytest.fail)
    cycle = container.cycle
    await container.append_command(b"before")
    hanging, goes_on, written = threading.Event(), threading.Event(), threading.Event()
    write_job = ContainerLog.write_job

    def hangs(log: ContainerLog, job: WriteJob) -> None:
        hanging.set()
        assert goes_on.wait(10)
        write_job(log, job)
        written.set()
        assert may_end.wait(10)

    may_end = threading.Event()
    monkeypatch.setattr(ContainerLog, "write_job", hangs)
    cycle.tick(2 * HANGS_S)
    assert not cycle.is_stuck, "nothing is to be written"
    later = container.append_command(b"later")
    assert await asyncio.to_thread(hanging.wait, 10)
    cycle.tick(HANGS_S - 0.1)
    assert not cycle.is_stuck
    cycle.tick(0.2)
    assert cycle.is_stuck
    goes_on.set()
    assert await asyncio.to_thread(written.wait, 10)
    cycle.tick(0.1)
    assert not cycle.is_stuck, "a large job that gets on is none that hangs"
    cycle.tick(HANGS_S)
    assert cycle.is_stuck
    may_end.set()
    await later
    assert not cycle.is_stuck
    await container.close()


async def test_a_sync_that_fails_ends_the_process_and_commits_nothing(
    log_writes: LogWrites, tmp_path: Path, executor: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 13: the content of the disk is then unknown, so the sync is neither retried nor acknowledged."""
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    container = lead(tmp_path, executor, fatal=ended.set_result)
    before = await container.append_command(b"safe")
    syncs = 0

    def fail(_descriptor: int, *_writing: object) -> None:
        nonlocal syncs
        syncs += 1
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pwritev", fail)
    monkeypatch.setattr(os, "fdatasync", fail)
    unanswered = container.append_command(b"lost")
    assert "container 2" in await asyncio.wait_for(ended, 10)
    later = container.append_command(b"later")
    await asyncio.sleep(0)
    assert (syncs, container.committed) == (1, before)
    assert not unanswered.done()
    assert not later.done()
