"""How a start treats a folder: it cuts torn tails, distinguishes damage from them, and scans little."""

import errno
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import CorruptLog, FolderRefused, LostTail, NewerFormat
from headrace.log.container_log import ContainerLog, LogOptions
from headrace.log.files import FILE_HEAD_BYTES
from headrace.log.folder import chunk_path
from headrace.log.frames import control_frame
from headrace.log.regroup import regrouped_path, rewrite
from headrace.log.synced_mark import read_mark
from kit.damaged_files import bad_sector, flip, poke
from kit.written_log import Writing

FRAME = 56 + 61 + 40
"""The length of a frame that `Writing.append` creates by default."""


def open_chunk(writing: Writing) -> Path:
    """The file of the open chunk."""
    path: Path = writing.log.chunks()[-1].path
    return path


@pytest.mark.parametrize("kept", [0, 1, 55, 56, 57, 76, 77, 100, FRAME - 1])
@pytest.mark.parametrize("garbage", [b"", b"\xff" * 300, b"HRINDEX1" * 20])
def test_a_torn_frame_is_cut(writing: Writing, kept: int, garbage: bytes) -> None:
    for _ in range(3):
        writing.append(1, records=2)
    writing.sync()
    path = open_chunk(writing)
    torn_at = FILE_HEAD_BYTES + 2 * FRAME
    poke(path, torn_at + kept, (garbage + bytes(FRAME))[: FRAME - kept] + garbage)
    writing.batches[1].pop()
    writing.next[1] -= 2
    writing.reopen(cleanly=False)
    assert writing.log.end == 2 * FRAME
    writing.check()
    assert not any(path.read_bytes()[torn_at:])
    assert path.stat().st_size == 64 << 10
    writing.append(1)
    writing.sync()
    writing.reopen()
    writing.check()


def test_a_file_cut_at_the_last_sync_goes_on_from_there(writing: Writing) -> None:
    for _ in range(20):
        writing.append(1)
    writing.sync()
    path = open_chunk(writing)
    os.truncate(path, FILE_HEAD_BYTES + 20 * FRAME)
    writing.reopen(cleanly=False)
    writing.check()
    assert path.stat().st_size == 64 << 10
    os.truncate(path, FILE_HEAD_BYTES + 19 * FRAME + 60)
    writing.batches[1].pop()
    writing.next[1] -= 1
    writing.reopen(cleanly=False)
    writing.check()


def test_a_stale_frame_behind_a_cut_is_never_taken_for_a_new_one(writing: Writing) -> None:
    """Three frames of one length; the second is lost, so all behind it are cut. A new second one is appended, after
    which the old third one would start exactly where a frame may start, with the right position."""
    for _ in range(3):
        writing.append(1)
    writing.sync()
    path = open_chunk(writing)
    flip(path, FILE_HEAD_BYTES + FRAME + 100)
    writing.reopen(cleanly=False)
    assert writing.log.end == FRAME
    del writing.batches[1][1:]
    writing.next[1] = 1
    writing.append(1)
    writing.sync()
    assert writing.log.end == 2 * FRAME
    writing.reopen(cleanly=False)
    assert writing.log.end == 2 * FRAME
    writing.check()


def test_a_flipped_bit_below_the_last_checkpoint_is_corruption_when_read_and_when_scanned(writing: Writing) -> None:
    writing.fill_tables(2)
    path = open_chunk(writing)
    flip(path, FILE_HEAD_BYTES + 60)
    writing.reopen()
    with pytest.raises(CorruptLog, match=r"chunk, place 0, 0 bytes on"):
        writing.read_all(1)
    path.with_suffix(".index").write_bytes(path.with_suffix(".index").read_bytes()[:FILE_HEAD_BYTES])
    writing.reopen(cleanly=False)  # without a proof that it was synced, the damage counts as a torn tail
    assert writing.log.end == 0


