"""What one replica on this node can answer of a partitionlet, whoever leads its container. All of it blocks.

A replica that follows may lack the newest frames, and may hold frames that were never committed and will be cut: only
frames below what it knows to be committed count (invariant 2), and whether it has all of a range is for the caller to
see from `committed_end`. A sealed partitionlet is complete here once its last record lies below that.
"""

from collections.abc import Callable
from typing import NamedTuple

from headrace.base.ids import ContainerId, Millis, Offset, PartitionletId, Position
from headrace.catalog.rows import PartitionletRow
from headrace.log.container_log import ContainerLog
from headrace.log.reading import NEVER
from headrace.wire.batch import iter_batches
from headrace.wire.primitives import Buffer

NO_OFFSET = Offset(-1)
ReadFailed = Callable[[Exception, ContainerId], None]
"""Takes note of a read of a container's log that failed."""


class Replica(NamedTuple):
    """A replica's log, and what of it is committed. `led`: this node leads it and serves: all there is is here."""

    container: ContainerId
    log: ContainerLog
    committed: Position
    led: bool


class Extent(NamedTuple):
    """A partitionlet in its container's log: bytes stored, and the offset after its last record."""

    size: int
    end: int
    oldest: Millis | None = None
    """The time of its first record, where that was asked for and there is one."""


def committed_end(replica: Replica, partitionlet: PartitionletId) -> Offset:
    """The offset behind the last committed record of a partitionlet; -1 where the log holds none."""
    for chunk in reversed(replica.log.chunks()):
        body = chunk.body
        # Only what is committed as a whole is regrouped, which may have come after `replica` was looked up; its places
        # say nothing of positions.
        whole = body.regrouped or (chunk.end is not None and chunk.end <= replica.committed)
        for part in reversed(body.parts):
            summary = part.summary(partitionlet)
            if summary is None or not summary.length:
                continue
            if whole or chunk.start + part.end <= replica.committed:
                return Offset(summary.last + 1)
            end = NO_OFFSET
            for place in part.places(partitionlet, 0):
                if chunk.start + place.at + place.length > replica.committed:
                    break
                end = Offset(place.last + 1)
            if end >= 0:
                return end
    return NO_OFFSET


def stored_end(container_log: ContainerLog, row: PartitionletRow) -> Offset:
    """The offset behind the last record that is left of a sealed partitionlet, its own first offset where none is.

    Only for a log that has all there is. Raises `CorruptLog`.
    """
    for chunk in reversed(container_log.chunks()):
        body = chunk.body
        kept = body.dead.first_kept(row.id)
        for part in reversed(body.parts):
            summary = part.summary(row.id)
            if summary is None or not summary.length or summary.first >= row.end or summary.last < kept:
                continue
            if summary.last < row.end:
                return Offset(max(row.first, summary.last + 1))
            # Another leader's batches, which were never acknowledged, may reach beyond the end that was sealed.
            for place in reversed([each for each in part.places(row.id, kept) if each.first < row.end]):
                batches = container_log.read(row.id, place.first, limit=row.end, max_bytes=NEVER)
                ends = [
                    batch.base_offset + batch.last_offset_delta + 1 for run in batches for batch, _ in iter_batches(run)
                ]
                if ends:
                    return Offset(max(row.first, ends[-1]))
    return row.first


def read_range(
    replica: Replica, partitionlet: PartitionletId, *, offset: int, limit: int, max_bytes: int
) -> list[Buffer] | None:
    """Committed batches from `offset` on, below `limit`; None: this replica cannot tell. Raises `CorruptLog`."""
    end = committed_end(replica, partitionlet)
    if offset >= end:
        return [] if replica.led else None
    batches: list[Buffer] = list(
        replica.log.read(partitionlet, Offset(offset), limit=Offset(min(limit, end)), max_bytes=max_bytes)
    )
    if replica.led:
        return batches
    # Where a follower's batches begin behind `offset`, it gave back what another node may still have.
    return batches if batches and int.from_bytes(batches[0][:8], "big") <= offset else None


def has_all(replica: Replica, partitionlet: PartitionletId, limit: int) -> bool:
    """Whether no other replica can know more of a partitionlet below `limit`."""
    return replica.led or committed_end(replica, partitionlet) >= limit


def find_time(replica: Replica, partitionlet: PartitionletId, timestamp: int, limit: int) -> bytes | None:
    """The first batch below `limit` with a record of `timestamp` or later; of -1, the one with the largest time."""
    if timestamp == -1:
        return replica.log.find_max_timestamp(partitionlet, limit=limit)
    return replica.log.find_timestamp(partitionlet, timestamp, limit=limit)


def extent(replica: Replica, partitionlet: PartitionletId, *, is_open: bool, first: Offset | None = None) -> Extent:
    """How much is stored of a partitionlet; its end is -1 where that is not asked for, or it holds no record.

    `first`: where it begins, for its oldest record's time.
    """
    end = committed_end(replica, partitionlet) if is_open else NO_OFFSET
    oldest = None if first is None else _time_at(replica, partitionlet, first)
    return Extent(replica.log.size(partitionlet), end, oldest)


def _time_at(replica: Replica, partitionlet: PartitionletId, offset: Offset) -> Millis | None:
    """The time of the batch that holds `offset`, or follows it. Raises `CorruptLog`."""
    for run in read_range(replica, partitionlet, offset=offset, limit=NEVER, max_bytes=1) or []:
        for batch, _ in iter_batches(run):
            return Millis(batch.max_timestamp if batch.append_time else batch.base_timestamp)
    return None
