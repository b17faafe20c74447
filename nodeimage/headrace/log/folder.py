"""The names in a container's folder.

    <start>.chunk          a chunk; <start> is the position of its first frame, 20 digits
    <start>.index          the checkpoints of a chunk that is not closed yet
    <start>.dead           what has been given back of a closed chunk
    <start>-<end>.dropped  an empty mark: the chunk of these positions was dropped, it is not lost
    <position>.begin       an empty mark: the log is empty and starts there; means nothing once there is a chunk
    <position>.reset       an empty mark: all is being removed, to start there (cutting.py)
    <position>.cut         an empty mark: all at or above is being removed (cutting.py)
    synced                 how far the log was synced (synced_mark.py)
    *.tmp                  half-made files, removed at a start

A drop makes its mark first, then removes the chunk: one with a mark is no part of the log any more. So a crash in
between is finished at the next start, or at a later one where the disk does not let the file go. Marks below the oldest
chunk go, once the files of their own chunks have; the others stay, and so does the newest file's, since it is what says
how far positions had come.
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
    """What lies in a folder: starts of chunks and their companions, and (start, end) of dropped chunks."""

    chunks: set[int] = field(default_factory=set)
    indexes: set[int] = field(default_factory=set)
    dead: set[int] = field(default_factory=set)
    dropped: dict[int, int] = field(default_factory=dict)


def chunk_path(folder: Path, start: int) -> Path:
    """Named after the position of its first frame."""
    return folder / f"{start:020d}.chunk"


def mark_path(folder: Path, position: int, kind: str) -> Path:
    """The mark of a log's begin, or of a reset or cut under way."""
    return folder / f"{position:020d}.{kind}"


def make_mark(folder: Path, position: int, kind: str) -> None:
    """Makes a mark, durably."""
    with synced_folder(folder):
        OpenFile.open(mark_path(folder, position, kind), os.O_WRONLY | os.O_CREAT)


def marks_in(folder: Path, kind: str) -> list[int]:
    """The positions that marks of one kind name, rising."""
    return sorted(int(path.stem) for path in listing(folder) if re.fullmatch(rf"\d{{20}}\.{kind}", path.name))


def drop_mark_path(folder: Path, start: int, end: int) -> Path:
    return folder / f"{start:020d}-{end:020d}.dropped"


def names_in(folder: Path) -> Names:
    """Lists a folder. Files of other names are not ours and left alone."""
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
    """At a start: removes half-made files and finishes drops that a crash cut short. Where the file of one cannot be
    removed, it stays, and so does its mark."""
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
    """Whether a file that is no part of the log any more could be removed."""
    try:
        path.unlink()
    except OSError as error:
        log.warning("dropped_chunk_not_removed", path=str(path), error=str(error))
        return False
    return True


def remove_chunk_files(folder: Path, start: int) -> None:
    """Removes a chunk and its companions, which lead nowhere without it."""
    path = chunk_path(folder, start)
    for suffix in (".chunk", ".dead", ".index"):
        path.with_suffix(suffix).unlink(missing_ok=True)


def drop_files(folder: Path, start: int, end: int) -> None:
    """Removes a closed chunk for good. Whoever reads it goes on reading. Where it fails, it may be done again."""
    mark = drop_mark_path(folder, start, end)
    with synced_folder(folder), full_disk_as_storage_full(mark):
        OpenFile.open(mark, os.O_WRONLY | os.O_CREAT)
    with synced_folder(folder):
        remove_chunk_files(folder, start)
    _remove_old_marks(folder, names_in(folder))


def _remove_old_marks(folder: Path, names: Names) -> None:
    # A drop that failed is half done: its mark says what is missing, and so do those of what has gone behind it.
    oldest = min(names.chunks, default=-1)
    for start, end in list(names.dropped.items()):
        if start < oldest:
            drop_mark_path(folder, start, end).unlink(missing_ok=True)
            del names.dropped[start]
