"""Removal of frames that a log must not keep: `cut` at a position, `reset` to an empty log.

Only for logs that are not open.

Both operations write a mark (folder.py) durably before they change anything, and remove it at the end. A start that
finds a mark repeats the whole operation, so a crash at any step has the effect of a crash before or after the
operation.

Nothing of the removed frames can later be taken for a frame, a checkpoint or a producer's batch (invariant 9): files
wholly above the position are removed, the end of the file that contains the position is zeroed or gone, checkpoints
above the position are gone, and all that a start knows comes from the remaining files.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from headrace.base.errors import CorruptLog, HeadraceError, StorageFull
from headrace.log.checkpoints import INDEX_KIND, load_checkpoints
from headrace.log.chunk import CHUNK_KIND, Chunk, load_closed
from headrace.log.files import (
    FILE_HEAD_BYTES,
    FileHead,
    OpenFile,
    full_disk_as_storage_full,
    read_exactly,
    replace_file,
    sync_file,
    sync_folder,
    synced_folder,
    write_all,
    zero_range,
)
from headrace.log.folder import (
    BEGIN,
    CUT,
    RESET,
    chunk_path,
    drop_mark_path,
    make_mark,
    mark_path,
    marks_in,
    names_in,
    remove_chunk_files,
)
from headrace.log.frame_reading import Layouts, read_frames
from headrace.log.frames import HEADER, HEADER_BYTES, FrameType, frame_fault, gap_frames
from headrace.log.index import Part
from headrace.log.segment import Segment
from headrace.log.synced_mark import remove_mark

_PIECE_BYTES: Final = 4 << 20
_GAP: Final = int(FrameType.GAP)


def reset(folder: Path, begin: int) -> None:
    """Empties a log; it starts at position `begin` afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    pending = marks_in(folder, RESET)
    if pending:
        with synced_folder(folder):
            mark_path(folder, pending[0], RESET).rename(mark_path(folder, begin, RESET))
    else:
        make_mark(folder, begin, RESET)
    finish(folder)


def cut(folder: Path, position: int) -> None:
    """Removes everything at or above `position`, which lies between two frames of the log or below all of them."""
    make_mark(folder, position, CUT)
    finish(folder)


def finish(folder: Path) -> None:
    """Carries out every reset and cut that has a mark; called at a start too."""
    for begin in marks_in(folder, RESET):
        _empty(folder)
        with synced_folder(folder):
            mark_path(folder, begin, RESET).rename(mark_path(folder, begin, BEGIN))
    for position in marks_in(folder, CUT):
        _cut(folder, position)
        with synced_folder(folder):
            mark_path(folder, position, CUT).unlink()


def frame_ends_at(chunk: Chunk, position: int) -> bool:
    """Whether a frame of `chunk` ends at `position`, which lies within the chunk. True in freed space too, where a gap
    frame may end anywhere."""
    place = position - chunk.start
    at = chunk.start
    if not chunk.body.regrouped:
        at += max((part.start for part in chunk.body.parts if part.start <= place), default=0)
    layouts = Layouts()
    try:
        while at < position:
            at = read_frames([chunk], at, until=position, max_bytes=_PIECE_BYTES, layouts=layouts).end
    except CorruptLog:
        return False
    return True


def _empty(folder: Path) -> None:
    remove_mark(folder)
    names = names_in(folder)
    for position in marks_in(folder, CUT):
        mark_path(folder, position, CUT).unlink()
    for begin in marks_in(folder, BEGIN):
        mark_path(folder, begin, BEGIN).unlink()
    for start in names.chunks | names.indexes | names.dead:
        remove_chunk_files(folder, start)
    for start, end in names.dropped.items():
        drop_mark_path(folder, start, end).unlink()
    sync_folder(folder)


def _cut(folder: Path, position: int) -> None:
    remove_mark(folder)
    names = names_in(folder)
    for start in sorted(names.chunks | names.indexes | names.dead, reverse=True):
        if start >= position:
            remove_chunk_files(folder, start)
    for start, end in names.dropped.items():
        if start >= position:
            drop_mark_path(folder, start, end).unlink()
        elif end > position:
            drop_mark_path(folder, start, end).rename(drop_mark_path(folder, start, position))
    sync_folder(folder)
    below = {start for start in names.chunks if start < position}
    if below:
        _cut_chunk(chunk_path(folder, max(below)), max(below), position)
    elif not any(start < position for start in names.dropped):
        for begin in marks_in(folder, BEGIN):
            mark_path(folder, begin, BEGIN).unlink()
        make_mark(folder, position, BEGIN)


