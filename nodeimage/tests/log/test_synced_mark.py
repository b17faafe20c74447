"""The file that says how far a log was synced."""

from pathlib import Path

import pytest

from headrace.log import synced_mark
from headrace.log.synced_mark import NAME, SyncedMark, raise_mark, read_mark, remove_mark


def test_a_mark_says_what_was_put_last(tmp_path: Path) -> None:
    assert read_mark(tmp_path) == 0
    mark = SyncedMark(tmp_path)
    mark.put(4096)
    assert (read_mark(tmp_path), mark.position) == (4096, 4096)
    mark.put(8192)
    assert read_mark(tmp_path) == 8192


@pytest.mark.parametrize("raw", [b"", b"short", bytes(64)])
def test_a_mark_that_does_not_check_proves_nothing(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / NAME).write_bytes(raw)
    assert read_mark(tmp_path) == 0


def test_a_flipped_bit_proves_nothing(tmp_path: Path) -> None:
    SyncedMark(tmp_path).put(4096)
    raw = bytearray((tmp_path / NAME).read_bytes())
    raw[10] ^= 4
    (tmp_path / NAME).write_bytes(raw)
    assert read_mark(tmp_path) == 0


def test_a_mark_that_is_kept_never_falls(tmp_path: Path) -> None:
    raise_mark(tmp_path, 4096)
    raise_mark(tmp_path, 100)
    assert read_mark(tmp_path) == 4096
    raise_mark(tmp_path, 5000)
    assert read_mark(tmp_path) == 5000


def test_a_mark_is_removed_before_the_end_is_lowered_also_where_there_is_none(tmp_path: Path) -> None:
    SyncedMark(tmp_path).put(4096)
    remove_mark(tmp_path)
    remove_mark(tmp_path)
    assert read_mark(tmp_path) == 0


def test_a_mark_that_cannot_be_written_says_what_it_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = SyncedMark(tmp_path)
    mark.put(4096)

    def full(fd: int, raw: bytes, offset: int) -> int:
        raise OSError("no space left")

    monkeypatch.setattr(synced_mark.os, "pwrite", full)
    mark.put(8192)
    assert mark.position == 4096
    assert read_mark(tmp_path) == 4096
