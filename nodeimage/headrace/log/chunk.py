"""A chunk: one file of a container's log, its index, and how it is closed.

    head      64 bytes, kind b"CHNK" (files.py)
    64        frames, one after the other
    closed:   zeros up to a multiple of 8, index segments (segment.py) in position order, trailer of 64 bytes:
         0  8s    magic       b"HRCLOSED"
         8  u32   crc         CRC-32C of bytes 12 to 64
        12  u32   segments    number of index segments
        16  u64   start       position of the first frame
        24  u64   end         position after the last frame
        32  u64   frames end  place after the last frame (less than end - start once dead frames were left out)
        40  u64   footer      byte at which the segments start
        48  u64   size        of the whole file
        56  8x                zero

A chunk is closed if, and only if, the file ends with a valid trailer that names the file's size. An open chunk's file
is preallocated, with zeros after the frames. Closing writes and syncs the footer first, then the trailer, then
truncates the file after it, so a crash at any step leaves either an open chunk with some bytes after its frames, or a
closed chunk.

Readers see a chunk through one immutable `Body`, which is replaced as a whole; the old file closes when its last reader
is done.

An open chunk's file stays open. A closed chunk's file is opened and mapped when it is used, and stays open while it is
among the most recently used ones (descriptors.py), since a node has far more chunks than descriptors. Before a closed
chunk's file is removed or replaced, it is opened for its readers (`ClosedFile.keep`): under its path they would find
another file, or none.
"""

import os
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from crc32c import crc32c

from headrace.base.errors import CorruptLog, HeadraceError
from headrace.log.dead import DeadOffsets
from headrace.log.descriptors import OPENED
from headrace.log.files import (
    FILE_HEAD_BYTES,
    REGROUPED,
    OpenFile,
    full_disk_as_storage_full,
    lost_as_corrupt_log,
    mapped,
    read_exactly,
    read_head,
    sync_file,
    synced_folder,
    touch,
    write_all,
)
from headrace.log.index import Part
from headrace.log.segment import BLOCK_BYTES, Segment, encode_table, segments_in
from headrace.log.table import Table

CHUNK_KIND: Final = b"CHNK"
TRAILER_MAGIC: Final = b"HRCLOSED"
_TRAILER: Final = struct.Struct("<8sII5Q8x")
TRAILER_BYTES: Final = _TRAILER.size
assert TRAILER_BYTES == 64


@dataclass(frozen=True, slots=True)
class Opened:
    """A closed chunk's file, open and mapped. It closes when the last reference to this object is dropped."""

    file: OpenFile
    trailer: "Trailer"
    regrouped: bool
    segments: tuple[Segment, ...]


