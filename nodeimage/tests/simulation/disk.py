"""Simulated disks: jobs that take time, and the state in which a crash or a bad disk leaves a replica's files.

A job's frames are in the files once its time has passed; until then a crash leaves none, all, or a torn part of them.
Of two concurrent writes the second may finish first, and a crash decides about each separately. Frames that were
reported as written were synced and stay.
"""

import errno
import os
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.base.errors import StorageFull
from headrace.container.writer_pool import Done, Written
from headrace.log.chunk import TRAILER_BYTES, read_trailer
from headrace.log.container_log import ContainerLog, WriteJob
from headrace.log.files import FILE_HEAD_BYTES
from headrace.log.folder import chunk_path, names_in
from headrace.log.writing import DirectWrite, Portion, write_portion
from simulation.loop import PROCESS, SimulatedLoop

if TYPE_CHECKING:
    from simulation.node import Node

NATIVE = 0.75
"""The share of processes that have the native modules."""
ODD_RUNS, ODD_WRITES = 0.1, 0.05
"""The share of runs in which single writes fall short, or cannot be synced by the same call; and the share of such
writes in these runs."""
BESIDE_S = (0.0, 0.001, 0.02, 3600.0)
"""Seconds that a write takes before the next one begins beside it; each process draws one of these values."""
_PAGE = 512
"""The bytes that a disk writes atomically; small, since the chunks are small."""


class Disk:
    """The disk of one node. `slow`: seconds that a job may take; `full`: there is no room for another chunk."""

    def __init__(self, chance: random.Random, job_s: float, loop: SimulatedLoop) -> None:
        self.hangs_until = 0.0
        """Jobs that begin before this time end after it."""
        self._loop = loop
        self.slow = 0.0
        self._job_s = job_s
        self.full = 0
        self.unopened = 0
        """While this is not 0, the node's process has no file descriptor left."""
        self.fails = False
        """Whether the next sync fails."""
        self._chance = chance

    def check(self, length: int, *, from_reserve: bool = False) -> None:
        """See `cycle.Room`."""
        if self.full:
            raise StorageFull("the simulated disk is full")

    def lacked(self) -> None:
        """See `cycle.Room`."""

    def job_s(self) -> float:
        return self.hangs_s() + 0.0002 + self._chance.random() * (self.slow or self._job_s)

    def hangs_s(self) -> float:
        """Seconds for which no call to the disk returns."""
        return max(self.hangs_until - self._loop.now, 0.0)


_open = os.open


def open_within_limits(path: Any, *arguments: Any, **more: Any) -> int:
    """A replacement for `os.open`."""
    process = PROCESS.get()
    if process is not None and process.node.disk.unopened:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
    return _open(path, *arguments, **more)


def has_odd_writes(seed: int) -> bool:
    """Whether single writes fall short in this run."""
    return random.Random(f"odd writes {seed}").random() < ODD_RUNS


