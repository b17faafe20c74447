"""Appends fetched batches of a partition to this cluster's copy of it, at the batches' own offsets.

Responsible for checking every batch, since a source may send anything: the batch is whole, its CRC right, and its
offsets do not extend across the copy's end. A batch below the end is a duplicate and is dropped; a gap before a batch
is the source's, where records have expired or were compacted. A wrong batch is refused before anything after it is
appended.

Appending waits for rolls, for a new chunk, and for the disk to catch up; after each wait it checks the partition's
state again. Batches fetched for another end or another home, or for a partition that has changed hands, are `Outdated`.
Yields to the event loop every few milliseconds. If it is cancelled at any await, what is appended stays
appended, and the rest is as if it had never arrived.

Knows nothing of links, of sources, or of why something was fetched.
"""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from headrace.base.errors import Code, InvalidBatch, KafkaError, StorageFull
from headrace.base.ids import Home, Offset
from headrace.links.source.source import TopicPartition
from headrace.log.frames import MAX_PAYLOAD_BYTES
from headrace.partitions.home_check import HomeCheck
from headrace.partitions.partition import Partition
from headrace.partitions.rolls.rolls import Rolls
from headrace.partitions.topic import Topic
from headrace.partitions.topics import Topics
from headrace.wire.batch import BATCH_HEADER_SIZE, CONTROL_BIT, MAGIC, BatchHeader, read_batch

SLICE_S: Final = 0.002
"""Longest time without yielding to the event loop, in seconds."""
LOOKED_AT: Final = 16
"""Batches between two looks at the clock."""
MAX_TRIES: Final = 20
MAX_BATCH_BYTES = MAX_PAYLOAD_BYTES
_LAST_OFFSET: Final = 1 << 62


class Outdated(Exception):
    """The copy has changed since the batches were requested: look it up again."""


class AppendProgress(Protocol):
    """Receives what became of the fetched bytes."""

    def released(self, count: int) -> None:
        """`count` more bytes are committed, dropped, or lost; called until all bytes that arrived are accounted for."""

    def committed(self, at: TopicPartition, offset: Offset) -> None:
        """All records below `offset` are committed."""


class BackPressure(Protocol):
    """Whether more bytes are waiting for the disk than memory should hold."""

    @property
    def saturated(self) -> bool:
        """Whether too many bytes are waiting, so that nothing more may be appended now."""

    async def not_saturated(self) -> None:
        """Wait until the disk has caught up."""


class FetchedBatches(NamedTuple):
    """Fetched records of a partition that ended at `end`, under the home `home`, when they were requested."""

    at: TopicPartition
    records: Sequence[memoryview]
    end: Offset
    home: Home | None


class _Commit:
    """A batch that waits for its commit."""

    __slots__ = ("_at", "_count", "_end", "_progress")

    def __init__(self, progress: AppendProgress, at: TopicPartition, end: int, count: int) -> None:
        self._progress = progress
        self._at = at
        self._end = end
        self._count = count

    def committed(self) -> None:
        """See commit_waiters.Waiting."""
        self._progress.released(self._count)
        self._progress.committed(self._at, Offset(self._end))

    def lost(self) -> None:
        """See commit_waiters.Waiting. The partition's next leader pulls the batch again if it lacks it."""
        self._progress.released(self._count)