def _cut_chunk(path: Path, start: int, position: int) -> None:
    chunk = load_closed(path)
    if chunk is None:
        _cut_open(path, start=start, place=position - start)
    elif chunk.end is not None and chunk.end > position:
        _cut_closed(chunk, position)
    else:
        return
    path.with_suffix(".dead").unlink(missing_ok=True)
    sync_folder(path.parent)


def _cut_open(path: Path, *, start: int, place: int) -> None:
    index = path.with_suffix(".index")
    indexed = 0
    if index.exists():
        indexed = _cut_index(index, load_checkpoints(index).segments, start=start, place=place)
    file = OpenFile.open(path)
    _end_gap(file.fd, indexed, start=start, place=place)
    zero_range(file.fd, FILE_HEAD_BYTES + place, os.fstat(file.fd).st_size)
    sync_file(file.fd)


def _cut_closed(chunk: Chunk, position: int) -> None:
    """Replaces a closed chunk with an open one in a new file, since readers may have the old file's footer mapped."""
    body = chunk.body
    if body.regrouped or body.dead.as_mapping():
        chunk.index_path.unlink(missing_ok=True)  # the frames change their places; the next start rebuilds the index
    else:
        _cut_index(chunk.index_path, body.parts, start=chunk.start, place=position - chunk.start)
    _rewrite_as_open(chunk, position)


def _cut_index(index: Path, parts: Iterable[Part], *, start: int, place: int) -> int:
    """Writes those of `parts` that end at or below `place` as the chunk's checkpoints; returns the place of their end.

    Writes a new file, as readers may have the old one mapped. If the disk has no room, there are no checkpoints, and a
    start scans more.
    """
    kept = [part for part in parts if isinstance(part, Segment) and part.end <= place]
    for part in kept:
        part.verify()
    try:
        replace_file(index, [FileHead(INDEX_KIND, start).encode(), *(part.raw for part in kept)])
    except StorageFull:
        index.unlink(missing_ok=True)
        return 0
    return kept[-1].end if kept else 0


def _end_gap(fd: int, at: int, *, start: int, place: int) -> None:
    """Shortens a gap frame that extends beyond `place` so that it ends there. From place `at` on all frames are whole,
    except for the header of that gap frame, which a crash may have torn during an earlier attempt.
    """
    while at < place:
        header = read_exactly(fd, FILE_HEAD_BYTES + at, HEADER_BYTES)
        length, type = HEADER.unpack(header)[1:3] if len(header) == HEADER_BYTES else (0, 0)
        if type == _GAP and (at + length > place or frame_fault(memoryview(header), 0, whole=False)):
            ended, _ = next(gap_frames(start + at, start + place, most=1))
            write_all(fd, FILE_HEAD_BYTES + at, [ended])
            return
        if length < HEADER_BYTES:
            return  # damage: the next start reports it
        at += length


def _rewrite_as_open(chunk: Chunk, position: int) -> None:
    """Writes the frames below `position` to their original places in a new file, with gap frames for freed space, and
    replaces the chunk's file with it. The chunk is open then."""
    temporary = chunk.path.with_name(chunk.path.name + ".tmp")
    with synced_folder(chunk.path.parent), full_disk_as_storage_full(temporary):
        file = OpenFile.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            write_all(file.fd, 0, [FileHead(CHUNK_KIND, chunk.start).encode()])
            layouts = Layouts()
            at = chunk.start
            while at < position:
                frames = read_frames([chunk], at, until=position, max_bytes=_PIECE_BYTES, layouts=layouts)
                for buffer in frames:  # contiguous frames; the last one may be a gap frame's header
                    _, _, _, _, first, *_ = HEADER.unpack_from(buffer)
                    write_all(file.fd, FILE_HEAD_BYTES + first - chunk.start, [buffer])
                at = frames.end
            os.ftruncate(file.fd, FILE_HEAD_BYTES + position - chunk.start)
            sync_file(file.fd)
        except (OSError, HeadraceError):
            temporary.unlink(missing_ok=True)
            raise
        temporary.rename(chunk.path)
