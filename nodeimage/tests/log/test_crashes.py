"""The log against a model, with crashes at every call to the disk.

`Disk` replaces the calls by which the log uses the folder's files. It counts the calls that change something; at the
chosen call the process "dies": a write may be done in part, and any unsynced sector may be lost. Names that are
created, renamed and removed count as durable at once. Or a sync fails: its data stays in the page cache and counts as
clean, so that no later sync writes it, and the next power failure loses it. Then the folder is reopened and compared
with the model: nothing that was synced is missing, nothing exists that was not appended, and everything is in order.
"""

import errno
import itertools
import os
import random
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest
from crc32c import crc32c
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.base.errors import SyncFailed
from headrace.base.ids import Position
from headrace.log import files
from headrace.log.container_log import ContainerLog, LogOptions
from headrace.log.files import OpenFile
from headrace.log.frames import FrameType, gap_frames
from headrace.log.regroup import rewrite
from headrace.log.scrub import Scrubbed, scrub

SECTOR = 512
OPTIONS = LogOptions(chunk_bytes=16 << 10, checkpoint_bytes=3 << 10, tail_bytes=8 << 10, mark_s=0)
"""Marks how far the log is synced after each sync: no crash may leave a mark that claims more."""
FOREVER = 1 << 60


class Crash(BaseException):
    """The process died."""


@dataclass(eq=False)
class Written:
    """The former bytes of one sector on the disk."""

    offset: int
    before: bytes
    clean: bool = False
    """Whether a sync of this file failed."""

    @property
    def sector(self) -> int:
        return self.offset // SECTOR


Unsynced = dict[int, tuple[OpenFile, list[Written]]]
"""Writes that are in the page cache only, by inode: the file, and what was written to it, in order."""


class Disk:
    """A disk that counts the calls below `folder`, and crashes at the call number `crash_at`."""

    def __init__(
        self,
        folder: Path,
        *,
        crash_at: int | None = None,
        fail_at: int | None = None,
        seed: int = 0,
        unsynced: Unsynced | None = None,
    ) -> None:
        """`fail_at`: the number of the sync that must fail."""
        self._folder = os.path.realpath(folder)
        self._crash_at = crash_at
        self._fail_at = fail_at
        self._random = random.Random(seed)
        self._unsynced = {} if unsynced is None else unsynced
        self.calls = 0
        self.syncs = 0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with (
            mock.patch.multiple(
                os,
                pwrite=self._write(os.pwrite),
                pwritev=self._writev(os.pwritev),
                fsync=self._sync(os.fsync),
                fdatasync=self._sync(os.fdatasync),
                ftruncate=self._change(os.ftruncate),
                posix_fallocate=self._change(os.posix_fallocate),
            ),
            mock.patch.multiple(Path, rename=self._name(Path.rename), unlink=self._name(Path.unlink)),
            mock.patch.object(files, "_fallocate", self._change(files._fallocate)),
        ):
            yield

    def _ours(self, fd: int) -> bool:
        return os.readlink(f"/proc/self/fd/{fd}").startswith(self._folder)

    def _dies_now(self) -> bool:
        self.calls += 1
        return self.calls - 1 == self._crash_at

    def _die(self) -> None:
        """In half of the cases only the process dies, and the page cache survives until the power fails later."""
        if self._random.random() < 0.5:
            raise Crash
        self.lose_power()
        raise Crash

    def lose_power(self) -> None:
        """Gives each sector one of the states that it has had since it was last synced."""
        for file, written in self._unsynced.values():
            kept: set[int] = set()
            for each in reversed(written):
                if each.sector in kept:
                    continue
                if self._random.random() < 0.3:
                    size = max(os.fstat(file.fd).st_size - each.offset, 0)
                    _REAL_PWRITE(file.fd, each.before[:size], each.offset)
                else:
                    kept.add(each.sector)
        self._unsynced.clear()

    def _note(self, fd: int, offset: int, length: int) -> None:
        """Called before `length` bytes are written."""
        inode = os.fstat(fd).st_ino
        if inode not in self._unsynced:
            self._unsynced[inode] = (OpenFile(os.dup(fd)), [])
        before = os.pread(fd, length, offset).ljust(length, b"\0")
        for start in range(offset - offset % SECTOR, offset + length, SECTOR):
            at, end = max(start, offset), min(start + SECTOR, offset + length)
            self._unsynced[inode][1].append(Written(at, before[at - offset : end - offset]))

    def _write(self, real: Any) -> Any:
        def pwrite(fd: int, content: Any, offset: int) -> int:
            if not self._ours(fd):
                return int(real(fd, content, offset))
            if self._dies_now():
                part = bytes(content)[: self._random.randrange(len(content) + 1)]
                self._note(fd, offset, len(part))
                real(fd, part, offset)
                self._die()
            self._note(fd, offset, len(content))
            return int(real(fd, content, offset))

        return pwrite

    def _writev(self, real: Any) -> Any:
        one = self._write(os.pwrite)

        def pwritev(fd: int, buffers: Any, offset: int, flags: int = 0) -> int:
            if not self._ours(fd):
                return int(real(fd, buffers, offset, flags))
            done = int(one(fd, b"".join(buffers), offset))
            if flags & os.RWF_DSYNC:  # one call, but the power may fail in the middle of it; it syncs its own range
                if self._dies_now():
                    self._die()
                self._sync_written(fd, offset, offset + done)
            return done

        return pwritev

    def _sync(self, real: Any) -> Any:
        def sync(fd: int) -> None:
            if not self._ours(fd):
                real(fd)
                return
            if self._dies_now():
                self._die()
            self._sync_written(fd, 0, 1 << 62)

        return sync

    def _sync_written(self, fd: int, start: int, end: int) -> None:
        """Syncs the sectors that are dirty within these bytes."""
        self.syncs += 1
        _, written = self._unsynced.get(os.fstat(fd).st_ino, (None, []))
        taken = [each for each in written if start <= each.offset and each.offset + len(each.before) <= end]
        if self.syncs - 1 == self._fail_at:
            for each in taken:
                each.clean = True
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sectors = {each.sector for each in taken if not each.clean}
        written[:] = [each for each in written if each not in taken or each.sector not in sectors]

    def _change(self, real: Any) -> Any:
        def change(fd: int, *arguments: int) -> Any:
            if self._ours(fd) and self._dies_now():
                self._die()
            return real(fd, *arguments)

        return change

    def _name(self, real: Any) -> Any:
        def change(path: Path, *arguments: Any, **named: Any) -> Any:
            if os.path.realpath(path.parent).startswith(self._folder) and self._dies_now():
                self._die()
            return real(path, *arguments, **named)

        return change


