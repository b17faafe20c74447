"""Recovery at a start: rebuilds the list of chunks from a folder, whose files folder.py describes.

The footers of closed chunks are trusted. In a chunk that is not closed, all frames after the last checkpoint are
scanned and all their checksums verified. In the newest chunk the scan ends at the first bad frame: below the place that
checkpoints prove to be synced a bad frame is corruption, above it a torn tail, which is cut. If the log's mark
(synced_mark.py) says that more was synced, acknowledged frames are lost, and nothing is cut until that loss has been
accepted. In an older chunk that is not closed yet, all frames up to the next chunk were synced (writing.py), so any bad
frame is corruption.

Scanned frames may be in the page cache only. After a failed sync the cache counts them as clean, for the next process
too ("fsyncgate"), and another sync does nothing. So frames that no mark proves to be synced are overwritten with
themselves before they are synced (invariant 13): usually a second's worth, and never more than was scanned.

Cutting a torn tail durably zeroes everything after the last good frame before the first append. So no remainder of a
cut frame can later be taken for a frame, wherever later frames happen to end.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from headrace.base.errors import CorruptLog, LostTail, StorageFull
from headrace.log.checkpoints import append_checkpoint, load_checkpoints
from headrace.log.chunk import CHUNK_KIND, Body, Chunk, load_closed
from headrace.log.cutting import finish
from headrace.log.files import (
    FILE_HEAD_BYTES,
    OpenFile,
    full_disk_as_storage_full,
    read_exactly,
    read_head,
    sync_file,
    write_all,
    zero_range,
)
from headrace.log.folder import BEGIN, chunk_path, make_mark, marks_in, tidy
from headrace.log.frames import (
    BATCH_PRODUCER,
    BATCH_PRODUCER_AT,
    HEADER,
    HEADER_BYTES,
    FrameType,
    frame_fault,
)
from headrace.log.synced_mark import read_mark
from headrace.log.table import Table

log: Final = structlog.get_logger(__name__)
_WINDOW: Final = 4 << 20
_DATA: Final = int(FrameType.DATA)
_GAP: Final = int(FrameType.GAP)
_PRODUCER_AT: Final = HEADER_BYTES + BATCH_PRODUCER_AT


@dataclass(slots=True)
class Recovered:
    """The result of a start. `chunks` in position order; the last one may be open. `synced`: the log's end."""

    chunks: list[Chunk]
    synced: int
    scanned_bytes: int


