"""The log of one container: the package's entry point. Appends are in appending.py: each log has one `Appender`.

A `ContainerLog` belongs to the event-loop thread. Methods marked [blocking] do I/O and run in threads:

- `write_job`: in a thread, one job at a time, in the order of `take_job`; `mark_synced` too, not in parallel with it.
  Instead of `write_job`, anything that writes to files may carry out a job's `direct_write` and then report it with
  `written_directly`, in the order of `take_job`; two such writes may run at a time, each through a file of its own
  (`beside`);
- reads (`read`, `read_frames`, `load`, `find_*`, `control_frames`, …): in any number of reader threads at a time;
- maintenance (`close_chunk`, `punch`, `drop_chunk`, `trim`, `reopen_chunk`): in any thread; they exclude each other;
- `make_spare`, `open_second_file`: in any thread;
- `reset` and `cut`: on a log that is not open.

All other methods never touch a file. State shared between threads is either replaced as a whole (a chunk's `Body`) or
only grows (a `Table`, the list of chunks), so appending or reading a record takes no lock. A replaced or dropped file
closes when its last reader releases it.

Knows nothing of the network, the catalog and replication: callers must hide frames above `committed` themselves.
"""

import os
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

from headrace.base.errors import CorruptLog, StorageFull, SyncFailed
from headrace.base.ids import Position
from headrace.log import cutting, frame_reading, maintenance, reading, regroup
from headrace.log.appending import Appender, LogOptions, SecondFile, TailState
from headrace.log.chunk import Chunk, ClosedFile, close_chunk, needs_regroup
from headrace.log.files import lost_as_corrupt_log, sync_folder
from headrace.log.frame_reading import Layouts, RawFrames
from headrace.log.frames import Frame
from headrace.log.gaps import give_back_gaps
from headrace.log.index import Summary
from headrace.log.reading import PartitionletState, ProducerEntry
from headrace.log.recovery import Recovered, recover
from headrace.log.synced_mark import remove_mark
from headrace.log.writing import Spare, WriteJob

__all__ = [
    "Chunk",
    "ContainerLog",
    "Layouts",
    "LogOptions",
    "PartitionletState",
    "ProducerEntry",
    "RawFrames",
    "SecondFile",
    "Summary",
    "TailState",
    "WriteJob",
]


