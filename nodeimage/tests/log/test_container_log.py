"""Appending and reading, through all that happens to a chunk."""

import ctypes
import errno
import itertools
import os
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.base.errors import StorageFull
from headrace.log import files
from headrace.log.chunk import Chunk
from headrace.log.container_log import ContainerLog, LogOptions
from headrace.log.dead import DeadOffsets
from headrace.log.files import FILE_HEAD_BYTES
from headrace.log.frames import FrameType
from headrace.log.index import Place
from headrace.log.maintenance import summaries
from headrace.log.parent_death import ORPHANED
from headrace.log.regroup import Pauses, regrouped_path, rewrite
from headrace.log.scrub import Scrubbed, scrub

Writing = Any  # the class stands in conftest.py
FOREVER = 1 << 60


def test_what_is_appended_is_read_from_memory_at_once_and_from_disk_once_written(writing: Writing) -> None:
    batches = [writing.append(records=10) for _ in range(3)]
    log = writing.log
    assert log.read_tail(1, 15, limit=FOREVER, max_bytes=FOREVER) == batches[1:]
    assert log.read(1, 0, limit=FOREVER, max_bytes=FOREVER) == []
    assert log.end > log.synced
    writing.sync()
    assert log.read(1, 15, limit=FOREVER, max_bytes=FOREVER) == batches[1:]
    assert log.read(1, 15, limit=20, max_bytes=FOREVER) == batches[1:2]
    assert log.read(1, 15, limit=FOREVER, max_bytes=1) == batches[1:2]
    assert log.read(1, 30, limit=FOREVER, max_bytes=1) == []
    assert log.read(2, 0, limit=FOREVER, max_bytes=1) == []
    assert log.end == log.synced
    assert log.pending_bytes == 0


def test_all_survives_full_chunks_closing_and_reopening(writing: Writing) -> None:
    writing.fill_chunks(4)
    writing.check()
    writing.close_chunks()
    assert len(writing.log.closed_chunks()) == 4
    writing.check()
    for _ in range(2):
        end = writing.log.end
        writing.reopen()
        assert (writing.log.end, writing.log.synced, writing.log.start) == (end, end, 0)
        assert len(writing.log.closed_chunks()) == 4
        writing.append(3)
        writing.sync()
        writing.check()


def test_a_regrouped_chunk_reads_as_before_and_in_order(writing: Writing, make_batch: Any) -> None:
    log = writing.log
    log.append_control(type=FrameType.OPEN, epoch=1, partitionlet=2, payload=b"open 2")
    writing.fill_chunks(1, partitionlets=9)
    writing.close_chunks()
    (chunk,) = log.closed_chunks()
    assert log.needs_regroup(chunk)
    states = {partitionlet: log.load(partitionlet) for partitionlet in writing.next}
    summaries = list(log.summaries(chunk))
    subprocess.run(log.regroup_command(chunk), check=True)
    writing.check()  # the old file is read until the new one is taken up
    log.reopen_chunk(chunk)
    assert chunk.body.regrouped
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
    """It would write where the helper of the node's next run writes."""
    chunk = mixed_chunk(writing)
    *command, parent = writing.log.regroup_command(chunk)
    assert parent == str(os.getpid())
    with subprocess.Popen(["true"]) as ended:
        pass
    assert subprocess.run([*command, str(ended.pid)], check=False).returncode == ORPHANED
    assert not regrouped_path(chunk.path).exists()


def mixed_chunk(writing: Writing) -> Chunk:
    """A closed chunk that needs regrouping, the only one."""
    writing.fill_chunks(1, partitionlets=9)
    writing.close_chunks()
    (chunk,) = writing.log.closed_chunks()
    return chunk


