"""Reading a partitionlet over all chunks: its frames, its state, and offsets by time."""

import os
import threading

import pytest

from headrace.log.container_log import ContainerLog
from headrace.log.files import FILE_HEAD_BYTES
from headrace.log.frames import FrameType
from headrace.log.regroup import rewrite
from headrace.log.segment import BLOCK_BYTES
from kit.written_log import Writing

FOREVER = 1 << 60


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


def test_what_is_read_ahead_follows_what_was_read_and_ends_where_the_reader_does(
    writing: Writing, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing.fill_chunks(3, partitionlets=2, size=700)
    writing.close_chunks()
    log, limit = writing.log, writing.next[1]
    read = log.read(1, 0, limit=limit, max_bytes=20_000)
    size = sum(map(len, read))
    asked: list[tuple[int, int]] = []

    def will_need(_fd: int, offset: int, length: int) -> bool:
        asked.append((offset, length))
        return True

    monkeypatch.setattr("headrace.log.reading.will_need", will_need)
    found = log.read_ahead(1, 0, limit=limit, read_bytes=size, max_bytes=20_000)
    assert found == sum(length for _, length in asked)
    first, *_ = log.chunks()
    places = [place for part in first.body.parts for place in part.places(1, 0)]
    passed = next(at for at in range(len(places)) if sum(place.length for place in places[:at]) >= size)
    assert asked[0][0] == FILE_HEAD_BYTES + places[passed].at, "where the next read begins, or just before"
    assert 20_000 <= sum(length for _, length in asked) < 20_000 * 2 + 2 * BLOCK_BYTES
    everything = sum(map(len, log.read(1, 0, limit=limit, max_bytes=FOREVER)))
    assert log.read_ahead(1, 0, limit=limit, read_bytes=everything * 2, max_bytes=20_000) == 0, "nothing follows"
    assert log.read_ahead(1, 0, limit=1, read_bytes=0, max_bytes=20_000) < 20_000, "nothing behind the limit"
    monkeypatch.setattr("headrace.log.reading.will_need", lambda *_: False)
    assert log.read_ahead(1, 0, limit=limit, read_bytes=size, max_bytes=20_000) == 0, "the kernel takes no advice"


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


def test_a_partly_dead_partitionlet_reads_on_from_the_first_place_that_is_kept(writing: Writing) -> None:
    writing.fill_chunks(1, partitionlets=3, size=700)
    writing.close_chunks()
    (chunk,) = writing.log.closed_chunks()
    writing.log.punch(chunk, {2: 10})
    assert writing.read_all(2) == b"".join(writing.batches[2][10:])
    assert writing.log.load(2).first == 10
    assert next(s for s in writing.log.summaries(chunk) if s.partitionlet == 2).first == 10
    writing.log.punch(chunk, {2: 5})  # dead offsets stay dead
    assert writing.log.load(2).first == 10


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
