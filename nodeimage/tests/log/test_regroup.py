"""Regrouping: reads of a chunk give the same as before, and a child process that must not regroup leaves nothing."""

import errno
import itertools
import os
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.base.errors import StorageFull
from headrace.log import files
from headrace.log.chunk import Chunk
from headrace.log.container_log import ContainerLog, LogOptions
from headrace.log.frames import FrameType
from headrace.log.parent_death import ORPHANED
from headrace.log.regroup import Pauses, regrouped_path, rewrite
from kit.written_log import Writing

FOREVER = 1 << 60


def test_a_regrouped_chunk_reads_as_before_and_in_order(writing: Writing, make_batch: Any) -> None:
    log = writing.log
    log.append_control(type=FrameType.OPEN, epoch=1, partitionlet=2, payload=b"open 2")
    writing.fill_chunks(1, partitionlets=9)
    writing.close_chunks()
    (chunk,) = log.closed_chunks()
    assert log.needs_regroup(chunk)
    states = {partitionlet: log.load(partitionlet) for partitionlet in writing.next}
    summaries = list(log.summaries(chunk))
    os.utime(chunk.path, (1_000, 2_000))
    subprocess.run(log.regroup_command(chunk), check=True)
    writing.check()  # the old file is read until the new one has replaced it
    log.reopen_chunk(chunk)
    assert chunk.body.regrouped
    assert chunk.path.stat().st_mtime == 2_000, "records without a timestamp are as old as the file"
    assert not log.needs_regroup(chunk)
    writing.check()
    assert {partitionlet: log.load(partitionlet) for partitionlet in writing.next} == states
    assert list(log.summaries(chunk)) == summaries
    (part,) = chunk.body.parts
    assert [len(list(part.places(partitionlet, 0))) for partitionlet in sorted(writing.next)] == [1] * 9
    starts = [next(part.places(partitionlet, 0)).at for partitionlet in sorted(writing.next)]
    assert starts == sorted(starts)
    (opened,) = log.control_frames(0, log.end)
    assert (bytes(opened.payload), opened.position) == (b"open 2", 0)
    writing.reopen()
    writing.check()
    rerun = subprocess.run(writing.log.regroup_command(chunk), check=False)
    assert rerun.returncode == 0
    writing.log.reopen_chunk(writing.log.closed_chunks()[0])
    writing.check()


def test_a_helper_whose_node_has_ended_before_it_began_does_nothing(writing: Writing) -> None:
    """It would write to the same file as the child process of the node's next run."""
    chunk = mixed_chunk(writing)
    *command, parent = writing.log.regroup_command(chunk)
    assert parent == str(os.getpid())
    with subprocess.Popen(["true"]) as ended:
        pass
    assert subprocess.run([*command, str(ended.pid)], check=False).returncode == ORPHANED
    assert not regrouped_path(chunk.path).exists()


def mixed_chunk(writing: Writing) -> Chunk:
    """The only closed chunk of a log, which needs regrouping."""
    writing.fill_chunks(1, partitionlets=9)
    writing.close_chunks()
    (chunk,) = writing.log.closed_chunks()
    return chunk


def test_a_regrouping_pauses_after_each_piece_for_three_times_as_long_as_that_took(
    writing: Writing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would delay every other sync."""
    monkeypatch.setattr("headrace.log.regroup._PIECE_BYTES", 1000)
    chunk = mixed_chunk(writing)
    synced: list[float] = []
    pauses: list[float] = []
    write_and_sync = files.write_and_sync

    def slow(*arguments: Any) -> None:
        began = time.monotonic()
        write_and_sync(*arguments)
        time.sleep(0.005)
        synced.append(time.monotonic() - began)

    monkeypatch.setattr("headrace.log.regroup.write_and_sync", slow)
    rewrite(chunk.path, pauses=Pauses(1000.0, sleep=pauses.append))
    assert len(synced) == len(pauses) > 3
    assert all(pause >= 3 * took for pause, took in zip(pauses, synced, strict=True))
    writing.log.reopen_chunk(chunk)
    writing.check()


def test_pauses_have_an_end_and_are_spread_over_the_pieces() -> None:
    slept: list[float] = []
    pauses = Pauses(1.0, sleep=slept.append)
    for left in range(9, -1, -1):
        pauses.after(10.0, pieces_left=left)
    assert slept == pytest.approx([0.1] * 10)
    Pauses(0.0, sleep=slept.append).after(10.0, pieces_left=3)
    assert len(slept) == 10


def test_it_is_known_before_whether_the_disk_has_room_for_a_regrouping(
    writing: Writing, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunk = mixed_chunk(writing)
    free = 1 << 20
    monkeypatch.setattr(os, "statvfs", lambda _path: SimpleNamespace(f_bavail=free // 4096, f_frsize=4096))
    lives = sum(summary.length for summary in writing.log.summaries(chunk))
    assert writing.log.has_room_to_regroup(chunk, leave=free - lives)
    assert not writing.log.has_room_to_regroup(chunk, leave=free - lives + 1)
    taken = lives
    writing.log.punch(chunk, {1: FOREVER})
    lives = sum(summary.length for summary in writing.log.summaries(chunk))
    assert lives < taken
    assert writing.log.has_room_to_regroup(chunk, leave=free - lives), "what is dead is left out"


def test_a_regrouping_that_finds_the_disk_full_leaves_nothing(
    writing: Writing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.log.regroup._PIECE_BYTES_WITHOUT_PAUSES", 1000)
    chunk = mixed_chunk(writing)
    held = sorted(writing.folder.iterdir())
    pieces = itertools.count()
    write_and_sync = files.write_and_sync

    def full(*arguments: Any) -> None:
        if next(pieces) == 2:
            raise OSError(errno.ENOSPC, "full")
        write_and_sync(*arguments)

    monkeypatch.setattr("headrace.log.regroup.write_and_sync", full)
    with pytest.raises(StorageFull):
        rewrite(chunk.path)
    assert sorted(writing.folder.iterdir()) == held
    writing.check()


def test_regrouping_is_the_same_on_every_replica(tmp_path: Path, writing: Writing) -> None:
    writing.fill_chunks(1, partitionlets=9)
    writing.close_chunks()
    other = tmp_path / "other"
    subprocess.run(["cp", "-r", str(writing.folder), str(other)], check=True)
    (chunk,) = writing.log.closed_chunks()
    for folder in (writing.folder, other):
        subprocess.run([*writing.log.regroup_command(chunk)[:3], str(folder), "0", "0.01"], check=True)
    regrouped = regrouped_path(chunk.path)
    assert regrouped.read_bytes() == (other / regrouped.name).read_bytes() != chunk.path.read_bytes()


@pytest.mark.parametrize("change", [ContainerLog.reset, lambda folder, at: ContainerLog.cut(folder, at, LogOptions())])
def test_a_regroup_that_ends_after_its_log_was_emptied_or_cut_changes_nothing(writing: Writing, change: Any) -> None:
    writing.fill_chunks(2, partitionlets=9)
    writing.close_chunks()
    first = writing.log.closed_chunks()[0]
    rewrite(first.path)
    writing.log.close()
    change(writing.folder, first.start)
    held = sorted(path.name for path in writing.folder.iterdir() if path != regrouped_path(first.path))
    writing.log.reopen_chunk(first)
    assert sorted(path.name for path in writing.folder.iterdir()) == held