class ClosedFile:
    """The file of a closed chunk, opened on use (implements descriptors.KeptOpen). Thread-safe."""

    __slots__ = ("__weakref__", "_ended", "_file", "_kept", "_lock", "_opened", "path", "recent")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recent = False
        self._lock = threading.Lock()
        self._opened: Opened | None = None
        self._file: os.stat_result | None = None
        """The identity of the file, known since it was first opened."""
        self._kept = False
        self._ended = False

    def use(self) -> Opened:
        """The open file; hold the result while its descriptor is in use. Raises `CorruptLog`, `OutOfDescriptors`."""
        opened = self._opened
        if opened is None:
            with self._lock:
                opened = self._opened or self._open()
        self.recent = True
        return opened

    def keep(self) -> None:
        """Keeps the file open until nobody reads it, as its path is about to be removed or reused. Raises as `use`."""
        with self._lock:
            self._kept = True
            try:
                self._opened = self._opened or self._open()
            except BaseException:
                self._kept = False
                raise

    def keep_no_longer(self) -> None:
        """Reverts `keep`: the path still leads to this file."""
        with self._lock:
            self._kept = False

    def end(self) -> None:
        """Forbids opening the file again: the log is closed, and the path may soon be another file's. Readers that hold
        the file open can continue."""
        with self._lock:
            self._kept = self._ended = True

    def let_go(self) -> bool:
        """See descriptors.KeptOpen."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if not self._kept:
                self._opened = None
        finally:
            self._lock.release()
        return True

    def _open(self) -> Opened:
        if self._ended:
            raise HeadraceError(f"{self.path}: its log has been closed meanwhile")
        try:
            with lost_as_corrupt_log():
                opened = open_closed(self.path)
        except FileNotFoundError as error:
            if self._file is None:
                raise
            raise CorruptLog(f"{self.path} is gone. Refetch this chunk.") from error
        found = os.fstat(opened.file.fd)
        if self._file is not None and not os.path.samestat(found, self._file):
            raise CorruptLog(f"{self.path}: another file has taken its place. Refetch this chunk.")
        self._file = found
        self._opened = opened
        self.recent = True  # else it might be the first to go
        OPENED.opened(self)
        return opened


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Body:
    """A chunk's file and index as of one moment. `frames_end`: the place after the last frame of a closed chunk.

    `growing`: the index of an open chunk; a closed chunk's index is in its file.
    """

    file: OpenFile | ClosedFile
    growing: tuple[Part, ...] = ()
    dead: DeadOffsets = field(default_factory=DeadOffsets)
    closed: bool = False
    regrouped: bool = False
    frames_end: int = 0

    @property
    def parts(self) -> tuple[Part, ...]:
        """The index, in position order. Opens the file of a closed chunk: raises as `ClosedFile.use`."""
        return self.file.use().segments if isinstance(self.file, ClosedFile) else self.growing

    def opened(self) -> OpenFile:
        """The file; hold it while its descriptor is in use. Raises as `ClosedFile.use`."""
        return self.file.use().file if isinstance(self.file, ClosedFile) else self.file

    def read(self, place: int, length: int) -> bytes:
        """[blocking] `length` bytes from `place` on; fewer only where the file ends. Raises as `ClosedFile.use`."""
        file = self.opened()
        return read_exactly(file.fd, FILE_HEAD_BYTES + place, length)

    @contextmanager
    def losing_its_name(self) -> Iterator[OpenFile]:
        """Within this context the file's path may be removed or given to another file: its readers can continue.

        Yields the file. Raises as `ClosedFile.use`.
        """
        assert isinstance(self.file, ClosedFile)
        self.file.keep()
        try:
            yield self.opened()
        except BaseException:
            self.file.keep_no_longer()
            raise


class Chunk:
    """One chunk. `end` is the position after its last frame; None while it is open.

    `capacity`: bytes of frames for which its file has room. Only the writer thread uses `index_size`, the valid bytes
    of the checkpoint file, and `unsaved`, the tables whose checkpoint was put off for want of disk space. `punched`:
    this process has freed the space of all that `body.dead` names.
    """

    __slots__ = ("body", "capacity", "end", "index_size", "path", "punched", "start", "unsaved")

    def __init__(self, *, path: Path, start: int, body: Body, capacity: int = 0, end: int | None = None) -> None:
        self.path = path
        self.start = start
        self.body = body
        self.capacity = capacity
        self.end = end
        self.index_size = 0
        self.punched = False
        self.unsaved: list[Table] = []

    def __repr__(self) -> str:
        return f"<Chunk {self.start}..{self.end} {'closed' if self.body.closed else 'open'}>"

    @property
    def dead_path(self) -> Path:
        """The file that says which offsets are dead (dead.py)."""
        return self.path.with_suffix(".dead")

    @property
    def index_path(self) -> Path:
        """The file of the chunk's checkpoints while the chunk is open."""
        return self.path.with_suffix(".index")

    def swap_part(self, table: Table, segment: Segment) -> None:
        """Replaces a table with its checkpoint."""
        body = self.body
        self.body = replace(body, growing=tuple(segment if part is table else part for part in body.growing))