_REAL_PWRITE = os.pwrite


class Appended(NamedTuple):
    """One frame of the model."""

    position: int
    end: int
    partitionlet: int
    first: int
    payload: bytes
    control: bool


def make_batch(first: int, records: int, size: int) -> memoryview:
    summed = struct.pack(">hiqqqhii", 0, records - 1, first, first, 9, 0, first, records) + os.urandom(size)
    return memoryview(struct.pack(">qiibI", first, 9 + len(summed), 0, 2, crc32c(summed)) + summed)


def first_offsets(raw: bytes) -> list[tuple[int, bytes]]:
    """The (base offset, batch) of each batch in `raw`."""
    found, at = [], 0
    while at < len(raw):
        base, length = struct.unpack_from(">qi", raw, at)
        found.append((base, raw[at : at + 12 + length]))
        at += 12 + length
    return found


class Model:
    """A log, and what it must contain."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.frames: list[Appended] = []
        self.synced = 0
        self.maybe_dead: set[tuple[int, int]] = set()  # (partitionlet, first offset)
        self.unsynced: Unsynced = {}
        self.log: ContainerLog = None  # type: ignore[assignment]
        self.open()

    def open(self) -> None:
        """Opens the folder and checks what a crash left: at least all that was synced, and no partial frame."""
        with self.disk()():
            self.log = ContainerLog.open(self.folder, OPTIONS)
        assert self.log.end == self.log.synced >= self.synced
        assert self.log.end in {0, self.synced, *(frame.end for frame in self.frames)}
        assert self.log.scanned_bytes <= OPTIONS.checkpoint_bytes + 10_000
        self.frames = [frame for frame in self.frames if frame.end <= self.log.end]
        self.synced = self.log.end

    def disk(self, **crash: Any) -> Disk:
        """The disk for one run of the log's code."""
        return Disk(self.folder, unsynced=self.unsynced, **crash)

    def append(self, partitionlet: int, records: int, size: int) -> None:
        first = max((f.first + 10 for f in self.frames if f.partitionlet == partitionlet and not f.control), default=0)
        batch = make_batch(first, records, size)
        self.make_room(len(batch))
        position = self.log.end
        end = self.log.append_batch(
            partitionlet=partitionlet, epoch=1, first=first, last=first + records - 1, max_timestamp=first, batch=batch
        )
        self.frames.append(Appended(position, end, partitionlet, first, bytes(batch), False))

    def append_control(self, partitionlet: int, payload: bytes) -> None:
        self.make_room(len(payload))
        position = self.log.end
        end = self.log.append_control(type=FrameType.COMMAND, epoch=1, partitionlet=partitionlet, payload=payload)
        self.frames.append(Appended(position, end, partitionlet, -1, payload, True))

    def make_room(self, length: int) -> None:
        if not self.log.room(length):
            with self.disk()():
                self.log.make_spare()

    def run(self, work: Callable[[], object], *, crash_at: int | None = None, seed: int = 0) -> bool:
        """Runs `work`; returns whether the process died in it. The log is reopened then."""
        try:
            with self.disk(crash_at=crash_at, seed=seed)():
                work()
        except Crash:
            self.open()
            return True
        return False

    def sync(self, **crash: Any) -> None:
        job = self.log.take_job()
        if job is None:
            return
        if not self.run(lambda: self.log.write_job(job), **crash):
            self.log.job_done(job)
            self.synced = self.log.synced

    def close_chunks(self, **crash: Any) -> None:
        for chunk in self.log.chunks_to_close():
            if self.run(lambda chunk=chunk: self.log.close_chunk(chunk), **crash):  # type: ignore[misc]
                return

    def regroup(self, row: int, **crash: Any) -> None:
        chunk = self.log.closed_chunks()[row]
        if not self.run(lambda: rewrite(chunk.path), **crash):
            self.log.reopen_chunk(chunk)

    def punch(self, row: int, dead: dict[int, int], **crash: Any) -> None:
        chunk = self.log.closed_chunks()[row]
        self.maybe_dead |= {
            (frame.partitionlet, frame.first)
            for frame in self.frames
            if not frame.control and chunk.start <= frame.position < (chunk.end or 0)
            and frame.first < dead.get(frame.partitionlet, 0)
        }  # fmt: skip
        self.run(lambda: self.log.punch(chunk, dead), **crash)

    def drop(self, row: int, **crash: Any) -> None:
        chunk = self.log.closed_chunks()[row]
        start, end = chunk.start, chunk.end or 0
        self.run(lambda: self.log.drop_chunk(chunk), **crash)
        if start not in {chunk.start for chunk in self.log.chunks()}:
            self.frames = [frame for frame in self.frames if not start <= frame.position < end]

    def check(self) -> None:
        """Reads back everything that is synced, from disk and, if it is cached, from memory."""
        synced = [frame for frame in self.frames if frame.end <= self.synced]
        for partitionlet in {frame.partitionlet for frame in synced}:
            mine = [frame for frame in synced if frame.partitionlet == partitionlet and not frame.control]
            limit = mine[-1].first + 10 if mine else 0
            found: list[tuple[int, bytes]] = []
            offset = 0
            while batches := self.log.read(partitionlet, offset, limit=limit, max_bytes=700):
                found += first_offsets(b"".join(batches))
                offset = found[-1][0] + 10
            kept = dict(found)
            assert [first for first, _ in found] == sorted(kept)
            assert kept.items() <= {frame.first: frame.payload for frame in mine}.items()
            missing = {(partitionlet, frame.first) for frame in mine if frame.first not in kept}
            assert missing <= self.maybe_dead
            tail = self.log.read_tail(partitionlet, mine[-1].first, limit=limit, max_bytes=1) if mine else None
            assert tail is None or tail == [mine[-1].payload]
            newest = [f for f in self.frames if f.partitionlet == partitionlet and not f.control][-1:]
            if found and newest and (partitionlet, newest[0].first) not in self.maybe_dead:
                state = self.log.load(partitionlet)
                newest_first = newest[0].first
                assert newest_first < (state.next_offset or 0) <= newest_first + 10
                assert [batch[2] for batch in state.producers[9].batches][-1] == newest_first
        controls = list(self.log.control_frames(self.log.start, self.log.synced))
        assert [(frame.position, bytes(frame.payload)) for frame in controls] == [
            (frame.position, frame.payload) for frame in synced if frame.control
        ]


