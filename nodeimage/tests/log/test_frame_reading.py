"""Raw frames that one replica's log sends to another."""

import os
import threading
from pathlib import Path
from typing import Any
from weakref import ref

import pytest

from headrace.base.errors import CorruptLog
from headrace.log import frame_reading
from headrace.log.container_log import ContainerLog, Layouts, LogOptions
from headrace.log.files import FILE_HEAD_BYTES
from headrace.log.frames import FrameType
from headrace.log.regroup import rewrite
from kit.written_log import Writing

FOREVER = 1 << 60
FRAME = 56 + 61 + 40


def state_of(log: ContainerLog, partitionlets: Any) -> list[Any]:
    """The states of partitionlets according to the index."""
    return [log.load(partitionlet) for partitionlet in partitionlets]


def mixed(writing: Writing, rows: int) -> None:
    """Appends batches of several partitionlets, epochs and producers, and control frames between them."""
    for row in range(rows):
        writing.append(
            row % 3,
            records=2,
            epoch=1 + row // 50,
            timestamp=row * 7 % 100,
            producer=60 + row % 2 if row % 4 else -1,
            producer_epoch=0 if row % 4 else -1,
            sequence=row * 2 if row % 4 else -1,
        )
        if row % 7 == 0:
            if not writing.log.room(100):
                writing.log.make_spare()
            writing.log.append_control(
                type=FrameType.MARKER, epoch=1 + row // 50, partitionlet=row % 3, payload=b"%d" % row, first=row
            )
        if row % 5 == 0:
            writing.sync()
    writing.sync()


@pytest.mark.parametrize("max_bytes", [1, 700, 20_000, 1 << 20])
def test_a_copy_answers_as_its_original(writing: Writing, tmp_path: Path, copy_log: Any, max_bytes: int) -> None:
    mixed(writing, 900)
    assert len(writing.log.chunks()) > 2
    target = ContainerLog.open(tmp_path / "copy", writing.options)
    copy_log(writing.log, target, max_bytes=max_bytes)
    assert target.end == writing.log.end == target.synced
    for _ in range(2):
        assert state_of(target, range(3)) == state_of(writing.log, range(3))
        for partitionlet in range(3):
            expected = writing.log.read(partitionlet, 0, limit=FOREVER, max_bytes=FOREVER)
            assert target.read(partitionlet, 0, limit=FOREVER, max_bytes=FOREVER) == expected
        assert list(target.control_frames(target.start, target.end)) == list(
            writing.log.control_frames(writing.log.start, writing.log.end)
        )
        target.close()
        target = ContainerLog.open(tmp_path / "copy", writing.options)
    newest = writing.batches[1][-1]
    assert writing.log.read_tail(1, writing.next[1] - 1, limit=FOREVER, max_bytes=1) == [newest]


def test_a_copy_serves_its_newest_batches_from_memory_without_copying_them(writing: Writing, tmp_path: Path) -> None:
    for _ in range(3):
        writing.append(1)
    writing.sync()
    target = ContainerLog.open(tmp_path / "copy", writing.options)
    piece = memoryview(b"".join(writing.log.read_frames(0, until=writing.log.synced, max_bytes=FOREVER)))
    target.append_frames(piece)
    batches = target.read_tail(1, 1, limit=FOREVER, max_bytes=FOREVER)
    assert batches == writing.batches[1][1:]
    assert all(batch.obj is piece.obj for batch in batches or ())
    assert target.pending_bytes == len(piece)
    assert target.tail_state(1) == (3, 1)


def test_raw_frames_end_where_they_are_told_to_and_go_on_from_there(writing: Writing) -> None:
    for _ in range(10):
        writing.append(1)
    writing.sync()
    log = writing.log
    assert log.read_frames(0, until=4 * FRAME, max_bytes=FOREVER).end == 4 * FRAME
    assert log.read_frames(0, until=FOREVER, max_bytes=2 * FRAME + 10).end == 2 * FRAME
    assert log.read_frames(0, until=FOREVER, max_bytes=1).end == FRAME
    assert log.read_frames(log.end, until=FOREVER, max_bytes=1) == []
    writing.append(1)
    assert log.read_frames(10 * FRAME, until=FOREVER, max_bytes=1) == []  # not written yet
    with pytest.raises(CorruptLog):
        log.read_frames(FRAME + 1, until=FOREVER, max_bytes=1)


