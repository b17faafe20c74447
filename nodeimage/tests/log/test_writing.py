"""Which writes are one system call, and how a full disk affects writes and checkpoints."""

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.base.errors import StorageFull
from headrace.log.container_log import ContainerLog, LogOptions
from headrace.log.frames import gap_frames
from kit.written_log import Writing


def test_what_goes_beside_another_write_is_frames_in_a_chunk_that_is_there_and_nothing_more(writing: Writing) -> None:
    """A job of several calls excludes other writes: with a new chunk, a checkpoint, a gap, the end of a chunk."""
    log = writing.log
    assert not log.pending_fits_one_write, "nothing pends"
    writing.append(1)
    assert not log.pending_fits_one_write, "the chunk's file is still to get its name"
    writing.sync()
    writing.append(1)
    assert log.pending_fits_one_write
    writing.sync()
    gap, _ = next(gap_frames(log.end, log.end + 200, most=1))
    log.append_frames(memoryview(gap))
    assert not log.pending_fits_one_write, "a gap"
    writing.sync()
    writing.append(1, size=9 << 10)
    assert not log.pending_fits_one_write, "a checkpoint"
    writing.sync()
    log.close_open_chunk()
    assert not log.pending_fits_one_write, "the end of a chunk"
    writing.sync()
    assert not log.pending_fits_one_write


def test_a_full_disk_refuses_writes_and_takes_them_again_when_there_is_room(
    small_disk: Path, writing: Writing, options: LogOptions
) -> None:
    writing.folder = small_disk / "container"
    writing.options = replace(options, chunk_bytes=256 << 10)
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(300_000))
    writing.log = ContainerLog.open(writing.folder, writing.options)
    while writing.log.room(500):
        writing.append(1, size=400)
        if writing.log.wants_spare():
            with suppress(StorageFull):
                writing.log.make_spare()
    with pytest.raises(StorageFull):
        writing.log.make_spare()
    writing.sync()
    assert not writing.log.room(500)
    assert not list(writing.folder.glob("spare*"))
    for chunk in writing.log.chunks_to_close():
        writing.log.close_chunk(chunk)
    (small_disk / "more").write_bytes(bytes(os.statvfs(small_disk).f_bavail * 4096))
    writing.check()
    writing.reopen()
    writing.check()
    ballast.unlink()
    writing.append(1, size=400)
    writing.sync()
    writing.reopen()
    writing.check()


def test_a_checkpoint_without_room_is_put_off_not_an_error(writing: Writing, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise StorageFull("no room")

    with monkeypatch.context() as patched:
        patched.setattr("headrace.log.writing.append_checkpoint", full)
        for _ in range(300):
            writing.append(1)
            writing.sync()
    assert not writing.log.chunks()[0].index_path.exists()
    writing.check()
    writing.fill_chunks(1)
    writing.check()
    writing.reopen()
    writing.check()
    writing.close_chunks()
    writing.reopen()
    writing.check()