class Appender:
    """Appends to the copies that this node leads; one object serves all links."""

    def __init__(self, *, topics: Topics, rolls: Rolls, home_check: HomeCheck, back_pressure: BackPressure) -> None:
        self._topics = topics
        self._rolls = rolls
        self._home_check = home_check
        self._back_pressure = back_pressure

    async def append(self, fetched: FetchedBatches, progress: AppendProgress) -> Offset:
        """Append all fetched batches; returns where the partition ends then.

        Raises Outdated, or HeadraceError if a batch is wrong or cannot be stored. In these cases, and when cancelled,
        some batches may have been appended. `progress.released` is called with all bytes, once each.
        """
        left = sum(map(len, fetched.records))
        end = fetched.end
        try:
            pause = _Pause()
            for header, batch in _checked(fetched):
                if _end_offset(header) <= end:
                    continue  # a duplicate
                waiting = _Commit(progress, fetched.at, _end_offset(header), header.length)
                end = await self._put(fetched, end, header, batch, waiting)
                left -= header.length
                await pause()
        finally:
            if left:
                progress.released(left)
        return end

    async def _put(
        self, fetched: FetchedBatches, end: Offset, header: BatchHeader, batch: memoryview, waiting: _Commit
    ) -> Offset:
        """Append one batch to the partition, which ends at `end`, once it can take the batch; returns its new end.

        Raises Outdated, HeadraceError.
        """
        for _ in range(MAX_TRIES):
            if self._back_pressure.saturated:
                await self._back_pressure.not_saturated()
            topic, partition = self._find(fetched)
            if partition.rolling:
                await self._rolls.wait_for_roll(partition)
                continue
            if partition.next_offset != end:
                raise Outdated
            try:
                self._home_check.copy_append(topic, partition, batch, header, waiting=waiting)
                return Offset(partition.next_offset)
            except StorageFull:
                if partition.container.refuses:
                    raise
                await partition.container.make_room()
            except KafkaError as error:
                if error.code in (Code.NOT_LEADER_OR_FOLLOWER, Code.FENCED_LEADER_EPOCH):
                    raise Outdated from error
                if error.code is not Code.LEADER_NOT_AVAILABLE:
                    raise
                await self._rolls.wait_for_roll(partition)
        raise KafkaError(Code.LEADER_NOT_AVAILABLE, f"{topic.row.full_name} is not ready to be written to")

    def _find(self, fetched: FetchedBatches) -> tuple[Topic, Partition]:
        topic = self._topics.cached_id(fetched.at.topic_id)
        partition = None if topic is None else topic.partitions.get(fetched.at.partition)
        if topic is None or partition is None or topic.home != fetched.home or partition.left or partition.deleted:
            raise Outdated
        return topic, partition


class _Pause:
    """Yields to the event loop, but not too often."""

    __slots__ = ("_calls", "_loop", "_until")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._calls = 0
        self._until = self._loop.time() + SLICE_S

    async def __call__(self) -> None:
        self._calls += 1
        if self._calls % LOOKED_AT == 0 and self._loop.time() >= self._until:
            await asyncio.sleep(0)
            self._until = self._loop.time() + SLICE_S


def _end_offset(header: BatchHeader) -> int:
    return header.base_offset + header.last_offset_delta + 1


def _checked(fetched: FetchedBatches) -> Iterator[tuple[BatchHeader, memoryview]]:
    """The batches in order, each checked as it is taken. A partial batch at the end, which Kafka may send, is left out.

    Raises HeadraceError for the first wrong batch.
    """
    end = fetched.end
    for run in fetched.records:
        rest = run
        while rest:
            if _is_cut_off(rest) and rest is not run:
                break
            header = read_batch(rest, from_client=False)
            _check(header, end)
            yield header, rest[: header.length]
            end = Offset(max(end, _end_offset(header)))
            rest = rest[header.length :]


def _is_cut_off(rest: memoryview) -> bool:
    if len(rest) < BATCH_HEADER_SIZE:
        return True
    return rest[16] == MAGIC and int.from_bytes(rest[8:12], "big", signed=True) + 12 > len(rest)


def _check(header: BatchHeader, end: Offset) -> None:
    """Check that an intact batch may be appended. `end`: the end of everything before it. Raises InvalidBatch."""
    first, last = header.base_offset, header.base_offset + header.last_offset_delta
    if first < 0 or last < first or last >= _LAST_OFFSET or not 0 <= header.record_count <= last - first + 1:
        raise InvalidBatch(f"the source sent a batch of {header.record_count} records at offsets {first} to {last}")
    if first < end <= last:
        raise InvalidBatch(f"the source sent a batch at offsets {first} to {last}, which overlap ours below {end}")
    if header.length > MAX_BATCH_BYTES:
        raise InvalidBatch(f"the source sent a batch of {header.length} bytes; at most {MAX_BATCH_BYTES} are accepted")
    if header.attributes & CONTROL_BIT and header.producer_id != -1:
        # A transaction marker. Sources leave out markers and aborted batches; control batches without a producer fill
        # gaps.
        raise InvalidBatch(f"the source sent a control batch at offset {first}, which has no meaning here")
