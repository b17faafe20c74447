"""The threads that write the logs of a node, with real logs: native threads, and Python threads in their place."""

import asyncio
import errno
import os
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.container import writer_pool
from headrace.container.writer import Writer
from headrace.container.writer_pool import WriterPool
from headrace.log.container_log import ContainerLog, LogOptions, WriteJob
from headrace.log.synced_mark import read_mark
from kit.log_writes import NEEDS_NATIVE, LogWrites
from kit.written_log import Writing

OPTIONS = LogOptions(chunk_bytes=64 << 10, open_file_bytes=64 << 10, checkpoint_bytes=8 << 10, mark_s=3600.0)


class Written(Writing):
    """A log that a pool writes."""

    def __init__(self, folder: Path, pool: WriterPool, options: LogOptions = OPTIONS) -> None:
        super().__init__(folder, options)
        self.errors: list[Exception | None] = []
        self.took: list[float] = []
        self.direct = 0
        """Jobs that were single writes."""
        self._more = asyncio.Event()
        self.writer = Writer(log=self.log, pool=pool, done=self._done)

    def _done(self, job: WriteJob, error: Exception | None) -> None:
        if error is None:
            self.log.job_done(job)
        self.errors.append(error)
        self.took.append(job.took)
        self._more.set()

    def submit(self) -> None:
        """Submit everything that is pending."""
        job = self.log.take_job()
        assert job is not None
        self.direct += self.log.direct_write(job) is not None
        self.writer.submit(job)

    async def write(self) -> Exception | None:
        """Return the outcome of the submitted job."""
        before = len(self.errors)
        self.submit()
        return await self.outcome(before)

    async def outcome(self, before: int) -> Exception | None:
        """Return the next outcome after the given number of them."""
        async with asyncio.timeout(60):
            while len(self.errors) == before:
                self._more.clear()
                await self._more.wait()
        return self.errors[before]

    async def close(self) -> None:
        await self.writer.close()
        self.log.close()


NewLog = Callable[..., Written]


@pytest.fixture
def pool(log_writes: LogWrites) -> Iterator[Callable[[], WriterPool]]:
    """The test's pool, created on its loop; closed at the end."""
    made: list[WriterPool] = []

    def get() -> WriterPool:
        if not made:
            made.append(WriterPool())
        return made[0]

    yield get
    assert not made or made[0]._native is None, "it was closed on its loop"


async def read_again(folder: Path, wanted: dict[int, list[bytes]]) -> None:
    """The next start reads what was written."""
    log = ContainerLog.open(folder, OPTIONS)
    for partitionlet, batches in wanted.items():
        found = log.read(partitionlet, 0, limit=1 << 40, max_bytes=1 << 30)
        assert b"".join(found) == b"".join(batches)
    log.close()


async def test_all_jobs_of_several_logs_are_on_the_disk_when_they_are_done(
    tmp_path: Path, pool: Callable[[], WriterPool], log_writes: LogWrites
) -> None:
    """Single writes, checkpoints and new chunks in turn."""
    logs = [Written(tmp_path / str(number), pool()) for number in range(5)]

    async def fill(log: Written) -> None:
        for row in range(150):
            for _ in range(row % 7 + 1):
                log.append(row % 3 + 1, size=row * 13 % 700)
            assert await log.write() is None
            assert log.log.synced == log.log.end == log.log.written

    await asyncio.gather(*map(fill, logs))
    for log in logs:
        assert 0 < log.direct < len(log.errors), "both ways"
        assert all(took > 0 for took in log.took)
        assert len(log.log.chunks()) > 2
        await log.close()
        assert read_mark(log.folder) <= log.log.synced
    pool().close()
    for log in logs:
        await read_again(log.folder, log.batches)


async def test_a_log_that_rests_is_marked(tmp_path: Path, pool: Callable[[], WriterPool]) -> None:
    log = Written(tmp_path / "1", pool(), LogOptions(mark_s=0.01))
    for _ in range(2):
        log.append()
        assert await log.write() is None
        async with asyncio.timeout(60):
            while read_mark(log.folder) != log.log.synced:  # noqa: ASYNC110
                await asyncio.sleep(0.005)  # a file has no event
    await log.close()
    pool().close()


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
async def test_a_disk_that_fails_is_told_and_not_asked_again(
    tmp_path: Path, pool: Callable[[], WriterPool], log_writes: LogWrites, code: int
) -> None:
    log = Written(tmp_path / "1", pool())
    log.append()
    assert await log.write() is None
    written, asked = log.log.written, []

    def fails(path: Path) -> None:
        asked.append(path)
        raise OSError(code, os.strerror(code))

    log_writes.after(fails)
    log.append()
    error = await log.write()
    assert isinstance(error, OSError)
    assert (error.errno, error.strerror) == (code, os.strerror(code))
    assert len(asked) == 1
    assert log.log.written == log.log.synced == written
    await log.close()
    pool().close()


