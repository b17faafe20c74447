"""The way to the disk: what one sync cycle writes, in which order, and the spare chunk.

A job is a list of portions in position order. Each portion belongs to one chunk and at most one table, and is written,
synced and (when it completes a table) checkpointed before the next one starts. Two promises rest on that order:

- a chunk's file appears only after all of the chunk before it is synced, so only the newest chunk can have a torn tail;
- frames behind a checkpoint are written only after it is durable, so a start scans one table's worth at most.

Two jobs that are single writes to one chunk may be under way at a time (`pends_one_write`), and reach the disk in
either order; a crash may leave the second without the first. A start takes what is behind such a hole for a torn tail
(recovery.py), which it is: the second counts only once the first does.

A checkpoint for which the disk has no room, or the process no descriptor, is put off, not an error: frames have their
place in a preallocated file. Where a chunk's file cannot appear for want of a descriptor, nothing of its portion has
been done, and the job is written again from there.
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
        """[blocking] It is not needed any more."""
        with suppress(FileNotFoundError):
            if os.path.samestat(self.path.stat(), os.fstat(self.file.fd)):  # another log may have this name by now
                self.path.unlink()


@dataclass(slots=True)
class Portion:
    """Frames of one chunk that lie side by side from place `at` on.

    `gaps`: (buffers before it, bytes) of what stays unwritten between; `nbytes` counts that too. `spare`: the file that
    first becomes the chunk's. `table`: to be checkpointed behind these frames; what came of it (and of tables put off
    before) is left in `saved`.
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
        """Goes on `length` bytes further; what lies between stays unwritten."""
        self.gaps.append((len(self.buffers), length))
        self.nbytes += length


@dataclass(slots=True)
class WriteJob:
    """All that was pending. `end` is the position behind it; `nbytes` may be 0 when only a checkpoint is due.

    `done`: so many portions are on the disk, where a try to write the job was put off. `took`: seconds, once it is
    written.
    """

    portions: list[Portion]
    end: int
    nbytes: int
    done: int = 0
    took: float = 0.0


@dataclass(frozen=True, slots=True)
class DirectWrite:
    """One call to the kernel that writes all of a job: `buffers`, which are `nbytes` long, into a file that is open and
    holds the place for them. With `flags` it syncs them too, if they are to be synced."""

    file: OpenFile
    offset: int
    buffers: Sequence[bytes | bytearray | memoryview]
    nbytes: int
    flags: int


def open_again(chunk: Chunk) -> OpenFile | None:
    """[blocking] The file of an open chunk, opened once more. None: it is not there, or no longer.

    Raises `OutOfDescriptors`, OSError.
    """
    own = chunk.body.file
    if not isinstance(own, OpenFile):
        return None
    file = OpenFile.open(chunk.path)
    return file if os.path.samestat(os.fstat(own.fd), os.fstat(file.fd)) else None


def pends_one_write(portions: Sequence[Portion]) -> bool:
    """Whether they are frames that lie side by side in the open chunk, with no checkpoint behind them."""
    if len(portions) != 1:
        return False
    portion = portions[0]
    return bool(portion.buffers) and portion.spare is None and portion.table is None and not portion.gaps


def direct_write(job: WriteJob, *, fsync: bool, beside: OpenFile | None = None) -> DirectWrite | None:
    """What `job` comes to where it is one call. None: it takes `write_portion`.

    `beside`: the same file, opened once more, for a write that goes beside another.
    """
    if job.done or not pends_one_write(job.portions):
        return None
    portion = job.portions[0]
    file = beside or portion.chunk.body.file
    buffers = for_one_call(portion.buffers)
    if buffers is None or not isinstance(file, OpenFile):
        return None
    flags = os.RWF_DSYNC if fsync else 0
    return DirectWrite(file, FILE_HEAD_BYTES + portion.at, buffers, portion.nbytes, flags)


def open_file_bytes(held: int, *, least: int, most: int) -> int:
    """The size of the next chunk's file while it is open: as much as the log has `held` so far, in steps of `least`.

    So a log of little takes little of the disk, and a growing one is soon written in chunks of `most`.
    """
    return min(-(-max(held, least) // least) * least, most)


def make_spare_file(path: Path, capacity: int) -> Spare:
    """Preallocates room for `capacity` bytes of frames. Raises `StorageFull` and leaves nothing behind."""
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
    """Writes, syncs and checkpoints one portion. `written` is told the position up to which frames can be read back.

    Raises `OSError`; after a failed sync the process must end (invariant 13). `OutOfDescriptors`: nothing is done.
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
            pass  # put off until the next one is due; until then a start scans more


def _become_chunk(spare: Spare, chunk: Chunk, *, fsync: bool) -> None:
    with synced_folder(chunk.path.parent) if fsync else nullcontext():
        chunk.index_path.unlink(missing_ok=True)
        os.pwrite(spare.file.fd, FileHead(CHUNK_KIND, chunk.start).encode(), 0)
        if fsync:
            os.fdatasync(spare.file.fd)
        spare.path.rename(chunk.path)
