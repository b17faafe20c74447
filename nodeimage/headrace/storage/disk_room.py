"""How much of the disk the node may use: its quota, and the reserve that new chunks leave free.

The reserve keeps a full node working: the catalog's own log, and the few frames that must be written before bytes can
be freed, may use it (`from_reserve`); records may not.

The filesystem's figures do not show every limit (such as a user's or a project's quota): what counts is whether a file
gets its bytes.
"""

import os
import tempfile
from pathlib import Path
from typing import Protocol

from headrace.base.errors import StorageFull
from headrace.log.descriptors import lacks_descriptors, out_of_descriptors, put_off_without_descriptors
from headrace.log.files import full_disk_as_storage_full
from headrace.log.regroup import REGROUPED_SUFFIX


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
        """[blocking] (bytes that the containers occupy, further bytes that they may occupy)."""
        used = self.used()
        left = self.free() - self._sizes.disk_reserve
        if self._sizes.disk_quota:
            left = min(left, self._sizes.disk_quota - used)
        return used, max(left, 0)

    def free(self) -> int:
        """[blocking] Bytes that this process can still use on the disk."""
        found = os.statvfs(self._folder)
        return found.f_bavail * found.f_frsize

    def used(self) -> int:
        """[blocking] Bytes that the containers occupy on the disk: without holes, and without files that are about to
        replace a chunk."""
        total = 0
        for folder, _, names in os.walk(self._folder / "containers", onerror=_unless_gone):
            for name in names:
                if name.endswith(REGROUPED_SUFFIX):
                    continue
                try:
                    total += os.stat(os.path.join(folder, name)).st_blocks * 512
                except FileNotFoundError:
                    continue
        return total


def _unless_gone(error: OSError) -> None:
    """Raise the error unless the folder is gone: an unreadable folder must not count as an empty one."""
    if lacks_descriptors(error):
        raise out_of_descriptors(error.filename, error) from error
    if not isinstance(error, FileNotFoundError):
        raise error


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