def test_a_flipped_bit_above_the_last_checkpoint_is_a_torn_tail(writing: Writing) -> None:
    writing.fill_tables(2)
    synced = writing.log.chunks()[0].body.parts[-1].start
    for _ in range(3):
        writing.append(1)
    writing.sync()
    flip(open_chunk(writing), FILE_HEAD_BYTES + synced + FRAME + 3)
    del writing.batches[1][-2:]
    writing.next[1] -= 2
    writing.reopen(cleanly=False)
    assert writing.log.end == synced + FRAME
    writing.check()


SECTOR = 512


@given(
    sizes=st.lists(st.lists(st.sampled_from([0, 40, 400, 3000]), min_size=1, max_size=4), min_size=2, max_size=2),
    lost=st.lists(st.sets(st.integers(0, 30)), min_size=2, max_size=2),
    before=st.integers(1, 3),
    marked=st.booleans(),
)
def test_of_two_writes_under_way_a_start_keeps_what_has_no_hole_below_it(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[list[int]], lost: list[set[int]], before: int, marked: bool
) -> None:
    """Whichever sectors of either write reached the disk: neither write was acknowledged. Later frames take their
    place, and no rest of them is ever taken for a frame."""
    options = LogOptions(chunk_bytes=64 << 10, open_file_bytes=64 << 10, mark_s=3600.0)
    writing = Writing(tmp_path_factory.mktemp("log") / "1", options)
    append_synced(writing, before)
    if marked:
        writing.log.mark_synced()
    synced, ends = writing.log.end, []
    writes = []
    for row, batches in enumerate(sizes):
        if row:
            writing.log.use_second_file(writing.log.open_second_file())
        for size in batches:
            writing.append(1, size=size)
            ends.append(writing.log.end)
        job = writing.log.take_job()
        assert job is not None
        write = writing.log.direct_write(job, beside=bool(row))
        assert write is not None
        writes.append(write)
    assert writes[0].file.fd != writes[1].file.fd
    disk = bytearray(writes[1].offset + writes[1].nbytes)
    there = [True] * len(disk)
    for write, gone in zip(writes, lost, strict=True):
        joined = b"".join(write.buffers)
        disk[write.offset : write.offset + write.nbytes] = joined
        for at in range(write.offset, write.offset + write.nbytes):
            if at // SECTOR - write.offset // SECTOR in gone:
                there[at] = False
    kept = [bytes([disk[at]]) if there[at] else b"\0" for at in range(writes[0].offset, len(disk))]
    poke(open_chunk(writing), writes[0].offset, b"".join(kept))
    first = writes[0].offset - FILE_HEAD_BYTES
    whole = synced
    for end in ends:
        if not all(there[at] or not disk[at] for at in range(FILE_HEAD_BYTES + whole, FILE_HEAD_BYTES + end)):
            break
        whole = end
    assert first == synced
    for again in range(2):
        writing.reopen(cleanly=False)
        assert writing.log.end == writing.log.synced == whole
        assert not any(open_chunk(writing).read_bytes()[FILE_HEAD_BYTES + whole :])
        if not again:
            count = before + ends.index(whole) + 1 if whole != synced else before
            del writing.batches[1][count:]
            writing.next[1] = count
            append_synced(writing, 2)
            whole = writing.log.end
    writing.check()


def append_synced(writing: Writing, count: int) -> None:
    """Appends frames, and syncs each separately."""
    for _ in range(count):
        writing.append(1)
        writing.sync()