@pytest.mark.parametrize("at", [0, 4, 8, 13, 16, 24, 50, 60, 76, FRAME + 20, 3 * FRAME - 1])
def test_frames_that_are_damaged_or_out_of_place_are_refused_whole(writing: Writing, tmp_path: Path, at: int) -> None:
    for _ in range(2):
        writing.append(1)
    writing.log.append_control(type=FrameType.COMMAND, epoch=1, partitionlet=0, payload=bytes(FRAME - 56))
    writing.sync()
    good = b"".join(writing.log.read_frames(0, until=FOREVER, max_bytes=FOREVER))
    assert len(good) == 3 * FRAME
    target = ContainerLog.open(tmp_path / "copy", writing.options)
    damaged = bytearray(good)
    damaged[at] ^= 1
    for frames in (bytes(damaged), good[FRAME:], good[: FRAME + 1 + at % (FRAME - 1)], good[:FRAME] + good[:FRAME]):
        with pytest.raises(CorruptLog):
            target.append_frames(memoryview(frames))
        assert (target.end, target.take_job()) == (0, None)
        assert target.load(1).next_offset is None
    assert target.append_frames(memoryview(b"")) == 0
    assert target.append_frames(memoryview(good)) == writing.log.end


def test_a_damaged_frame_is_not_sent_and_those_before_it_are(writing: Writing) -> None:
    for _ in range(5):
        writing.append(1)
    writing.sync()
    chunk = writing.log.chunks()[0]
    os.pwrite(chunk.body.opened().fd, b"?", FILE_HEAD_BYTES + 3 * FRAME + 120)
    assert writing.log.read_frames(0, until=FOREVER, max_bytes=FOREVER).end == 3 * FRAME
    with pytest.raises(CorruptLog):
        writing.log.read_frames(3 * FRAME, until=FOREVER, max_bytes=FOREVER)


def test_a_copy_starts_at_its_begin_and_remembers_it(
    writing: Writing, tmp_path: Path, options: LogOptions, copy_log: Any
) -> None:
    mixed(writing, 100)
    begin = writing.log.read_frames(0, until=FOREVER, max_bytes=5000).end
    target = ContainerLog.open(tmp_path / "copy", options, begin=begin)
    assert (target.start, target.end, target.synced) == (begin, begin, begin)
    target.close()
    target = ContainerLog.open(tmp_path / "copy", options, begin=7)
    assert target.end == begin
    copy_log(writing.log, target)
    target.close()
    target = ContainerLog.open(tmp_path / "copy", options, begin=7)
    assert (target.start, target.end) == (begin, writing.log.end)
    assert not list((tmp_path / "copy").glob("*.begin"))


def test_a_copy_lays_each_regrouped_chunk_out_once_and_keeps_only_the_newest(
    writing: Writing, tmp_path: Path, copy_log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With small frames a layout is large, and a node sends the frames of many containers."""
    writing.fill_chunks(3, partitionlets=20)
    writing.close_chunks()
    for chunk in writing.log.closed_chunks():
        rewrite(chunk.path)
        writing.log.reopen_chunk(chunk)
    built: list[ref[frame_reading.Layout]] = []
    most = 0

    def counted(*chunk: Any) -> frame_reading.Layout:
        nonlocal most
        layout = lay_out(*chunk)
        most = max(most, sum(each() is not None for each in built))
        built.append(ref(layout))
        return layout

    lay_out = frame_reading._frames_layout
    monkeypatch.setattr(frame_reading, "_frames_layout", counted)
    copy_log(writing.log, ContainerLog.open(tmp_path / "copy", writing.options))
    assert len(built) == 3
    assert most == 0, "the one before has gone"
    assert built[-1]() is None, "and the last one with its copy"


def test_the_file_of_a_chunk_that_was_dropped_goes_though_a_copy_is_under_way(writing: Writing) -> None:
    writing.fill_chunks(1, partitionlets=20)
    writing.close_chunks()
    (chunk,) = writing.log.closed_chunks()
    rewrite(chunk.path)
    writing.log.reopen_chunk(chunk)
    layouts = Layouts()
    writing.log.read_frames(0, until=FOREVER, max_bytes=1, layouts=layouts)
    body = ref(chunk.body)
    writing.log.drop_chunk(chunk)
    del chunk
    assert body() is None


def test_frames_are_read_in_threads_while_the_log_grows(writing: Writing, tmp_path: Path, copy_log: Any) -> None:
    target = ContainerLog.open(tmp_path / "copy", writing.options)
    writing.append(1)
    writing.sync()
    done = threading.Event()
    errors: list[BaseException] = []

    def follow() -> None:
        try:
            while not done.is_set() or target.end < writing.log.synced:
                copy_log(writing.log, target)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        mixed(writing, 1000)
        writing.close_chunks()
        mixed(writing, 1000)
    finally:
        done.set()
        thread.join()
    assert errors == []
    assert target.end == writing.log.end
    assert state_of(target, range(3)) == state_of(writing.log, range(3))


def test_chunks_are_offered_for_closing_once_they_are_committed(writing: Writing) -> None:
    writing.fill_chunks(3)
    first, second, _ = writing.log.chunks_to_close()
    assert writing.log.chunks_to_close(first.end - 1) == []
    assert writing.log.chunks_to_close(first.end) == [first]
    assert writing.log.chunks_to_close(second.end + 1) == [first, second]
