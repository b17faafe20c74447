"""Locates a partition's stored records and reads them, from this node's disk or from other nodes.

Knows nothing of requests: it takes ranges and a budget of bytes, and returns for each range its batches or the error.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from headrace.base.errors import HeadraceError
from headrace.base.ids import ContainerId, Offset, PartitionletId
from headrace.base.runtime import Runtime
from headrace.catalog.rows import PartitionletRow
from headrace.container.leader import Leader
from headrace.partitions.partition import Partition
from headrace.partitions.reads.remote_reads import RemoteReads
from headrace.wire.primitives import Buffer

MAX_REMOTE: Final = 64
"""Limit of ranges that one fetch requests from other nodes at the same time."""

AHEAD_BYTES: Final = 4 << 20
"""Limit of bytes that are read ahead for one fetch. A fetch's read-ahead is as large as its answer, since a client that
catches up requests as much again once it has processed the answer."""
AHEAD_FROM: Final = 64 << 10
"""Bytes that a fetch must get of a range for the range to be read ahead. A fetch that gets less is near the end of the
range, or requests little."""


@dataclass(frozen=True, slots=True)
class Range:
    """The offsets from `offset` up to `limit` (exclusive) of a partition, which lie in one partitionlet.

    `container`: the partitionlet's container if this node leads it; None: read through `remote_reads`.
    """

    row: PartitionletRow
    container: Leader | None
    offset: int
    limit: int
    partition: Partition
    high_watermark: int
    """The partition's high watermark when the range was located."""

    @property
    def partitionlet(self) -> PartitionletId:
        """The partitionlet's id."""
        return self.row.id


Key = tuple[str | bytes, int]
"""A partition: its topic's name or id, as the request has it, and its index."""
Asked = tuple[Key, Range, int]
"""A range to read: its partition, the range, and the limit of bytes."""
Read = dict[Key, list[Buffer] | Exception]
"""The batches of each range, or the error of its read."""


class FetchPlanner:
    """Locates ranges, and reads them."""

    def __init__(self, *, runtime: Runtime, led: Mapping[ContainerId, Leader], remote_reads: RemoteReads) -> None:
        """`led`: the containers that this node leads."""
        self._runtime = runtime
        self._led = led
        self._remote_reads = remote_reads

    def locate(self, partition: Partition, offset: int) -> Range:
        """The range of a partition from `offset` on, in the partitionlet that holds it, or the next one if none
        does."""
        high_watermark = partition.high_watermark
        row = partition.chain[-1]
        if offset < row.first:
            for older in reversed(partition.chain[:-1]):
                if offset >= older.end:
                    break
                row = older
        offset = max(offset, row.first)
        if row.id == partition.open:
            return Range(row, partition.container, offset, high_watermark, partition, high_watermark)
        return Range(row, self._led.get(row.container), offset, min(row.end, high_watermark), partition, high_watermark)

    async def read_all(self, asked: Sequence[Asked], budget: int) -> Read:
        """Read ranges in order until `budget` bytes are used up; at least one batch in all.

        Ranges on this node and ranges on other nodes are read one kind after the other, beginning with the kind of the
        first range. Neither kind starves, since callers put ranges first that were not served last time.
        """
        here = [each for each in asked if each[1].container is not None]
        elsewhere = [each for each in asked if each[1].container is None]
        first_here = asked[0][1].container is not None
        found: Read = {}
        for kind in (here, elsewhere) if first_here else (elsewhere, here):
            left = budget - sum(len(batch) for read in found.values() if isinstance(read, list) for batch in read)
            if not kind or (left <= 0 and found):
                continue
            if kind is here:
                found |= await self._runtime.loop.run_in_executor(self._runtime.executor, _read_here, kind, left)
                if ranges := _ranges_to_read_ahead(kind, found):
                    # Nothing waits for the read-ahead, which runs while the answer is sent.
                    self._runtime.loop.run_in_executor(self._runtime.executor, _read_ahead, ranges)
            else:
                found |= await self._read_elsewhere(kind, left)
        further = [
            (key, where, most)
            for key, before, most in asked
            if found.get(key) == [] and (where := self._next_range(before)) is not None
        ]
        if further:
            left = budget - sum(len(batch) for read in found.values() if isinstance(read, list) for batch in read)
            if left > 0 or not any(found.values()):
                found |= await self.read_all(further, max(left, 1))
        return found

    def _next_range(self, before: Range) -> Range | None:
        """The range behind one without records; None if records are missing there. Only a partitionlet that was cut may
        end in a gap."""
        if not before.row.cut or before.limit < before.row.end:
            return None
        where = self.locate(before.partition, before.row.end)
        return where if where.row.id != before.row.id and where.offset < where.limit else None

    async def _read_elsewhere(self, asked: Sequence[Asked], budget: int) -> Read:
        """Read ranges from other nodes, all at the same time: as many as fit into `budget`."""
        chosen: list[Asked] = []
        left = budget
        for key, where, max_bytes in asked[:MAX_REMOTE]:
            if left <= 0 and chosen:
                break
            most = min(max_bytes, max(left, 1))
            chosen.append((key, where, most))
            left -= most

        async def read(where: Range, most: int) -> list[Buffer] | Exception:
            try:
                return await self._remote_reads.read(where.row, offset=where.offset, limit=where.limit, max_bytes=most)
            except (HeadraceError, OSError) as error:
                return error

        answers = await asyncio.gather(*(read(where, most) for _, where, most in chosen))
        found: Read = {}
        left = budget
        for (key, _, _), answer in zip(chosen, answers, strict=True):
            size = 0 if isinstance(answer, Exception) else sum(map(len, answer))
            if size > left and any(found.values()):
                continue  # a batch larger than requested does not fit next to the others
            found[key] = answer
            left -= size
        return found


def _read_here(asked: Sequence[Asked], budget: int) -> Read:
    """[blocking] Read ranges in containers that this node leads, until `budget` bytes are used up."""
    found: Read = {}
    for key, where, max_bytes in asked:
        if budget <= 0 and found:
            break
        assert where.container is not None
        try:
            batches = where.container.log.read(
                where.row.id,
                Offset(where.offset),
                limit=Offset(where.limit),
                max_bytes=min(max_bytes, max(budget, 1)),
            )
        except (HeadraceError, OSError) as error:
            found[key] = error
            continue
        found[key] = list(batches)
        budget -= sum(map(len, batches))
    return found


def _ranges_to_read_ahead(asked: Sequence[Asked], found: Read) -> list[tuple[Range, int]]:
    """The ranges of which the client is likely to request more, each with the bytes just read."""
    ranges = []
    for key, where, _ in asked:
        read = found.get(key)
        if isinstance(read, list) and (size := sum(map(len, read))) >= AHEAD_FROM:
            ranges.append((where, size))
    return ranges


def _read_ahead(ranges: Sequence[tuple[Range, int]]) -> None:
    """[blocking] Have the system read ahead of these ranges, AHEAD_BYTES in all at most."""
    left = AHEAD_BYTES
    for where, size in ranges:
        assert where.container is not None
        with suppress(HeadraceError, OSError):  # the client's next read reports the error
            left -= where.container.log.read_ahead(
                where.row.id, where.offset, limit=where.limit, read_bytes=size, max_bytes=min(size, left)
            )
        if left <= 0:
            break
