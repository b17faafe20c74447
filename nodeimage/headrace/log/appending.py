"""The growing end of a container's log: appends, the choice of the chunk for each frame, and the sync cycle.

Everything here belongs to the event-loop thread and does no I/O, except the methods marked [blocking], which run in
threads (container_log.py says when). An appended frame is in the index and in the tail cache at once, and stays in a
`Portion` until a job writes it (writing.py). Other modules read and close chunks and free their space.
"""

import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import Final, NamedTuple

from headrace.base.errors import StorageFull
from headrace.base.ids import Position
from headrace.log.chunk import Body, Chunk
from headrace.log.files import FILE_HEAD_BYTES, OpenFile
from headrace.log.folder import chunk_path
from headrace.log.frames import (
    BATCH_PRODUCER,
    BATCH_PRODUCER_AT,
    HEADER,
    HEADER_BYTES,
    FrameType,
    batch_frame_header,
    check_frames,
    control_frame,
)
from headrace.log.synced_mark import SyncedMark
from headrace.log.table import Table
from headrace.log.tail import TailCache
from headrace.log.writing import (
    DirectWrite,
    Portion,
    Spare,
    WriteJob,
    direct_write,
    fits_one_write,
    make_spare_file,
    open_again,
    open_file_bytes,
    write_portion,
)
from headrace.metrics.log_times import LogTimes

KEPT_SHARE: Final = 16
"""1/KEPT_SHARE of a chunk's capacity is reserved for appends that may fill the chunk (`room` with `to_the_end`)."""

SecondFile = tuple[Chunk, OpenFile]
"""An open chunk and a second open file of it, for a write in parallel with another."""

_producer_of: Final = BATCH_PRODUCER.unpack_from
_DATA: Final = int(FrameType.DATA)
_GAP: Final = int(FrameType.GAP)
_PRODUCER_AT: Final = HEADER_BYTES + BATCH_PRODUCER_AT


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Options of a log; sizes in bytes.

    `chunk_bytes`, `open_file_bytes`: the largest and the smallest size of an open chunk's file; a log that holds little
    makes small ones. `checkpoint_bytes`: the most that a start scans. `tail_bytes`: the size of the cache of the newest
    batches. `fsync`: sync before a job counts as done. `parallel_write_after_s`: seconds that a write may take before
    the next one starts in parallel; frames appended meanwhile are written together. `mark_s`: seconds between two
    updates of the mark that says how far the log is synced. `enforce_synced_mark`: refuse to open a log that ends below
    its mark. `small_chunks`: little is still to be written, so new chunks are as small as possible. `times`: receives
    the durations of syncs.
    """

    chunk_bytes: int = 256 << 20
    open_file_bytes: int = 16 << 20
    checkpoint_bytes: int = 16 << 20
    tail_bytes: int = 48 << 20
    fsync: bool = True
    parallel_write_after_s: float = 0.0005
    mark_s: float = 1.0
    enforce_synced_mark: bool = True
    small_chunks: bool = False
    times: LogTimes = field(default_factory=LogTimes, compare=False, repr=False)

    def file_bytes(self, held: int) -> int:
        """The size of the next open chunk's file in a log that holds `held` bytes."""
        return open_file_bytes(0 if self.small_chunks else held, least=self.open_file_bytes, most=self.chunk_bytes)


class TailState(NamedTuple):
    """The next offset and the newest epoch of a partitionlet, including frames that are not written yet."""

    next_offset: int
    epoch: int


