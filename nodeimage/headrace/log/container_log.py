"""The log of one container: the way in.

A `ContainerLog` belongs to the event-loop thread. Methods marked [blocking] do I/O and run in threads:

- `write_job`: in the writer thread, one job at a time, in the order of `take_job`;
- reads (`read`, `load`, `find_*`, `control_frames`, …): in any number of reader threads at a time;
- maintenance (`close_chunk`, `punch`, `drop_chunk`, `trim`, `reopen_chunk`): in any thread; they wait for each other;
- `make_spare`: in any thread.

The rest never touches a file. What threads share is swapped whole (a chunk's `Body`) or only ever grows (a `Table`,
the list of chunks), so there is no lock on the way of a record. A file that was replaced or dropped closes when its
last reader lets go of it.

Knows nothing of the network, the catalog and replication: what lies above `committed` is for the callers to hide.
"""

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from headrace.errors import StorageFull
from headrace.ids import Position
from headrace.log import maintenance, reading
from headrace.log.chunk import Body, Chunk, close_chunk, load_body, needs_regroup
from headrace.log.files import FILE_HEAD_BYTES
from headrace.log.folder import chunk_path, drop_files
from headrace.log.frames import (
    BATCH_PRODUCER,
    BATCH_PRODUCER_AT,
    HEADER_BYTES,
    Frame,
    batch_frame_header,
    control_frame,
)
from headrace.log.index import Summary
from headrace.log.reading import PartitionletState, ProducerEntry
from headrace.log.recovery import recover
from headrace.log.table import Table
from headrace.log.tail import TailCache
from headrace.log.writing import Portion, Spare, WriteJob, make_spare_file, write_portion

__all__ = [
    "Chunk",
    "ContainerLog",
    "LogOptions",
    "PartitionletState",
    "ProducerEntry",
    "Summary",
    "TailState",
    "WriteJob",
]

