"""A log under a limit of open files: closed chunks share few descriptors, and without any, operations are put off.

The limit is the kernel's own, lowered for a while: open files stay open, and no more files can be opened.
"""

import errno
import gc
import os
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import CorruptLog, HeadraceError, OutOfDescriptors, StorageFull
from headrace.base.ids import Position
from headrace.log import descriptors
from headrace.log.chunk import ClosedFile
from headrace.log.container_log import ContainerLog
from headrace.log.descriptors import OPENED, OpenedFiles, listing
from headrace.log.folder import CUT, marks_in
from headrace.log.regroup import rewrite
from headrace.log.scrub import Scrubbed, scrub

STRIDE = 5


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Within this context nothing can be opened."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def fails_once(at: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The open call number `at` finds no descriptor. Yields the paths for which a call failed."""
    opened, calls, failed = os.open, [0], []

    def limited(path: Any, *arguments: Any, **more: Any) -> int:
        calls[0] += 1
        if at <= calls[0] < at + 2:  # `open_descriptor` tries twice
            failed.append(str(path))
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        return opened(path, *arguments, **more)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", limited)
        yield failed


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """At most two closed chunks are open at a time."""
    OPENED.make_way()
    monkeypatch.setattr(OPENED, "most", 2)
    yield
    OPENED.make_way()


def descriptors_of(folder: Path) -> int:
    """The number of this process's descriptors of files in `folder`, mappings included."""
    gc.collect()
    found = 0
    for each in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{each}").startswith(str(folder))
        except FileNotFoundError:
            continue
    return found


def let_go(log: ContainerLog) -> None:
    """Closes all closed chunks' files of the log, except for their readers."""
    while any(isinstance(file := chunk.body.file, ClosedFile) and file._opened for chunk in log.closed_chunks()):
        OPENED.make_way()


def again(work: Callable[[], object]) -> None:
    """Runs `work`, and repeats it after OutOfDescriptors, as the log's callers do."""
    try:
        work()
    except OutOfDescriptors:
        work()


def test_closed_chunks_share_few_descriptors(writing: Any, few: None) -> None:
    writing.fill_chunks(12, size=600)
    writing.close_chunks()
    for _ in range(2):
        assert len(writing.log.closed_chunks()) == 12
        assert descriptors_of(writing.folder) <= 2 * 2 + 12  # those of the open chunk: file, spare, mark, checkpoints
        writing.check()
        writing.log.load(1)
        writing.reopen()


def test_a_reader_whose_file_makes_way_reads_on(writing: Any, few: None) -> None:
    writing.fill_chunks(4, size=600)
    writing.close_chunks()
    first = writing.log.closed_chunks()[0]
    held = first.body.opened()
    part = first.body.parts[0]
    expected = os.pread(held.fd, 4096, 0)
    let_go(writing.log)
    assert os.pread(held.fd, 4096, 0) == expected
    assert part.summary(1) is not None
    del held
    writing.check()


def test_who_reads_a_chunk_that_was_not_open_goes_on_when_it_is_replaced_or_dropped(writing: Any, few: None) -> None:
    writing.fill_chunks(3, size=600)
    writing.close_chunks()
    first, second, third = writing.log.closed_chunks()
    bodies, expected = (first.body, second.body), [first.body.read(0, 4096), second.body.read(0, 4096)]
    let_go(writing.log)
    third.body.opened()
    rewrite(first.path)
    writing.log.reopen_chunk(first)
    writing.log.drop_chunk(second)
    for _ in range(3):  # neither counts among the kept files any longer
        first.body.opened()
        third.body.opened()
        OPENED.make_way()
    assert [body.read(0, 4096) for body in bodies] == expected
    assert [body.parts[0].summary(1) is not None for body in bodies] == [True, True]
    del bodies, second
    assert not any("(deleted)" in os.readlink(f"/proc/self/fd/{fd}") for fd in _ours(writing.folder))


def _ours(folder: Path) -> list[str]:
    gc.collect()
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{fd}").startswith(str(folder)):
                found.append(fd)
        except FileNotFoundError:
            continue
    return found


def test_another_file_by_the_same_name_is_never_read(writing: Any, few: None) -> None:
    writing.fill_chunks(2, size=600)
    writing.close_chunks()
    first, second = writing.log.closed_chunks()
    let_go(writing.log)
    copy = first.path.with_suffix(".copy")
    copy.write_bytes(first.path.read_bytes())
    copy.rename(first.path)
    with pytest.raises(CorruptLog, match="another file"):
        first.body.opened()
    second.path.unlink()
    with pytest.raises(CorruptLog, match="is gone"):
        second.body.opened()


def test_a_closed_log_opens_nothing(writing: Any, few: None) -> None:
    writing.fill_chunks(3, size=600)
    writing.close_chunks()
    bodies = [chunk.body for chunk in writing.log.closed_chunks()]
    let_go(writing.log)
    writing.log.close()
    with pytest.raises(HeadraceError, match="closed meanwhile") as error:
        bodies[0].opened()
    assert not isinstance(error.value, CorruptLog)


def test_readers_in_threads_find_their_own_chunks(writing: Any, few: None) -> None:
    writing.fill_chunks(6, size=600)
    writing.close_chunks()
    chunks = writing.log.closed_chunks()
    expected = [chunk.body.read(0, 2048) for chunk in chunks]
    wrong: list[object] = []

    def read(seed: int) -> None:
        try:
            for row in range(600):
                at = (row * 7 + seed) % len(chunks)
                if chunks[at].body.read(0, 2048) != expected[at]:
                    wrong.append(at)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