class ContainerLog:
    """One container's log."""

    __slots__ = (
        "_maintenance",
        "_sync_failed",
        "append_batch",
        "append_control",
        "append_frames",
        "appender",
        "direct_write",
        "folder",
        "job_done",
        "open_second_file",
        "read_tail",
        "room",
        "scanned_bytes",
        "tail_state",
        "take_job",
        "use_second_file",
        "wants_spare",
        "written_directly",
    )

    def __init__(self, folder: Path, options: LogOptions, *, chunks: list[Chunk], end: int, scanned_bytes: int) -> None:
        """For `open` only."""
        self.folder = folder
        self.scanned_bytes = scanned_bytes
        self._maintenance = threading.Lock()
        self._sync_failed: Callable[[SyncFailed], None] | None = None
        self.appender = appender = Appender(folder, options, chunks=chunks, end=end)
        """The log's growing end. The attributes below are its methods, bound once to save a call per record."""
        self.append_batch = appender.append_batch
        self.append_control = appender.append_control
        self.append_frames = appender.append_frames
        self.room = appender.room
        self.take_job = appender.take_job
        self.direct_write = appender.direct_write
        self.open_second_file = appender.open_second_file
        self.use_second_file = appender.use_second_file
        self.written_directly = appender.written_directly
        self.job_done = appender.job_done
        self.wants_spare = appender.wants_spare
        self.read_tail = appender.tail.read
        """See `TailCache.read`. None: the batch with the offset is not in memory; use `read`."""
        self.tail_state = appender.tail_state

    @classmethod
    def open(
        cls,
        folder: Path,
        options: LogOptions,
        *,
        begin: Position = Position(0),  # noqa: B008
        on_frame: Callable[[Frame], None] | None = None,
    ) -> "ContainerLog":
        """[blocking] Opens the log in `folder`, or creates one that starts at `begin`; cuts a torn tail.

        `on_frame` is called with each control frame of the open chunk. With a full disk the log opens too: reads work,
        and `room` returns False. Raises `CorruptLog`, `FolderRefused`; `LostTail` if frames that were synced are
        missing, until `accept_loss` is called; `SyncFailed`.
        """
        found = _recover(folder, options, begin=begin)
        log = cls(folder, options, chunks=found.chunks, end=found.synced, scanned_bytes=found.scanned_bytes)
        begin_of_open = log.appender.begin_of_open
        if on_frame is not None and begin_of_open is not None:
            for frame in log.control_frames(begin_of_open, log.end):
                on_frame(frame)
        if begin_of_open is None:
            try:
                log.make_spare()
            except StorageFull:
                pass  # `room` returns False then
        return log

    @staticmethod
    def accept_loss(folder: Path) -> None:
        """[blocking] Accepts the end of a log that is not open although synced frames are missing: the loss is known
        and accounted for."""
        remove_mark(folder)
        sync_folder(folder)

    @staticmethod
    def reset(folder: Path, begin: Position) -> None:
        """[blocking] Empties a log that is not open; it starts at `begin` afterwards.

        Durable and crash-safe: the next `open` completes an interrupted reset.
        """
        cutting.reset(folder, begin)

    @staticmethod
    def cut(folder: Path, position: Position, options: LogOptions) -> None:
        """[blocking] Removes everything at or above `position` from a log that is not open, so that it ends there.

        Durable and crash-safe: the next `open` completes an interrupted cut. A `position` below the log's start removes
        everything. Raises `ValueError` if `position` lies beyond the log's end; `CorruptLog` if no whole frame ends at
        `position`, since the log would end earlier then; `StorageFull`, and the errors of `open`.
        """
        found = _recover(folder, options)
        if position > found.synced:
            raise ValueError(f"{folder}: cannot be cut at {position}, it ends at {found.synced}")
        if position == found.synced:
            return
        chunk = next((chunk for chunk in reversed(found.chunks) if chunk.start < position), None)
        within = chunk is not None and (chunk.end is None or position < chunk.end)
        if chunk is not None and within and not cutting.frame_ends_at(chunk, position):
            raise CorruptLog(f"{chunk.path}: no frame ends at {position}. Refetch this container.")
        del found, chunk  # they map the files that are cut
        cutting.cut(folder, position)

    # --- positions and sizes; see Appender

    @property
    def start(self) -> Position:
        """The position of the oldest frame that the log still holds."""
        return self.appender.start

    @property
    def end(self) -> Position:
        """The position after the last frame, whether written or not."""
        return self.appender.end

    @property
    def written(self) -> Position:
        """Frames below this position can be read from the files."""
        return self.appender.written

    @property
    def synced(self) -> Position:
        """Frames below this position are durable."""
        return self.appender.synced

    @property
    def gaps_end(self) -> Position:
        """See `Appender.gaps_end`: no gap frame was appended beyond this position."""
        return self.appender.gaps_end

    @property
    def pending_bytes(self) -> int:
        """Bytes of appended frames that no job has taken yet."""
        return self.appender.pending_bytes

    @property
    def spare_bytes(self) -> int:
        """Bytes of disk space that `make_spare` takes."""
        return self.appender.spare_bytes

    @property
    def unused_bytes(self) -> int:
        """Bytes of the open chunk that no frame uses yet."""
        return self.appender.unused_bytes

    @property
    def options(self) -> LogOptions:
        """The log's sizes and durability settings."""
        return self.appender.options

    @options.setter
    def options(self, options: LogOptions) -> None:
        self.appender.options = options

    # --- growing; see Appender

    def make_spare(self) -> None:
        """[blocking] Preallocates the next chunk. Raises `StorageFull` and then leaves no file behind."""
        self.appender.make_spare()

    def use_small_chunks(self) -> list[Spare]:
        """Makes new chunks small from now on, as little is still to be written. Returns the spares that are too large;
        the caller drops them."""
        return self.appender.use_small_chunks()

    def close_open_chunk(self) -> None:
        """Ends the open chunk although it is not full (because of its age). `take_job` then returns a job, possibly one
        without bytes."""
        self.appender.close_open_chunk()

    def write_job(self, job: WriteJob) -> None:
        """[blocking] Writes and syncs a job. `OSError` propagates; after a failed sync the process must end.

        Raises `OutOfDescriptors`: call it again with the same job, which resumes where it stopped.
        """
        self.appender.write_job(job)

    @property
    def pending_fits_one_write(self) -> bool:
        """Whether one system call can write all pending frames, so that it may run in parallel with another write."""
        return self.appender.pending_fits_one_write

    @property
    def can_write_in_parallel(self) -> bool:
        """Whether the open chunk's file is open twice, as a parallel write needs it; see `open_second_file`."""
        return self.appender.can_write_in_parallel

    @property
    def wants_mark(self) -> bool:
        """Whether frames were synced above the position in the mark file (synced_mark.py)."""
        return self.appender.wants_mark

    @property
    def mark_in_s(self) -> float:
        """Seconds until the mark is due again."""
        return self.appender.mark_in_s

    def mark_synced(self) -> None:
        """[blocking] Records for the next start how far the log is synced. Must not run in parallel with `write_job` or
        with itself."""
        self.appender.mark_synced()

    # --- reading

    def read(self, partitionlet: int, offset: int, *, limit: int, max_bytes: int) -> list[bytes | memoryview]:
        """[blocking] As `read_tail`, but from disk; for an offset that no batch holds it starts at the next batch.
        Raises `CorruptLog`."""
        return reading.read_batches(
            list(self.appender.chunks),
            partitionlet,
            offset,
            limit=limit,
            max_bytes=max_bytes,
            written=self.appender.written,
        )

    def read_ahead(self, partitionlet: int, offset: int, *, limit: int, read_bytes: int, max_bytes: int) -> int:
        """[blocking] Asks the kernel to fetch up to `max_bytes` that follow the `read_bytes` already read from `offset`
        on. Returns the number of bytes requested. Raises `CorruptLog`."""
        return reading.read_ahead(
            list(self.appender.chunks),
            partitionlet,
            offset,
            limit=limit,
            read_bytes=read_bytes,
            max_bytes=max_bytes,
            written=self.appender.written,
        )

    def read_frames(
        self, position: Position, *, until: Position, max_bytes: int, layouts: Layouts | None = None
    ) -> RawFrames:
        """[blocking] Raw frames from `position` on, for `append_frames` of another replica: written frames that end at
        or below `until` and cover about `max_bytes` of the log, but at least one. `layouts`: a cache that a sequential
        reader passes to each of its calls.

        Freed space is returned as gap frames, of which the result holds only the headers, so the next read starts at
        `RawFrames.end`, not at the sum of lengths. All checksums have been checked. Raises `CorruptLog`, also if
        `position` lies within a frame.
        """
        return frame_reading.read_frames(
            list(self.appender.chunks),
            position,
            until=min(until, self.appender.written),
            max_bytes=max_bytes,
            layouts=layouts or Layouts(),
        )

    def load(self, partitionlet: int, *, since: Position = Position(0)) -> PartitionletState:  # noqa: B008
        """[blocking] The state of a partitionlet, from the chunks that end above `since`. Raises `CorruptLog`."""
        chunks = [chunk for chunk in list(self.appender.chunks) if chunk.end is None or chunk.end > since]
        return reading.load_state(chunks, partitionlet)

    def size(self, partitionlet: int) -> int:
        """[blocking] Bytes of a partitionlet's live data frames, frame headers included."""
        return self.load(partitionlet).bytes

    def find_timestamp(self, partitionlet: int, timestamp: int, *, limit: int) -> bytes | None:
        """[blocking] The first batch, by offset, that has a record at or after `timestamp` and ends below `limit`."""
        return reading.first_at_or_after(
            list(self.appender.chunks), partitionlet, timestamp, limit=limit, written=self.appender.written
        )

    def find_max_timestamp(self, partitionlet: int, *, limit: int) -> bytes | None:
        """[blocking] The first of the batches with the largest timestamp among those that end below `limit`."""
        return reading.newest_by_timestamp(
            list(self.appender.chunks), partitionlet, limit=limit, written=self.appender.written
        )

    def control_frames(self, after: Position, until: Position) -> Iterator[Frame]:
        """[blocking] The control frames that start at or above `after` and end at or below `until`, in order."""
        return reading.control_frames(list(self.appender.chunks), after, min(until, self.appender.written))

    def controls_of(self, partitionlet: int) -> Iterator[Frame]:
        """[blocking] The control frames of one partitionlet, in position order."""
        return reading.controls_of(list(self.appender.chunks), partitionlet, written=self.appender.written)

    # --- maintenance

    def chunks(self) -> list[Chunk]:
        """All chunks in position order."""
        return list(self.appender.chunks)

    def closed_chunks(self) -> list[Chunk]:
        """The closed chunks, in position order. Only closed chunks can be dropped, punched and regrouped."""
        return [chunk for chunk in list(self.appender.chunks) if chunk.body.closed]

    def summaries(self, chunk: Chunk) -> list[Summary]:
        """[blocking] Summaries of all partitionlets of a chunk, by id, without dead places."""
        return maintenance.summaries(chunk)

    def summaries_of(self, chunk: Chunk, partitionlets: Collection[int]) -> list[Summary]:
        """[blocking] Summaries of those of `partitionlets` that a chunk holds, by id, without dead places. Reads
        nothing of the others."""
        return maintenance.summaries_of(chunk, partitionlets)

    def lives(self, chunk: Chunk, dead: Mapping[int, int]) -> bool:
        """[blocking] Whether a chunk holds any live record that is not below its partitionlet's first kept offset in
        `dead`."""
        return maintenance.lives(chunk, dead)

    def oldest(self, chunk: Chunk, *, bits: int, untimed: int) -> dict[int, int]:
        """[blocking] The smallest of the partitionlets' largest timestamps for each value of `partitionlet >> bits`;
        records without a timestamp count as `untimed`."""
        return maintenance.oldest(chunk, bits=bits, untimed=untimed)

    def chunks_to_close(self, committed: Position | None = None) -> list[Chunk]:
        """Chunks that are full, synced, and end at or below `committed` (None: at any position), so that no chunk is
        closed that may still be cut. A chunk stays in this list until `close_chunk` has succeeded."""
        return [
            c for c in list(self.appender.closing) if committed is None or (c.end is not None and c.end <= committed)
        ]

    def on_sync_failed(self, callback: Callable[[SyncFailed], None]) -> None:
        """Sets a callback for a failed sync in `close_chunk`, after which the process must end (invariant 13). It is
        called in the maintenance thread, before `SyncFailed` is raised."""
        self._sync_failed = callback

    def close_chunk(self, chunk: Chunk) -> None:
        """[blocking] Writes a full chunk's footer and truncates its file. Raises `StorageFull`: try again later."""
        with self._maintenance:
            if chunk not in self.appender.chunks:  # the log was closed meanwhile
                return
            if not chunk.body.closed and chunk.end is not None:
                give_back_gaps(chunk, end=chunk.end - chunk.start)
                try:
                    close_chunk(chunk)
                except SyncFailed as error:
                    if self._sync_failed is not None:
                        self._sync_failed(error)
                    raise
            if chunk in self.appender.closing:
                self.appender.closing.remove(chunk)

    def needs_regroup(self, chunk: Chunk) -> bool:
        """[blocking] Whether a closed chunk mixes partitionlets too finely to be read well."""
        return needs_regroup(chunk.body)

    def has_room_to_regroup(self, chunk: Chunk, *, leave: int) -> bool:
        """[blocking] Whether the disk has room for a copy of a closed chunk's live frames and `leave` bytes besides."""
        disk = os.statvfs(self.folder)
        return disk.f_bavail * disk.f_frsize - maintenance.live_bytes(chunk) >= leave

    def regroup_command(self, chunk: Chunk, *, pauses_s: float = 0.0) -> list[str]:
        """The command of a child process that regroups a closed chunk; call `reopen_chunk` when it has exited with 0.

        `pauses_s`: seconds in total for which the process may pause to leave the disk to others.
        """
        program = [sys.executable, "-m", "headrace.log.regroup"]
        return [*program, str(self.folder), str(chunk.start), f"{pauses_s:.3f}", str(os.getpid())]

    def reopen_chunk(self, chunk: Chunk) -> None:
        """[blocking] Replaces a closed chunk's file with the one that a regroup wrote; removes that if the chunk is
        gone from the log."""
        with self._maintenance:
            if chunk not in self.appender.chunks or not chunk.body.closed:
                regroup.drop(chunk.path)
            else:
                regroup.take_up(chunk)

    def drop_chunk(self, chunk: Chunk) -> None:
        """[blocking] Removes a closed chunk with all its frames. Raises OSError, and `StorageFull` if the disk has no
        room for the chunk's mark: try again later."""
        with self._maintenance:
            if not chunk.body.closed:
                raise ValueError(f"{chunk}: only closed chunks can be dropped")
            if chunk in self.appender.chunks and chunk.end is not None:
                maintenance.drop(chunk, chunk.end)
                self.appender.chunks.remove(chunk)  # after the drop, so that a failed drop is tried again

    def trim(self, until: Position) -> None:
        """[blocking] Drops the closed chunks that lie wholly below `until`."""
        for chunk in self.closed_chunks():
            if chunk.end is not None and chunk.end <= until:
                self.drop_chunk(chunk)

    def punchable(self, chunk: Chunk, dead: Mapping[int, int]) -> int:
        """[blocking] Bytes of frames that `punch` would newly give up. Fewer may be freed: blocks shared with live
        frames stay."""
        return maintenance.punchable(chunk.body, dead)

    def punch(self, chunk: Chunk, dead: Mapping[int, int]) -> int:
        """[blocking] Frees the space of a closed chunk's frames below the partitionlets' first kept offsets in `dead`.

        Idempotent and crash-safe: the dead offsets are recorded before space is freed. Returns the bytes freed. Raises
        `StorageFull` if the disk has no room even for that record.
        """
        with self._maintenance:
            if not chunk.body.closed:
                raise ValueError(f"{chunk}: only closed chunks can be punched")
            return maintenance.punch(chunk, dead) if chunk in self.appender.chunks else 0

    def forget_tail(self) -> None:
        """Empties the cache of the newest batches; until new ones are appended, all are read from the files."""
        self.appender.tail.forget()

    def close(self) -> None:
        """[blocking] Writes what is pending and releases the files. No read may be in progress or follow.

        Waits for maintenance in progress; later maintenance does nothing.
        """
        self.appender.finish()
        with self._maintenance:
            for chunk in self.appender.chunks:
                if isinstance(chunk.body.file, ClosedFile):
                    chunk.body.file.end()
            self.appender.let_go()


def _recover(folder: Path, options: LogOptions, *, begin: int = 0) -> Recovered:
    with lost_as_corrupt_log():
        return recover(
            folder,
            checkpoint_bytes=options.checkpoint_bytes,
            open_file_bytes=options.file_bytes,
            fsync=options.fsync,
            enforce_synced_mark=options.enforce_synced_mark,
            begin=begin,
        )