_producer_of = BATCH_PRODUCER.unpack_from


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Sizes in bytes. `chunk_bytes`: of a chunk's file while open. `checkpoint_bytes`: what a start scans at most.
    `tail_bytes`: of the newest batches kept in memory. `fsync`: sync before a job counts as done."""

    chunk_bytes: int = 256 << 20
    checkpoint_bytes: int = 16 << 20
    tail_bytes: int = 48 << 20
    fsync: bool = True


class TailState(NamedTuple):
    """Where a partitionlet stands, frames not written yet included."""

    next_offset: int
    epoch: int


class ContainerLog:
    """One container's log. `end` counts frames that are not written yet; `synced` is what is durable."""

    __slots__ = (
        "_chunks",
        "_closing",
        "_limit",
        "_maintenance",
        "_open",
        "_portion",
        "_portions",
        "_spare_bytes",
        "_spare_lock",
        "_spare_serial",
        "_spares",
        "_table",
        "_tail",
        "_written",
        "end",
        "folder",
        "options",
        "pending_bytes",
        "scanned_bytes",
        "synced",
    )

    def __init__(self, folder: Path, options: LogOptions, *, chunks: list[Chunk], end: int, scanned_bytes: int) -> None:
        """Use `open`."""
        self.options = options
        self.scanned_bytes = scanned_bytes
        self.end = Position(end)
        self.synced = Position(end)
        self.pending_bytes = 0
        self.folder = folder
        self._chunks = chunks
        self._closing = [chunk for chunk in chunks if chunk.end is not None and not chunk.body.closed]
        self._written = end
        self._tail = TailCache(options.tail_bytes)
        self._maintenance = threading.Lock()
        self._spares: list[Spare] = []  # threads add, the loop takes
        self._spare_bytes = options.chunk_bytes - FILE_HEAD_BYTES
        self._spare_lock = threading.Lock()
        self._spare_serial = 0
        self._portions: list[Portion] = []
        self._portion: Portion | None = None
        self._open: Chunk | None = None
        self._table = Table(0)
        self._limit = -1  # position up to which the open chunk has room
        if chunks and chunks[-1].end is None:
            self._open = chunks[-1]
            table = self._open.body.parts[-1]
            assert isinstance(table, Table)
            self._table = table
            self._limit = self._open.start + self._open.capacity

    @classmethod
    def open(
        cls, folder: Path, options: LogOptions, *, on_frame: Callable[[Frame], None] | None = None
    ) -> "ContainerLog":
        """[blocking] Opens the log in `folder`, or starts one there; cuts a torn tail.

        `on_frame` gets the control frames of the open chunk. A full disk does not hinder: reads work, `room` says no.
        Raises `CorruptLog`, `FolderRefused`.
        """
        found = recover(
            folder,
            checkpoint_bytes=options.checkpoint_bytes,
            chunk_bytes=options.chunk_bytes,
            fsync=options.fsync,
        )
        log = cls(folder, options, chunks=found.chunks, end=found.synced, scanned_bytes=found.scanned_bytes)
        if on_frame is not None and log._open is not None:
            for frame in log.control_frames(Position(log._open.start), log.end):
                on_frame(frame)
        if log._open is None:
            try:
                log.make_spare()
            except StorageFull:
                pass  # `room` says so
        return log

    @property
    def start(self) -> Position:
        """The position of the oldest frame that is kept."""
        return Position(self._chunks[0].start) if self._chunks else self.end

    # --- appending: loop thread, no I/O

    def room(self, length: int) -> bool:
        """Whether a frame with `length` bytes of payload can be appended now. False: call `make_spare` in a thread."""
        length += HEADER_BYTES
        if self.end + length <= self._limit:
            return True
        if any(spare.capacity >= length for spare in self._spares):
            return True
        self._spare_bytes = max(self._spare_bytes, length)
        return False

    def wants_spare(self) -> bool:
        """Whether it is time to make a spare chunk, so that the next one is ready when the open one is full."""
        if self._spares or self._spare_lock.locked():
            return False
        opened = self._open
        return opened is None or self.end >= opened.start + opened.capacity * 3 // 4

    def make_spare(self) -> None:
        """[blocking] Preallocates the next chunk. Raises `StorageFull`, and leaves nothing behind."""
        with self._spare_lock:
            wanted = self._spare_bytes
            if any(spare.capacity >= wanted for spare in list(self._spares)):
                return
            self._spare_serial += 1
            self._spares.append(make_spare_file(self.folder / f"spare-{self._spare_serial}.tmp", wanted))

    def append_batch(
        self, *, partitionlet: int, epoch: int, first: int, last: int, max_timestamp: int, batch: memoryview
    ) -> Position:
        """Appends a stamped record batch; returns the position behind its frame. `room` has said yes.

        The batch is kept, not copied, until it is written and has left the tail cache.
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
        self._tail.add(partitionlet, first, last, batch)
        self.pending_bytes += length
        self.end = Position(end)
        if table.end - table.start >= self.options.checkpoint_bytes:
            self._complete_table()
        return self.end

    def append_control(
        self, *, type: int, epoch: int, partitionlet: int, payload: bytes, first: int = -1, last: int = -1
    ) -> Position:
        """Appends a control frame; returns the position behind it. `room` has said yes."""
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

    def close_open_chunk(self) -> None:
        """Ends the open chunk although it is not full (by age). `take_job` then has a job, maybe one without bytes."""
        opened = self._open
        if opened is None or self.end == opened.start:
            return
        if self._table.end > self._table.start:
            self._complete_table()
        else:
            # nothing to checkpoint, but a portion must say when this chunk is done
            self._portion = self._portion or self._next_portion()
        opened.end = self.end
        self._open = None
        self._portion = None
        self._limit = -1

    def _next_chunk(self, length: int) -> None:
        spare = min(
            (spare for spare in self._spares if spare.capacity >= length), key=lambda s: s.capacity, default=None
        )
        if spare is None:
            raise StorageFull(f"{self.folder}: no chunk is ready for {length} bytes. Ask `room` before each append.")
        self._spares.remove(spare)
        self._spare_bytes = self.options.chunk_bytes - FILE_HEAD_BYTES
        self.close_open_chunk()
        if self._open is not None:  # it holds no frame yet and is too small for this one, which takes its place
            self._chunks.remove(self._open)
        self._table = Table(0)
        self._open = chunk = Chunk(
            path=chunk_path(self.folder, self.end),
            start=self.end,
            body=Body(spare.file, (self._table,)),
            capacity=spare.capacity,
        )
        self._chunks.append(chunk)
        self._limit = chunk.start + chunk.capacity
        self._next_portion().spare = spare

    def _next_portion(self) -> Portion:
        opened = self._open
        assert opened is not None
        self._portion = portion = Portion(opened, self.end - opened.start)
        self._portions.append(portion)
        return portion

    def _complete_table(self) -> None:
        """The table becomes a checkpoint behind the frames that are pending now, and a new one starts."""
        portion = self._portion or self._next_portion()
        portion.table = self._table
        chunk = portion.chunk
        self._table = Table(self._table.end)
        chunk.body = replace(chunk.body, parts=(*chunk.body.parts, self._table))
        self._portion = None

    # --- the sync cycle

    def take_job(self) -> WriteJob | None:
        """All that is pending, to be given to `write_job`, then to `job_done`."""
        if not self._portions:
            return None
        job = WriteJob(self._portions, self.end, self.pending_bytes)
        self._portions = []
        self._portion = None
        self.pending_bytes = 0
        return job

    def write_job(self, job: WriteJob) -> None:
        """[blocking] Writes and syncs a job. `OSError` propagates; after a failed sync the process must end."""
        for portion in job.portions:
            write_portion(portion, fsync=self.options.fsync, written=self._set_written)

    def _set_written(self, position: int) -> None:
        self._written = position

    def job_done(self, job: WriteJob) -> None:
        """The job is durable."""
        self.synced = Position(job.end)
        for portion in job.portions:
            chunk = portion.chunk
            for table, segment in portion.saved:
                chunk.swap_part(table, segment)
            done = chunk.end is not None and all(later.chunk is not chunk for later in self._portions)
            if done and chunk not in self._closing:
                self._closing.append(chunk)

    # --- reading

    def read_tail(self, partitionlet: int, offset: int, *, limit: int, max_bytes: int) -> list[memoryview] | None:
        """The batches from the one that holds `offset` on that end below `limit`, up to `max_bytes`, at least one.

        None: what holds `offset` is not in memory, use `read`. Empty: there is nothing at or behind `offset`.
        """
        return self._tail.read(partitionlet, offset, limit=limit, max_bytes=max_bytes)

    def tail_state(self, partitionlet: int) -> TailState | None:
        """Where a partitionlet stands, if it had a frame since the last checkpoint. None: `load` knows."""
        last = self._table.last_of(partitionlet)
        return None if last is None else TailState(last[0] + 1, last[1])

    def read(self, partitionlet: int, offset: int, *, limit: int, max_bytes: int) -> list[bytes | memoryview]:
        """[blocking] As `read_tail`, from disk; an offset in a gap goes on at the next batch. Raises `CorruptLog`."""
        return reading.read_batches(
            list(self._chunks), partitionlet, offset, limit=limit, max_bytes=max_bytes, written=self._written
        )

    def load(self, partitionlet: int, *, since: Position = Position(0)) -> PartitionletState:  # noqa: B008
        """[blocking] What the chunks that end behind `since` hold of a partitionlet. Raises `CorruptLog`."""
        chunks = [chunk for chunk in list(self._chunks) if chunk.end is None or chunk.end > since]
        return reading.load_state(chunks, partitionlet)

    def size(self, partitionlet: int) -> int:
        """[blocking] Bytes of its data frames, frame headers included, less what has been given back."""
        return self.load(partitionlet).bytes

    def find_timestamp(self, partitionlet: int, timestamp: int, *, limit: int) -> bytes | None:
        """[blocking] The first batch, by offset, that holds a record of `timestamp` or later and ends below `limit`."""
        return reading.first_at_or_after(
            list(self._chunks), partitionlet, timestamp, limit=limit, written=self._written
        )

    def find_max_timestamp(self, partitionlet: int, *, limit: int) -> bytes | None:
        """[blocking] The first batch with the largest timestamp of those that end below `limit`."""
        return reading.newest_by_timestamp(list(self._chunks), partitionlet, limit=limit, written=self._written)

    def control_frames(self, after: Position, until: Position) -> Iterator[Frame]:
        """[blocking] The control frames that start at or behind `after` and end at or below `until`, in order."""
        return reading.control_frames(list(self._chunks), after, min(until, self._written))

    def controls_of(self, partitionlet: int) -> Iterator[Frame]:
        """[blocking] The control frames of one partitionlet, in position order."""
        return reading.controls_of(list(self._chunks), partitionlet, written=self._written)

    # --- maintenance

    def chunks(self) -> list[Chunk]:
        """All chunks in position order."""
        return list(self._chunks)

    def closed_chunks(self) -> list[Chunk]:
        """The closed ones, in position order: these can be dropped, punched and regrouped."""
        return [chunk for chunk in list(self._chunks) if chunk.body.closed]

    def summaries(self, chunk: Chunk) -> Iterator[Summary]:
        """[blocking] What a chunk holds of each partitionlet, by id, less what has been given back."""
        return maintenance.summaries(chunk)

    def chunks_to_close(self) -> list[Chunk]:
        """Chunks that are full and synced. Each stands here until `close_chunk` is through with it."""
        return list(self._closing)

    def close_chunk(self, chunk: Chunk) -> None:
        """[blocking] Gives a full chunk its footer and cuts its file to size. Raises `StorageFull`: try again later."""
        with self._maintenance:
            if not chunk.body.closed:
                close_chunk(chunk)
            if chunk in self._closing:
                self._closing.remove(chunk)

    def needs_regroup(self, chunk: Chunk) -> bool:
        """[blocking] Whether a closed chunk mixes partitionlets too finely to be read well."""
        return needs_regroup(chunk.body)

    def regroup_command(self, chunk: Chunk) -> list[str]:
        """The helper process that regroups a closed chunk; `reopen_chunk` when it has ended with 0."""
        return [sys.executable, "-m", "headrace.log.regroup", str(self.folder), str(chunk.start)]

    def reopen_chunk(self, chunk: Chunk) -> None:
        """[blocking] Takes up the file that a regroup left in the place of a closed chunk's."""
        with self._maintenance:
            if chunk in self._chunks and chunk.body.closed:
                chunk.body = load_body(chunk.path)

    def drop_chunk(self, chunk: Chunk) -> None:
        """[blocking] Removes a closed chunk with all that it holds."""
        with self._maintenance:
            if not chunk.body.closed:
                raise ValueError(f"{chunk}: only closed chunks can be dropped")
            if chunk in self._chunks and chunk.end is not None:
                self._chunks.remove(chunk)
                drop_files(self.folder, chunk.start, chunk.end)

    def trim(self, until: Position) -> None:
        """[blocking] Drops the closed chunks that lie wholly below `until`."""
        for chunk in self.closed_chunks():
            if chunk.end is not None and chunk.end <= until:
                self.drop_chunk(chunk)

    def punchable(self, chunk: Chunk, dead: Mapping[int, int]) -> int:
        """[blocking] Bytes of frames that `punch` would newly give up; what shares a block with live ones stays."""
        return maintenance.punchable(chunk.body, dead)

    def punch(self, chunk: Chunk, dead: Mapping[int, int]) -> int:
        """[blocking] Gives back what a closed chunk holds of partitionlets below their first kept offset.

        Idempotent, and crash-safe: what is dead is recorded before the bytes go. Returns the bytes freed. Raises
        `StorageFull` when there is no room even for that record.
        """
        with self._maintenance:
            if not chunk.body.closed:
                raise ValueError(f"{chunk}: only closed chunks can be punched")
            return maintenance.punch(chunk, dead)

    def close(self) -> None:
        """[blocking] Writes what is pending, and lets go of the files. No other call may be under way or follow."""
        while (job := self.take_job()) is not None:
            self.write_job(job)
            self.job_done(job)
        while self._spares:
            self._spares.pop().path.unlink(missing_ok=True)
        self._tail.forget()
        self._open = None
        self._limit = -1
        self._chunks = []