class Kept:
    def __init__(self) -> None:
        self.recent = False
        self.is_open = True

    def let_go(self) -> bool:
        self.is_open = False
        return True


def test_what_was_used_lately_makes_way_last() -> None:
    opened = OpenedFiles(most=3)
    files = [Kept() for _ in range(3)]
    for each in files:
        opened.opened(each)
    files[0].recent = True
    opened.opened(more := Kept())
    assert [each.is_open for each in (*files, more)] == [True, False, True, True]
    files.pop(2)  # gone by itself
    opened.make_way()
    opened.make_way()
    assert len(opened) <= 1


def test_without_descriptors_appends_that_have_room_are_written(writing: Any) -> None:
    writing.append()
    writing.sync()
    with no_descriptors():
        for _ in range(20):
            writing.append(size=600)  # some checkpoints are due meanwhile
            writing.sync()
        assert writing.log.synced == writing.log.end
    writing.fill_chunks(1)
    writing.check()
    writing.reopen()
    writing.check()


def test_without_descriptors_a_roll_is_put_off_and_loses_nothing(writing: Any) -> None:
    while not writing.log.wants_spare():
        writing.append(size=900)
    writing.sync()
    writing.log.make_spare()
    chunk = writing.log.chunks()[-1]
    while writing.log.chunks()[-1] is chunk:
        writing.append(size=900)
    job = writing.log.take_job()
    with no_descriptors():
        for _ in range(3):
            with pytest.raises(OutOfDescriptors):
                writing.log.write_job(job)
        with pytest.raises(StorageFull):
            writing.log.make_spare()
        assert writing.log.synced < job.end
    writing.log.write_job(job)
    writing.log.job_done(job)
    assert not list(writing.folder.glob("*.tmp"))
    writing.reopen()
    writing.check()


def test_without_descriptors_reads_closing_and_dropping_are_put_off(writing: Any) -> None:
    writing.fill_chunks(3, size=600)
    writing.close_chunks()
    writing.fill_chunks(4, size=600)
    first = writing.log.closed_chunks()[0]
    (full,) = writing.log.chunks_to_close()
    let_go(writing.log)
    with no_descriptors():
        for work in (
            lambda: writing.read_all(1),
            lambda: writing.log.load(1),
            lambda: writing.log.close_chunk(full),
            lambda: writing.log.drop_chunk(first),
            lambda: writing.log.punch(first, {1: 1 << 62}),
            lambda: list(scrub(writing.folder, Scrubbed())),
            lambda: listing(writing.folder),
        ):
            with pytest.raises(OutOfDescriptors):
                work()
        assert descriptors.are_lacking()
    assert not descriptors.are_lacking()
    writing.check()
    writing.log.close_chunk(full)
    assert list(scrub(writing.folder, Scrubbed())) == []
    writing.check()


def test_without_descriptors_a_start_neither_cuts_nor_begins_anew(writing: Any, options: Any) -> None:
    writing.fill_chunks(2, size=600)
    writing.close_chunks()
    end = writing.log.end
    writing.log.close()
    with no_descriptors():
        for _ in range(2):
            with pytest.raises(OutOfDescriptors):
                ContainerLog.open(writing.folder, options)
            with pytest.raises(OutOfDescriptors):
                ContainerLog.cut(writing.folder, Position(0), options)
            with pytest.raises(OutOfDescriptors):
                ContainerLog.reset(writing.folder, Position(0))
    writing.log = ContainerLog.open(writing.folder, options)
    assert writing.log.end == end
    writing.check()


def test_any_call_may_find_no_descriptor(
    tmp_path: Path, writing: Any, options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step is repeated until it succeeds, as the log's callers do. One in `STRIDE` of the calls that open
    something fails (when this was written, each of them did in turn)."""
    for at in range(1, 1_000, STRIDE):
        folder = tmp_path / str(at)
        writing.log.close()
        writing.__init__(folder, options)
        with fails_once(at, monkeypatch) as failed:
            while len(writing.log.chunks()) < 3:
                if not writing.log.room(2000):
                    again(writing.log.make_spare)
                writing.append(1 + len(writing.batches.get(1, ())) % 2, size=1500)
                while (job := writing.log.take_job()) is not None:
                    again(lambda job=job: writing.log.write_job(job))
                    writing.log.job_done(job)
            for chunk in writing.log.chunks_to_close():
                again(lambda chunk=chunk: writing.log.close_chunk(chunk))
            chunk = writing.log.closed_chunks()[0]
            again(lambda chunk=chunk: rewrite(chunk.path))
            again(lambda chunk=chunk: writing.log.reopen_chunk(chunk))
            again(writing.check)
            writing.log.close()
            again(writing.reopen)
            again(writing.check)
            position = writing.log.closed_chunks()[-1].start
            writing.log.close()
            try:
                ContainerLog.cut(folder, position, options)
            except OutOfDescriptors:
                pass  # the next start completes what was begun
            again(writing.reopen)
            if writing.log.end != position:
                writing.log.close()
                ContainerLog.cut(folder, position, options)
                writing.reopen()
            assert writing.log.end == position
            assert marks_in(folder, CUT) == []
        assert list(scrub(folder, Scrubbed())) == [], failed
        if not failed:
            break
    assert at > 60
