"""The checkpoints of the open chunk: the file `<start>.index`.

    head      64 bytes, kind b"INDX" (files.py)
    64        segments (segment.py), one after the other; each covers the range from the previous one's end on

A checkpoint is written after all frames that it covers have been synced, and is synced itself before any later frame is
written. So a start scans only the frames after the last checkpoint, and a bad frame below it is corruption, since it
was synced. A damaged checkpoint costs a longer scan; later ones still prove how far the chunk was synced.
"""

import os
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Final

from headrace.base.errors import CorruptLog
from headrace.log.files import (
    FILE_HEAD_BYTES,
    FileHead,
    OpenFile,
    full_disk_as_storage_full,
    read_exactly,
    read_head,
    sync_file,
    synced_folder,
    touch,
    write_all,
)
from headrace.log.segment import SEGMENT_MAGIC, Segment, encode_table
from headrace.log.table import Table

INDEX_KIND: Final = b"INDX"


def append_checkpoint(path: Path, table: Table, *, start: int, size: int, fsync: bool) -> tuple[Segment, int]:
    """Writes `table` at byte `size` of the file (0: a new file). Returns the mapped segment and the new size.

    Raises `StorageFull`; a partly written segment lies beyond `size`, and the next checkpoint overwrites it.
    """
    pieces = encode_table(table)
    new = size == 0
    with synced_folder(path.parent) if fsync and new else nullcontext(), full_disk_as_storage_full(path):
        file = OpenFile.open(path, os.O_RDWR | os.O_CREAT | (os.O_TRUNC if new else 0))
        if new:
            size = write_all(file.fd, 0, [FileHead(INDEX_KIND, start).encode()])
        written = write_all(file.fd, size, pieces)
        if fsync:
            sync_file(file.fd)
    return Segment.map(file.fd, size, length=written, source=str(path)), size + written


class LoadedCheckpoints:
    """The checkpoints that a start finds: `segments` without a gap from place 0 on, the file's `size` up to the last of
    them, and `synced`, the place below which some intact checkpoint proves the chunk to be synced."""

    __slots__ = ("segments", "size", "synced")

    def __init__(self, segments: list[Segment], size: int, synced: int) -> None:
        self.segments = segments
        self.size = size
        self.synced = synced


def load_checkpoints(path: Path) -> LoadedCheckpoints:
    """Reads the checkpoints back, without damaged ones and without any that a writer appends meanwhile. Empty if there
    is no file."""
    try:
        file = OpenFile.open(path)
    except FileNotFoundError:
        return LoadedCheckpoints([], 0, 0)
    file_size = os.fstat(file.fd).st_size
    try:
        read_head(file.fd, path, INDEX_KIND)
    except CorruptLog:
        synced = max((segment.end for segment in _intact(file.fd, path, FILE_HEAD_BYTES, file_size)), default=0)
        return LoadedCheckpoints([], 0, synced)
    # So that an unreadable byte raises here instead of killing the process.
    touch(file.fd, FILE_HEAD_BYTES, file_size)
    segments: list[Segment] = []
    size, end = FILE_HEAD_BYTES, 0
    while size < file_size:
        try:
            segment = Segment.map(file.fd, size, length=file_size - size, source=str(path))
            segment.verify()
        except CorruptLog:
            break
        if segment.start != end:
            break
        segments.append(segment)
        end = segment.end
        size += len(segment.raw)
    synced = max((segment.end for segment in _intact(file.fd, path, size, file_size)), default=end)
    return LoadedCheckpoints(segments, size, max(end, synced))


def _intact(fd: int, path: Path, at: int, end: int) -> Iterable[Segment]:
    """The intact segments within bytes `at` to `end`, found by their magic bytes."""
    raw = read_exactly(fd, at, max(end - at, 0))
    found = raw.find(SEGMENT_MAGIC)
    while found >= 0:
        try:
            segment = Segment(memoryview(raw)[found:], source=str(path))
            segment.verify()
            yield segment
        except CorruptLog:
            pass
        found = raw.find(SEGMENT_MAGIC, found + 1)
