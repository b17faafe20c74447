"""What is cut leaves no traces."""

import itertools
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import CorruptLog, StorageFull
from headrace.base.ids import Position
from headrace.log import cutting
from headrace.log.container_log import ContainerLog, LogOptions
from headrace.log.files import FILE_HEAD_BYTES, OpenFile
from headrace.log.folder import CUT, make_mark
from headrace.log.frames import HEADER_BYTES, gap_frames
from headrace.log.scrub import Scrubbed, scrub
from kit.written_log import Writing

FOREVER = 1 << 60
FRAME = 56 + 61 + 40


def bounds(log: ContainerLog) -> list[int]:
    """The positions at which frames end."""
    found = [log.start]
    while found[-1] < log.synced:
        found.append(log.read_frames(found[-1], until=log.synced, max_bytes=1).end)
    return found


def contents(log: ContainerLog, partitionlets: range) -> list[Any]:
    """The results of all queries."""
    return [
        (
            log.load(partitionlet),
            b"".join(log.read(partitionlet, 0, limit=FOREVER, max_bytes=FOREVER)),
            list(log.controls_of(partitionlet)),
        )
        for partitionlet in partitionlets
    ]


@pytest.mark.parametrize("closed", [False, True])
def test_a_log_cut_at_a_frame_is_as_one_that_never_had_the_rest(
    writing: Writing, tmp_path: Path, options: LogOptions, closed: bool
) -> None:
    for row in range(700):
        writing.append(row % 3, epoch=1 + row // 200, producer=5, producer_epoch=0, sequence=row, timestamp=row)
        if row % 10 == 0:
            writing.sync()
    writing.sync()
    if closed:
        writing.close_chunks()
    positions = bounds(writing.log)
    starts = [chunk.start for chunk in writing.log.chunks()]
    assert len(starts) == 2
    writing.log.mark_synced()  # frames that are cut must not count as lost
    frames = {
        end: writing.log.read_frames(start, until=end, max_bytes=1) for start, end in itertools.pairwise(positions)
    }
    writing.log.close()
    other = ContainerLog.open(tmp_path / "other", options)
    near = {*range(1, 4), *range(98, 104), *range(410, 425), *range(698, 701)}
    for row, position in enumerate(positions):
        if row:
            piece = memoryview(b"".join(frames[position]))
            if not other.room(len(piece)):
                other.make_spare()
            other.append_frames(piece)
            while (job := other.take_job()) is not None:
                other.write_job(job)
                other.job_done(job)
        if row not in near and position not in starts:
            continue
        folder = tmp_path / f"cut-{position}"
        shutil.copytree(writing.folder, folder)
        ContainerLog.cut(folder, position, options)
        assert not list(folder.glob("*.cut"))
        log = ContainerLog.open(folder, options)
        assert (log.end, log.start) == (position, 0)
        assert contents(log, range(3)) == contents(other, range(3))
        log.close()
        assert list(scrub(folder, Scrubbed())) == []
        shutil.rmtree(folder)


def append_gap(log: ContainerLog, length: int) -> None:
    """Appends a gap, as for frames whose space was freed before this replica got them."""
    headers = b"".join(header for header, _ in gap_frames(log.end, log.end + length, most=FOREVER))
    for _ in range(2):
        try:
            log.append_frames(memoryview(headers))
            return
        except StorageFull:
            log.make_spare()


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("into", [HEADER_BYTES, 3000, 4999])
def test_a_log_cut_within_a_gap_ends_there(writing: Writing, options: LogOptions, closed: bool, into: int) -> None:
    """Invariant 7: otherwise the log would count as complete up to the gap's end, which it is not."""
    writing.fill_tables(1)
    writing.append(1)
    kept, held = writing.log.end, dict(writing.next)
    append_gap(writing.log, 5000)
    writing.append(2)
    if closed:
        writing.log.close_open_chunk()
    writing.sync()
    writing.close_chunks()
    writing.log.close()
    for _ in range(2):
        ContainerLog.cut(writing.folder, Position(kept + into), options)
        writing.log = ContainerLog.open(writing.folder, options)
        assert writing.log.end == kept + into
        writing.log.close()
    assert list(scrub(writing.folder, Scrubbed())) == []
    writing.log = ContainerLog.open(writing.folder, options)
    writing.next, writing.batches = held, {1: writing.batches[1]}
    writing.append(1)
    writing.sync()
    writing.reopen(cleanly=False)
    writing.check()


@pytest.mark.parametrize("closed", [False, True])
def test_a_cut_leaves_what_readers_have_mapped_as_it_was(writing: Writing, options: LogOptions, closed: bool) -> None:
    """Reading a mapped file that has become shorter kills the process."""
    writing.fill_tables(4)
    if closed:
        writing.log.close_open_chunk()
        writing.sync()
        writing.close_chunks()
    (chunk,) = writing.log.chunks()
    body = chunk.body  # a reader may keep it after the log is closed
    known = [list(part.summaries()) for part in body.parts]
    mapped = OpenFile.open(chunk.path if closed else chunk.index_path)
    size = os.fstat(mapped.fd).st_size
    writing.log.close()
    ContainerLog.cut(writing.folder, Position(FRAME), options)
    assert os.fstat(mapped.fd).st_size == size
    assert [list(part.summaries()) for part in body.parts] == known


def test_a_log_is_cut_on_a_full_disk(writing: Writing, options: LogOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its checkpoints are removed if there is no room to rewrite the remaining ones."""
    writing.fill_tables(2)
    position = writing.log.chunks()[0].body.parts[0].end + FRAME
    writing.log.close()

    def full(*_: object) -> None:
        raise StorageFull("no room")

    monkeypatch.setattr(cutting, "replace_file", full)
    ContainerLog.cut(writing.folder, Position(position), options)
    writing.log = ContainerLog.open(writing.folder, options)
    assert writing.log.end == writing.log.scanned_bytes == position


@pytest.mark.parametrize("written", [slice(4), slice(5), slice(3, 8), slice(4, 8), slice(5, 8)])
def test_a_gap_whose_header_was_torn_by_a_crash_in_a_cut_ends_there_all_the_same(
    writing: Writing, options: LogOptions, written: slice
) -> None:
    append_gap(writing.log, 5000)
    writing.sync()
    ((header, _),) = gap_frames(0, 3000, most=1)
    path = writing.log.chunks()[0].path
    writing.log.close()
    make_mark(writing.folder, 3000, CUT)
    with path.open("r+b") as file:
        file.seek(FILE_HEAD_BYTES + (written.start or 0))
        file.write(header[written])
    assert ContainerLog.open(writing.folder, options).end == 3000


def test_a_log_is_not_cut_where_what_is_left_of_a_gap_holds_no_header(writing: Writing, options: LogOptions) -> None:
    append_gap(writing.log, 5000)
    writing.sync()
    writing.log.close()
    with pytest.raises(CorruptLog):
        ContainerLog.cut(writing.folder, Position(HEADER_BYTES - 1), options)


def test_nothing_that_was_cut_can_be_taken_for_a_frame_again(writing: Writing, options: LogOptions) -> None:
    """All frames have the same length, so that the old third frame would follow a new second one."""
    for _ in range(200):
        writing.append(1)
        writing.sync()
    path = writing.log.chunks()[0].path
    writing.log.close()
    ContainerLog.cut(writing.folder, FRAME, options)
    assert not any(path.read_bytes()[FILE_HEAD_BYTES + FRAME :])
    assert path.with_suffix(".index").stat().st_size == FILE_HEAD_BYTES
    for partitionlet in (1, 2):
        writing.next, writing.batches = {1: 1}, {1: writing.batches[1][:1]}
        writing.log = ContainerLog.open(writing.folder, options)
        writing.append(partitionlet)
        writing.sync()
        writing.reopen(cleanly=False)
        assert writing.log.end == 2 * FRAME
        writing.check()
        writing.log.close()
        ContainerLog.cut(writing.folder, FRAME, options)


def test_a_cut_within_a_frame_or_behind_the_end_changes_nothing(writing: Writing, options: LogOptions) -> None:
    writing.fill_chunks(1)
    writing.close_chunks()
    end = writing.log.end
    writing.log.close()
    for position in (1, FRAME - 1, 100 * FRAME + 56, end - 1, end + 1, end + FRAME):
        with pytest.raises(ValueError if position > end else CorruptLog, match=str(position)):
            ContainerLog.cut(writing.folder, position, options)
    ContainerLog.cut(writing.folder, end, options)
    writing.log = ContainerLog.open(writing.folder, options)
    assert writing.log.end == end
    writing.check()


def test_a_log_cut_at_or_below_its_start_is_empty_and_starts_there(writing: Writing, options: LogOptions) -> None:
    writing.fill_chunks(3)
    writing.close_chunks()
    chunks = writing.log.chunks()
    writing.log.drop_chunk(chunks[0])
    writing.log.drop_chunk(chunks[2])
    writing.log.close()
    for position in (chunks[1].start, 50):
        ContainerLog.cut(writing.folder, position, options)
        assert [path.name for path in writing.folder.iterdir()] == [f"{position:020d}.begin"]
        log = ContainerLog.open(writing.folder, options)
        assert (log.start, log.end) == (position, position)
        log.close()


def test_a_log_that_is_reset_is_empty_and_starts_where_it_was_told(writing: Writing, options: LogOptions) -> None:
    writing.fill_chunks(2)
    writing.close_chunks()
    writing.log.drop_chunk(writing.log.chunks()[0])
    writing.log.mark_synced()
    writing.log.close()
    for begin in (500, 100, 0):
        ContainerLog.reset(writing.folder, begin)
        writing.log = ContainerLog.open(writing.folder, options, begin=77)
        assert (writing.log.start, writing.log.end) == (begin, begin)
        writing.next.clear()
        writing.batches.clear()
        writing.append(1)
        writing.sync()
        writing.reopen()
        writing.check()
        assert writing.log.end == begin + FRAME
        writing.log.close()