def recover(
    folder: Path,
    *,
    checkpoint_bytes: int,
    open_file_bytes: Callable[[int], int],
    fsync: bool,
    enforce_synced_mark: bool,
    begin: int = 0,
) -> Recovered:
    """Reads a container's folder, which is created if it does not exist, and repairs what a crash left. An empty log is
    made to start at `begin`. `open_file_bytes`: the size that the open chunk's file should have, given the bytes before
    that chunk.

    Raises `CorruptLog` for damage below a position that checkpoints prove to be synced; `LostTail` if only the mark
    proves it, unless `enforce_synced_mark` is False; `FolderRefused` for a newer format; `SyncFailed`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    finish(folder)
    names = tidy(folder)
    mark = read_mark(folder) if enforce_synced_mark else 0
    bounds = sorted({*names.chunks, *names.dropped})
    chunks: list[Chunk] = []
    scanned = 0
    end: int | None = None  # the position at which the previous chunk ended
    for row, start in enumerate(bounds):
        if end is not None and start != end:
            raise CorruptLog(f"{folder}: no chunk from position {end} to {start}. Refetch this container.")
        if start in names.dropped:
            end = names.dropped[start]
            continue
        path = chunk_path(folder, start)
        chunk = load_closed(path)
        if chunk is None:
            next_start = bounds[row + 1] if row + 1 < len(bounds) else None
            file_bytes = open_file_bytes(start - chunks[0].start if chunks else 0)
            chunk, bytes_scanned = _recover_chunk(
                path, next_start, mark=mark, checkpoint_bytes=checkpoint_bytes, file_bytes=file_bytes, fsync=fsync
            )
            scanned += bytes_scanned
        if chunk.start != start:
            raise CorruptLog(f"{path}: holds the chunk of position {chunk.start}. Restore this container.")
        chunks.append(chunk)
        end = chunk.end if chunk.end is not None else start + chunk.body.frames_end
    if end is None:
        end = _begin(folder, begin)
    if end < mark:
        raise LostTail(f"{folder}: the log ends at position {end}, although {mark} was synced.")
    return Recovered(chunks, end, scanned)


def _begin(folder: Path, begin: int) -> int:
    """The position at which an empty log starts: that of its mark, which is created for `begin` if there is none."""
    marks = marks_in(folder, BEGIN)
    if not marks and begin:
        make_mark(folder, begin, BEGIN)
    return marks[-1] if marks else begin


def _recover_chunk(
    path: Path, next_start: int | None, *, mark: int, checkpoint_bytes: int, file_bytes: int, fsync: bool
) -> tuple[Chunk, int]:
    """A chunk that is not closed, with its index, and the number of bytes scanned."""
    file = OpenFile.open(path)
    start = read_head(file.fd, path, CHUNK_KIND).start
    loaded = load_checkpoints(path.with_suffix(".index"))
    size = os.fstat(file.fd).st_size - FILE_HEAD_BYTES
    table = Table(loaded.segments[-1].end if loaded.segments else 0)
    scanned_from = table.start
    until = size if next_start is None else next_start - start
    needed = loaded.synced if next_start is None else until
    if needed > size:
        raise CorruptLog(f"{path}: ends {needed - size} bytes too early. Refetch this chunk.")
    if loaded.synced > until:
        raise CorruptLog(f"{path}: its checkpoints end {loaded.synced - until} bytes behind the next chunk's start, "
                         f"{start + until}. Refetch this container.")  # fmt: skip
    gaps: list[tuple[int, int]] = []
    fault = _scan(file.fd, table, gaps, start=start, until=until)
    frames_end = table.end
    if frames_end < (loaded.synced if next_start is None else until):
        raise CorruptLog(f"{path}, byte {FILE_HEAD_BYTES + frames_end} (position {start + frames_end}): {fault}. "
                         "Frames after it were synced, so this is damage. Refetch this chunk.")  # fmt: skip
    if next_start is None and start + frames_end < mark:
        raise LostTail(f"{path}, byte {FILE_HEAD_BYTES + frames_end} (position {start + frames_end}): "
                       f"{fault or 'nothing is written'}, although position {mark} was synced.")  # fmt: skip
    if path.with_suffix(".index").exists():
        os.truncate(path.with_suffix(".index"), loaded.size)
    chunk = Chunk(
        path=path,
        start=start,
        body=Body(file, (*loaded.segments, table), frames_end=frames_end),
        capacity=size,
        end=next_start,
    )
    chunk.index_size = loaded.size
    if next_start is None:
        _cut(chunk, fault, file_bytes=file_bytes)
        if fsync:
            with full_disk_as_storage_full(path):
                _write_back(file.fd, max(scanned_from, mark - start), frames_end, gaps)
    if fsync:
        sync_file(file.fd)
    if table.end - table.start >= checkpoint_bytes:
        _checkpoint(chunk, table, last=next_start is None, fsync=fsync)
    return chunk, frames_end - scanned_from


def _cut(chunk: Chunk, fault: str, *, file_bytes: int) -> None:
    """Zeroes everything after the last good frame, and preallocates the file again if it is too short."""
    file = chunk.body.opened()
    fd = file.fd
    place = FILE_HEAD_BYTES + chunk.body.frames_end
    size = os.fstat(fd).st_size
    if fault:
        log.warning("torn_tail_cut", chunk=str(chunk.path), position=chunk.start + chunk.body.frames_end, fault=fault)
    zero_range(fd, place, size)
    if size < file_bytes:
        try:
            os.posix_fallocate(fd, size, file_bytes - size)
        except OSError:
            os.ftruncate(fd, size)  # no room: this chunk stays short, and the next one waits for room
        chunk.capacity = os.fstat(fd).st_size - FILE_HEAD_BYTES


def _write_back(fd: int, at: int, end: int, gaps: Iterable[tuple[int, int]]) -> None:
    """Overwrites the frames from place `at` to `end` with themselves; of `gaps` (place, length) only the headers."""
    ahead = [(place + HEADER_BYTES, place + length) for place, length in gaps if place >= at]
    for stop, behind in (*ahead, (end, end)):
        while at < stop:
            piece = read_exactly(fd, FILE_HEAD_BYTES + at, min(_WINDOW, stop - at))
            write_all(fd, FILE_HEAD_BYTES + at, [piece])
            at += len(piece)
        at = behind


def _checkpoint(chunk: Chunk, table: Table, *, last: bool, fsync: bool) -> None:
    """Writes the checkpoint that a crash prevented, so that the scan stays bounded even if crashes repeat."""
    try:
        segment, chunk.index_size = append_checkpoint(
            chunk.index_path, table, start=chunk.start, size=chunk.index_size, fsync=fsync
        )
    except StorageFull:
        return
    body = chunk.body
    parts = (*body.growing[:-1], segment, Table(table.end)) if last else (*body.growing[:-1], segment)
    chunk.body = Body(body.file, parts, frames_end=body.frames_end)


def _scan(fd: int, table: Table, gaps: list[tuple[int, int]], *, start: int, until: int) -> str:
    """Adds the frames from `table.end` on to `table`, up to place `until` or the first bad frame, and the (place,
    length) of gap frames to `gaps`.

    Returns a description of what is wrong with the bad frame; empty if there is none, or only zeros follow.
    """
    window_at, window = table.end, memoryview(b"")
    place = table.end
    while place < until:
        at = place - window_at
        if at + HEADER_BYTES > len(window):
            window_at, window, at = place, _window(fd, place, _WINDOW, until), 0
            if len(window) < HEADER_BYTES:
                return "too few bytes for a frame" if any(window) else ""
        _, length, type, epoch, position, partitionlet, first, last, max_timestamp = HEADER.unpack_from(window, at)
        if length < HEADER_BYTES or place + length > until:
            clean = not length and not any(window[at : at + HEADER_BYTES])
            return "" if clean else f"no frame has {length} bytes"
        if position != start + place:
            return f"the frame says that it is at position {position}"
        if at + length > len(window) and type != _GAP:
            window_at, window, at = place, _window(fd, place, max(length, _WINDOW), until), 0
            if length > len(window):
                return "the file ends within the frame"
        if fault := frame_fault(window, at, whole=True):
            return fault
        if type == _DATA:
            producer, high, low = BATCH_PRODUCER.unpack_from(window, at + _PRODUCER_AT)
            table.add_batch(partitionlet, first, last, max_timestamp, place, length, epoch, producer, high << 32 | low)
        elif type == _GAP:
            table.add_gap(place=place, length=length)
            gaps.append((place, length))
        else:
            table.add_control(partitionlet=partitionlet, place=place, length=length, type=type)
        place += length
    return ""


def _window(fd: int, place: int, length: int, until: int) -> memoryview:
    return memoryview(read_exactly(fd, FILE_HEAD_BYTES + place, min(length, until - place)))