CRASH = st.one_of(st.none(), st.integers(0, 12))


class LogMachine(RuleBasedStateMachine):
    """All operations in any order."""

    @initialize()
    def start(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.model = Model(self.folder / "container")

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)

    @rule(
        partitionlets=st.lists(st.integers(1, 4), min_size=1, max_size=20),
        records=st.integers(1, 10),
        size=st.sampled_from([0, 40, 700, 5000]),
    )
    def append(self, partitionlets: list[int], records: int, size: int) -> None:
        for partitionlet in partitionlets:
            self.model.append(partitionlet, records, size)

    @rule(partitionlet=st.integers(0, 4), payload=st.binary(max_size=600))
    def append_control(self, partitionlet: int, payload: bytes) -> None:
        self.model.append_control(partitionlet, payload)

    @rule(crash_at=CRASH, seed=st.integers(0, 1 << 16))
    def sync(self, crash_at: int | None, seed: int) -> None:
        self.model.sync(crash_at=crash_at, seed=seed)

    @rule()
    def close_open_chunk(self) -> None:
        self.model.log.close_open_chunk()

    @rule(crash_at=CRASH, seed=st.integers(0, 1 << 16))
    def close_chunks(self, crash_at: int | None, seed: int) -> None:
        self.model.close_chunks(crash_at=crash_at, seed=seed)

    @precondition(lambda self: self.model.log.closed_chunks())
    @rule(row=st.integers(0, 100), crash_at=CRASH, seed=st.integers(0, 1 << 16))
    def regroup(self, row: int, crash_at: int | None, seed: int) -> None:
        self.model.regroup(row % len(self.model.log.closed_chunks()), crash_at=crash_at, seed=seed)

    @precondition(lambda self: self.model.log.closed_chunks())
    @rule(
        row=st.integers(0, 100),
        dead=st.dictionaries(st.integers(1, 4), st.sampled_from([10, 50, 200, 1 << 62]), min_size=1),
        crash_at=CRASH,
        seed=st.integers(0, 1 << 16),
    )
    def punch(self, row: int, dead: dict[int, int], crash_at: int | None, seed: int) -> None:
        self.model.punch(row % len(self.model.log.closed_chunks()), dead, crash_at=crash_at, seed=seed)

    @precondition(lambda self: len(self.model.log.closed_chunks()) > 1)
    @rule(row=st.integers(0, 100), crash_at=CRASH, seed=st.integers(0, 1 << 16))
    def drop(self, row: int, crash_at: int | None, seed: int) -> None:
        self.model.drop(row % len(self.model.log.closed_chunks()), crash_at=crash_at, seed=seed)

    @rule()
    def kill(self) -> None:
        self.model.open()

    @rule()
    def restart(self) -> None:
        with self.model.disk()():
            self.model.log.close()
        self.model.synced = max((frame.end for frame in self.model.frames), default=self.model.synced)
        self.model.open()

    @rule()
    def nothing_is_found_by_a_scrub(self) -> None:
        assert list(scrub(self.model.folder, Scrubbed())) == []

    @invariant()
    def all_is_there(self) -> None:
        if hasattr(self, "model"):
            self.model.check()