@pytest.mark.parametrize("length", [0, 1, 60])
async def test_what_a_write_left_out_is_written_and_synced(
    tmp_path: Path, pool: Callable[[], WriterPool], log_writes: LogWrites, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    log = Written(tmp_path / "1", pool())
    log.append()
    assert await log.write() is None
    synced: list[int] = []
    sync = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda fd: (synced.append(fd), sync(fd)))

    def short(as_it_is: Callable[..., int], _path: Path, _length: int, flags: int) -> int:
        return as_it_is(length=length) if flags else as_it_is()

    log_writes.by(short)
    log.append()
    assert await log.write() is None
    assert synced, "in all it was not one call, which would have synced by itself"
    assert log.log.synced == log.log.end
    await log.close()
    pool().close()
    await read_again(log.folder, log.batches)


async def test_a_file_system_without_synced_writes_gets_a_write_and_a_sync(
    tmp_path: Path, pool: Callable[[], WriterPool], log_writes: LogWrites, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    sync = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda fd: (synced.append(fd), sync(fd)))

    def refusing(as_it_is: Callable[..., int], _path: Path, _length: int, flags: int) -> int:
        if flags:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return as_it_is()

    log_writes.by(refusing)
    log = Written(tmp_path / "1", pool())
    for _ in range(3):
        log.append()
        before = len(synced)
        assert await log.write() is None
        assert len(synced) > before
    await log.close()
    pool().close()
    await read_again(log.folder, log.batches)


@pytest.mark.parametrize("fsync", [True, False])
async def test_a_log_is_synced_as_it_is_to_be_kept(
    tmp_path: Path, pool: Callable[[], WriterPool], log_writes: LogWrites, fsync: bool
) -> None:
    """`durability: memory` writes only to the page cache."""
    flags_seen = []

    def noted(as_it_is: Callable[..., int], _path: Path, _length: int, flags: int) -> int:
        flags_seen.append(flags)
        return as_it_is()

    log_writes.by(noted)
    log = Written(tmp_path / "1", pool(), LogOptions(fsync=fsync))
    for _ in range(3):
        log.append()
        assert await log.write() is None
    assert flags_seen == [os.RWF_DSYNC if fsync else 0] * 3
    await log.close()
    pool().close()


async def test_a_slow_disk_holds_up_neither_the_loop_nor_other_logs(
    tmp_path: Path, pool: Callable[[], WriterPool], log_writes: LogWrites
) -> None:
    slow, other = (Written(tmp_path / name, pool()) for name in ("slow", "other"))
    for log in (slow, other):
        log.append()
        assert await log.write() is None
    entered, goes_on = threading.Event(), threading.Event()

    def hangs(path: Path) -> None:
        if path.is_relative_to(slow.folder):
            entered.set()
            assert goes_on.wait(60)

    log_writes.after(hangs)
    slow.append()
    slow.submit()
    assert await asyncio.to_thread(entered.wait, 60)
    written = slow.log.written
    for _ in range(3):
        other.append()
        assert await other.write() is None
    assert (len(slow.errors), slow.log.written) == (1, written), "nothing counts before it is on the disk"
    goes_on.set()
    assert await slow.outcome(1) is None
    assert slow.log.synced == slow.log.end
    for log in (slow, other):
        await log.close()
    pool().close()


