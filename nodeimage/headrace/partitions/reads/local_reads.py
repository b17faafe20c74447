"""Reads of partitionlets from one replica on this node, whichever node leads the container. All functions block.

A follower may lack the newest frames, and may hold frames that were never committed and will be cut. So only frames
below the position that it knows to be committed count (invariant 2), and callers have to check by `committed_end`
whether the replica has a whole range. It has all of a sealed partitionlet whose last record lies below that position.
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
"""Called with the error and the container of a failed read of a container's log."""


class Replica(NamedTuple):
    """A replica's log, and its committed position. `led`: this node leads the container and serves, so that the replica
    is complete."""

    container: ContainerId
    log: ContainerLog
    committed: Position
    led: bool


class Extent(NamedTuple):
    """The size of a partitionlet in its container's log in bytes, and the offset after its last record."""

    size: int
    end: int
    oldest: Millis | None = None
    """The time of the first record, if it was requested and there is a record."""


def committed_end(replica: Replica, partitionlet: PartitionletId) -> Offset:
    """The offset after the last committed record of a partitionlet; -1 if the log holds none."""
    for chunk in reversed(replica.log.chunks()):
        body = chunk.body
        # Only chunks that are committed as a whole are regrouped. That may have happened after `replica` was looked up,
        # and the places in a regrouped chunk are unrelated to positions.
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
    """The offset after the last record that is left of a sealed partitionlet; its first offset if no record is left.

    Valid only for a complete log. Raises `CorruptLog`.
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
            # Batches of another leader that were never acknowledged may reach beyond the sealed end.
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
    # If a follower's batches begin behind `offset`, it has freed earlier ones that another node may still have.
    return batches if batches and int.from_bytes(batches[0][:8], "big") <= offset else None


def has_all(replica: Replica, partitionlet: PartitionletId, limit: int) -> bool:
    """Whether this replica has everything of a partitionlet below `limit`."""
    return replica.led or committed_end(replica, partitionlet) >= limit


def find_time(replica: Replica, partitionlet: PartitionletId, timestamp: int, limit: int) -> bytes | None:
    """The first batch below `limit` with a record of `timestamp` (milliseconds) or later; for -1 the batch with the
    largest timestamp."""
    if timestamp == -1:
        return replica.log.find_max_timestamp(partitionlet, limit=limit)
    return replica.log.find_timestamp(partitionlet, timestamp, limit=limit)


def extent(replica: Replica, partitionlet: PartitionletId, *, is_open: bool, first: Offset | None = None) -> Extent:
    """The extent of a partitionlet; its end is -1 if the partitionlet is not open, or holds no record.

    `first`: the offset of its oldest record, to include that record's time.
    """
    end = committed_end(replica, partitionlet) if is_open else NO_OFFSET
    oldest = None if first is None else _time_at(replica, partitionlet, first)
    return Extent(replica.log.size(partitionlet), end, oldest)


def _time_at(replica: Replica, partitionlet: PartitionletId, offset: Offset) -> Millis | None:
    """The time of the batch that holds `offset`, or of the next one; None if there is neither. Raises `CorruptLog`."""
    for run in read_range(replica, partitionlet, offset=offset, limit=NEVER, max_bytes=1) or []:
        for batch, _ in iter_batches(run):
            return Millis(batch.max_timestamp if batch.append_time else batch.base_timestamp)
    return None