class Appender:
    """The growing end of one log. `end` counts frames that are not written yet; `synced` is what is durable."""

    __slots__ = (
        "_beside",
        "_limit",
        "_mark",
        "_marked_at",
        "_open",
        "_portion",
        "_portions",
        "_spare_lock",
        "_spare_serial",
        "_spares",
        "_table",
        "_wanted",
        "chunks",
        "closing",
        "end",
        "folder",
        "gaps_end",
        "options",
        "pending_bytes",
        "synced",
        "tail",
        "written",
    )

    def __init__(self, folder: Path, options: LogOptions, *, chunks: list[Chunk], end: int) -> None:
        self.options = options
        self.end = Position(end)
        self.synced = Position(end)
        self.gaps_end = Position(end)
        """The end of the last gap frame appended, that is, of space that another replica had freed before it sent its
        frames. After a start: the log's end, since earlier gaps are not known."""
        self.pending_bytes = 0
        self.folder = folder
        self.chunks = chunks
        """All chunks in position order, the open one last. The appender adds chunks, maintenance removes them."""
        self.closing = [chunk for chunk in chunks if chunk.end is not None and not chunk.body.closed]
        """Chunks that are full and synced but have no footer yet."""
        self.written = Position(end)
        """Frames below this position can be read from the files; the writer thread advances it during a job."""
        self._mark = SyncedMark(folder)
        self._marked_at = monotonic()
        self.tail = TailCache(options.tail_bytes)
        """The newest batches, in memory."""
        self._spares: list[Spare] = []  # threads add, the event loop takes
        self._wanted = 0  # bytes of the largest frame or piece of frames for which there was no room
        self._spare_lock = threading.Lock()
        self._spare_serial = 0
        self._portions: list[Portion] = []
        self._portion: Portion | None = None
        self._open: Chunk | None = None
        self._beside: SecondFile | None = None
        self._table = Table(0)
        self._limit = -1  # position up to which the open chunk has room
        if chunks and chunks[-1].end is None:
            self._open = chunks[-1]
            table = self._open.body.growing[-1]
            assert isinstance(table, Table)
            self._table = table
            self._limit = self._open.start + self._open.capacity

    @property
    def start(self) -> Position:
        """The position of the oldest frame that the log still holds."""
        oldest = next(iter(self.chunks), None)
        return self.end if oldest is None else Position(oldest.start)

    @property
    def begin_of_open(self) -> Position | None:
        """The position at which the open chunk begins; None if no chunk is open."""
        return None if self._open is None else Position(self._open.start)

    def tail_state(self, partitionlet: int) -> TailState | None:
        """The state of a partitionlet that had a data frame since the last checkpoint; None: look it up in the chunks
        (`ContainerLog.load`)."""
        last = self._table.last_of(partitionlet)
        return None if last is None else TailState(last[0] + 1, last[1])

    def room(self, length: int, *, to_the_end: bool = True) -> bool:
        """Whether a frame with `length` bytes of payload can be appended now. False: call `make_spare` in a thread.

        Without `to_the_end`, a frame that needs no spare must leave the reserved part of the open chunk free.
        """
        length += HEADER_BYTES
        kept = 0 if to_the_end or self._open is None else self._open.capacity // KEPT_SHARE
        if self.end + length <= self._limit - kept:
            return True
        if any(spare.capacity >= length for spare in self._spares):
            return True
        self._wanted = max(self._wanted, length)
        return False

    def wants_spare(self) -> bool:
        """Whether it is time to make a spare, so that it is ready when the open chunk is full."""
        if self._spares or self._spare_lock.locked():
            return False
        opened = self._open
        return opened is None or self.end >= opened.start + opened.capacity * 3 // 4

    @property
    def spare_bytes(self) -> int:
        """Bytes of disk space that `make_spare` takes."""
        size = self.options.file_bytes(self.end - self.start)
        return max(size, self._wanted + FILE_HEAD_BYTES)

    @property
    def unused_bytes(self) -> int:
        """Bytes of the open chunk that no frame uses yet. Spares are not counted."""
        return 0 if self._open is None else self._open.start + self._open.capacity - self.end

    def make_spare(self) -> None:
        """[blocking] Preallocates the next chunk. Raises `StorageFull` and then leaves no file behind."""
        with self._spare_lock:
            wanted = self.spare_bytes - FILE_HEAD_BYTES
            if any(spare.capacity >= wanted for spare in list(self._spares)):
                return
            self._spare_serial += 1
            self._spares.append(make_spare_file(self.folder / f"spare-{self._spare_serial}.tmp", wanted))

    def use_small_chunks(self) -> list[Spare]:
        """Makes new chunks small from now on, as little is still to be written. Returns the spares that are too large;
        the caller drops them."""
        self.options = replace(self.options, small_chunks=True)
        large = [spare for spare in list(self._spares) if spare.capacity > self.spare_bytes]
        for spare in large:
            self._spares.remove(spare)
        return large

    def append_batch(
        self, *, partitionlet: int, epoch: int, first: int, last: int, max_timestamp: int, batch: memoryview
    ) -> Position:
        """Appends a stamped record batch; returns the position after its frame. `room` must have returned True.

        The batch is referenced, not copied, until it is written and has left the tail cache.
        """
        length = HEADER_BYTES + len(batch)
        position: int = self.end
        end = position + length
        if end > self._limit:
            self._next_chunk(length)
        portion = self._portion or self._next_portion()
        producer, producer_epoch, sequence = _producer_of(batch, BATCH_PRODUCER_AT)
        portion.buffers += (
            batch_frame_header(length, epoch, position, partitionlet, first, last, max_timestamp, batch),
            batch,
        )
        portion.nbytes += length
        table = self._table
        table.add_batch(
            partitionlet,
            first,
            last,
            max_timestamp,
            position - portion.chunk.start,
            length,
            epoch,
            producer,
            producer_epoch << 32 | sequence,
        )
        self.tail.add(partitionlet, first, last, batch)
        self.pending_bytes += length
        self.end = Position(end)
        if table.end - table.start >= self.options.checkpoint_bytes:
            self._complete_table()
        return self.end

    def append_control(
        self, *, type: int, epoch: int, partitionlet: int, payload: bytes, first: int = -1, last: int = -1
    ) -> Position:
        """Appends a control frame; returns the position after it. `room` must have returned True."""
        length = HEADER_BYTES + len(payload)
        position = self.end
        if position + length > self._limit:
            self._next_chunk(length)
        portion = self._portion or self._next_portion()
        frame = control_frame(
            type=type,
            epoch=epoch,
            position=position,
            partitionlet=partitionlet,
            first=first,
            last=last,
            payload=payload,
        )
        portion.buffers.append(frame)
        portion.nbytes += length
        table = self._table
        table.add_control(partitionlet=partitionlet, place=position - portion.chunk.start, length=length, type=type)
        self.pending_bytes += length
        self.end = Position(position + length)
        if table.end - table.start >= self.options.checkpoint_bytes:
            self._complete_table()
        return self.end

    def append_frames(self, frames: memoryview) -> Position:
        """Appends raw frames of another replica's log, of which the first starts at `end`; returns the new end.

        `frames` is what `read_frames` returned on that replica: whole frames of any type, but only the headers of gap
        frames. The bytes are referenced, not copied. `room(len(frames))` must have returned True; if frames with gaps
        need more room than that, this raises `StorageFull`, and they fit after `make_spare`. Raises `CorruptLog` if a
        frame is damaged or does not belong here. If anything is raised, nothing has been appended.
        """
        self._check_room(check_frames(frames, self.end) - self.end)
        at = run = 0  # in `frames`: the current frame, and the first byte that is in no portion yet
        table, limit = self._table, self._limit
        checkpoint_end = table.start + self.options.checkpoint_bytes
        portion: Portion | None = None
        unpack, size = HEADER.unpack_from, len(frames)
        while at < size:
            _, length, type, epoch, position, partitionlet, first, last, max_timestamp = unpack(frames, at)
            end = position + length
            if end > limit:
                _take(portion, frames[run:at])
                self._next_chunk(length)
                portion, run, table, limit = None, at, self._table, self._limit
                checkpoint_end = self.options.checkpoint_bytes
            if portion is None:
                portion = self._portion or self._next_portion()
                base = portion.chunk.start
            if type == _DATA:
                stop = at + length
                producer, producer_epoch, sequence = _producer_of(frames, at + _PRODUCER_AT)
                table.add_batch(
                    partitionlet,
                    first,
                    last,
                    max_timestamp,
                    position - base,
                    length,
                    epoch,
                    producer,
                    producer_epoch << 32 | sequence,
                )
                self.tail.add(partitionlet, first, last, frames[at + HEADER_BYTES : stop])
            elif type == _GAP:
                stop = at + HEADER_BYTES
                _take(portion, frames[run:stop])
                portion.leave_out(length - HEADER_BYTES)
                run = stop
                table.add_gap(place=position - base, length=length)
                self.gaps_end = Position(end)
            else:
                stop = at + length
                table.add_control(partitionlet=partitionlet, place=position - base, length=length, type=type)
            at = stop
            self.end = Position(end)
            if end - base >= checkpoint_end:
                _take(portion, frames[run:at])
                self._complete_table()
                portion, run, table = None, at, self._table
                checkpoint_end = table.start + self.options.checkpoint_bytes
        _take(portion, frames[run:at])
        self.pending_bytes += len(frames)
        return self.end

    def _check_room(self, length: int) -> None:
        """Raises `StorageFull` unless frames of `length` bytes fit in the rest of the open chunk or in one spare."""
        if self.end + length <= self._limit or any(spare.capacity >= length for spare in self._spares):
            return
        self._wanted = max(self._wanted, length)
        raise StorageFull(f"{self.folder}: no chunk is ready for {length} bytes. Make a spare, then append them again.")

    def close_open_chunk(self) -> None:
        """Ends the open chunk although it is not full (because of its age). `take_job` then returns a job, possibly one
        without bytes."""
        opened = self._open
        if opened is None or self.end == opened.start:
            return
        if self._table.end > self._table.start:
            self._complete_table()
        else:
            # nothing to checkpoint, but a portion must exist so that `job_done` sees that this chunk is done
            self._portion = self._portion or self._next_portion()
        opened.end = self.end
        self._open = None
        self._beside = None
        self._portion = None
        self._limit = -1

    def _next_chunk(self, length: int) -> None:
        spare = min(
            (spare for spare in self._spares if spare.capacity >= length), key=lambda s: s.capacity, default=None
        )
        if spare is None:
            raise StorageFull(f"{self.folder}: no chunk is ready for {length} bytes. Ask `room` before each append.")
        self._spares.remove(spare)
        self._wanted = 0
        self.close_open_chunk()
        if self._open is not None:  # it holds no frame yet and is too small for this one: the spare replaces it
            self.chunks.remove(self._open)
        self._table = Table(0)
        self._open = chunk = Chunk(
            path=chunk_path(self.folder, self.end),
            start=self.end,
            body=Body(spare.file, (self._table,)),
            capacity=spare.capacity,
        )
        self.chunks.append(chunk)
        self._limit = chunk.start + chunk.capacity
        self._next_portion().spare = spare

    def _next_portion(self) -> Portion:
        opened = self._open
        assert opened is not None
        self._portion = portion = Portion(opened, self.end - opened.start)
        self._portions.append(portion)
        return portion

    def _complete_table(self) -> None:
        """Schedules the table to be checkpointed after the pending frames, and starts a new table."""
        portion = self._portion or self._next_portion()
        portion.table = self._table
        chunk = portion.chunk
        self._table = Table(self._table.end)
        chunk.body = replace(chunk.body, growing=(*chunk.body.growing, self._table))
        self._portion = None

    def take_job(self) -> WriteJob | None:
        """All pending frames, to be passed to `write_job`, then to `job_done`. None: nothing is pending."""
        if not self._portions:
            return None
        job = WriteJob(self._portions, self.end, self.pending_bytes)
        self._portions = []
        self._portion = None
        self.pending_bytes = 0
        return job

    def write_job(self, job: WriteJob) -> None:
        """[blocking] Writes and syncs a job. `OSError` propagates; after a failed sync the process must end.

        Raises `OutOfDescriptors`: call it again with the same job, which resumes where it stopped.
        """
        began = monotonic()
        for portion in job.portions[job.done :]:
            write_portion(portion, fsync=self.options.fsync, written=self._set_written)
            job.done += 1
        ended = monotonic()
        job.took = ended - began
        if ended - self._marked_at >= self.options.mark_s:
            self.mark_synced()

    @property
    def pending_fits_one_write(self) -> bool:
        """Whether one system call can write all pending frames, so that it may run in parallel with another write."""
        return fits_one_write(self._portions)

    def direct_write(self, job: WriteJob, *, beside: bool = False) -> DirectWrite | None:
        """The single system call that does what `write_job` would do; report it to `written_directly` afterwards. None:
        the job needs `write_job`, which also accepts a job whose single call failed.

        `beside`: write through the second open file of the open chunk.
        """
        if not beside:
            return direct_write(job, fsync=self.options.fsync)
        found = self._beside
        if found is None or found[0] is not job.portions[0].chunk:
            return None
        return direct_write(job, fsync=self.options.fsync, beside=found[1])

    @property
    def can_write_in_parallel(self) -> bool:
        """Whether the open chunk's file is open twice; see `open_second_file`."""
        return self._beside is not None and self._beside[0] is self._open

    def open_second_file(self) -> SecondFile | None:
        """[blocking] Opens the open chunk's file a second time, for `use_second_file`. None: no chunk is open, or it
        was closed or its path given to another file meanwhile.

        The chunk's file must have its final name already. Raises `OutOfDescriptors`, OSError.
        """
        chunk = self._open
        if chunk is None:
            return None
        again = open_again(chunk)
        return None if again is None else (chunk, again)

    def use_second_file(self, found: SecondFile | None) -> None:
        """Uses the file that `open_second_file` returned from now on, if its chunk is still the open one."""
        if found is not None and found[0] is self._open:
            self._beside = found

    def written_directly(self, job: WriteJob, took: float) -> None:
        """Reports that a single system call has written all of `job`, in `took` seconds. All earlier jobs must be
        written."""
        portion = job.portions[0]
        job.done = 1
        job.took = took
        self.written = Position(portion.chunk.start + portion.at + portion.nbytes)

    @property
    def wants_mark(self) -> bool:
        """Whether frames were synced above the position in the mark file (synced_mark.py)."""
        return self.options.fsync and self._mark.position < self.written

    @property
    def mark_in_s(self) -> float:
        """Seconds until the mark is due again."""
        return max(self._marked_at + self.options.mark_s - monotonic(), 0.0)

    def mark_synced(self) -> None:
        """[blocking] Records for the next start how far the log is synced. Must not run in parallel with `write_job` or
        with itself."""
        if self.wants_mark:
            self._mark.put(self.written)
        self._marked_at = monotonic()

    def finish(self) -> None:
        """[blocking] Writes what is pending, and removes the spares."""
        while (job := self.take_job()) is not None:
            self.write_job(job)
            self.job_done(job)
        while self._spares:
            self._spares.pop().drop()

    def let_go(self) -> None:
        """Drops all chunks and the tail cache: nothing can be appended or read afterwards."""
        self.tail.forget()
        self._open = None
        self._beside = None
        self._limit = -1
        self.chunks = []

    def _set_written(self, position: int) -> None:
        self.written = Position(position)

    def job_done(self, job: WriteJob) -> None:
        """Reports that the job is durable. All earlier jobs must be durable too."""
        self.synced = Position(job.end)
        for portion in job.portions:
            chunk = portion.chunk
            for table, segment in portion.saved:
                chunk.swap_part(table, segment)
            done = chunk.end is not None and all(later.chunk is not chunk for later in self._portions)
            if done and chunk not in self.closing:
                self.closing.append(chunk)


def _take(portion: Portion | None, frames: memoryview) -> None:
    """Adds contiguous frames to a portion."""
    if portion is not None and frames:
        portion.buffers.append(frames)
        portion.nbytes += len(frames)