class Disorder:
    """A disk that completes writes in a given order, and now and then writes too little."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, chance: random.Random) -> None:
        self._chance = chance
        self._write = os.pwritev
        self._begun = threading.Semaphore(0)
        self._ended = threading.Semaphore(0)
        self._held: dict[int, tuple[int, threading.Event]] = {}
        """By offset: the descriptor, and what it waits for."""
        monkeypatch.setattr(os, "pwritev", self.write)

    def write(self, fd: int, buffers: list[memoryview], offset: int, flags: int = 0) -> int:
        if threading.current_thread().name.startswith("log-writer"):  # what a single write left out
            return self._write(fd, buffers, offset, flags)
        goes_on = threading.Event()
        self._held[offset] = (fd, goes_on)
        self._begun.release()
        assert goes_on.wait(60)
        short = self._chance.random() < 0.1
        done = self._write(fd, [memoryview(b"".join(buffers))[:-1]] if short else buffers, offset, flags)
        self._ended.release()
        return done

    def let(self, count: int) -> None:
        """[blocking] Let the writes in progress complete, of which there must be the given number."""
        for _ in range(count):
            assert self._begun.acquire(timeout=60)
        if count == 2:
            (one, _), (other, _) = self._held.values()
            assert not same_open_file(one, other)
        for offset in self._chance.sample(sorted(self._held), count):
            self._held.pop(offset)[1].set()
            assert self._ended.acquire(timeout=60)


def same_open_file(one: int, other: int) -> bool:
    """Return whether two descriptors share the kernel's state of an open file, such as its position."""
    os.lseek(one, 0, os.SEEK_SET)
    os.lseek(other, 1, os.SEEK_SET)
    return os.lseek(one, 0, os.SEEK_CUR) == 1


@NEEDS_NATIVE
@pytest.mark.parametrize("log_writes", ["native"], indirect=True)
@pytest.mark.parametrize("seed", range(5))
async def test_two_writes_reach_the_disk_in_either_order_and_count_in_theirs(
    tmp_path: Path, pool: Callable[[], WriterPool], log_writes: LogWrites, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """By two open files, since a failed write-back is reported once to each."""
    chance = random.Random(seed)
    log = Written(tmp_path / "1", pool())
    log.append()
    assert await log.write() is None
    disorder, both = Disorder(monkeypatch, chance), 0
    for _ in range(60):
        log.log.use_second_file(log.log.open_second_file())
        before, synced, singles = len(log.errors), log.log.synced, 0
        while singles < 2 and (not singles or log.writer.takes_another):
            for _ in range(chance.randint(1, 3)):
                log.append(chance.randint(1, 3), size=chance.randrange(700))
            single = log.log.pending_fits_one_write
            if not single and singles:
                break
            log.submit()
            singles += single
            if not single:
                break
        assert log.log.synced == synced
        await asyncio.to_thread(disorder.let, singles)
        for row in range(max(singles, 1)):
            assert await log.outcome(before + row) is None
        if log.log.pending_bytes:
            assert await log.write() is None
        assert log.log.synced == log.log.written == log.log.end
        both += singles == 2
    assert both > 10
    monkeypatch.undo()
    await log.close()
    pool().close()
    await read_again(log.folder, log.batches)


@NEEDS_NATIVE
async def test_what_follows_one_write_cannot_keep_another_from_being_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = []

    class Native:
        def take(self) -> list[object]:
            def fails(result: int, seconds: float) -> None:
                raise ZeroDivisionError

            return [((None, fails), 1, 0.0), ((None, lambda *outcome: told.append(outcome)), 2, 0.5)]

    pool = WriterPool()
    native, pool._native = pool._native, Native()  # type: ignore[assignment]
    pool._take()
    pool._native = native
    pool.close()
    assert told == [(2, 0.5)]


@NEEDS_NATIVE
async def test_logs_that_rest_have_no_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = len(os.listdir("/proc/self/task"))
    pool = WriterPool()
    logs = [Written(tmp_path / str(number), pool) for number in range(50)]
    for log in logs:
        log.append()
        assert await log.write() is None
    assert len(os.listdir("/proc/self/task")) <= before + 2 * writer_pool.THREADS
    for log in logs:
        await log.close()
    pool.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("log-writer")]


async def test_a_pool_whose_loop_is_gone_tells_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that ends while a disk hangs."""
    entered, goes_on = threading.Event(), threading.Event()

    def hangs() -> None:
        entered.set()
        assert goes_on.wait(60)

    log = Writing(tmp_path / "1", OPTIONS).log
    monkeypatch.setattr(ContainerLog, "mark_synced", lambda _: hangs())

    def in_a_loop() -> WriterPool:
        async def begin() -> WriterPool:
            made = WriterPool()
            made.mark(log, pytest.fail)
            assert await asyncio.to_thread(entered.wait, 60)
            return made

        return asyncio.run(begin())

    pool = await asyncio.to_thread(in_a_loop)
    goes_on.set()
    pool._threads.shutdown()
    log.close()
