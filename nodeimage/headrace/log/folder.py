"""The file names in a container's folder.

    <start>.chunk          a chunk; <start> is the position of its first frame, 20 digits
    <start>.index          the checkpoints of a chunk that is not closed yet
    <start>.dead           the dead offsets of a closed chunk (dead.py)
    <start>-<end>.dropped  an empty mark: the chunk of these positions was dropped, not lost
    <position>.begin       an empty mark: the log is empty and starts there; meaningless once a chunk exists
    <position>.reset       an empty mark: the log is being emptied, and starts there afterwards (cutting.py)
    <position>.cut         an empty mark: all frames at or above the position are being removed (cutting.py)
    synced                 how far the log was synced (synced_mark.py)
    *.tmp                  unfinished files, removed at a start

A drop creates its mark first and then removes the chunk: a chunk with a mark is no longer part of the log. The next
start completes a drop that a crash interrupted, or a later start does if the disk does not allow removing the file yet.
Marks below the oldest chunk are removed once the files of their own chunks are. All other marks stay, including the
last one when no chunk is left, since it alone says how far positions had advanced.
"""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog

from headrace.log.descriptors import listing
from headrace.log.files import OpenFile, full_disk_as_storage_full, sync_folder, synced_folder

log: Final = structlog.get_logger(__name__)
_NAME: Final = re.compile(r"(\d{20})(?:-(\d{20}))?\.(chunk|index|dead|dropped)")
BEGIN: Final = "begin"
RESET: Final = "reset"
CUT: Final = "cut"


@dataclass(slots=True)
class Names:
    """The files in a folder: the starts of chunks, of their indexes and of their dead offsets, and the {start: end} of
    dropped chunks."""

    chunks: set[int] = field(default_factory=set)
    indexes: set[int] = field(default_factory=set)
    dead: set[int] = field(default_factory=set)
    dropped: dict[int, int] = field(default_factory=dict)


def chunk_path(folder: Path, start: int) -> Path:
    """The path of the chunk whose first frame has the position `start`."""
    return folder / f"{start:020d}.chunk"


def mark_path(folder: Path, position: int, kind: str) -> Path:
    """The path of a mark: of an empty log's begin, or of a reset or cut in progress."""
    return folder / f"{position:020d}.{kind}"


def make_mark(folder: Path, position: int, kind: str) -> None:
    """Creates a mark, durably."""
    with synced_folder(folder):
        OpenFile.open(mark_path(folder, position, kind), os.O_WRONLY | os.O_CREAT)


def marks_in(folder: Path, kind: str) -> list[int]:
    """The positions in the names of all marks of one kind, ascending."""
    return sorted(int(path.stem) for path in listing(folder) if re.fullmatch(rf"\d{{20}}\.{kind}", path.name))


def drop_mark_path(folder: Path, start: int, end: int) -> Path:
    return folder / f"{start:020d}-{end:020d}.dropped"


def names_in(folder: Path) -> Names:
    """Lists a folder. Files with unknown names are ignored."""
    names = Names()
    for path in listing(folder):
        match = _NAME.fullmatch(path.name)
        if match is None:
            continue
        start = int(match[1])
        match match[3]:
            case "chunk":
                names.chunks.add(start)
            case "index":
                names.indexes.add(start)
            case "dead":
                names.dead.add(start)
            case "dropped" if match[2]:
                names.dropped[start] = int(match[2])
    return names


def tidy(folder: Path) -> Names:
    """At a start: removes unfinished files and completes drops that a crash interrupted. If a dropped chunk's file
    cannot be removed, it stays, and so does its mark."""
    for path in listing(folder):
        if path.suffix == ".tmp":
            path.unlink(missing_ok=True)
    names = names_in(folder)
    for start in names.chunks & names.dropped.keys():
        if _removed(chunk_path(folder, start)):
            names.chunks.discard(start)
    for starts, suffix in ((names.indexes, ".index"), (names.dead, ".dead")):
        for start in starts - names.chunks:
            _removed(chunk_path(folder, start).with_suffix(suffix))
    _remove_old_marks(folder, names)
    if names.chunks or names.dropped:
        for begin in marks_in(folder, BEGIN):
            mark_path(folder, begin, BEGIN).unlink()
    sync_folder(folder)
    return names


def _removed(path: Path) -> bool:
    """Removes a file that is no longer part of the log. Returns whether that succeeded."""
    try:
        path.unlink()
    except OSError as error:
        log.warning("dropped_chunk_not_removed", path=str(path), error=str(error))
        return False
    return True


def remove_chunk_files(folder: Path, start: int) -> None:
    """Removes a chunk together with its index and dead offsets."""
    path = chunk_path(folder, start)
    for suffix in (".chunk", ".dead", ".index"):
        path.with_suffix(suffix).unlink(missing_ok=True)


def drop_files(folder: Path, start: int, end: int) -> None:
    """Removes a closed chunk permanently. Readers that have it open can continue. After a failure call it again."""
    mark = drop_mark_path(folder, start, end)
    with synced_folder(folder), full_disk_as_storage_full(mark):
        OpenFile.open(mark, os.O_WRONLY | os.O_CREAT)
    with synced_folder(folder):
        remove_chunk_files(folder, start)
    _remove_old_marks(folder, names_in(folder))


def _remove_old_marks(folder: Path, names: Names) -> None:
    # If a drop failed, its chunk's file is still there: its mark, and those of later chunks, explain what is missing.
    oldest = min(names.chunks, default=-1)
    for start, end in list(names.dropped.items()):
        if start < oldest:
            drop_mark_path(folder, start, end).unlink(missing_ok=True)
            del names.dropped[start]