class WriterPool:
    """A replacement for `headrace.container.writer_pool.WriterPool`, for one process."""

    def __init__(self, node: "Node", *, run: int) -> None:
        self._chance = chance = random.Random(f"{node.cluster.seed} {node.number} {run}")  # other draws stay as is
        self.is_native = chance.random() < NATIVE
        self._odd_writes = ODD_WRITES if has_odd_writes(node.cluster.seed) else 0.0
        self._node = node
        self._loop: SimulatedLoop = node.cluster.loop
        self.parallel_write_after_s = chance.choice(BESIDE_S)
        self._under_way: dict[Any, list[DirectWrite | WriteJob]] = {}
        """Pending jobs, by the writer that is notified. Contains all writers that have ever submitted a job, in order
        of their first one."""

    @property
    def writes_beside(self) -> bool:
        """Whether two writes of one log are in progress."""
        return any(len(jobs) > 1 for jobs in self._under_way.values())

    def write(self, write: DirectWrite, written: Written) -> None:
        self._begin(written, write)
        self._loop.call_later(self._node.disk.job_s(), self._finish, write, written)

    def _begin(self, told: Any, job: DirectWrite | WriteJob) -> None:
        under_way = self._under_way.setdefault(told.__self__.writer, [])
        if under_way and (why := _against(under_way, job)):
            self._node.cluster.checks.fail(f"node {self._node.number}: {why}")
        under_way.append(job)

    def _end(self, told: Any, job: DirectWrite | WriteJob) -> None:
        under_way = self._under_way[told.__self__.writer]
        under_way[:] = [other for other in under_way if other is not job]

    def _finish(self, write: DirectWrite, written: Any) -> None:
        disk = self._node.disk
        if disk.fails:
            disk.fails = False
            written(-errno.EIO, 0.0)
            return
        self._end(written, write)
        if self._chance.random() >= self._odd_writes:
            written(os.pwritev(write.file.fd, write.buffers, write.offset), 0.0)
            return
        some = self._chance.choice((self._chance.randrange(write.nbytes), -errno.EOPNOTSUPP))
        if some > 0:
            os.pwrite(write.file.fd, b"".join(write.buffers)[:some], write.offset)
        written(some, 0.0)

    def write_job(self, container_log: ContainerLog, job: WriteJob, done: Done) -> None:
        self._begin(done, job)
        self._loop.call_later(self._node.disk.job_s(), self._finish_job, container_log, job, done)

    def _finish_job(self, container_log: ContainerLog, job: WriteJob, done: Any) -> None:
        if self._node.disk.fails:
            self._node.disk.fails = False
            done(OSError(errno.EIO, "the simulated disk failed"))
            return
        failure: Exception | None = None
        try:
            container_log.write_job(job)
        except Exception as error:  # as in the thread, whatever the error is
            failure = error
        self._end(done, job)
        done(failure)

    def mark(self, container_log: ContainerLog, done: Done) -> None:
        def mark() -> None:
            container_log.mark_synced()
            self._check_mark(container_log.appender._mark.position, done)
            done(None)

        self._loop.call_later(self._node.disk.hangs_s() + self._chance.random() * 0.002, mark)

    def _check_mark(self, position: int, done: Any) -> None:
        """No mark covers bytes that have yet to reach the disk (invariant 14)."""
        for job in self._under_way.get(done.__self__, ()):
            if isinstance(job, DirectWrite):
                start = int(Path(os.readlink(f"/proc/self/fd/{job.file.fd}")).stem) + job.offset - FILE_HEAD_BYTES
                if position > start:
                    self._node.cluster.checks.fail(
                        f"node {self._node.number}: a mark tells of {position}, what comes at {start} is on its way"
                    )

    def crash(self, chance: random.Random) -> list[str]:
        """The process is gone; returns what became of the pending writes."""
        fates = [_left_of(each, chance) for under_way in self._under_way.values() for each in under_way]
        self._under_way.clear()
        return [fate for fate in fates if fate]


def _against(under_way: list[DirectWrite | WriteJob], job: DirectWrite | WriteJob) -> str:
    """Why a job may not begin beside the pending ones; empty if it may."""
    before = under_way[0]
    if len(under_way) > 1:
        return "three jobs at a time"
    if not isinstance(job, DirectWrite) or not isinstance(before, DirectWrite):
        return "a job that takes more than one call goes beside another"
    if before.offset + before.nbytes != job.offset:
        return "two writes do not follow each other"
    return "two writes go by one open file" if same_open_file(before.file.fd, job.file.fd) else ""


def same_open_file(one: int, other: int) -> bool:
    """Whether two descriptors belong to one open file in the kernel, which then reports a failure to it only once."""
    place = os.lseek(one, 0, os.SEEK_CUR)
    os.lseek(one, place + 1, os.SEEK_SET)
    moved = os.lseek(other, 0, os.SEEK_CUR)
    os.lseek(one, place, os.SEEK_SET)
    return one == other or moved != os.lseek(other, 0, os.SEEK_CUR)


def _left_of(under_way: DirectWrite | WriteJob, chance: random.Random) -> str:
    if isinstance(under_way, DirectWrite):
        joined = b"".join(under_way.buffers)
        if chance.randrange(2):
            os.pwrite(under_way.file.fd, joined, under_way.offset)
            return "kept"
        if chance.random() < 0.5:
            _tear_bytes(under_way.file.fd, under_way.offset, joined, chance)
            return "torn"
        return "lost"
    if not under_way.portions:
        return ""
    left = under_way.portions[under_way.done :]
    whole = chance.randrange(len(left) + 1)
    for portion in left[:whole]:
        write_portion(portion, fsync=False, written=lambda _position: None)
    if whole == len(left):
        return "kept"
    if chance.random() < 0.5:
        _tear(left[whole], chance)
        return "torn"
    return "lost" if not whole else "cut off"


