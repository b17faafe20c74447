"""File descriptors, a limited resource: which files stay open, and what happens when no descriptor is left.

A file that is read now and then need not stay open: `OpenedFiles` keeps the most recently used ones open, up to a
limit. It chooses the files to close by the second-chance ("clock") algorithm of page caches, so that using a file takes
no lock. There is one such object for the process, as the limit is the process's, and all logs share it.

EMFILE (the process's limit), ENFILE (the machine's) and ENOMEM from a call that opens or maps a file say nothing about
the disk or the file: they become `OutOfDescriptors`, and the operation is put off, as with a full disk. They never
count as damage or as a failure.

Knows nothing of what the files hold.
"""

import errno
import os
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from headrace.base.errors import OutOfDescriptors

_LACKING: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
DEFAULT_OPENED: Final = 128
"""Files kept open by a process that sets no limit of its own; a node sets one (descriptor_plan.py)."""


def lacks_descriptors(error: BaseException | None) -> bool:
    """Whether a call that opens or maps a file, or creates a socket, failed for want of descriptors or of kernel
    memory."""
    return isinstance(error, OSError) and error.errno in _LACKING


@contextmanager
def put_off_without_descriptors(what: Path | str) -> Iterator[None]:
    """Turns EMFILE, ENFILE and ENOMEM into `OutOfDescriptors`. For opening and reading only, not for writes and syncs:
    a failure of those means something else."""
    try:
        yield
    except OutOfDescriptors:
        raise
    except OSError as error:
        if lacks_descriptors(error):
            raise out_of_descriptors(what, error) from error
        raise


def are_lacking() -> bool:
    """[blocking] Whether no file can be opened right now. For libraries whose errors do not give the reason."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return lacks_descriptors(error)
    return False


def out_of_descriptors(what: Path | str, error: OSError) -> OutOfDescriptors:
    """The exception to raise for `error` when `what` could not be opened."""
    return OutOfDescriptors(f"{what} cannot be opened for now: {error.strerror}. It is tried again once some are free.")


def open_descriptor(path: Path, flags: int, mode: int = 0o640) -> int:
    """As os.open; if no descriptor is left, it closes files that are only kept open for later, and tries once more.
    Raises `OutOfDescriptors`."""
    try:
        return os.open(path, flags | os.O_CLOEXEC, mode)
    except OSError as error:
        if not lacks_descriptors(error):
            raise
    OPENED.make_way()
    with put_off_without_descriptors(path):
        return os.open(path, flags | os.O_CLOEXEC, mode)


def listing(folder: Path) -> list[Path]:
    """The paths in a folder. Raises OSError, `OutOfDescriptors`; `Path.glob` of newer Python versions would treat a
    folder that cannot be opened as empty."""
    try:
        names = os.listdir(folder)
    except OSError as error:
        if not lacks_descriptors(error):
            raise
        OPENED.make_way()
        with put_off_without_descriptors(folder):
            names = os.listdir(folder)
    return [folder / name for name in names]


class KeptOpen(Protocol):
    """A file that can be closed at any time, and is reopened when it is used."""

    recent: bool
    """Whether the file was used since this was last set to False."""

    def let_go(self) -> bool:
        """Closes the file, unless readers hold it open. False: not possible now, as the file is being opened."""


class OpenedFiles:
    """The files that stay open for later use. Thread-safe."""

    def __init__(self, most: int = DEFAULT_OPENED) -> None:
        self.most = most
        """The maximum number of files kept open."""
        self._files: deque[weakref.ref[KeptOpen]] = deque()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._files)

    def limit(self, most: int) -> None:
        """Sets the maximum number of files kept open; it takes effect when the next file is opened."""
        self.most = most

    def opened(self, file: KeptOpen) -> None:
        """Registers `file`, which was just opened; it stays open until others need its place. Holds only a weak
        reference to it."""
        with self._lock:
            self._files.append(weakref.ref(file))
            found = self._oldest(len(self._files) - self.most)
        self._let_go(found)

    def make_way(self) -> None:
        """Closes half of the files, the least recently used first, since something else needs descriptors."""
        with self._lock:
            found = self._oldest(-(-len(self._files) // 2))
        self._let_go(found)

    def _let_go(self, files: Iterable[KeptOpen]) -> None:
        for each in files:
            if not each.let_go():
                with self._lock:
                    self._files.append(weakref.ref(each))

    def _oldest(self, count: int) -> list[KeptOpen]:
        """Removes `count` files from the queue and returns those that still exist. A file used since it was last
        examined is moved to the end of the queue instead, once."""
        found: list[KeptOpen] = []
        chances = len(self._files)
        while count > 0 and self._files:
            reference = self._files.popleft()
            file = reference()
            if file is not None and file.recent and chances:
                file.recent = False
                chances -= 1
                self._files.append(reference)
                continue
            if file is not None:
                found.append(file)
            count -= 1
        return found


OPENED: Final = OpenedFiles()
"""The files that this process keeps open."""
