"""Writing and syncing in one call, and the fallback."""

import ctypes
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import CorruptLog, StorageFull
from headrace.log import files
from headrace.log.files import OpenFile, read_exactly, read_head, rewrite_file, write_and_sync

PIECES = [b"a" * 5000, bytearray(b"b" * 7000), memoryview(b"c" * 6000)]
WHOLE = b"".join(PIECES)


@pytest.fixture
def file(tmp_path: Path) -> OpenFile:
    return OpenFile.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)


def test_pieces_lie_one_behind_the_other_from_the_offset_on(file: OpenFile) -> None:
    write_and_sync(file.fd, 100, PIECES)
    assert os.pread(file.fd, 1 << 20, 0) == bytes(100) + WHOLE
    write_and_sync(file.fd, 0, [b"x" * 10] * 5000)  # more pieces than one call can take
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


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A function after whose call no file can grow."""
    write = os.pwritev

    def bounded(fd: int, buffers: Any, offset: int, flags: int = 0) -> int:
        if offset + sum(map(len, buffers)) > os.fstat(fd).st_size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fd, buffers, offset, flags)

    return lambda: monkeypatch.setattr(os, "pwritev", bounded)


def test_a_file_is_rewritten_on_a_full_disk_again_and_again(tmp_path: Path, full: Callable[[], None]) -> None:
    path = tmp_path / "file"
    rewrite_file(path, b"first")
    full()
    for number in range(5):
        rewrite_file(path, b"%d" % number * 4000)
        assert path.read_bytes().rstrip() == b"%d" % number * 4000
    with pytest.raises(StorageFull):
        rewrite_file(path, b"x" * 4097)
    assert path.read_bytes().rstrip() == b"4" * 4000
    rewrite_file(path, b"last")
    assert path.read_bytes().rstrip() == b"last"


def test_a_file_that_never_had_room_is_not_there_on_a_full_disk(tmp_path: Path, full: Callable[[], None]) -> None:
    full()
    with pytest.raises(StorageFull):
        rewrite_file(tmp_path / "file", b"first")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("step", ["link", "rename", "second rename"])
def test_a_crash_while_a_file_is_rewritten_leaves_all_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Whichever names were on the disk at the crash; and the `.room` file is never the current file."""
    path = tmp_path / "file"
    rewrite_file(path, b"old")
    renames = 0

    def crashing(source: Path, target: Path) -> Path:
        nonlocal renames
        renames += 1
        if (step, renames) in (("rename", 1), ("second rename", 2)):
            raise KeyboardInterrupt
        return rename(source, target)

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    rename = Path.rename
    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", crashing)
        if step == "link":
            patched.setattr(os, "link", crash)
        with pytest.raises(KeyboardInterrupt):
            rewrite_file(path, b"new")
    assert path.read_bytes().rstrip() == (b"new" if step == "second rename" else b"old")
    for content in (b"newer", b"newest"):
        rewrite_file(path, content)
        assert path.read_bytes().rstrip() == content
    assert not path.samefile(tmp_path / "file.room")


def test_a_copy_by_links_is_never_written_over(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for number in range(2):
        rewrite_file(path, b"%d" % number)
    os.link(path, tmp_path / "copy")
    for number in range(2, 5):
        rewrite_file(path, b"%d" % number)
    assert (tmp_path / "copy").read_bytes().rstrip() == b"1"


@pytest.mark.parametrize("lost", [errno.EIO, errno.EUCLEAN, errno.EBADMSG])
def test_what_the_disk_cannot_read_any_more_is_damage(
    file: OpenFile, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    """It is refetched from other replicas; it must not count as a temporary error."""
    write_and_sync(file.fd, 0, [bytes(10_000)])
    read = os.pread

    def bad_sector(fd: int, length: int, offset: int) -> bytes:
        if offset <= 4096 < offset + length:
            raise OSError(lost, os.strerror(lost))
        return read(fd, length, offset)

    monkeypatch.setattr(os, "pread", bad_sector)
    assert read_exactly(file.fd, 0, 4096) == bytes(4096)
    with pytest.raises(CorruptLog, match=r"file, byte 4000: the disk cannot read it"):
        read_exactly(file.fd, 4000, 500)

    def broken(fd: int, length: int, offset: int) -> bytes:
        raise OSError(lost, os.strerror(lost))

    monkeypatch.setattr(os, "pread", broken)
    with pytest.raises(CorruptLog, match="byte 0: the disk cannot read it"):
        read_head(file.fd, Path("file"), b"CHNK")


def test_a_read_that_fails_for_another_reason_is_not_damage(file: OpenFile, monkeypatch: pytest.MonkeyPatch) -> None:
    def stale(fd: int, length: int, offset: int) -> bytes:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(os, "pread", stale)
    with pytest.raises(OSError, match="Stale"):
        read_exactly(file.fd, 0, 10)


def test_a_hole_for_which_the_disk_has_no_room_is_no_failure_of_it(
    file: OpenFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        ctypes.set_errno(errno.ENOSPC)
        return -1

    monkeypatch.setattr(files, "_fallocate", full)
    with pytest.raises(StorageFull):
        files.punch_hole(file.fd, 0, 4096)
