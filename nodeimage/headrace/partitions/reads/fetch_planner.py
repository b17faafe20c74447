"""Where a partition's old records lie, and reading them: on this node's disk, or from other nodes.

Knows nothing of requests: it is given ranges and a budget of bytes, and says of each range what it holds or why it
cannot be read.
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

MOST_REMOTE: Final = 64
"""Ranges that are asked of other nodes at the same time, for one fetch."""

AHEAD_BYTES: Final = 4 << 20
"""So much is read ahead for one fetch at most, as much as it got: a client that catches up asks for as much again, once
it has dealt with that."""
AHEAD_FROM: Final = 64 << 10
"""Of ranges of which a fetch got less, nothing is read ahead: it is near their end, or asks for little."""


@dataclass(frozen=True, slots=True)
class Range:
    """Where a partition's records from an offset on lie: in one partitionlet, below `limit`.

    `container`: the partitionlet's, where this node leads it; None: ask `remote_reads`.
    """

    row: PartitionletRow
    container: Leader | None
    offset: int
    limit: int
    partition: Partition
    high_watermark: int
    """The partition's, when this was found."""

    @property
    def partitionlet(self) -> PartitionletId:
        """The partitionlet's id."""
        return self.row.id


Key = tuple[str | bytes, int]
"""A partition by the name of its topic, or its id, as whoever asks calls it, and its number."""
Asked = tuple[Key, Range, int]
"""Whose it is, where it lies, and how many bytes at most."""
Read = dict[Key, list[Buffer] | Exception]
"""What each range holds, or why it cannot be read."""


class FetchPlanner:
    """Finds ranges, and reads them."""

    def __init__(self, *, runtime: Runtime, led: Mapping[ContainerId, Leader], remote_reads: RemoteReads) -> None:
        """`led`: the containers that this node leads."""
        self._runtime = runtime
        self._led = led
        self._remote_reads = remote_reads

    def locate(self, partition: Partition, offset: int) -> Range:
        """The partitionlet that holds `offset`, or the one after it where `offset` is in none."""
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
        """Read ranges as far as `budget` bytes go, the first of them first; at least one batch in all.

        Those here and those elsewhere are read one kind after the other, beginning with the kind of the first, so that
        none is kept waiting by the other for ever: who asks puts those in front that were not served last time.
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
                if follow := _followed(kind, found):
                    # Nobody waits for it: it goes on while the answer does.
                    self._runtime.loop.run_in_executor(self._runtime.executor, _read_ahead, follow)
            else:
                found |= await self._read_elsewhere(kind, left)
        further = [
            (key, where, most)
            for key, before, most in asked
            if found.get(key) == [] and (where := self._behind(before)) is not None
        ]
        if further:
            left = budget - sum(len(batch) for read in found.values() if isinstance(read, list) for batch in read)
            if left > 0 or not any(found.values()):
                found |= await self.read_all(further, max(left, 1))
        return found

    def _behind(self, before: Range) -> Range | None:
        """Where to go on if nothing is left of a range: what was cut may end in a gap, else records are missing."""
        if not before.row.cut or before.limit < before.row.end:
            return None
        where = self.locate(before.partition, before.row.end)
        return where if where.row.id != before.row.id and where.offset < where.limit else None

    async def _read_elsewhere(self, asked: Sequence[Asked], budget: int) -> Read:
        """Each range of the others, all at the same time, as many as `budget` may hold."""
        chosen: list[Asked] = []
        left = budget
        for key, where, max_bytes in asked[:MOST_REMOTE]:
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
                continue  # a batch that is larger than what was asked for, beside others
            found[key] = answer
            left -= size
        return found


def _read_here(asked: Sequence[Asked], budget: int) -> Read:
    """[blocking] Each range of a container that this node leads, as far as `budget` goes."""
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


def _followed(asked: Sequence[Asked], found: Read) -> list[tuple[Range, int]]:
    """The ranges of which more is likely to be asked for, with the bytes that were read of each."""
    follow = []
    for key, where, _ in asked:
        read = found.get(key)
        if isinstance(read, list) and (size := sum(map(len, read))) >= AHEAD_FROM:
            follow.append((where, size))
    return follow


def _read_ahead(follow: Sequence[tuple[Range, int]]) -> None:
    """[blocking]"""
    left = AHEAD_BYTES
    for where, size in follow:
        assert where.container is not None
        with suppress(HeadraceError, OSError):  # who asks for it meets it
            left -= where.container.log.read_ahead(
                where.row.id, where.offset, limit=where.limit, read_bytes=size, max_bytes=min(size, left)
            )
        if left <= 0:
            break
