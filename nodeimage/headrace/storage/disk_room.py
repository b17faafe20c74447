"""How much of the disk the node may use: its quota, and the reserve that new chunks leave free.

The reserve keeps a full node working: the catalog's own log, and the few frames that must be written before bytes can
be freed, may use it (`from_reserve`); records may not.

The filesystem's figures do not show every limit (such as a user's or a project's quota): what counts is whether a file
gets its bytes.
"""

import os
import tempfile
import time
from pathlib import Path
from typing import Final, Protocol

from headrace.base.errors import StorageFull
from headrace.log.descriptors import lacks_descriptors, out_of_descriptors, put_off_without_descriptors
from headrace.log.files import full_disk_as_storage_full
from headrace.log.regroup import REGROUPED_SUFFIX

COUNT_REST: Final = 500
"""How many times as long as counting took the next count without a quota waits, since it takes time for each file: so
it uses a five-hundredth of a core at most, however many containers there are.
"""


class Sizes(Protocol):
    """The settings that bound a node's disk, in bytes."""

    @property
    def disk_quota(self) -> int: ...

    @property
    def disk_reserve(self) -> int: ...


class DiskRoom:
    """Whether the node may preallocate more."""

    def __init__(self, folder: Path, sizes: Sizes) -> None:
        self._folder = folder
        self._sizes = sizes
        self.refused = False
        """Whether room was refused since the flag's reader last reset it."""
        self._counted = 0
        """Bytes that the containers occupied at the last count."""
        self._count_due = 0.0

    def check(self, length: int, *, from_reserve: bool = False) -> None:
        """[blocking] Raises `StorageFull` if there is no room for `length` more bytes."""
        free = self.free()
        if free - length < (0 if from_reserve else self._sizes.disk_reserve):
            self.refused = True
            raise StorageFull(f"{free} bytes are free in {self._folder}; a new chunk would use up the reserve")
        if self._sizes.disk_quota and not from_reserve:
            used = self.used()
            if used + length > self._sizes.disk_quota:
                self.refused = True
                raise StorageFull(f"{used} bytes of the node's quota of {self._sizes.disk_quota} are used")

    def check_copy(self, length: int) -> None:
        """[blocking] Raises `StorageFull` if a file of `length` bytes, which can also be written later, would leave
        less than half of the reserve. Does not set `refused`, since records may still find room."""
        free, kept = self.free(), self._sizes.disk_reserve // 2
        if free - length < kept:
            raise StorageFull(
                f"{free} bytes are free in {self._folder}; a copy of {length} bytes would use too much of the reserve"
            )

    def lacked(self) -> None:
        """Note that a file did not get its bytes, although `check` had allowed it."""
        self.refused = True

    def has(self, length: int) -> bool:
        """[blocking] Whether a file gets `length` bytes; they are freed at once."""
        try:
            with (
                put_off_without_descriptors(self._folder),
                full_disk_as_storage_full(self._folder),
                tempfile.TemporaryFile(dir=self._folder) as file,
            ):
                os.posix_fallocate(file.fileno(), 0, length)
        except StorageFull:
            return False
        return True

    def measure(self) -> tuple[int, int]:
        """[blocking] (bytes that the containers occupy, further bytes that they may occupy).

        Without a quota the first number may be as old as COUNT_REST says: the second does not depend on it.
        """
        began = time.monotonic()
        if self._sizes.disk_quota or began >= self._count_due:
            self._counted = self.used()
            ended = time.monotonic()
            self._count_due = ended + COUNT_REST * (ended - began)
        left = self.free() - self._sizes.disk_reserve
        if self._sizes.disk_quota:
            left = min(left, self._sizes.disk_quota - self._counted)
        return self._counted, max(left, 0)

    def free(self) -> int:
        """[blocking] Bytes that this process can still use on the disk."""
        found = os.statvfs(self._folder)
        return found.f_bavail * found.f_frsize

    def used(self) -> int:
        """[blocking] Bytes that the containers occupy on the disk: without holes, and without files that are about to
        replace a chunk."""
        return _occupied(self._folder / "containers")


def _occupied(folder: str | Path) -> int:
    """[blocking] Bytes that the files of a folder and its subfolders occupy; none if it is gone. An unreadable folder
    must not count as an empty one: raises OSError, StorageFull.
    """
    total = 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    total += _occupied(entry.path)
                elif not entry.name.endswith(REGROUPED_SUFFIX):
                    total += _blocks(entry)
    except OSError as error:
        if lacks_descriptors(error):
            raise out_of_descriptors(error.filename, error) from error
        if not isinstance(error, FileNotFoundError):
            raise
    return total


def _blocks(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat().st_blocks * 512
    except FileNotFoundError:  # it was deleted meanwhile
        return 0


class ReservedRoom:
    """The room of the catalog's container, without which nothing can be deleted: the reserve counts as free."""

    def __init__(self, room: DiskRoom) -> None:
        self._room = room

    def check(self, length: int, *, from_reserve: bool = True) -> None:
        """[blocking] Raises `StorageFull` if there is no room for `length` more bytes."""
        self._room.check(length, from_reserve=True)

    def lacked(self) -> None:
        """See `DiskRoom.lacked`."""
        self._room.lacked()