@pytest.mark.parametrize("harm", ["flip", "zeros", "cut short", "gone"])
def test_what_is_lost_below_the_mark_is_no_torn_tail(writing: Writing, harm: str) -> None:
    """It was acknowledged: the start reports it and changes nothing until the loss has been accepted."""
    append_synced(writing, 5)
    writing.log.mark_synced()
    path = open_chunk(writing)
    match harm:
        case "flip":
            flip(path, FILE_HEAD_BYTES + 2 * FRAME + 70)
        case "zeros":
            poke(path, FILE_HEAD_BYTES + 2 * FRAME, bytes(3 * FRAME))
        case "cut short":
            os.truncate(path, FILE_HEAD_BYTES + 2 * FRAME + 3)
        case "gone":
            path.unlink()
    before = None if harm == "gone" else path.read_bytes()
    for _ in range(2):
        with pytest.raises(LostTail, match=f"{5 * FRAME} was synced"):
            ContainerLog.open(writing.folder, writing.options)
    assert before is None or path.read_bytes() == before
    ContainerLog.accept_loss(writing.folder)
    kept = 0 if harm == "gone" else 2
    writing.reopen(cleanly=False)
    assert writing.log.end == kept * FRAME
    del writing.batches[1][kept:]
    writing.next[1] = kept
    writing.append(1)
    writing.sync()
    writing.reopen(cleanly=False)
    writing.check()


def test_what_came_behind_the_mark_may_be_a_torn_tail(writing: Writing) -> None:
    append_synced(writing, 3)
    writing.log.mark_synced()
    append_synced(writing, 2)
    flip(open_chunk(writing), FILE_HEAD_BYTES + 3 * FRAME + 70)
    del writing.batches[1][3:]
    writing.next[1] = 3
    writing.reopen(cleanly=False)
    assert writing.log.end == 3 * FRAME
    writing.check()


@pytest.mark.parametrize("harm", ["flip", "empty", "zeros"])
def test_a_mark_that_the_power_took_proves_nothing(writing: Writing, harm: str) -> None:
    append_synced(writing, 3)
    writing.log.mark_synced()
    mark = writing.folder / "synced"
    match harm:
        case "flip":
            flip(mark, 18)
        case "empty":
            mark.write_bytes(b"")
        case "zeros":
            mark.write_bytes(bytes(64))
    flip(open_chunk(writing), FILE_HEAD_BYTES + FRAME + 70)
    writing.reopen(cleanly=False)
    assert writing.log.end == FRAME


def test_a_mark_that_the_disk_cannot_read_is_damage(writing: Writing) -> None:
    """The mark may have proved that more was synced than is left."""
    writing.append()
    writing.sync()
    writing.log.close()
    mark = writing.folder / "synced"
    mark.unlink(missing_ok=True)
    mark.symlink_to("/proc/self/mem")  # reading at its beginning fails with EIO
    with pytest.raises(CorruptLog, match="the disk cannot read it"):
        writing.reopen(cleanly=False)


def test_only_what_is_synced_is_marked(writing: Writing) -> None:
    append_synced(writing, 2)
    writing.append(1)
    writing.log.mark_synced()
    assert read_mark(writing.folder) == 2 * FRAME
    fast = type(writing)(writing.folder.with_name("fast"), replace(writing.options, fsync=False, mark_s=0))
    append_synced(fast, 2)
    fast.log.mark_synced()
    assert read_mark(fast.folder) == 0


def test_a_mark_is_made_with_the_first_sync_after_its_time(writing: Writing) -> None:
    often = type(writing)(writing.folder.with_name("often"), replace(writing.options, mark_s=0))
    append_synced(often, 2)
    assert read_mark(often.folder) == 2 * FRAME
    append_synced(writing, 2)
    assert read_mark(writing.folder) == 0


def test_a_mark_for_which_there_is_no_room_is_left_out(writing: Writing, monkeypatch: pytest.MonkeyPatch) -> None:
    append_synced(writing, 2)
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", lambda *_: _raise(OSError(errno.ENOSPC, "no space left on device")))
        writing.log.mark_synced()
    assert read_mark(writing.folder) == 0
    writing.log.mark_synced()
    assert read_mark(writing.folder) == 2 * FRAME
    writing.reopen(cleanly=False)
    writing.check()


def _raise(error: Exception) -> None:
    raise error


