"""The size of streams: messages, bytes, and the time of the oldest record. All partitions of a stream are read for it.

A call does a second of work at most: the partitionlets are read in order of id, and the next call continues
where one has to stop. The reported figures are those of the last complete pass; the next pass begins once they are
FRESH_S seconds old, or SHARE times as old as the pass took, whichever is later. So a stream of a million topics gets
its figures late, and no node is kept busy with them. Each node has its own figures.
"""

from dataclasses import dataclass
from typing import Final

from headrace.base.ids import Millis, Offset, PartitionletId, StreamNumber
from headrace.base.runtime import Runtime
from headrace.catalog.catalog import Catalog
from headrace.catalog.reader import Reader
from headrace.catalog.rows import INTENDED, PartitionletRow, StreamRow
from headrace.partitions.reads.remote_reads import RemoteReads

WORK_S: Final = 1.0
FRESH_S: Final = 20.0
SHARE: Final = 50
AT_ONCE: Final = 1_000
"""Partitionlets that are read in one step."""
BEFORE_ALL: Final = PartitionletId(0)
KNOWN: Final = 1_000
"""The maximum number of streams whose figures are kept."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """The size of a stream at one time."""

    messages: int = 0
    bytes: int = 0
    oldest: Millis | None = None
    """The time of its oldest record; None if it has none."""


@dataclass(slots=True)
class _Kept:
    """The last figures of a stream, and the progress of the next pass."""

    known: Metrics | None = None
    due: float = 0.0
    sofar: Metrics = Metrics()
    after: PartitionletId = BEFORE_ALL
    is_over: bool = False
    """Whether the pass is complete."""
    spent_s: float = 0.0
    busy: bool = False


class StreamMetrics:
    """Measures streams, as this node sees them."""

    def __init__(self, *, runtime: Runtime, catalog: Catalog, remote_reads: RemoteReads) -> None:
        self._runtime = runtime
        self._catalog = catalog
        self._remote_reads = remote_reads
        self._kept: dict[StreamNumber, _Kept] = {}

    async def of(self, stream: StreamRow) -> Metrics | None:
        """The latest figures; None until the first pass over the stream is complete. Raises `CatalogFailed`."""
        kept = self._kept.pop(stream.number, None) or _Kept()
        self._kept[stream.number] = kept  # now the most recently used
        while len(self._kept) > KNOWN:
            del self._kept[next(iter(self._kept))]
        now = self._runtime.loop.time
        if kept.busy or now() < kept.due:
            return kept.known
        kept.busy = True
        begun = now()
        try:
            while await self._look(kept, stream.number):
                if now() - begun >= WORK_S:
                    break
        finally:
            kept.busy = False
            kept.spent_s += now() - begun
        if kept.is_over:
            due = now() + max(FRESH_S, SHARE * kept.spent_s)
            self._kept[stream.number] = kept = _Kept(known=kept.sofar, due=due)
        return kept.known

    async def _look(self, kept: _Kept, stream: StreamNumber) -> bool:
        """Read some more partitionlets; returns whether there may be more that can be read now."""
        rows, starts = await self._catalog.query(lambda reader: _page(reader, stream, kept.after))
        there = [row for row in rows if row.state != INTENDED]
        begins = {row.id: max(row.first, starts.get((row.topic, row.partition), Offset(0))) for row in there}
        holds_first = {row.id: begins[row.id] for row in there if begins[row.id] == starts.get(_key(row), Offset(0))}
        found = await self._remote_reads.extents(there, first=holds_first)
        if len(found) < len(there):
            return False  # a container's leader does not answer: the next call retries here
        oldest = [extent.oldest for extent in found.values() if extent.oldest is not None]
        if kept.sofar.oldest is not None:
            oldest.append(kept.sofar.oldest)
        kept.sofar = Metrics(
            messages=kept.sofar.messages + sum(max(0, each.end - begins[id_]) for id_, each in found.items()),
            bytes=kept.sofar.bytes + sum(each.size for each in found.values()),
            oldest=min(oldest, default=None),
        )
        kept.is_over = len(rows) < AT_ONCE
        if not kept.is_over:
            kept.after = rows[-1].id
        return not kept.is_over


def _key(row: PartitionletRow) -> tuple[int, int]:
    return row.topic, row.partition


def _page(
    reader: Reader, stream: StreamNumber, after: PartitionletId
) -> tuple[list[PartitionletRow], dict[tuple[int, int], Offset]]:
    """[blocking] A page of a stream's partitionlets after `after`, and the log starts of their partitions."""
    rows = reader.chains.of_stream(stream, after=after, limit=AT_ONCE)
    return rows, reader.chains.log_starts({row.topic for row in rows})
