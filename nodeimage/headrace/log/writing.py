"""Writing to disk: what one sync cycle writes, in which order, and spare chunk files.

A job is a list of portions in position order. Each portion belongs to one chunk and at most one table, and is written,
synced and (if it completes a table) checkpointed before the next portion starts. Two guarantees follow from that order:

- a chunk's file appears only after the previous chunk is completely synced, so only the newest chunk can have a torn
  tail;
- frames after a checkpoint are written only after the checkpoint is durable, so a start scans at most one table's
  worth of frames.

Two jobs that are single writes to one chunk may be in progress at a time (`fits_one_write`), and reach the disk in
either order; a crash may leave the second without the first. A start treats the frames after such a hole as a torn
tail (recovery.py). This is right, since the second job is not acknowledged before the first.

A checkpoint for which the disk has no room, or the process no descriptor, is put off and is not an error, since the
frames lie in a preallocated file. If a chunk's file cannot appear for want of a descriptor, nothing of its portion has
been written, and the job is resumed with that portion.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

from headrace.base.errors import StorageFull
from headrace.log.checkpoints import append_checkpoint
from headrace.log.chunk import CHUNK_KIND, Chunk
from headrace.log.files import (
    FILE_HEAD_BYTES,
    FileHead,
    OpenFile,
    for_one_call,
    full_disk_as_storage_full,
    synced_folder,
    write_all,
    write_and_sync,
)
from headrace.log.segment import Segment
from headrace.log.table import Table


@dataclass(slots=True)
class Spare:
    """A preallocated file, ready to become the next chunk."""

    file: OpenFile
    path: Path
    capacity: int

    def drop(self) -> None:
        """[blocking] Removes the file, which is no longer needed."""
        with suppress(FileNotFoundError):
            if os.path.samestat(self.path.stat(), os.fstat(self.file.fd)):  # another log may use this path by now
                self.path.unlink()


@dataclass(slots=True)
class Portion:
    """Contiguous frames of one chunk from place `at` on.

    `gaps`: (number of buffers before the gap, bytes) of each stretch that stays unwritten; `nbytes` includes them.
    `spare`: a spare that must become the chunk's file first. `table`: to be checkpointed after these frames; `saved`
    receives the checkpoints written, also those of tables put off before.
    """

    chunk: Chunk
    at: int
    buffers: list[bytes | memoryview] = field(default_factory=list)
    nbytes: int = 0
    gaps: list[tuple[int, int]] = field(default_factory=list)
    spare: Spare | None = None
    table: Table | None = None
    saved: list[tuple[Table, Segment]] = field(default_factory=list)

    def leave_out(self, length: int) -> None:
        """Adds a stretch of `length` bytes that stays unwritten."""
        self.gaps.append((len(self.buffers), length))
        self.nbytes += length


@dataclass(slots=True)
class WriteJob:
    """All frames that were pending. `end`: the position after them. `nbytes` may be 0 if only a checkpoint is due.

    `done`: the number of portions that are on the disk, for resuming a job that was put off. `took`: seconds that
    writing took, once the job is written.
    """

    portions: list[Portion]
    end: int
    nbytes: int
    done: int = 0
    took: float = 0.0


@dataclass(frozen=True, slots=True)
class DirectWrite:
    """A single system call that writes all of a job: `buffers`, which are `nbytes` long, at `offset` of a preallocated
    file. `flags` make the call sync too, if the job must be synced."""

    file: OpenFile
    offset: int
    buffers: Sequence[bytes | bytearray | memoryview]
    nbytes: int
    flags: int


def open_again(chunk: Chunk) -> OpenFile | None:
    """[blocking] Opens the file of an open chunk a second time. None: the chunk was closed, or its path leads to
    another file.

    Raises `OutOfDescriptors`, OSError.
    """
    own = chunk.body.file
    if not isinstance(own, OpenFile):
        return None
    file = OpenFile.open(chunk.path)
    return file if os.path.samestat(os.fstat(own.fd), os.fstat(file.fd)) else None


def fits_one_write(portions: Sequence[Portion]) -> bool:
    """Whether `portions` are contiguous frames of a chunk that has its file, without a checkpoint after them."""
    if len(portions) != 1:
        return False
    portion = portions[0]
    return bool(portion.buffers) and portion.spare is None and portion.table is None and not portion.gaps


def direct_write(job: WriteJob, *, fsync: bool, beside: OpenFile | None = None) -> DirectWrite | None:
    """The single system call that writes all of `job`. None: the job needs `write_portion`.

    `beside`: a second open file of the chunk, for a write in parallel with another.
    """
    if job.done or not fits_one_write(job.portions):
        return None
    portion = job.portions[0]
    file = beside or portion.chunk.body.file
    buffers = for_one_call(portion.buffers)
    if buffers is None or not isinstance(file, OpenFile):
        return None
    flags = os.RWF_DSYNC if fsync else 0
    return DirectWrite(file, FILE_HEAD_BYTES + portion.at, buffers, portion.nbytes, flags)


def open_file_bytes(held: int, *, least: int, most: int) -> int:
    """The size of the next chunk's file while it is open: the bytes that the log holds so far, rounded up to a multiple
    of `least`, and at most `most`.

    So a small log takes little of the disk, and a growing log soon has chunks of `most` bytes.
    """
    return min(-(-max(held, least) // least) * least, most)


def make_spare_file(path: Path, capacity: int) -> Spare:
    """Preallocates room for `capacity` bytes of frames. Raises `StorageFull` and then leaves no file behind."""
    with synced_folder(path.parent), full_disk_as_storage_full(path):
        file = OpenFile.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            os.posix_fallocate(file.fd, 0, FILE_HEAD_BYTES + capacity)
            os.fsync(file.fd)
        except OSError:
            path.unlink()
            raise
    return Spare(file, path, capacity)


def write_portion(portion: Portion, *, fsync: bool, written: Callable[[int], None]) -> None:
    """Writes, syncs and checkpoints one portion. Calls `written` with the position up to which frames can be read back.

    Raises `OSError`, and after a failed sync the process must end (invariant 13); `OutOfDescriptors` before anything
    has been written.
    """
    chunk = portion.chunk
    file = chunk.body.opened()
    fd = file.fd
    if portion.spare is not None:
        _become_chunk(portion.spare, chunk, fsync=fsync)
    if portion.buffers:
        if fsync and not portion.gaps:
            write_and_sync(fd, FILE_HEAD_BYTES + portion.at, portion.buffers)
        else:
            at, done = FILE_HEAD_BYTES + portion.at, 0
            for stop, unwritten in (*portion.gaps, (len(portion.buffers), 0)):
                at += write_all(fd, at, portion.buffers[done:stop]) + unwritten
                done = stop
            if fsync:
                os.fdatasync(fd)
        written(chunk.start + portion.at + portion.nbytes)
    if portion.table is not None:
        chunk.unsaved.append(portion.table)
        try:
            while chunk.unsaved:
                table = chunk.unsaved[0]
                segment, chunk.index_size = append_checkpoint(
                    chunk.index_path, table, start=chunk.start, size=chunk.index_size, fsync=fsync
                )
                portion.saved.append((table, segment))
                del chunk.unsaved[0]
        except StorageFull:
            pass  # put off until the next checkpoint is due; until then a start scans more


def _become_chunk(spare: Spare, chunk: Chunk, *, fsync: bool) -> None:
    with synced_folder(chunk.path.parent) if fsync else nullcontext():
        chunk.index_path.unlink(missing_ok=True)
        os.pwrite(spare.file.fd, FileHead(CHUNK_KIND, chunk.start).encode(), 0)
        if fsync:
            os.fdatasync(spare.file.fd)
        spare.path.rename(chunk.path)