def test_a_damaged_checkpoint_costs_a_longer_scan_and_nothing_else(writing: Writing) -> None:
    writing.fill_tables(4)
    index = open_chunk(writing).with_suffix(".index")
    raw = index.read_bytes()
    for at in range(0, len(raw), 31):
        flip(index, at)
        writing.reopen(cleanly=False)
        writing.check()
        index.write_bytes(raw)
    for cut in (0, 10, 63, 64, 200, len(raw) - 1):
        index.write_bytes(raw[:cut])
        writing.reopen(cleanly=False)
        writing.check()
        index.write_bytes(raw)


def test_intact_checkpoints_behind_a_damaged_one_still_prove_what_was_synced(writing: Writing) -> None:
    writing.fill_tables(4)
    path = open_chunk(writing)
    flip(path.with_suffix(".index"), FILE_HEAD_BYTES + 130)
    second = writing.log.chunks()[0].body.parts[2].start
    flip(path, FILE_HEAD_BYTES + second + 3)
    with pytest.raises(CorruptLog, match=rf"position {second}\): .*synced"):
        writing.reopen(cleanly=False)


def test_a_chunk_shorter_than_its_checkpoints_is_corruption(writing: Writing) -> None:
    writing.fill_tables(2)
    os.truncate(open_chunk(writing), 2000)
    with pytest.raises(CorruptLog, match="too early"):
        writing.reopen(cleanly=False)


def test_checkpoints_beyond_the_next_chunk_are_corruption_and_named(writing: Writing) -> None:
    writing.fill_tables(2)
    path = open_chunk(writing)
    synced = writing.log.chunks()[0].body.parts[-1].start
    shutil.copyfile(path, chunk_path(writing.folder, synced - 10))
    with pytest.raises(CorruptLog, match=rf"checkpoints end 10 bytes behind the next chunk's start, {synced - 10}\."):
        writing.reopen(cleanly=False)


def test_damage_in_a_full_chunk_that_is_not_closed_yet_is_corruption(writing: Writing) -> None:
    writing.fill_chunks(1)
    first = writing.log.chunks()[0]
    first.index_path.unlink()
    flip(first.path, FILE_HEAD_BYTES + first.end - 10)
    with pytest.raises(CorruptLog, match="synced"):
        writing.reopen(cleanly=False)


def test_little_is_scanned_at_any_moment(writing: Writing) -> None:
    """Reopens the log after each sync, across full tables and chunks, with frames of all sizes."""
    folder = writing.folder
    for row in range(70):
        size = (40, 300, 2000, 5000)[row % 4]
        writing.append(row % 3, size=size)
        writing.append(row % 3, size=40)
        job = writing.log.take_job()
        writing.log.write_job(job)
        copy = folder.with_name("copy")
        shutil.copytree(folder, copy)
        log = ContainerLog.open(copy, writing.options)
        assert log.end == writing.log.end
        assert log.scanned_bytes <= writing.options.checkpoint_bytes + 5000 + 117
        writing.log.job_done(job)
        shutil.rmtree(copy)
    assert len(writing.log.chunks()) >= 3


def test_a_start_without_checkpoints_does_not_repeat_its_long_scan(writing: Writing) -> None:
    while writing.log.end < 40_000:
        writing.append(1)
    writing.sync()
    open_chunk(writing).with_suffix(".index").unlink()
    writing.reopen(cleanly=False)
    assert writing.log.scanned_bytes == writing.log.end
    writing.reopen(cleanly=False)
    assert writing.log.scanned_bytes == 0
    writing.check()


def test_a_newer_format_is_refused_with_a_clear_line(writing: Writing) -> None:
    writing.fill_chunks(1)
    paths = [chunk.path for chunk in writing.log.chunks()]
    head = bytearray(paths[0].read_bytes()[:60])
    head[12] = 2
    poke(paths[0], 0, head + crc32c(head).to_bytes(4, "little"))
    with pytest.raises(FolderRefused, match=r"has format 2, this Headrace knows up to 1\. Start the newer version"):
        writing.reopen(cleanly=False)