def test_a_regrouping_pauses_after_each_piece_for_three_times_as_long_as_that_took(
    writing: Writing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would else stand between every other sync and the disk."""
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
    monkeypatch.setattr("headrace.log.regroup._HASTY_PIECE_BYTES", 1000)
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


def test_control_frames_come_in_position_order_between_two_positions(writing: Writing) -> None:
    log = writing.log
    positions = [log.end]
    for row in range(300):
        writing.append(row % 3)
        if not log.room(60):
            log.make_spare()
        log.append_control(
            type=FrameType.COMMAND, epoch=1, partitionlet=row % 2, payload=b"%d" % row, first=row, last=row
        )
        positions.append(log.end)
        assert list(log.control_frames(0, log.end)) == []
    writing.sync()
    writing.close_chunks()
    for after, until in ((0, 300), (1, 299), (17, 250), (299, 300), (300, 300)):
        found = list(log.control_frames(positions[after], positions[until]))
        assert [bytes(frame.payload) for frame in found] == [b"%d" % row for row in range(after, until)]
    assert [frame.first for frame in log.controls_of(1)] == list(range(1, 300, 2))
    writing.reopen()
    seen: list[bytes] = []
    again = ContainerLog.open(writing.folder, writing.options, on_frame=lambda frame: seen.append(bytes(frame.payload)))
    newest = again.chunks()[-1]
    assert seen == [bytes(frame.payload) for frame in again.control_frames(newest.start, again.end)]
    assert seen


def test_a_seal_shows_in_the_state(writing: Writing) -> None:
    writing.append(5)
    assert not writing.log.load(5).sealed
    writing.log.append_control(type=FrameType.SEAL, epoch=1, partitionlet=5, payload=b"")
    assert writing.log.load(5).sealed
    writing.sync()
    writing.reopen()
    assert writing.log.load(5).sealed
    assert not writing.log.load(6).sealed


def test_the_state_merges_all_chunks(writing: Writing) -> None:
    row = 0
    while len(writing.log.chunks()) < 4:
        epoch = 1 + len(writing.log.chunks())
        producer = 50 + row % 2
        sequence = row // 2 * 3
        writing.append(
            row % 2,
            records=3,
            epoch=epoch,
            timestamp=1000 - row,
            producer=producer,
            producer_epoch=0,
            sequence=sequence,
        )
        row += 1
    writing.sync()
    state = writing.log.load(1)
    assert state.next_offset == writing.next[1]
    assert state.first == 0
    assert [epoch for epoch, _ in state.epochs] == [2, 3, 4]
    assert state.epochs[0] == (2, 0)
    assert state.max_timestamp == 999
    assert state.bytes == sum(56 + len(batch) for batch in writing.batches[1]) == writing.log.size(1)
    assert list(state.producers) == [51]
    newest = writing.next[1] - 3
    assert [batch[2] for batch in state.producers[51].batches] == [newest - 12 + 3 * back for back in range(5)]
    assert state.producers[51].batches[-1] == (
        newest,
        newest + 2,
        newest,
        1000 - (row - 1 if row % 2 == 0 else row - 2),
    )
    later = writing.log.load(1, since=writing.log.chunks()[-1].start)
    assert [epoch for epoch, _ in later.epochs] == [4]
    assert writing.log.load(99).next_offset is None
    writing.close_chunks()
    assert writing.log.load(1) == state
    writing.reopen()
    assert writing.log.load(1) == state
    assert writing.log.tail_state(99) is None


def test_offsets_are_found_by_time_below_the_limit(writing: Writing) -> None:
    log = writing.log
    timestamps = [row * 7919 % 1000 for row in range(1500)]
    for timestamp in timestamps:
        writing.append(1, timestamp=timestamp)
        writing.append(2, timestamp=5000)
    writing.sync()
    writing.close_chunks()
    assert len(log.closed_chunks()) >= 3
    for limit in (1500, 700, 3):
        for wanted in (0, 1, 500, 998, 999, 1000):
            expected = next((row for row in range(limit) if timestamps[row] >= wanted), None)
            found = log.find_timestamp(1, wanted, limit=limit)
            assert found == (None if expected is None else writing.batches[1][expected])
        newest = max(range(limit), key=lambda row: timestamps[row])
        assert log.find_max_timestamp(1, limit=limit) == writing.batches[1][newest]
    assert log.find_max_timestamp(3, limit=FOREVER) is None
    assert log.find_max_timestamp(1, limit=0) is None


def test_an_offset_in_a_gap_goes_on_at_the_next_batch(writing: Writing) -> None:
    writing.append(1)
    writing.next[1] = 100
    batch = writing.append(1)
    writing.sync()
    assert writing.log.read(1, 50, limit=FOREVER, max_bytes=1) == [batch]


def test_a_frame_longer_than_a_chunk_gets_a_chunk_of_its_own(writing: Writing) -> None:
    for size in (100_000, 10, 90_000, 100_000, 10):
        writing.append(1, size=size)
    writing.sync()
    writing.close_chunks()
    writing.check()
    writing.reopen()
    writing.check()
    writing.append(1, size=200_000)
    writing.append(1, size=10)
    writing.sync()
    writing.reopen()
    writing.check()


def test_a_first_frame_longer_than_the_recovered_empty_chunk_takes_its_place(writing: Writing) -> None:
    writing.append(1)
    job = writing.log.take_job()
    writing.log.write_job(job)
    chunk = writing.log.chunks()[0]
    os.pwrite(chunk.body.opened().fd, bytes(200), FILE_HEAD_BYTES)  # the frame never got to the disk
    del writing.batches[1], writing.next[1]
    writing.reopen(cleanly=False)
    assert writing.log.end == 0
    writing.append(1, size=100_000)
    writing.append(1)
    writing.sync()
    writing.reopen()
    writing.check()


def test_room_says_no_until_a_spare_is_made_and_the_spare_is_wanted_in_time(writing: Writing) -> None:
    log = writing.log
    wanted_at = None
    while log.room(200):
        writing.append(1)
        if wanted_at is None and log.wants_spare():
            wanted_at = log.end
    assert wanted_at is not None
    assert 0.7 < wanted_at / (64 << 10) < 0.8
    log.make_spare()
    assert log.room(200)
    assert not log.wants_spare()
    log.make_spare()
    writing.sync()
    assert len(list(writing.folder.glob("spare-*.tmp"))) == 1
    writing.append(1, size=200)
    writing.sync()
    writing.reopen()
    assert not list(writing.folder.glob("*.tmp"))


def test_who_may_not_go_to_the_end_leaves_a_part_of_the_chunk_where_there_is_no_spare(writing: Writing) -> None:
    log = writing.log
    while log.room(200, to_the_end=False):
        writing.append(1)
    writing.sync()
    assert (64 << 10) // 16 - 1000 < log.unused_bytes < (64 << 10) // 16 + 1000
    assert log.room(1000)
    log.make_spare()
    assert log.room(200, to_the_end=False)


def test_an_append_without_room_is_refused_and_changes_nothing(writing: Writing, make_batch: Any) -> None:
    while writing.log.room(97):
        writing.append(1, size=36)
    writing.sync()
    end = writing.log.end
    with pytest.raises(StorageFull):
        writing.log.append_batch(
            partitionlet=1, epoch=1, first=0, last=0, max_timestamp=0, batch=make_batch(0, size=5000)
        )
    assert writing.log.end == end
    assert writing.log.take_job() is None
    writing.check()


def test_an_open_chunk_closes_by_age_and_the_next_one_starts_where_it_ended(writing: Writing) -> None:
    writing.append(1)
    writing.sync()
    writing.log.close_open_chunk()
    assert not writing.log.chunks_to_close()
    writing.sync()
    writing.close_chunks()
    (chunk,) = writing.log.closed_chunks()
    assert chunk.path.stat().st_size < 2000
    writing.reopen()
    assert writing.log.end == chunk.end
    writing.append(1)
    writing.sync()
    assert [c.start for c in writing.log.chunks()] == [0, chunk.end]
    writing.log.close_open_chunk()
    writing.log.close_open_chunk()
    writing.append(1)
    writing.sync()
    writing.close_chunks()
    writing.reopen()
    writing.check()


def test_positions_are_never_used_again_though_all_chunks_are_dropped(writing: Writing) -> None:
    writing.fill_chunks(3)
    writing.log.close_open_chunk()
    writing.sync()
    writing.close_chunks()
    end = writing.log.end
    chunks = writing.log.closed_chunks()
    writing.log.drop_chunk(chunks[1])
    writing.reopen()
    assert [chunk.start for chunk in writing.log.chunks()] == [chunks[0].start, chunks[2].start, chunks[3].start]
    writing.log.trim(end)
    assert writing.log.chunks() == []
    assert writing.log.start == end
    writing.reopen()
    assert (writing.log.end, writing.log.start) == (end, end)
    writing.batches.clear()
    writing.append(1)
    writing.sync()
    writing.reopen()
    assert (writing.log.start, writing.log.end) == (end, end + 56 + 101)
    writing.check()
    assert not list(writing.folder.glob("*.dropped"))


def test_trim_drops_whole_closed_chunks_only(writing: Writing) -> None:
    writing.fill_chunks(3)
    writing.close_chunks()
    chunks = writing.log.chunks()
    writing.log.trim(chunks[2].start - 1)
    assert writing.log.start == chunks[1].start
    writing.log.trim(writing.log.end)
    assert writing.log.start == chunks[3].start
    assert sorted(path.suffix for path in writing.folder.iterdir()).count(".chunk") == 1
    writing.reopen()
    assert writing.log.start == chunks[3].start


def test_a_chunk_whose_drop_has_failed_is_there_and_can_be_dropped_again(
    writing: Writing, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing.fill_chunks(2)
    writing.close_chunks()
    chunk = writing.log.closed_chunks()[0]
    opened = os.open

    def full(path: Any, flags: int, mode: int = 0o777) -> int:
        if Path(path).suffix == ".dropped":
            raise OSError(errno.ENOSPC, "full")
        return opened(path, flags, mode)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", full)
        with pytest.raises(StorageFull):
            writing.log.drop_chunk(chunk)
    assert chunk in writing.log.closed_chunks()
    writing.check()
    writing.log.drop_chunk(chunk)
    assert chunk not in writing.log.chunks()
    assert not chunk.path.exists()


def unlink_but(code: int, stuck: Collection[Path]) -> Callable[..., None]:
    """`Path.unlink` of a disk that cannot remove some files."""
    unlink = Path.unlink

    def unlinked(path: Path, missing_ok: bool = False) -> None:
        if path in stuck:
            raise OSError(code, os.strerror(code))
        unlink(path, missing_ok=missing_ok)

    return unlinked


def test_a_chunk_whose_file_could_not_be_removed_keeps_its_mark_when_the_next_one_goes(
    writing: Writing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it the next start would miss the one behind it."""
    writing.fill_chunks(3)
    writing.close_chunks()
    first, second, third = writing.log.closed_chunks()
    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", unlink_but(errno.EIO, {first.path}))
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            writing.log.drop_chunk(first)
        writing.log.drop_chunk(second)
    end = writing.log.end
    writing.reopen()
    assert (writing.log.start, writing.log.end) == (third.start, end)
    assert not first.path.exists()
    assert not list(writing.folder.glob("*.dropped"))


def test_a_log_opens_though_the_disk_cannot_remove_a_chunk_that_was_dropped(
    writing: Writing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor what belongs to it; and the one behind it is dropped, too."""
    writing.fill_chunks(3)
    writing.close_chunks()
    first, second, third = writing.log.closed_chunks()
    end, index = writing.log.end, second.path.with_suffix(".index")
    stuck = {first.path}
    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", unlink_but(errno.EUCLEAN, stuck))
        with pytest.raises(OSError, match=os.strerror(errno.EUCLEAN)):
            writing.log.drop_chunk(first)
        writing.log.drop_chunk(second)
        index.write_bytes(b"")
        stuck.add(index)
        for _ in range(2):
            writing.reopen()
            assert (writing.log.start, writing.log.end) == (third.start, end)
            assert first.path.exists()
            first.path.write_bytes(b"whatever is in it")
            assert list(scrub(writing.folder, Scrubbed())) == []
    writing.reopen()
    assert (writing.log.start, writing.log.end) == (third.start, end)
    assert not first.path.exists()
    assert not index.exists()


def test_a_reader_of_a_dropped_or_regrouped_chunk_reads_on(writing: Writing) -> None:
    writing.fill_chunks(1)
    writing.close_chunks()
    (chunk,) = writing.log.closed_chunks()
    body = chunk.body
    control = writing.log.load(1)
    rewrite(chunk.path)
    writing.log.reopen_chunk(chunk)
    writing.log.drop_chunk(chunk)
    old = body.parts[0].summary(1)
    assert old is not None
    assert os.pread(body.opened().fd, 8, 0) == b"HEADRACE"
    assert control.first == 0
    assert writing.log.load(1).first != 0


def test_punching_gives_bytes_back_and_what_is_kept_stays(writing: Writing) -> None:
    writing.fill_chunks(1, partitionlets=3, size=700)
    writing.close_chunks()
    (chunk,) = writing.log.closed_chunks()
    rewrite(chunk.path)
    writing.log.reopen_chunk(chunk)
    expected = writing.read_all(1), writing.read_all(3)
    before = chunk.path.stat().st_blocks * 512
    size = writing.log.size(2)
    in_chunk = sum(summary.length for summary in writing.log.summaries(chunk) if summary.partitionlet == 2)
    assert 0 < writing.log.punchable(chunk, {2: 1 << 62}) == in_chunk
    freed = writing.log.punch(chunk, {2: 1 << 62, 99: 5})
    assert 8000 < freed == before - chunk.path.stat().st_blocks * 512
    assert writing.log.punch(chunk, {2: 1 << 62}) == 0
    assert writing.log.punchable(chunk, {2: 1 << 62}) == 0
    for _ in range(2):
        assert (writing.read_all(1), writing.read_all(3)) == expected
        assert [s.length for s in writing.log.summaries(writing.log.closed_chunks()[0]) if s.partitionlet == 2] == [0]
        state = writing.log.load(2)
        assert state.bytes == writing.log.size(2) < size
        writing.reopen()
    (chunk, *_) = writing.log.closed_chunks()
    rewrite(chunk.path)
    writing.log.reopen_chunk(chunk)
    assert (writing.read_all(1), writing.read_all(3)) == expected
    assert chunk.body.parts[0].summary(2) is None


def test_where_the_filesystem_has_no_holes_the_chunk_is_rewritten(
    writing: Writing, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing.fill_chunks(1, partitionlets=3, size=6000)
    writing.close_chunks()
    (chunk,) = writing.log.closed_chunks()
    expected = writing.read_all(1)
    monkeypatch.setattr("headrace.log.maintenance.punch_hole", lambda *_: False)
    size = chunk.path.stat().st_size
    assert writing.log.punch(chunk, {2: 1 << 62, 3: 1 << 62}) > size // 2
    assert chunk.path.stat().st_size < size // 2
    assert writing.read_all(1) == expected
    assert writing.log.punch(chunk, {2: 1 << 62, 3: 1 << 62}) == 0


def test_a_partly_dead_partitionlet_reads_on_from_the_first_place_that_is_kept(writing: Writing) -> None:
    writing.fill_chunks(1, partitionlets=3, size=700)
    writing.close_chunks()
    (chunk,) = writing.log.closed_chunks()
    writing.log.punch(chunk, {2: 10})
    assert writing.read_all(2) == b"".join(writing.batches[2][10:])
    assert writing.log.load(2).first == 10
    assert next(s for s in writing.log.summaries(chunk) if s.partitionlet == 2).first == 10
    writing.log.punch(chunk, {2: 5})  # what is gone stays gone
    assert writing.log.load(2).first == 10


def test_a_chunk_of_several_parts_is_summed_up_less_what_is_dead(writing: Writing) -> None:
    """By what its places say, which readers find."""
    writing.log.append_control(type=FrameType.OPEN, epoch=1, partitionlet=9, payload=b"open 9")
    writing.fill_chunks(1, partitionlets=3, size=700)
    writing.close_chunks()
    (chunk,) = writing.log.closed_chunks()
    parts = chunk.body.parts
    assert len(parts) > 1
    cut = next(parts[-1].places(2, 0)).first
    deads: list[dict[int, int]] = [{}, {2: cut - 3}, {2: cut}, {2: cut + 3}, {2: FOREVER}, {1: 5, 2: cut, 3: FOREVER}]
    for dead in deads:
        body = replace(chunk.body, dead=DeadOffsets(dead))
        found = summaries(Chunk(path=chunk.path, start=chunk.start, body=body))
        assert [each.partitionlet for each in found] == [1, 2, 3, 9]
        for each in found:
            left = [place for part in parts for place in part.places(each.partitionlet, dead.get(each.partitionlet, 0))]
            assert each[1:] == span(left)


def span(places: Sequence[Place]) -> tuple[int, int, int, int]:
    """What a summary says of places: first, last, largest timestamp, length."""
    if not places:
        return (-1, -1, -1, 0)
    newest = max(place.max_timestamp for place in places)
    return (places[0].first, places[-1].last, newest, sum(place.length for place in places))


def test_reads_go_on_in_threads_while_appends_closing_and_regrouping_run(writing: Writing) -> None:
    errors: list[BaseException] = []
    stop = threading.Event()

    def read() -> None:
        try:
            while not stop.is_set():
                offset = 0
                for partitionlet in (1, 2, 3):
                    for offset in (0, 50, 100):
                        for batch in writing.log.read(partitionlet, offset, limit=FOREVER, max_bytes=300):
                            assert int.from_bytes(batch[:8], "big") == offset
                            break
                    writing.log.load(partitionlet)
        except BaseException as error:
            errors.append(error)

    writing.append(1)
    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for chunks in (1, 2):
            writing.fill_chunks(chunks, partitionlets=3, size=700)
            writing.close_chunks()
            for chunk in writing.log.closed_chunks():
                rewrite(chunk.path)
                writing.log.reopen_chunk(chunk)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert errors == []
    writing.check()


@pytest.fixture
def small_disk(tmp_path: Path) -> Any:
    """A filesystem of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"none", str(folder).encode(), b"tmpfs", 0, b"size=1m") != 0:
        pytest.skip(f"cannot mount a small tmpfs: {os.strerror(ctypes.get_errno())}")
    yield folder
    libc.umount2(str(folder).encode(), 2)


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
