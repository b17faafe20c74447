"""ListOffsets and OffsetForLeaderEpoch: the offsets for a time, for the start or end of a partition, and for an epoch.

Earliest and latest are read from the partition in memory. A look-up by time finds the batch through the log's index, in
a reader thread or on another node, then the record inside it. Spark's Kafka source sends ListOffsets twice a poll, so
the common kinds use memory only.

Only the partition's leader answers. A leader that is out of touch with its followers may have been replaced without
knowing it, so it returns no latest offset (invariant 16); what it knows to be committed stays true. A leader whose open
partitionlet is sealed returns none either: the partition may already continue elsewhere. In both cases the request
waits for some seconds.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final

from headrace.base.errors import Code, CorruptBatch, HeadraceError, KafkaError, StorageFull
from headrace.base.ids import ContainerId
from headrace.base.runtime import Runtime
from headrace.catalog.rows import PartitionletRow
from headrace.container.commit_wait import back_in_touch
from headrace.container.leader import Leader
from headrace.kafka.api import Api
from headrace.kafka.authorization import Authorization
from headrace.kafka.connection import Connection
from headrace.partitions.lookups import leaders
from headrace.partitions.partition import Partition
from headrace.partitions.partitions import Partitions
from headrace.partitions.reads.remote_reads import RemoteReads
from headrace.partitions.refusals import client_error
from headrace.partitions.rolls.rolls import Rolls
from headrace.partitions.topics import Topics
from headrace.security.kafka_acls import AclOperation
from headrace.wire.api_keys import ApiKey, Versions
from headrace.wire.batch import BatchHeader, batch_records, find_by_time, find_max_time, iter_batches
from headrace.wire.generic_codec import field
from headrace.wire.primitives import Buffer

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5

SCANNED_AT_ONCE = 1 << 20
ROLL_WAIT_S: Final = 5.0
"""Seconds within which a roll ends if nothing is wrong."""

Found = tuple[int, int, int]
"""(offset, timestamp, leader epoch); -1 for each part that does not exist."""
NOTHING: Final[Found] = (-1, -1, -1)
OUT_OF_TOUCH: Final = KafkaError(Code.LEADER_NOT_AVAILABLE, "this node has not heard from its followers for a moment")

Look = Callable[[BatchHeader, Buffer], tuple[int, int] | None]
"""Looks at a batch for a record, and returns its offset and timestamp if it is the one."""
Asked = Sequence[tuple[str, int, Any]]
"""(topic name, partition number, the partition's part of the request), in the request's order."""


class ListOffsetsApi:
    """Answers ListOffsets and OffsetForLeaderEpoch."""

    def __init__(
        self,
        *,
        topics: Topics,
        partitions: Partitions,
        runtime: Runtime,
        rolls: Rolls,
        remote_reads: RemoteReads,
        read_failed: Callable[[Exception, ContainerId], None],
        authorization: Authorization,
    ) -> None:
        self._topics = topics
        self._partitions = partitions
        self._runtime = runtime
        self._rolls = rolls
        self._remote_reads = remote_reads
        self._read_failed = read_failed
        self._authorization = authorization

    @property
    def apis(self) -> Sequence[Api]:
        """The APIs that this module answers."""
        return (
            Api(ApiKey.LIST_OFFSETS, Versions(1, 9), self.list_offsets),
            Api(ApiKey.OFFSET_FOR_LEADER_EPOCH, Versions(2, 4), self.offset_for_leader_epoch),
        )

    async def list_offsets(self, request: Any, session: Connection) -> Mapping[str, object]:
        """ListOffsets."""
        asked = [(topic.name, part.partition_index, part) for topic in request.topics for part in topic.partitions]
        partitions = await self._leaders(asked, session, api="ListOffsets")
        kinds = [_millis(part.timestamp) for _, _, part in asked]
        of_latest = [each for each, kind in zip(partitions, kinds, strict=True) if kind == LATEST]
        latest = await self._latest([each for each in of_latest if isinstance(each, Partition)])
        answers = []
        for (_, index, _), partition, kind in zip(asked, partitions, kinds, strict=True):
            found: Found | KafkaError
            if isinstance(partition, KafkaError):
                found = partition
            elif kind == LATEST:
                found = latest[partition]
            else:
                found = await self._find_or_refuse(partition, kind)
            code, (offset, timestamp, epoch) = (
                (int(found.code), NOTHING) if isinstance(found, KafkaError) else (0, found)
            )
            answers.append(
                {
                    "partition_index": index,
                    "error_code": code,
                    "offset": offset,
                    "timestamp": timestamp,
                    "leader_epoch": epoch,
                }
            )
        return _by_topic(request, "name", answers)

    async def offset_for_leader_epoch(self, request: Any, session: Connection) -> Mapping[str, object]:
        """OffsetForLeaderEpoch (KIP-101, KIP-320): the end offset of the latest epoch that is not above the requested
        one. An epoch older than all known ones ends where the oldest known epoch begins."""
        asked = [(topic.topic, part.partition, part) for topic in request.topics for part in topic.partitions]
        answers = []
        partitions = await self._leaders(asked, session, api="OffsetForLeaderEpoch")
        for (_, index, part), partition in zip(asked, partitions, strict=True):
            if isinstance(partition, KafkaError):
                code, epoch, end = int(partition.code), -1, -1
            else:
                code, (epoch, end) = 0, _end_of_epoch(partition, part.leader_epoch)
            answers.append({"partition": index, "error_code": code, "leader_epoch": epoch, "end_offset": end})
        return _by_topic(request, "topic", answers)

    async def _leaders(self, asked: Asked, session: Connection, *, api: str) -> list[Partition | KafkaError]:
        """The requested partitions, all brought into memory in one go, or why this node does not answer for them."""
        names = (name for name, _, _ in asked)
        found = await leaders(
            [(name, number) for name, number, _ in asked],
            session,
            topics=self._topics,
            partitions=self._partitions,
            refused=await self._authorization.refused_topics(session, AclOperation.DESCRIBE, names, api=api),
        )
        return [_checked(partition, part) for partition, (_, _, part) in zip(found, asked, strict=True)]

    async def _latest(self, partitions: Sequence[Partition]) -> dict[Partition, Found | KafkaError]:
        """The end of each of these partitions, or why it is not known just now.

        Uncertain containers are waited for concurrently and once each, so however many stall, the request waits no
        longer than for one.
        """
        found: dict[Partition, Found | KafkaError] = {}
        unsure: dict[Leader, list[Partition]] = {}
        for partition in dict.fromkeys(partitions):
            if partition.container.in_touch and partition.seal is None and not partition.left:
                found[partition] = _end(partition)
            else:
                unsure.setdefault(partition.container, []).append(partition)

        async def look_up(partition: Partition) -> None:
            try:
                await wait_until_rolled(self._rolls, partition)
                found[partition] = _end(partition) if partition.container.in_touch else OUT_OF_TOUCH
            except HeadraceError as error:
                found[partition] = client_error(error)

        async def wait(container: Leader, partitions: Sequence[Partition]) -> None:
            if await back_in_touch(container):
                await asyncio.gather(*map(look_up, partitions))
            else:
                found.update(dict.fromkeys(partitions, OUT_OF_TOUCH))

        await asyncio.gather(*(wait(container, some) for container, some in unsure.items()))
        return found

    async def _find_or_refuse(self, partition: Partition, timestamp: int) -> Found | KafkaError:
        try:
            return await self._find(partition, timestamp)
        except KafkaError as error:
            return error

    async def _find(self, partition: Partition, timestamp: int) -> Found:
        """The answer to a ListOffsets with `timestamp`, which is any kind except the latest offset."""
        match timestamp:
            case -2 | -4:
                return partition.log_start, -1, partition.epochs()[0][0]
            case -5:
                return NOTHING
            case _ if timestamp < MAX_TIMESTAMP:
                raise KafkaError(Code.UNSUPPORTED_VERSION, f"ListOffsets with timestamp {timestamp}")
        try:
            if timestamp == MAX_TIMESTAMP:
                return await self._newest(partition)
            return await self._at_or_after(partition, timestamp)
        except KafkaError:
            raise
        except (HeadraceError, OSError) as error:
            self._read_failed(error, partition.container.id)
            raise KafkaError(Code.KAFKA_STORAGE_ERROR, str(error)) from error

    async def _at_or_after(self, partition: Partition, timestamp: int) -> Found:
        """The first record whose timestamp is `timestamp` or later."""
        for row, first, end in _live(partition):
            batch = await self._batch_by_time(partition, row, timestamp=timestamp, limit=end)
            found = None
            if batch is not None:  # a batch may have any number of records: not on the loop
                found = await self._runtime.loop.run_in_executor(
                    self._runtime.executor, find_by_time, memoryview(batch), timestamp
                )
            if found is not None and found[0] < first:
                look = partial(_first_at_or_after, first=first, timestamp=timestamp)
                found = await self._scan(partition, row, look, first=first, end=end)
            if found is not None:
                return found[0], found[1], partition.leader_epoch
        return NOTHING

    async def _newest(self, partition: Partition) -> Found:
        """The record with the largest timestamp (KIP-734)."""
        newest = NOTHING
        for row, first, end in _live(partition):
            batch = await self._batch_by_time(partition, row, timestamp=-1, limit=end)
            if batch is None:
                continue
            offset, timestamp = await self._runtime.loop.run_in_executor(
                self._runtime.executor, find_max_time, memoryview(batch)
            )
            if offset < first and timestamp > newest[1]:
                look = _Newest(first=first)
                await self._scan(partition, row, look, first=first, end=end)
                offset, timestamp = look.offset, look.timestamp
            if timestamp > newest[1]:
                newest = (offset, timestamp, partition.leader_epoch)
        return newest

    async def _batch_by_time(
        self, partition: Partition, row: PartitionletRow, *, timestamp: int, limit: int
    ) -> bytes | None:
        """The first batch below offset `limit` with a record of `timestamp` or later; for -1, the batch with the
        largest timestamp."""
        if row.id != partition.open:
            return await self._remote_reads.find_time(row, timestamp, limit)
        container_log = partition.container.log

        def look() -> bytes | None:
            if timestamp == -1:
                return container_log.find_max_timestamp(row.id, limit=limit)
            return container_log.find_timestamp(row.id, timestamp, limit=limit)

        return await self._runtime.loop.run_in_executor(self._runtime.executor, look)

    async def _scan(
        self, partition: Partition, row: PartitionletRow, look: Look, *, first: int, end: int
    ) -> tuple[int, int] | None:
        """Pass the batches from offset `first` on to `look`, in a thread, until it finds something: for a log start
        beyond the batch that the index names."""
        container_log = partition.container.log
        offset = first
        while offset < end:
            batches: Sequence[Buffer]
            if row.id == partition.open:
                batches = await self._runtime.loop.run_in_executor(
                    self._runtime.executor,
                    partial(container_log.read, row.id, offset, limit=end, max_bytes=SCANNED_AT_ONCE),
                )
            else:
                batches = await self._remote_reads.read(row, offset=offset, limit=end, max_bytes=SCANNED_AT_ONCE)
            if not batches:
                return None
            found, offset = await self._runtime.loop.run_in_executor(
                self._runtime.executor, _look_through, batches, look, offset
            )
            if found is not None:
                return found
        return None


def _by_topic(request: Any, name: str, answers: Sequence[object]) -> Mapping[str, object]:
    """Group the answers, which are in the order of the request's partitions, by topic. `name`: the field with a topic's
    name."""
    rest = iter(answers)
    return {
        "topics": [
            {name: getattr(topic, name), "partitions": list(islice(rest, len(topic.partitions)))}
            for topic in request.topics
        ]
    }


def check_epoch(partition: Partition, asked: int) -> None:
    """Raises `KafkaError` FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH if the client knows another leader epoch."""
    if asked == -1 or asked == partition.leader_epoch:
        return
    if asked < partition.leader_epoch:
        raise KafkaError(Code.FENCED_LEADER_EPOCH)
    raise KafkaError(Code.UNKNOWN_LEADER_EPOCH)


def _checked(partition: Partition | KafkaError, part: Any) -> Partition | KafkaError:
    try:
        if isinstance(partition, Partition):
            check_epoch(partition, field(part, "current_leader_epoch", -1))
    except KafkaError as error:
        return error
    return partition


def _millis(timestamp: Any) -> int:
    """The request's timestamp in milliseconds, whichever type the schema library decodes it to."""
    return timestamp if isinstance(timestamp, int) else int(timestamp.timestamp() * 1000)


def _end(partition: Partition) -> Found:
    return partition.high_watermark, -1, partition.leader_epoch


def _live(partition: Partition) -> Iterator[tuple[PartitionletRow, int, int]]:
    """The partition's partitionlets, in order, each with the first of its live offsets and their end."""
    for row in partition.chain:
        first = max(row.first, partition.log_start)
        end = partition.high_watermark if row.id == partition.open else min(row.end, partition.high_watermark)
        if first < end:
            yield row, first, end


def _look_through(batches: "Sequence[Buffer]", look: Look, offset: int) -> tuple[tuple[int, int] | None, int]:
    """[blocking] What `look` finds in the batches from `offset` on, and the offset at which to continue."""
    for view in batches:
        for header, batch in iter_batches(memoryview(view)):
            if (found := look(header, batch)) is not None:
                return found, offset
            offset = header.base_offset + header.last_offset_delta + 1
    return None, offset


def _first_at_or_after(header: BatchHeader, batch: Buffer, *, first: int, timestamp: int) -> tuple[int, int] | None:
    """[blocking] A batch's first record from offset `first` on with `timestamp` or later."""
    if header.max_timestamp < timestamp:
        return None
    try:
        for record in batch_records(header, batch):
            if record.offset >= first and record.timestamp >= timestamp:
                return record.offset, record.timestamp
    except CorruptBatch:  # stored by an earlier version: rely on the header (`find_by_time`)
        return max(first, header.base_offset), header.max_timestamp
    return None


class _Newest:
    """Keeps the first of the records with the largest timestamp from offset `first` on, of all batches passed to it."""

    def __init__(self, *, first: int) -> None:
        self._first = first
        self.offset = self.timestamp = -1

    def __call__(self, header: BatchHeader, batch: Buffer) -> None:
        """[blocking] Look at a batch."""
        if header.max_timestamp <= self.timestamp:
            return
        try:
            for record in batch_records(header, batch):
                if record.offset >= self._first and record.timestamp > self.timestamp:
                    self.offset, self.timestamp = record.offset, record.timestamp
        except CorruptBatch:  # as in `_first_at_or_after`
            self.offset, self.timestamp = max(self._first, header.base_offset), header.max_timestamp


def _end_of_epoch(partition: Partition, asked: int) -> tuple[int, int]:
    if asked == partition.leader_epoch:
        return asked, partition.high_watermark
    if not 0 <= asked < partition.leader_epoch:
        return -1, -1
    history = partition.epochs()
    after = next(number for number, (epoch, _) in enumerate(history) if epoch > asked)  # the present one at the latest
    # An epoch older than all known ones has expired, or never had a record: it ends where the oldest begins, as in
    # Kafka. Without an end, clients assume that the log was truncated, and consumers reset to the latest offset.
    return history[after - 1][0] if after else asked, history[after][1]


async def wait_until_rolled(rolls: Rolls, partition: Partition) -> None:
    """Return once the last partitionlet of `partition` that this node knows is not sealed.

    Raises KafkaError, retriable, if the partition continues on another node, or if the roll is not over within some
    seconds.
    """
    try:
        async with asyncio.timeout(ROLL_WAIT_S):
            while partition.seal is not None and not partition.left:
                await rolls.roll(partition)
    except (StorageFull, TimeoutError) as error:
        raise KafkaError(Code.LEADER_NOT_AVAILABLE, f"the partition is being rolled: {error}") from error
    if partition.left:
        raise KafkaError(Code.NOT_LEADER_OR_FOLLOWER)
