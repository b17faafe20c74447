"""Damage of files: bytes that change, and sectors that the disk cannot read."""

import errno
import os
from pathlib import Path

import pytest


def poke(path: Path, offset: int, content: bytes) -> None:
    """Overwrites bytes of a file."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(content)


def flip(path: Path, offset: int) -> None:
    """Flips a bit of a file."""
    (byte,) = path.read_bytes()[offset : offset + 1]
    poke(path, offset, bytes([byte ^ 4]))


def bad_sector(monkeypatch: pytest.MonkeyPatch, path: Path, place: int) -> None:
    """From now on the disk cannot read one byte of a file."""
    inode, read = path.stat().st_ino, os.pread

    def pread(fd: int, length: int, offset: int) -> bytes:
        if offset <= place < offset + length and os.fstat(fd).st_ino == inode:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(fd, length, offset)

    monkeypatch.setattr(os, "pread", pread)
