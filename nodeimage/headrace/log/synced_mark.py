"""How far a log was synced: the file `synced`, a head (files.py) of kind b"SYNC" whose `start` is that position.

Checkpoints prove it too, but only every 16 MiB. Between two of them a start could not tell what a crash left half
written from what was acknowledged and damaged later: it would cut both, and the replica, still in sync by its format,
could lead without what it had acknowledged (invariants 1, 14).

Written over in place by the log's writer thread, after a sync and at most once a second, or when nothing has been
written for so long. Not synced itself: a process that is killed loses nothing by it, and what the power takes of it
leaves an older proof, or none (a head that does not check), never one of what was not synced. One that the disk cannot
read is damage: it may have proved that something was lost. What lowers a log's end (cutting.py) removes it first.
"""

import os
from pathlib import Path
from typing import Final

from headrace.base.errors import CorruptLog, OutOfDescriptors
from headrace.log.files import (
    FILE_HEAD_BYTES,
    FileHead,
    OpenFile,
    read_head,
    sync_file,
    synced_folder,
    touch,
    write_all,
)

KIND: Final = b"SYNC"
NAME: Final = "synced"


def read_mark(folder: Path) -> int:
    """The position below which the log in `folder` was synced; 0: nothing says so. Raises `CorruptLog`, OSError."""
    path = folder / NAME
    try:
        file = OpenFile.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return 0
    touch(file.fd, 0, FILE_HEAD_BYTES)
    try:
        return read_head(file.fd, path, KIND).start
    except CorruptLog:
        return 0


def keep_mark(folder: Path, position: int) -> None:
    """[blocking] Of a log that is not open and was not synced: it is now, and must end at `position` or behind.

    Durable. Raises `SyncFailed`, `OSError`.
    """
    with synced_folder(folder):
        file = OpenFile.open(folder / NAME, os.O_RDWR | os.O_CREAT)
        write_all(file.fd, 0, [FileHead(KIND, max(position, read_mark(folder))).encode()])
        sync_file(file.fd)


def remove_mark(folder: Path) -> None:
    """Before the log's end is lowered, or when it is known that it lies lower; whoever does that syncs the folder."""
    (folder / NAME).unlink(missing_ok=True)


class SyncedMark:
    """The mark of a log that is written to. Its writer thread's own."""

    __slots__ = ("_file", "_path", "position")

    def __init__(self, folder: Path) -> None:
        self.position = -1
        """What it says, as far as this log has written it."""
        self._path = folder / NAME
        self._file: OpenFile | None = None

    def put(self, position: int) -> None:
        """Everything below `position` is synced. Where it cannot be written, it says what it said."""
        try:
            if self._file is None:
                self._file = OpenFile.open(self._path, os.O_RDWR | os.O_CREAT)
            os.pwrite(self._file.fd, FileHead(KIND, position).encode(), 0)
        except (OSError, OutOfDescriptors):
            return  # there is less proof: nothing else is lost
        self.position = position
