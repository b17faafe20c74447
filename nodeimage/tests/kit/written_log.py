"""Logs in small chunks, the frames written to them, and their copies."""

import ctypes
import math
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from crc32c import crc32c

from headrace.base.errors import StorageFull
from headrace.log.container_log import ContainerLog, Layouts, LogOptions

MakeBatch = Callable[..., memoryview]


def make_batch(
    first: int,
    *,
    records: int = 1,
    timestamp: int = 0,
    size: int = 40,
    producer: int = -1,
    producer_epoch: int = -1,
    sequence: int = -1,
    fill: bytes = b"",
) -> memoryview:
    """A record batch v2 as far as the log reads one: header and checksum are valid, the records are noise."""
    payload = (fill * size)[:size] if fill else os.urandom(size)
    summed = (
        struct.pack(">hiqqqhii", 0, records - 1, timestamp, timestamp, producer, producer_epoch, sequence, records)
        + payload
    )
    head = struct.pack(">qiibI", first, 9 + len(summed), 0, 2, crc32c(summed))
    return memoryview(head + summed)


@pytest.fixture(name="make_batch")
def _make_batch() -> MakeBatch:
    return make_batch


@pytest.fixture
def options() -> LogOptions:
    """Small limits, so that everything happens soon: 64 KiB chunks, checkpoints every 8 KiB. Marks are only written by
    tests.
    """
    return LogOptions(chunk_bytes=64 << 10, checkpoint_bytes=8 << 10, tail_bytes=1 << 20, mark_s=math.inf)


class Writing:
    """A log, the frames appended to it, and shortcuts for appending."""

    def __init__(self, folder: Path, options: LogOptions) -> None:
        self.folder = folder
        self.options = options
        self.log = ContainerLog.open(folder, options)
        self.next: dict[int, int] = {}
        self.batches: dict[int, list[bytes]] = {}

    def append(self, partitionlet: int = 1, *, records: int = 1, epoch: int = 1, **batch: int) -> memoryview:
        """Append a batch at the partitionlet's next offset."""
        first = self.next.get(partitionlet, 0)
        made = make_batch(first, records=records, **batch)
        if not self.log.room(len(made)):
            self.log.make_spare()
        self.log.append_batch(
            partitionlet=partitionlet,
            epoch=epoch,
            first=first,
            last=first + records - 1,
            max_timestamp=batch.get("timestamp", 0),
            batch=made,
        )
        self.next[partitionlet] = first + records
        self.batches.setdefault(partitionlet, []).append(bytes(made))
        return made

    def sync(self) -> None:
        """Write everything that is pending."""
        while (job := self.log.take_job()) is not None:
            self.log.write_job(job)
            self.log.job_done(job)

    def fill_tables(self, count: int) -> None:
        """Append until the open chunk has `count` checkpoints, and a frame after them, synced one by one."""
        self.append()
        self.sync()
        while len(self.log.chunks()[-1].body.parts) <= count:
            self.append()
            self.sync()

    def fill_chunks(self, count: int, *, partitionlets: int = 4, size: int = 40) -> None:
        """Append by turns until `count` chunks are full, synced."""
        row = 0
        while len(self.log.chunks()) <= count:
            self.append(row % partitionlets + 1, size=size, timestamp=row)
            row += 1
            if row % 16 == 0:
                self.sync()
        self.sync()

    def close_chunks(self) -> None:
        """Close the full chunks."""
        for chunk in self.log.chunks_to_close():
            self.log.close_chunk(chunk)

    def read_all(self, partitionlet: int, *, offset: int = 0, max_bytes: int = 4096) -> bytes:
        """Everything from `offset` on, from disk."""
        found = b""
        while batches := self.log.read(partitionlet, offset, limit=1 << 60, max_bytes=max_bytes):
            piece = b"".join(batches)
            found += piece
            at = 0
            while at < len(piece):  # the offset after the last batch
                base, length = struct.unpack_from(">qi", piece, at)
                offset = base + struct.unpack_from(">i", piece, at + 23)[0] + 1
                at += 12 + length
        return found

    def reopen(self, *, cleanly: bool = True) -> None:
        """Reopen the folder; not cleanly: unsynced bytes are left as they are."""
        if cleanly:
            self.log.close()
        self.log = ContainerLog.open(self.folder, self.options)

    def check(self) -> None:
        """Everything that was appended can be read back from disk."""
        for partitionlet, batches in self.batches.items():
            assert self.read_all(partitionlet) == b"".join(batches)
            assert self.log.load(partitionlet).next_offset == self.next[partitionlet]


@pytest.fixture
def writing(tmp_path: Path, options: LogOptions) -> Writing:
    """An empty log."""
    return Writing(tmp_path / "container", options)


def append_raw(log: ContainerLog, frames: Iterable[bytes | memoryview]) -> None:
    """Append raw frames as a follower does."""
    piece = memoryview(b"".join(frames))
    if not log.room(len(piece)):
        log.make_spare()
    try:
        log.append_frames(piece)
    except StorageFull:  # gaps need more room than the piece has bytes
        log.make_spare()
        log.append_frames(piece)


def copy_log(source: ContainerLog, target: ContainerLog, *, max_bytes: int = 3000, until: int | None = None) -> None:
    """Bring `target` up to what `source` has written, or to `until`."""
    stop = source.synced if until is None else until
    layouts = Layouts()
    while target.end < stop:
        frames = source.read_frames(target.end, until=stop, max_bytes=max_bytes, layouts=layouts)
        assert target.end < frames.end <= stop
        append_raw(target, frames)
        assert target.end == frames.end
    while (job := target.take_job()) is not None:
        target.write_job(job)
        target.job_done(job)


@pytest.fixture(scope="session", name="copy_log")
def _copy_log() -> Callable[..., None]:
    return copy_log


@pytest.fixture(scope="session")
def new_writing() -> type[Writing]:
    """Creates further logs."""
    return Writing


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"none", str(folder).encode(), b"tmpfs", 0, b"size=1m") != 0:
        pytest.skip(f"cannot mount a small tmpfs: {os.strerror(ctypes.get_errno())}")
    yield folder
    libc.umount2(str(folder).encode(), 2)
