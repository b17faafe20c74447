"""Writing and syncing in one call, and what stands in for it."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from headrace.log.files import OpenFile, write_and_sync

PIECES = [b"a" * 5000, bytearray(b"b" * 7000), memoryview(b"c" * 6000)]
WHOLE = b"".join(PIECES)


@pytest.fixture
def file(tmp_path: Path) -> OpenFile:
    return OpenFile.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)


def test_pieces_lie_one_behind_the_other_from_the_offset_on(file: OpenFile) -> None:
    write_and_sync(file.fd, 100, PIECES)
    assert os.pread(file.fd, 1 << 20, 0) == bytes(100) + WHOLE
    write_and_sync(file.fd, 0, [b"x" * 10] * 5000)  # more pieces than one call takes
    assert os.pread(file.fd, 1 << 20, 0) == b"x" * 50_000


def test_a_filesystem_without_synced_writes_gets_a_write_and_a_sync(
    file: OpenFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, sync, synced = os.pwritev, os.fdatasync, []

    def refusing(fd: int, buffers: Any, offset: int, flags: int = 0) -> int:
        if flags:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return write(fd, buffers, offset)

    monkeypatch.setattr(os, "pwritev", refusing)
    monkeypatch.setattr(os, "fdatasync", lambda fd: (sync(fd), synced.append(os.pread(fd, 1 << 20, 0))))
    write_and_sync(file.fd, 0, PIECES)
    assert synced == [WHOLE]


def test_what_a_short_write_left_out_is_written_and_synced(file: OpenFile, monkeypatch: pytest.MonkeyPatch) -> None:
    write, sync, synced = os.pwritev, os.fdatasync, []

    def short(fd: int, buffers: Any, offset: int, flags: int = 0) -> int:
        return write(fd, [b"".join(buffers)[:6001]], offset, flags)

    monkeypatch.setattr(os, "pwritev", short)
    monkeypatch.setattr(os, "fdatasync", lambda fd: (sync(fd), synced.append(os.pread(fd, 1 << 20, 0))))
    write_and_sync(file.fd, 0, PIECES)
    assert synced == [WHOLE]


def test_a_write_that_fails_is_not_tried_again(file: OpenFile, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def failing(*arguments: Any) -> int:
        calls.append(arguments)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    for name in ("pwritev", "pwrite", "fdatasync"):
        monkeypatch.setattr(os, name, failing)
    with pytest.raises(OSError, match="Input/output"):
        write_and_sync(file.fd, 0, PIECES)
    assert len(calls) == 1
