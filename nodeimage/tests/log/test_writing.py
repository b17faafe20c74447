"""What a disk without room does to writes and checkpoints."""

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.base.errors import StorageFull
from headrace.log.container_log import ContainerLog, LogOptions
from kit.written_log import Writing


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
