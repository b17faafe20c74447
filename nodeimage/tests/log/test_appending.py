"""Where a frame is appended: to the open chunk, to the next one, or nowhere for want of room."""

import os
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import StorageFull
from headrace.log.files import FILE_HEAD_BYTES
from kit.written_log import Writing


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


def open_files(folder: Path) -> int:
    """The number of this process's descriptors of files below `folder`."""
    found = [f"/proc/self/fd/{each}" for each in os.listdir("/proc/self/fd")]
    return sum(os.readlink(each).startswith(f"{folder}/") for each in found if os.path.lexists(each))


def test_the_open_chunk_is_open_twice_once_it_is_asked_for_and_no_longer_than_it_is_the_open_one(
    writing: Writing,
) -> None:
    log = writing.log
    assert log.open_second_file() is None, "there is no chunk"
    writing.append(1)
    writing.sync()
    before = open_files(writing.folder)
    assert not log.can_write_in_parallel
    found = log.open_second_file()
    log.use_second_file(found)
    assert log.can_write_in_parallel
    writing.append(1)
    job = log.take_job()
    assert job is not None
    own, beside = log.direct_write(job), log.direct_write(job, beside=True)
    assert own is not None
    assert beside is not None
    assert found is not None
    assert (beside.file, beside.offset, beside.flags) == (found[1], own.offset, own.flags)
    assert own.file.fd != beside.file.fd
    log.write_job(job)
    log.job_done(job)
    del own, beside
    assert open_files(writing.folder) == before + 1
    writing.fill_chunks(1)
    assert not log.can_write_in_parallel
    log.use_second_file(found)
    assert not log.can_write_in_parallel, "it is another chunk's by now"
    writing.append(1)
    job = log.take_job()
    assert job is not None
    assert log.direct_write(job, beside=True) is None
    log.write_job(job)
    log.job_done(job)
    del found
    log.use_second_file(log.open_second_file())
    log.close()
    assert log.open_second_file() is None
    assert not log.can_write_in_parallel


def test_another_file_of_the_chunks_name_is_not_taken_for_it(writing: Writing) -> None:
    writing.append(1)
    writing.sync()
    path = writing.log.chunks()[0].path
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    other.rename(path)
    assert writing.log.open_second_file() is None


def test_a_first_frame_longer_than_the_recovered_empty_chunk_takes_its_place(writing: Writing) -> None:
    writing.append(1)
    job = writing.log.take_job()
    writing.log.write_job(job)
    chunk = writing.log.chunks()[0]
    os.pwrite(chunk.body.opened().fd, bytes(200), FILE_HEAD_BYTES)  # the frame was never written to disk
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
