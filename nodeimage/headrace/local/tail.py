"""Reads lines that another process appends to a log file."""

import os
from pathlib import Path

CHUNK = 1 << 16


class LogTail:
    """The complete lines appended to a file after `offset`; a file that was truncated is read from its beginning."""

    def __init__(self, path: Path, *, offset: int = 0) -> None:
        self.path = path
        self._offset = offset
        self._partial = b""

    def read(self) -> list[str]:
        """Lines that were completed since the last call, without line ends, at most 64 KiB per call."""
        try:
            with self.path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self._offset:
                    self._offset, self._partial = 0, b""
                file.seek(self._offset)
                read = file.read(CHUNK)
        except FileNotFoundError:
            return []
        self._offset += len(read)
        *lines, self._partial = (self._partial + read).split(b"\n")
        return [line.decode("utf-8", "replace") for line in lines]


def last_lines(path: Path, *, count: int, offset: int = 0) -> list[str]:
    """The last `count` non-empty lines at or after `offset`, reading at most 64 KiB; [] without a file."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            start = max(offset, size - CHUNK)
            file.seek(start)
            lines = file.read(CHUNK).decode("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return []
    return [line for line in lines if line.strip()][-count:]
