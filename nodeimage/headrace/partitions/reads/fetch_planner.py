"""Where a partition's old records lie, and reading them: on this node's disk, or from other nodes.

Knows nothing of requests: it is given ranges and a budget of bytes, and says of each range what it holds or why it
cannot be read.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.base.errors import HeadraceError
from headrace.base.ids import Offset, PartitionletId
from headrace.catalog.rows import PartitionletRow
from headrace.container.leader import Container
from headrace.partitions.partition import Partition
from headrace.wire.primitives import Buffer

if TYPE_CHECKING:
    from headrace.kafka.dispatch import Broker

MOST_REMOTE: Final = 64
"""Ranges that are asked of other nodes at the same time, for one fetch."""


@dataclass(frozen=True, slots=True)
class Range:
    """Where a partition's records from an offset on lie: in one partitionlet, below `limit`.

    `container`: the partitionlet's, where this node leads it; None: ask `old_reads`.
    """

    row: PartitionletRow
    container: Container | None
    offset: int
    limit: int
    partition: Partition
    high_watermark: int
    """The partition's, when this was found."""

    def behind(self, broker: "Broker") -> "Range | None":
        """Where to go on if nothing is left here: what was cut may end in a gap; elsewhere records are missing."""
        if not self.row.cut or self.limit < self.row.end:
            return None
        where = locate(broker, self.partition, self.row.end)
        return where if where.row.id != self.row.id and where.offset < where.limit else None

    @property
    def partitionlet(self) -> PartitionletId:
        """The partitionlet's id."""
        return self.row.id


def locate(broker: "Broker", partition: Partition, offset: int) -> Range:
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
    return Range(
        row, broker.containers.get(row.container), offset, min(row.end, high_watermark), partition, high_watermark
    )


Key = tuple[str | bytes, int]
"""A partition by the name of its topic, or its id, as whoever asks calls it, and its number."""
Asked = tuple[Key, Range, int]
"""Whose it is, where it lies, and how many bytes at most."""
Read = dict[Key, list[Buffer] | Exception]
"""What each range holds, or why it cannot be read."""


async def read_all(broker: "Broker", asked: Sequence[Asked], budget: int) -> Read:
    """Read ranges as far as `budget` bytes go, the first of them first; at least one batch in all.

    Those here and those elsewhere are read one kind after the other, beginning with the kind of the first, so that none
    is kept waiting by the other for ever: who asks puts those in front that were not served last time.
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
            found |= await broker.loop.run_in_executor(broker.executor, _read_here, kind, left)
        else:
            found |= await _read_elsewhere(broker, kind, left)
    further = [
        (key, where, most)
        for key, before, most in asked
        if found.get(key) == [] and (where := before.behind(broker)) is not None
    ]
    if further:
        left = budget - sum(len(batch) for read in found.values() if isinstance(read, list) for batch in read)
        if left > 0 or not any(found.values()):
            found |= await read_all(broker, further, max(left, 1))
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


async def _read_elsewhere(broker: "Broker", asked: Sequence[Asked], budget: int) -> Read:
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
            return await broker.old_reads.read(where.row, offset=where.offset, limit=where.limit, max_bytes=most)
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