@pytest.mark.parametrize("payload", [b"", b"of a later version" * 100])
@pytest.mark.parametrize("below_the_mark", [False, True])
def test_a_sound_frame_of_an_unknown_type_is_refused_and_nothing_is_cut(
    writing: Writing, payload: bytes, below_the_mark: bool
) -> None:
    """Formerly it counted as a torn tail, and everything behind it was zeroed."""
    writing.append(1)
    writing.sync()
    path = open_chunk(writing)
    writing.log.append_control(type=99, epoch=1, partitionlet=0, payload=payload)
    writing.append(1)
    writing.sync()
    if below_the_mark:
        writing.log.mark_synced()
    before = path.read_bytes()
    with pytest.raises(NewerFormat, match="a frame of type 99 is of a newer version"):
        writing.reopen(cleanly=False)
    assert path.read_bytes() == before


def test_a_torn_frame_of_an_unknown_type_is_cut(writing: Writing) -> None:
    writing.append(1)
    writing.sync()
    end = writing.log.end
    frame = bytearray(
        control_frame(type=99, epoch=1, position=end, partitionlet=0, first=-1, last=-1, payload=b"of a later version")
    )
    frame[-1] ^= 1
    poke(open_chunk(writing), FILE_HEAD_BYTES + end, frame)
    writing.reopen(cleanly=False)
    assert writing.log.end == end
    writing.check()


@pytest.mark.parametrize("content", [b"", b"short", b"#!/bin/sh\n" * 100, bytes(1000)])
def test_a_foreign_file_is_corruption_with_its_path(writing: Writing, content: bytes) -> None:
    writing.append(1)
    writing.sync()
    path = open_chunk(writing)
    path.write_bytes(content)
    with pytest.raises(CorruptLog, match=path.name):
        writing.reopen(cleanly=False)


def test_a_lost_chunk_is_corruption_a_dropped_one_is_not(writing: Writing) -> None:
    writing.fill_chunks(3)
    writing.close_chunks()
    chunks = writing.log.closed_chunks()
    writing.log.drop_chunk(chunks[1])
    writing.reopen()
    assert len(writing.log.chunks()) == 3
    (mark,) = writing.folder.glob("*.dropped")
    mark.unlink()
    with pytest.raises(CorruptLog, match="no chunk from position"):
        writing.reopen(cleanly=False)


def test_files_of_others_are_left_alone(writing: Writing) -> None:
    writing.append(1)
    writing.sync()
    notes = [writing.folder / name for name in ("notes.txt", "1.chunk", "00000000000000000000.chunk.bak")]
    for note in notes:
        note.write_text("mine")
    writing.reopen()
    assert all(note.read_text() == "mine" for note in notes)


def test_unsynced_options_recover_alike(writing: Writing, tmp_path: Path) -> None:
    fast = type(writing)(tmp_path / "fast", replace(writing.options, fsync=False))
    fast.fill_chunks(2)
    fast.close_chunks()
    fast.reopen()
    fast.check()


def test_checkpoints_that_the_disk_cannot_read_are_damage(writing: Writing, monkeypatch: pytest.MonkeyPatch) -> None:
    writing.fill_tables(3)
    writing.log.close()
    (path,) = writing.folder.glob("*.index")
    bad_sector(monkeypatch, path, path.stat().st_size - 8)
    with pytest.raises(CorruptLog, match="the disk cannot read it"):
        ContainerLog.open(writing.folder, writing.options)


def test_frames_that_the_disk_cannot_read_are_not_regrouped(writing: Writing, monkeypatch: pytest.MonkeyPatch) -> None:
    writing.fill_chunks(1, partitionlets=9)
    writing.close_chunks()
    (chunk,) = writing.log.closed_chunks()
    bad_sector(monkeypatch, chunk.path, chunk.body.frames_end // 2)
    with pytest.raises(CorruptLog, match="the disk cannot read it"):
        rewrite(chunk.path)
    assert not regrouped_path(chunk.path).exists()
