"""How far a log was synced: the file `synced`, a head (files.py) of kind b"SYNC" whose `start` is that position.

Checkpoints prove how far a log was synced too, but only every 16 MiB. Between two checkpoints a start could not tell
frames that a crash left half written from frames that were acknowledged and damaged later: it would cut both, and the
replica, which still counts as in sync, could lead without records that it had acknowledged (invariants 1, 14).

The log's writer thread overwrites the mark in place after a sync, at most once a second, and also when nothing has been
written for that long. The mark itself is not synced: killing the process loses nothing of it, and after a power failure
it is an older proof or no proof (a head with a wrong checksum), but never claims more than was synced. A mark that the
disk cannot read is damage, since it may have proved a loss. Operations that lower a log's end (cutting.py) remove it
first.
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
    """The position below which the log in `folder` was synced; 0 if there is no valid mark. Raises `CorruptLog`,
    OSError."""
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


def raise_mark(folder: Path, position: int) -> None:
    """[blocking] Records that a log that is not open has now been synced up to `position`, so that it must not end
    earlier. Never lowers the mark.

    Durable. Raises `SyncFailed`, `OSError`.
    """
    with synced_folder(folder):
        file = OpenFile.open(folder / NAME, os.O_RDWR | os.O_CREAT)
        write_all(file.fd, 0, [FileHead(KIND, max(position, read_mark(folder))).encode()])
        sync_file(file.fd)


def remove_mark(folder: Path) -> None:
    """Removes the mark, before the log's end is lowered or once it is known to be lower. Callers sync the folder."""
    (folder / NAME).unlink(missing_ok=True)


class SyncedMark:
    """The mark of an open log. Only one thread at a time calls `put`; the loop's thread reads `position`."""

    __slots__ = ("_file", "_path", "position")

    def __init__(self, folder: Path) -> None:
        self.position = -1
        """The position last written to the mark by this object; -1: none yet."""
        self._path = folder / NAME
        self._file: OpenFile | None = None

    def put(self, position: int) -> None:
        """Records that everything below `position` is synced. If the mark cannot be written, it stays as it was."""
        try:
            if self._file is None:
                self._file = OpenFile.open(self._path, os.O_RDWR | os.O_CREAT)
            os.pwrite(self._file.fd, FileHead(KIND, position).encode(), 0)
        except (OSError, OutOfDescriptors):
            return  # only the proof is missing; no data is lost
        self.position = position
