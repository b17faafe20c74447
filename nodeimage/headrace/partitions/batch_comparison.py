"""Compares a batch's records with those of the batch stored under its sequence, where nothing else can show whether it
is a duplicate. Duplicates are recognized in producer_state.py; this module serves the one case that it leaves open.

A producer that calls one topic by two names counts sequences for each name, so a sequence may arrive twice for
different batches; the name tells them apart (producer_state.py). The log does not record the name under which a batch
was sent. After a restart, a roll or a change of leader, a batch whose sequence is stored but whose time differs is
therefore either a duplicate that was encoded again (as kafkajs does) or the first batch under a second name. It is
refused with a retriable error and compared with the stored batch: when the producer sends it again, its name is known
to belong to the stored sequence, or not to.
"""

from collections.abc import Iterator
from typing import Any, Final

import structlog

from headrace.base.errors import CorruptBatch, HeadraceError
from headrace.base.runtime import Runtime
from headrace.partitions.partition import Partition
from headrace.partitions.producer_state import KnownBatch
from headrace.partitions.reads.remote_reads import RemoteReads
from headrace.wire.batch import BatchHeader, batch_records, iter_batches
from headrace.wire.primitives import Buffer

__all__ = ["BatchComparison", "same_records"]

log = structlog.get_logger()

AT_ONCE: Final = 16
"""Limit of batches that are compared at the same time, each held in memory. Producers send the others again."""


class BatchComparison:
    """Compares batches with stored ones, and notes the outcomes with their partitions' producers. Belongs to the loop
    thread."""

    def __init__(self, *, runtime: Runtime, remote_reads: RemoteReads) -> None:
        self._runtime = runtime
        self._remote_reads = remote_reads
        self._under_way: set[tuple[bytes, int, int]] = set()

    def compare(
        self, partition: Partition, header: BatchHeader, batch: Buffer, known: KnownBatch, *, source: int, name: str
    ) -> None:
        """Find out whether `batch`, which arrived on connection `source` for the topic `name`, is the stored batch
        `known`, and note the outcome with the partition's producers."""
        key = (partition.topic_id, partition.index, header.producer_id)
        if key in self._under_way or len(self._under_way) >= AT_ONCE:
            return
        self._under_way.add(key)
        task = self._runtime.spawn(self._compare(partition, header, bytes(batch), known, source, name))
        task.add_done_callback(lambda _: self._under_way.discard(key))

    async def _compare(
        self, partition: Partition, header: BatchHeader, batch: bytes, known: KnownBatch, source: int, name: str
    ) -> None:
        try:
            same = await self._is_stored(partition, header, batch, known)
        except (HeadraceError, OSError) as error:
            log.info("a repeated batch could not be compared", topic=name, partition=partition.index, reason=str(error))
            return  # the batch is compared when its producer sends it again
        if same:
            partition.producers.heard(header.producer_id, source=source, name=name)
        elif same is not None:
            partition.producers.is_not_called(header.producer_id, name)

    async def _is_stored(
        self, partition: Partition, header: BatchHeader, batch: bytes, known: KnownBatch
    ) -> bool | None:
        """Whether `batch` is the stored batch `known`; None while the stored batch is not committed yet."""
        offset = known.base_offset
        row = next((row for row in partition.chain if row.first <= offset and (row.end < 0 or offset < row.end)), None)
        if row is None or offset < partition.log_start:
            return True  # the stored batch is deleted: only its sequence is known
        runs = await self._remote_reads.read(row, offset=offset, limit=offset + 1, max_bytes=1)
        stored = next((each for run in runs for each in iter_batches(run) if each[0].base_offset == offset), None)
        if stored is None:
            return None if partition.high_watermark <= offset else True
        return await self._runtime.loop.run_in_executor(self._runtime.executor, same_records, (header, batch), stored)


def same_records(one: tuple[BatchHeader, Buffer], stored: tuple[BatchHeader, Buffer]) -> bool:
    """[blocking] Whether two batches have the same records, apart from their times and offsets; false if either cannot
    be read."""
    if one[0].record_count != stored[0].record_count:
        return False
    try:
        return all(mine == theirs for mine, theirs in zip(_contents(*one), _contents(*stored), strict=True))
    except (CorruptBatch, ValueError):
        return False


def _contents(header: BatchHeader, batch: Buffer) -> Iterator[tuple[Any, ...]]:
    return ((record.key, record.value, record.headers) for record in batch_records(header, batch))