TestLog = LogMachine.TestCase
TestLog.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


def fill(model: Model) -> None:
    """Appends two full chunks and the beginning of a third."""
    for row in itertools.count():
        model.append(row % 3 + 1, 2, 500 if row % 5 else 40)
        if row % 7 == 0:
            model.append_control(row % 3 + 1, b"control %d" % row)
        if row % 4 == 0:
            model.sync()
        if len(model.log.chunks()) == 3 and model.log.end - model.log.chunks()[-1].start > 2000:
            break
    model.sync()


STEPS: dict[str, Callable[..., None]] = {
    "close": lambda model, **crash: model.close_chunks(**crash),
    "regroup": lambda model, **crash: model.regroup(0, **crash),
    "punch": lambda model, **crash: model.punch(0, {1: 100, 2: 1 << 62}, **crash),
    "drop the oldest": lambda model, **crash: model.drop(0, **crash),
    "drop another": lambda model, **crash: model.drop(1, **crash),
    "sync": lambda model, **crash: model.sync(**crash),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_call_to_the_disk_loses_nothing(tmp_path: Path, step: str) -> None:
    prepared = Model(tmp_path / "prepared")
    fill(prepared)
    if step != "close":
        prepared.close_chunks()
    crashes = 0
    for crash_at in itertools.count():
        folder = tmp_path / f"crash-{crash_at}"
        shutil.copytree(prepared.folder, folder)
        model = Model.__new__(Model)
        model.folder, model.frames, model.synced = folder, list(prepared.frames), prepared.synced
        model.maybe_dead, model.unsynced = set(), {}
        model.open()
        if step == "sync":
            for row in range(40):  # over the end of the chunk, through several checkpoints
                model.append(row % 3 + 1, 2, 400)
        before = len(model.log.chunks())
        log = model.log
        STEPS[step](model, crash_at=crash_at, seed=crash_at)
        crashed = model.log is not log
        crashes += crashed
        model.check()
        model.append(1, 1, 10)
        STEPS[step](model) if before == len(model.log.chunks()) else None
        model.sync()
        model.check()
        model.open()
        model.check()
        assert list(scrub(folder, Scrubbed())) == []
        assert not list(folder.glob("*.tmp"))
        shutil.rmtree(folder)
        if not crashed:
            break
    assert crashes >= 3


def cut_at(model: Model, place: str) -> int:
    """Prepares a folder; returns the position at which it must be cut."""
    fill(model)
    if place == "in an older chunk that is not closed":
        row = 1
    else:
        model.close_chunks()
        row = 2 if place in ("in the open chunk", "in a gap") else 1
    if place == "in a gap":
        start = model.log.end
        ((header, end),) = gap_frames(start, start + 3000, most=1)
        model.log.append_frames(memoryview(header))
        model.sync()
        return end - 1000
    if place in ("in a regrouped chunk", "in a punched chunk"):
        model.regroup(1)
    if place in ("in a chunk with holes", "in a punched chunk"):
        model.punch(1, {1: 1 << 62})
    chunk = model.log.chunks()[row]
    if place == "between two chunks":
        return chunk.start
    if place == "below all":
        model.drop(0)
        return 100
    beyond = 700 if place == "in the open chunk" else 7000  # so that there are checkpoints below
    return next(frame.end for frame in model.frames if frame.position >= chunk.start + beyond)


@pytest.mark.parametrize(
    "place",
    [
        "in the open chunk",
        "in a gap",
        "in an older chunk that is not closed",
        "in a closed chunk",
        "in a regrouped chunk",
        "in a chunk with holes",
        "in a punched chunk",
        "between two chunks",
        "below all",
    ],
)
def test_a_crash_at_any_call_of_a_cut_leaves_it_done_or_not_begun(tmp_path: Path, place: str) -> None:
    prepared = Model(tmp_path / "prepared")
    position = cut_at(prepared, place)
    prepared.log.close()
    crashes = done_by_start = 0
    for crash_at in itertools.count():
        folder = tmp_path / f"crash-{crash_at}"
        shutil.copytree(prepared.folder, folder)
        unsynced: Unsynced = {}
        crashed = False
        try:
            with Disk(folder, crash_at=crash_at, seed=crash_at, unsynced=unsynced)():
                ContainerLog.cut(folder, Position(position), OPTIONS)
        except Crash:
            crashed = True
            try:  # crash once more, while the start completes the cut
                with Disk(folder, crash_at=crash_at // 2, seed=crash_at + 1, unsynced=unsynced)():
                    ContainerLog.open(folder, OPTIONS).close()
            except Crash:
                pass
        crashes += crashed
        log = ContainerLog.open(folder, OPTIONS)
        assert log.end == position or (crashed and log.end == prepared.synced)
        done_by_start += crashed and log.end == position
        log.close()
        ContainerLog.cut(folder, Position(position), OPTIONS)
        check_what_is_left(folder, prepared, position)
        shutil.rmtree(folder)
        if not crashed:
            break
    assert crashes >= 3
    assert done_by_start


def check_what_is_left(folder: Path, prepared: Model, position: int) -> None:
    """Checks that the frames below `position` exist, none above, and that the log can be appended to."""
    model = Model.__new__(Model)
    model.folder, model.maybe_dead, model.unsynced = folder, set(prepared.maybe_dead), {}
    model.frames, model.synced = [frame for frame in prepared.frames if frame.end <= position], position
    model.open()
    assert model.log.end == position
    assert not [*folder.glob("*.cut"), *folder.glob("*.chunk.tmp")]
    if place_is_empty := position <= model.log.start:
        model.frames.clear()
        assert model.log.chunks() == [] or model.log.chunks()[0].start == position
    model.append(3, 2, 300)
    model.append_control(3, b"new")
    model.sync()
    model.open()
    if place_is_empty or prepared.maybe_dead:
        found = first_offsets(b"".join(model.log.read(3, 0, limit=FOREVER, max_bytes=FOREVER)))
        mine = [frame for frame in model.frames if frame.partitionlet == 3 and not frame.control]
        assert found == [(frame.first, frame.payload) for frame in mine]
    else:
        model.check()
    assert list(scrub(folder, Scrubbed())) == []
    model.log.close()


def test_a_crash_at_any_call_of_a_reset_leaves_an_empty_log_or_all_of_it(tmp_path: Path) -> None:
    prepared = Model(tmp_path / "prepared")
    fill(prepared)
    prepared.close_chunks()
    prepared.punch(0, {1: 50})
    prepared.drop(1)
    prepared.log.close()
    crashes = done_by_start = 0
    for crash_at in itertools.count():
        folder = tmp_path / f"crash-{crash_at}"
        shutil.copytree(prepared.folder, folder)
        begin = Position(prepared.synced // 2)  # the chunks to be removed start above it, too
        crashed = False
        try:
            with Disk(folder, crash_at=crash_at, seed=crash_at)():
                ContainerLog.reset(folder, begin)
        except Crash:
            crashed = True
            if crash_at % 2:
                try:
                    with Disk(folder, crash_at=crash_at // 2, seed=crash_at)():
                        ContainerLog.reset(folder, begin)
                except Crash:
                    pass
        crashes += crashed
        log = ContainerLog.open(folder, OPTIONS)
        assert log.end == begin or (crashed and log.end == prepared.synced)
        done_by_start += crashed and log.end == begin
        log.close()
        ContainerLog.reset(folder, Position(begin + 5))
        assert [path.name for path in folder.iterdir()] == [f"{begin + 5:020d}.begin"]
        if not crashed:
            break
    assert crashes >= 3
    assert done_by_start


def test_what_one_start_found_is_there_for_the_next_though_the_power_fails_between(tmp_path: Path) -> None:
    found = 0
    for seed in range(40):
        model = Model(tmp_path / f"container-{seed}")
        model.append(1, 1, 40)
        model.sync()
        before = model.synced
        model.append(1, 1, 1000)
        model.sync(crash_at=1, seed=seed)  # written, not synced
        found += model.synced > before
        model.append(1, 1, 1000)
        model.sync(crash_at=0, seed=seed + 1)
        model.check()
    assert found


def fails(work: Callable[[], object], disk: Disk) -> bool:
    """Runs `work`; returns whether a sync failed in it, which ends the process."""
    try:
        with disk():
            work()
    except (OSError, SyncFailed):
        return True
    return False


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("step", ["write", "start", "cut"])
def test_what_a_failed_sync_left_in_the_page_cache_alone_is_synced_by_the_next_start(
    tmp_path: Path, step: str, seed: int
) -> None:
    """Invariant 13: after a failed write, also if the start fails; with cuts at the start of a page and in a gap."""
    for fail_at in itertools.count():
        model = Model(tmp_path / f"container-{fail_at}")
        folder, log = model.folder, model.log
        for row in range(30):
            model.append(row % 3 + 1, 2, 300)
            if row == 15:
                model.sync()
        ((header, end),) = gap_frames(log.end, log.end + 3000, most=1)
        log.append_frames(memoryview(header))
        job = log.take_job()
        assert job is not None
        steps: dict[str, Callable[[], object]] = {
            "write": partial(log.write_job, job),
            "start": partial(ContainerLog.open, folder, OPTIONS),
            "cut": partial(ContainerLog.cut, folder, Position(end - 1000), OPTIONS),
        }
        if step != "write":
            assert fails(steps["write"], model.disk(fail_at=0 if step == "start" else None)) == (step == "start")
        failing = model.disk(fail_at=fail_at, seed=seed)
        failed = fails(steps[step], failing)
        with model.disk()():
            started = ContainerLog.open(folder, OPTIONS)
        failing.lose_power()
        assert ContainerLog.open(folder, OPTIONS).end == started.synced
        assert list(scrub(folder, Scrubbed(), synced=started.synced)) == []
        if not failed:
            break
    assert fail_at
