"""A chunk: one file of a container's log, its index, and how it is closed.

    head      64 bytes, kind b"CHNK" (files.py)
    64        frames, one behind the other
    closed:   zeros up to a multiple of 8, index segments (segment.py) in position order, trailer of 64 bytes:
         0  8s    magic       b"HRCLOSED"
         8  u32   crc         CRC-32C of bytes 12 to 64
        12  u32   segments    how many
        16  u64   start       position of the first frame
        24  u64   end         position behind the last frame
        32  u64   frames end  place behind the last frame (less than end - start once dead frames were left out)
        40  u64   footer      byte at which the segments start
        48  u64   size        of the whole file
        56  8x                zero

A chunk is closed if, and only if, a valid trailer that names the file's size ends it. While it is open the file is
preallocated, zeros behind the frames. The footer is written and synced first, then the trailer, then the file is cut
behind it, so a crash at any step leaves an open chunk with some bytes behind its frames, or a closed one.

What readers see of a chunk is one immutable `Body`, swapped whole; a replaced file closes when its last reader is done.
"""

import mmap
import os
import struct
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from crc32c import crc32c

from headrace.errors import CorruptLog
from headrace.log.dead import DeadOffsets
from headrace.log.files import (
    FILE_HEAD_BYTES,
    REGROUPED,
    OpenFile,
    full_disk_as_storage_full,
    read_exactly,
    read_head,
    sync_file,
    sync_folder,
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


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Body:
    """A chunk's file and index as of one moment. `frames_end` is a place; of an open chunk it is not kept here."""

    file: OpenFile
    parts: tuple[Part, ...]
    dead: DeadOffsets = field(default_factory=DeadOffsets)
    closed: bool = False
    regrouped: bool = False
    frames_end: int = 0


class Chunk:
    """One chunk. `end` is the position behind its last frame; None while it is open.

    `capacity` is the bytes of frames that its file has room for. The writer thread's own: `index_size`, the bytes of
    its checkpoint file that count, and `unsaved`, the tables for whose checkpoint there was no room on the disk.
    `punched`: this process has given back all that `body.dead` names.
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
        """The file that says what has been given back."""
        return self.path.with_suffix(".dead")

    @property
    def index_path(self) -> Path:
        """The file of its checkpoints, while it is open."""
        return self.path.with_suffix(".index")

    def swap_part(self, table: Table, segment: Segment) -> None:
        """A checkpoint takes the place of its table."""
        body = self.body
        self.body = replace(body, parts=tuple(segment if part is table else part for part in body.parts))


def close_file(file: OpenFile, *, path: Path, start: int, end: int, frames_end: int, parts: tuple[Part, ...]) -> None:
    """Writes footer and trailer behind the frames, then cuts the file. Every frame is on disk already.

    Raises `StorageFull`; then the chunk is open as before. `SyncFailed`.
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
        sync_file(file.fd)  # before the trailer: where that is whole, so is the footer
        write_all(file.fd, trailer_at, [trailer[:8], crc32c(trailer[12:]).to_bytes(4, "little"), trailer[12:]])
    os.ftruncate(file.fd, size)
    sync_file(file.fd)


def encode_part(part: Part) -> list[bytes | memoryview]:
    """A part as a segment's bytes."""
    match part:
        case Segment():
            part.verify()
            return [part.raw]
        case Table():
            return [*encode_table(part)]
        case _:
            raise TypeError(f"no index part: {part!r}")


def close_chunk(chunk: Chunk) -> None:
    """Closes a full chunk whose frames are all synced. Crash-safe at every step; reads go on meanwhile."""
    assert chunk.end is not None
    body = chunk.body
    parts = tuple(part for part in body.parts if not (isinstance(part, Table) and part.start == part.end))
    end = chunk.end
    close_file(body.file, path=chunk.path, start=chunk.start, end=end, frames_end=end - chunk.start, parts=parts)
    chunk.body = load_body(chunk.path)
    chunk.unsaved.clear()
    chunk.index_path.unlink(missing_ok=True)
    sync_folder(chunk.path.parent)


class Trailer:
    """The end of a closed chunk, decoded."""

    __slots__ = ("end", "footer_at", "frames_end", "segments", "size", "start")

    def __init__(self, raw: bytes) -> None:
        _, _, self.segments, self.start, self.end, self.frames_end, self.footer_at, self.size = _TRAILER.unpack(raw)


def read_trailer(fd: int) -> Trailer | None:
    """The trailer of an open file; None: the chunk is not closed."""
    size = os.fstat(fd).st_size
    raw = read_exactly(fd, max(size - TRAILER_BYTES, 0), TRAILER_BYTES)
    if len(raw) < TRAILER_BYTES or not raw.startswith(TRAILER_MAGIC):
        return None
    trailer = Trailer(raw)
    if int.from_bytes(raw[8:12], "little") != crc32c(raw[12:]) or trailer.size != size:
        return None
    return trailer


def load_body(path: Path) -> Body:
    """The body of a closed chunk, as it is on disk now. Raises `CorruptLog` if it is not closed or damaged."""
    file = OpenFile.open(path)
    head = read_head(file.fd, path, CHUNK_KIND)
    trailer = read_trailer(file.fd)
    if trailer is None or trailer.start != head.start:
        raise CorruptLog(f"{path}: the end of this closed chunk is damaged. Refetch or restore it.")
    length = trailer.size - TRAILER_BYTES - trailer.footer_at
    segments: tuple[Segment, ...] = ()
    if length:
        skipped = trailer.footer_at % mmap.ALLOCATIONGRANULARITY
        mapped = mmap.mmap(file.fd, length + skipped, prot=mmap.PROT_READ, offset=trailer.footer_at - skipped)
        source = f"{path}, footer at byte {trailer.footer_at}"
        footer = memoryview(mapped)[skipped:]
        segments = tuple(
            segments_in(footer, source=source, touch=lambda at, length: touch(file.fd, trailer.footer_at + at, length))
        )
    if len(segments) != trailer.segments:
        raise CorruptLog(f"{path}: {len(segments)} index segments instead of {trailer.segments}. Refetch this chunk.")
    return Body(
        file,
        segments,
        dead=DeadOffsets.load(path.with_suffix(".dead")),
        closed=True,
        regrouped=bool(head.flags & REGROUPED),
        frames_end=trailer.frames_end,
    )


def load_closed(path: Path) -> Chunk | None:
    """The closed chunk at `path`; None: it is not closed."""
    file = OpenFile.open(path)
    read_head(file.fd, path, CHUNK_KIND)
    trailer = read_trailer(file.fd)
    if trailer is None:
        return None
    return Chunk(path=path, start=trailer.start, body=load_body(path), end=trailer.end)


def needs_regroup(body: Body) -> bool:
    """Whether a closed chunk mixes partitionlets so finely that a read of one is mostly seeks."""
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
