"""The log of one container: the way in. How it grows: appending.py, of which each log has one `Appender`.

A `ContainerLog` belongs to the event-loop thread. Methods marked [blocking] do I/O and run in threads:

- `write_job`: in a thread, one job at a time, in the order of `take_job`; `mark_synced` too, in its turn. Instead of
  `write_job` a job's `direct_write` may be done, by whatever writes to files, and then be told by `written_directly`,
  in the order of `take_job`; two such writes may be under way at a time, each by another open file (`beside`);
- reads (`read`, `read_frames`, `load`, `find_*`, `control_frames`, …): in any number of reader threads at a time;
- maintenance (`close_chunk`, `punch`, `drop_chunk`, `trim`, `reopen_chunk`): in any thread; they wait for each other;
- `make_spare`, `open_beside`: in any thread;
- `reset` and `cut`: on a log that is not open.

The rest never touches a file. What threads share is swapped whole (a chunk's `Body`) or only ever grows (a `Table`,
the list of chunks), so there is no lock on the way of a record. A file that was replaced or dropped closes when its
last reader lets go of it.

Knows nothing of the network, the catalog and replication: what lies above `committed` is for the callers to hide.
"""

import os
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

from headrace.base.errors import CorruptLog, StorageFull, SyncFailed
from headrace.base.ids import Position
from headrace.log import cutting, frame_reading, maintenance, reading, regroup
from headrace.log.appending import Appender, Beside, LogOptions, TailState
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
    "Beside",
    "Chunk",
    "ContainerLog",
    "Layouts",
    "LogOptions",
    "PartitionletState",
    "ProducerEntry",
    "RawFrames",
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
        "open_beside",
        "read_tail",
        "room",
        "scanned_bytes",
        "tail_state",
        "take_beside",
        "take_job",
        "wants_spare",
        "written_directly",
    )

    def __init__(self, folder: Path, options: LogOptions, *, chunks: list[Chunk], end: int, scanned_bytes: int) -> None:
        """Use `open`."""
        self.folder = folder
        self.scanned_bytes = scanned_bytes
        self._maintenance = threading.Lock()
        self._sync_failed: Callable[[SyncFailed], None] | None = None
        self.appender = appender = Appender(folder, options, chunks=chunks, end=end)
        """Its growing end. Those below are its methods, bound once: a record's way has no call of the log's own."""
        self.append_batch = appender.append_batch
        self.append_control = appender.append_control
        self.append_frames = appender.append_frames
        self.room = appender.room
        self.take_job = appender.take_job
        self.direct_write = appender.direct_write
        self.open_beside = appender.open_beside
        self.take_beside = appender.take_beside
        self.written_directly = appender.written_directly
        self.job_done = appender.job_done
        self.wants_spare = appender.wants_spare
        self.read_tail = appender.tail.read
        """None: what holds the offset is not in memory, use `read`."""
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
        """[blocking] Opens the log in `folder`, or starts one there, at `begin`; cuts a torn tail.

        `on_frame` gets the control frames of the open chunk. A full disk does not hinder: reads work, `room` says no.
        Raises `CorruptLog`, `FolderRefused`; `LostTail` where less is there than was synced, until `forget_mark`;
        `SyncFailed`, as `cut` does too.
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
                pass  # `room` says so
        return log

    @staticmethod
    def forget_mark(folder: Path) -> None:
        """[blocking] What a log that is not open has lost is known, and accounted for: its end is where it ends."""
        remove_mark(folder)
        sync_folder(folder)

    @staticmethod
    def reset(folder: Path, begin: Position) -> None:
        """[blocking] Removes all that a log which is not open holds; it is empty then, and starts at `begin`.

        Durable, and crash-safe: the next `open` finishes it.
        """
        cutting.reset(folder, begin)

    @staticmethod
    def cut(folder: Path, position: Position, options: LogOptions) -> None:
        """[blocking] Removes everything at or above `position` from a log that is not open; then `open` gives
        end == position.

        Durable, and crash-safe: the next `open` finishes it. Below the log's start all is removed. Raises `ValueError`
        if `position` lies behind the log's end, `CorruptLog` where no whole frame ends at it: what lies before is
        damaged, and without it the log would end earlier; `CorruptLog` and `StorageFull` as `open` does.
        """
        found = _recover(folder, options)
        if position > found.synced:
            raise ValueError(f"{folder}: cannot be cut at {position}, it ends at {found.synced}")
        if position == found.synced:
            return
        chunk = next((chunk for chunk in reversed(found.chunks) if chunk.start < position), None)
        within = chunk is not None and (chunk.end is None or position < chunk.end)
        if chunk is not None and within and not cutting.frame_ends_at(chunk, position):
            raise CorruptLog(f"{chunk.path}: no frame ends at {position}. Fetch this container anew.")
        del found, chunk  # they map what is cut
        cutting.cut(folder, position)

    # --- positions and sizes; see Appender

    @property
    def start(self) -> Position:
        """The position of the oldest frame that is kept."""
        return self.appender.start

    @property
    def end(self) -> Position:
        """Behind the last frame, written or not."""
        return self.appender.end

    @property
    def written(self) -> Position:
        """Frames below can be read from the files."""
        return self.appender.written

    @property
    def synced(self) -> Position:
        """Frames below are durable."""
        return self.appender.synced

    @property
    def gaps_end(self) -> Position:
        """Nothing behind here came as a gap."""
        return self.appender.gaps_end

    @property
    def pending_bytes(self) -> int:
        """Of frames that no job has taken."""
        return self.appender.pending_bytes

    @property
    def spare_bytes(self) -> int:
        """What `make_spare` takes of the disk."""
        return self.appender.spare_bytes

    @property
    def unused_bytes(self) -> int:
        """What chunks occupy beyond their frames."""
        return self.appender.unused_bytes

    @property
    def options(self) -> LogOptions:
        """Its sizes, and how safe it is kept."""
        return self.appender.options

    @options.setter
    def options(self, options: LogOptions) -> None:
        self.appender.options = options

    # --- growing; see Appender

    def make_spare(self) -> None:
        """[blocking] Preallocates the next chunk. Raises `StorageFull`, and leaves nothing behind."""
        self.appender.make_spare()

    def rest(self) -> list[Spare]:
        """Little is still to be written: new chunks are small from now on. The spares that are not, for whoever drops
        them."""
        return self.appender.rest()

    def close_open_chunk(self) -> None:
        """Ends the open chunk although it is not full (by age). `take_job` then has a job, maybe one without bytes."""
        self.appender.close_open_chunk()

    def write_job(self, job: WriteJob) -> None:
        """[blocking] Writes and syncs a job. `OSError` propagates; after a failed sync the process must end.

        Raises `OutOfDescriptors`: the same job is to be written again, and goes on where it was.
        """
        self.appender.write_job(job)

    @property
    def pends_one_write(self) -> bool:
        """Whether what is pending is one call to the kernel, which may go beside another one."""
        return self.appender.pends_one_write

    @property
    def can_write_beside(self) -> bool:
        """Whether there is an open file for that."""
        return self.appender.can_write_beside

    @property
    def wants_mark(self) -> bool:
        """Whether something was synced that no mark tells of."""
        return self.appender.wants_mark

    @property
    def mark_in_s(self) -> float:
        """Seconds until it is time for another mark."""
        return self.appender.mark_in_s

    def mark_synced(self) -> None:
        """[blocking] Keeps how far the log is synced, for the next start. Not beside `write_job`, nor beside itself."""
        self.appender.mark_synced()

    # --- reading

    def read(self, partitionlet: int, offset: int, *, limit: int, max_bytes: int) -> list[bytes | memoryview]:
        """[blocking] As `read_tail`, from disk; an offset in a gap goes on at the next batch. Raises `CorruptLog`."""
        return reading.read_batches(
            list(self.appender.chunks),
            partitionlet,
            offset,
            limit=limit,
            max_bytes=max_bytes,
            written=self.appender.written,
        )

    def read_ahead(self, partitionlet: int, offset: int, *, limit: int, read_bytes: int, max_bytes: int) -> int:
        """[blocking] Have the kernel fetch up to `max_bytes` behind the `read_bytes` that were read from `offset` on;
        as many as it was asked for. Raises `CorruptLog`."""
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
        """[blocking] Raw frames from `position` on, for `append_frames` of another replica: those that end at or below
        `until` and are written, covering about `max_bytes` of the log, at least one. `layouts`: what one that
        reads on and on keeps for the next call.

        What was given back comes as gap frames, of which the result holds the header alone: it is `RawFrames.end`, not
        the sum of lengths, that says where to go on. Every checksum has been checked. Raises `CorruptLog`, also where
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
        """[blocking] What the chunks that end behind `since` hold of a partitionlet. Raises `CorruptLog`."""
        chunks = [chunk for chunk in list(self.appender.chunks) if chunk.end is None or chunk.end > since]
        return reading.load_state(chunks, partitionlet)

    def size(self, partitionlet: int) -> int:
        """[blocking] Bytes of its data frames, frame headers included, less what has been given back."""
        return self.load(partitionlet).bytes

    def find_timestamp(self, partitionlet: int, timestamp: int, *, limit: int) -> bytes | None:
        """[blocking] The first batch, by offset, that holds a record of `timestamp` or later and ends below `limit`."""
        return reading.first_at_or_after(
            list(self.appender.chunks), partitionlet, timestamp, limit=limit, written=self.appender.written
        )

    def find_max_timestamp(self, partitionlet: int, *, limit: int) -> bytes | None:
        """[blocking] The first batch with the largest timestamp of those that end below `limit`."""
        return reading.newest_by_timestamp(
            list(self.appender.chunks), partitionlet, limit=limit, written=self.appender.written
        )

    def control_frames(self, after: Position, until: Position) -> Iterator[Frame]:
        """[blocking] The control frames that start at or behind `after` and end at or below `until`, in order."""
        return reading.control_frames(list(self.appender.chunks), after, min(until, self.appender.written))

    def controls_of(self, partitionlet: int) -> Iterator[Frame]:
        """[blocking] The control frames of one partitionlet, in position order."""
        return reading.controls_of(list(self.appender.chunks), partitionlet, written=self.appender.written)

    # --- maintenance

    def chunks(self) -> list[Chunk]:
        """All chunks in position order."""
        return list(self.appender.chunks)

    def closed_chunks(self) -> list[Chunk]:
        """The closed ones, in position order: these can be dropped, punched and regrouped."""
        return [chunk for chunk in list(self.appender.chunks) if chunk.body.closed]

    def summaries(self, chunk: Chunk) -> list[Summary]:
        """[blocking] What a chunk holds of each partitionlet, by id, less what has been given back."""
        return maintenance.summaries(chunk)

    def summaries_of(self, chunk: Chunk, partitionlets: Collection[int]) -> list[Summary]:
        """[blocking] The same of some partitionlets, those that it holds; what it holds of others is not looked at."""
        return maintenance.summaries_of(chunk, partitionlets)

    def lives(self, chunk: Chunk, dead: Mapping[int, int]) -> bool:
        """[blocking] Whether a chunk holds any record that was not given back and is not below its partitionlet's first
        kept offset in `dead`."""
        return maintenance.lives(chunk, dead)

    def oldest(self, chunk: Chunk, *, bits: int, untimed: int) -> dict[int, int]:
        """[blocking] By the upper bits of partitionlets' ids (id >> bits), the smallest of their largest timestamps;
        `untimed` stands for those of records without one."""
        return maintenance.oldest(chunk, bits=bits, untimed=untimed)

    def chunks_to_close(self, committed: Position | None = None) -> list[Chunk]:
        """Chunks that are full, synced, and end at or below `committed` (None: any), so that what may yet be cut is
        not closed. Each stands here until `close_chunk` is through with it."""
        return [
            c for c in list(self.appender.closing) if committed is None or (c.end is not None and c.end <= committed)
        ]

    def on_sync_failed(self, callback: Callable[[SyncFailed], None]) -> None:
        """Call it, in maintenance's thread, before `SyncFailed` is raised: the process must end (invariant 13)."""
        self._sync_failed = callback

    def close_chunk(self, chunk: Chunk) -> None:
        """[blocking] Gives a full chunk its footer and cuts its file to size. Raises `StorageFull`: try again later."""
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
        """[blocking] Whether the disk has room for what still lives in a closed chunk once more, and `leave` bytes."""
        disk = os.statvfs(self.folder)
        return disk.f_bavail * disk.f_frsize - maintenance.live_bytes(chunk) >= leave

    def regroup_command(self, chunk: Chunk, *, pauses_s: float = 0.0) -> list[str]:
        """The helper process that regroups a closed chunk; `reopen_chunk` when it has ended with 0.

        `pauses_s`: for so long in all it may leave the disk to others.
        """
        program = [sys.executable, "-m", "headrace.log.regroup"]
        return [*program, str(self.folder), str(chunk.start), f"{pauses_s:.3f}", str(os.getpid())]

    def reopen_chunk(self, chunk: Chunk) -> None:
        """[blocking] Takes up the file that a regroup left, in the place of a closed chunk's that is still there."""
        with self._maintenance:
            if chunk not in self.appender.chunks or not chunk.body.closed:
                regroup.drop(chunk.path)
            else:
                regroup.take_up(chunk)

    def drop_chunk(self, chunk: Chunk) -> None:
        """[blocking] Removes a closed chunk with all that it holds. Raises OSError, and `StorageFull` where there is no
        room for its mark: try again later."""
        with self._maintenance:
            if not chunk.body.closed:
                raise ValueError(f"{chunk}: only closed chunks can be dropped")
            if chunk in self.appender.chunks and chunk.end is not None:
                maintenance.drop(chunk, chunk.end)
                self.appender.chunks.remove(chunk)  # afterwards: what fails is tried again

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
            return maintenance.punch(chunk, dead) if chunk in self.appender.chunks else 0

    def forget_tail(self) -> None:
        """Keep no batches in memory, until more come: they are read from the files."""
        self.appender.tail.forget()

    def close(self) -> None:
        """[blocking] Writes what is pending, and lets go of the files. No read may be under way or follow.

        Maintenance that is under way is waited for; what comes later does nothing.
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
            heed_mark=options.heed_mark,
            begin=begin,
        )