def close_file(file: OpenFile, *, path: Path, start: int, end: int, frames_end: int, parts: tuple[Part, ...]) -> None:
    """Writes footer and trailer after the frames, then truncates the file. All frames must be on disk already.

    Raises `StorageFull`, and the chunk is still open then; `SyncFailed`.
    """
    footer_at = FILE_HEAD_BYTES + -(-frames_end // 8) * 8
    pieces: list[bytes | memoryview] = [bytes(footer_at - FILE_HEAD_BYTES - frames_end)]
    for part in parts:
        pieces += encode_part(part)
    trailer_at = FILE_HEAD_BYTES + frames_end + sum(map(len, pieces))
    size = trailer_at + TRAILER_BYTES
    trailer = _TRAILER.pack(TRAILER_MAGIC, 0, len(parts), start, end, frames_end, footer_at, size)
    with full_disk_as_storage_full(path):
        write_all(file.fd, FILE_HEAD_BYTES + frames_end, pieces)
        sync_file(file.fd)  # before the trailer: a whole trailer proves a whole footer
        write_all(file.fd, trailer_at, [trailer[:8], crc32c(trailer[12:]).to_bytes(4, "little"), trailer[12:]])
    os.ftruncate(file.fd, size)
    sync_file(file.fd)


def encode_part(part: Part) -> list[bytes | memoryview]:
    """The bytes of a part in the form of a segment."""
    match part:
        case Segment():
            part.verify()
            return [part.raw]
        case Table():
            return [*encode_table(part)]
        case _:
            raise TypeError(f"no index part: {part!r}")


def close_chunk(chunk: Chunk) -> None:
    """Closes a full chunk whose frames are all synced. Crash-safe at every step; reads continue meanwhile.

    Raises `StorageFull`, and the errors of `load_body`. After an error call it again; this also works if the file has
    been closed already.
    """
    assert chunk.end is not None
    body = chunk.body
    file = body.opened()
    parts = tuple(part for part in body.parts if not (isinstance(part, Table) and part.start == part.end))
    end = chunk.end
    with synced_folder(chunk.path.parent):
        close_file(file, path=chunk.path, start=chunk.start, end=end, frames_end=end - chunk.start, parts=parts)
        chunk.body = load_body(chunk.path)
        chunk.unsaved.clear()
        chunk.index_path.unlink(missing_ok=True)


class Trailer:
    """The end of a closed chunk, decoded."""

    __slots__ = ("end", "footer_at", "frames_end", "segments", "size", "start")

    def __init__(self, raw: bytes) -> None:
        _, _, self.segments, self.start, self.end, self.frames_end, self.footer_at, self.size = _TRAILER.unpack(raw)


def read_trailer(fd: int) -> Trailer | None:
    """The trailer of the chunk file `fd`; None: the chunk is not closed."""
    size = os.fstat(fd).st_size
    raw = read_exactly(fd, max(size - TRAILER_BYTES, 0), TRAILER_BYTES)
    if len(raw) < TRAILER_BYTES or not raw.startswith(TRAILER_MAGIC):
        return None
    trailer = Trailer(raw)
    if int.from_bytes(raw[8:12], "little") != crc32c(raw[12:]) or trailer.size != size:
        return None
    return trailer


def open_closed(path: Path) -> Opened:
    """Opens a closed chunk as it is on disk now. Raises `CorruptLog` if it is not closed, or damaged."""
    file = OpenFile.open(path)
    head = read_head(file.fd, path, CHUNK_KIND)
    trailer = read_trailer(file.fd)
    if trailer is None or trailer.start != head.start:
        raise CorruptLog(f"{path}: the end of this closed chunk is damaged. Refetch or restore it.")
    length = trailer.size - TRAILER_BYTES - trailer.footer_at
    segments: tuple[Segment, ...] = ()
    if length:
        source = f"{path}, footer at byte {trailer.footer_at}"
        footer = mapped(file.fd, trailer.footer_at, length, what=source)
        segments = tuple(
            segments_in(footer, source=source, touch=lambda at, length: touch(file.fd, trailer.footer_at + at, length))
        )
    if len(segments) != trailer.segments:
        raise CorruptLog(f"{path}: {len(segments)} index segments instead of {trailer.segments}. Refetch this chunk.")
    return Opened(file, trailer, bool(head.flags & REGROUPED), segments)


def load_body(path: Path) -> Body:
    """The body of a closed chunk, as it is on disk now. Raises `CorruptLog` if it is not closed, or damaged."""
    file = ClosedFile(path)
    opened = file.use()
    return Body(
        file,
        dead=DeadOffsets.load(path.with_suffix(".dead")),
        closed=True,
        regrouped=opened.regrouped,
        frames_end=opened.trailer.frames_end,
    )


def load_closed(path: Path) -> Chunk | None:
    """The closed chunk at `path`; None if it is still open."""
    file = OpenFile.open(path)
    read_head(file.fd, path, CHUNK_KIND)
    trailer = read_trailer(file.fd)
    if trailer is None:
        return None
    return Chunk(path=path, start=trailer.start, body=load_body(path), end=trailer.end)


def needs_regroup(body: Body) -> bool:
    """Whether a closed chunk mixes partitionlets so finely that reading one of them is mostly seeks."""
    if not body.closed or body.regrouped:
        return False
    segments = [part for part in body.parts if isinstance(part, Segment)]
    if sum(segment.place_count for segment in segments) * BLOCK_BYTES <= 2 * body.frames_end:
        return False
    if not all(segment.has_one_partitionlet() for segment in segments):
        return True
    held = (summary.partitionlet for segment in segments for summary in segment.summaries() if summary.length)
    first = next(held, None)
    return any(partitionlet != first for partitionlet in held)
