"""File descriptors, of which a process has so many: what is kept open, and what it means that there is none left.

A file that is read now and then need not stay open: `OpenedFiles` holds those that were used last, within a number.
It decides by their second chance (the "clock" of page caches), so that a use costs no lock. It is the process's, as the
limit is: logs come and go, and share it.

EMFILE (the process's limit), ENFILE (the machine's) and ENOMEM of a call that opens or maps say nothing of a disk and
nothing of a file: `OutOfDescriptors` puts things off, as a full disk does. They never count as damage or as a failure.

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
"""Files that a process keeps open which has said nothing else; a node does (descriptor_plan.py)."""


def lacks_descriptors(error: BaseException | None) -> bool:
    """Whether a call that opens or maps a file, or makes a socket, failed for want of descriptors, or of memory in the
    kernel."""
    return isinstance(error, OSError) and error.errno in _LACKING


@contextmanager
def put_off_without_descriptors(what: Path | str) -> Iterator[None]:
    """Turns EMFILE, ENFILE and ENOMEM into `OutOfDescriptors`. For what opens and reads; a write or a sync that fails
    is another matter."""
    try:
        yield
    except OutOfDescriptors:
        raise
    except OSError as error:
        if lacks_descriptors(error):
            raise out_of_descriptors(what, error) from error
        raise


def are_lacking() -> bool:
    """[blocking] Whether nothing can be opened right now: for libraries whose errors do not say why."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return lacks_descriptors(error)
    return False


def out_of_descriptors(what: Path | str, error: OSError) -> OutOfDescriptors:
    """What is raised for `error` where `what` could not be opened."""
    return OutOfDescriptors(f"{what} cannot be opened for now: {error.strerror}. It goes on when there are some again.")


def open_descriptor(path: Path, flags: int, mode: int = 0o640) -> int:
    """As os.open. Files that are only kept open make way. Raises `OutOfDescriptors`."""
    try:
        return os.open(path, flags | os.O_CLOEXEC, mode)
    except OSError as error:
        if not lacks_descriptors(error):
            raise
    OPENED.make_way()
    with put_off_without_descriptors(path):
        return os.open(path, flags | os.O_CLOEXEC, mode)


def listing(folder: Path) -> list[Path]:
    """What lies in a folder. Raises OSError, `OutOfDescriptors`; `Path.glob` takes a folder that cannot be opened for
    an empty one, on newer versions of Python."""
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
    """A file that can be closed at any time, and is opened again when it is used."""

    recent: bool
    """It was used since this was last set to False."""

    def let_go(self) -> bool:
        """Close; who reads goes on reading. False: not now, as it is being opened."""


class OpenedFiles:
    """Those that are open for later. Thread-safe."""

    def __init__(self, most: int = DEFAULT_OPENED) -> None:
        self.most = most
        """So many at a time."""
        self._files: deque[weakref.ref[KeptOpen]] = deque()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._files)

    def limit(self, most: int) -> None:
        """Keep so many open at a time, from the next one that is opened on."""
        self.most = most

    def opened(self, file: KeptOpen) -> None:
        """`file` was opened, and stays so until others need its place. Only a weak reference to it is held."""
        with self._lock:
            self._files.append(weakref.ref(file))
            found = self._oldest(len(self._files) - self.most)
        self._let_go(found)

    def make_way(self) -> None:
        """Something else needs descriptors: half of what is open goes, those not used lately first."""
        with self._lock:
            found = self._oldest(-(-len(self._files) // 2))
        self._let_go(found)

    def _let_go(self, files: Iterable[KeptOpen]) -> None:
        for each in files:
            if not each.let_go():
                with self._lock:
                    self._files.append(weakref.ref(each))

    def _oldest(self, count: int) -> list[KeptOpen]:
        """Takes out so many. One that was used since the last look goes behind all others, once."""
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
"""This process's."""