def _tear(portion: Portion, chance: random.Random) -> None:
    """Write some of a portion's pages; its file may or may not have become the chunk's."""
    pieces: list[tuple[int, bytes]] = []
    at, done = portion.at, 0
    for stop, unwritten in (*portion.gaps, (len(portion.buffers), 0)):
        joined = b"".join(portion.buffers[done:stop])
        pieces.append((at, joined))
        at += len(joined) + unwritten
        done = stop
    if portion.spare is not None:
        if chance.random() < 0.3:
            return
        first = Portion(portion.chunk, portion.at, spare=portion.spare)
        write_portion(first, fsync=False, written=lambda _position: None)
    file = portion.chunk.body.opened()
    for at, joined in pieces:
        if not _tear_bytes(file.fd, FILE_HEAD_BYTES + at, joined, chance):
            return


def _tear_bytes(fd: int, offset: int, joined: bytes, chance: random.Random) -> bool:
    """Write some of the pages; returns whether the last one was written."""
    in_order = chance.random() < 0.5
    end = chance.randrange(len(joined) + 1)
    for start in range(0, end, _PAGE):
        if in_order or chance.random() < 0.6:
            os.pwrite(fd, joined[start : min(start + _PAGE, end)], offset + start)
    return end == len(joined)


def damage(folder: Path, chance: random.Random) -> str:
    """Damage a closed replica where the next start must notice it; returns what was done, "" if nothing."""
    chunks = sorted(folder.glob("*.chunk"))
    replica = folder / "replica.json"
    kinds = ["record"] if replica.exists() else []
    if len(chunks) > 1:
        kinds += ["missing", "missing"]
    if not kinds:
        return ""
    kind = chance.choice(kinds)
    if kind == "record":
        raw = bytearray(replica.read_bytes())
        replica.write_bytes(raw[: len(raw) // 2])
        return "its replica.json is cut short"
    gone = chance.choice(chunks[1:-1] or chunks[:-1])
    if gone is chunks[0]:
        with gone.open("r+b") as file:
            file.seek(0)
            file.write(b"\0" * 8)
        return f"the head of {gone.name} is zeros"
    gone.unlink()
    return f"{gone.name} is missing"


class Flipped(NamedTuple):
    """A byte of a file that was changed."""

    path: Path
    at: int
    value: int
    told: str

    def is_there(self) -> bool:
        """Whether the damage still exists: it may have been cut off, and other bytes written in its place."""
        if not self.path.exists():
            return False
        with self.path.open("rb") as file:
            file.seek(self.at)
            return file.read(1) == bytes([self.value])


def flip(folder: Path, chance: random.Random, *, live: bool) -> Flipped | None:
    """Flip a bit of synced data, in a chunk that is full; None if there is none.

    `live`: the replica is in use, so the bit is within frames, which are read from the file each time; mapped or cached
    data would hide the change. The trailer is left out, since a chunk without one is closed again at the next start.
    """
    starts = sorted(names_in(folder).chunks)
    if len(starts) < 2:
        return None
    row = chance.randrange(len(starts) - 1)
    path = chunk_path(folder, starts[row])
    with path.open("r+b") as file:
        trailer = read_trailer(file.fileno())
        frames_end = FILE_HEAD_BYTES + (starts[row + 1] - starts[row] if trailer is None else trailer.frames_end)
        if trailer is not None and not live and chance.random() < 0.2:
            place = chance.randrange(trailer.footer_at, trailer.size - TRAILER_BYTES)
        elif not live and chance.random() < 0.1:
            place = chance.randrange(FILE_HEAD_BYTES)
        else:
            place = chance.randrange(FILE_HEAD_BYTES, frames_end)
        bit = 1 << chance.randrange(8)
        file.seek(place)
        (found,) = file.read(1)
        file.seek(place)
        file.write(bytes([found ^ bit]))
    closed = "open" if trailer is None else "closed"
    told = f"bit {bit:02x} of byte {place} of {path.name}, which is {closed} and has frames to {frames_end}"
    return Flipped(path, place, found ^ bit, told)
