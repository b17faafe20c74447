"""The stored state of a topic's partitions: their partitionlets, sizes and ends, across the whole cluster.

For observers only: a partition that is not in memory is read from its container's log in a reader thread, and does not
enter memory. State that other nodes lead is requested from them, and left out if they do not answer. The figures of
different partitionlets may be of slightly different moments.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from headrace.base.ids import Offset, PartitionletId
from headrace.catalog.catalog import Catalog
from headrace.catalog.reader import Reader
from headrace.catalog.rows import INTENDED, OPEN, PartitionletRow, TopicRow
from headrace.partitions.cluster_client import ClusterClient
from headrace.partitions.reads.local_reads import Extent
from headrace.partitions.reads.remote_reads import RemoteReads
from headrace.partitions.topics import Topics

STATES = ("intended", "open", "sealed")


class PartitionState(NamedTuple):
    """The stored state of one partition."""

    partition: int
    log_start: int
    end: int
    """The high watermark."""
    leader_epoch: int
    size: int
    """Bytes of all of its partitionlets."""
    partitionlets: int


def chains_of(
    reader: Reader, topics: Sequence[TopicRow], *, partition: int | None = None
) -> dict[int, list[PartitionletRow]]:
    """[blocking] By topic number, all partitionlets in order of (partition, id), including intended ones."""
    return {topic.number: reader.chains.chain(topic.number, partition) for topic in topics}


class PartitionStates:
    """Determines the stored state of partitions without bringing them into memory."""

    def __init__(self, *, catalog: Catalog, cluster: ClusterClient, topics: Topics, remote_reads: RemoteReads) -> None:
        self._catalog = catalog
        self._cluster = cluster
        self._topics = topics
        self._remote_reads = remote_reads

    async def of_topic(self, topic: TopicRow) -> list[PartitionState]:
        """All partitions of a topic, in order."""
        rows, starts = await self._catalog.query(
            lambda reader: (reader.chains.chain(topic.number), reader.chains.log_starts([topic.number]))
        )
        sizes = await self._remote_reads.extents(rows)
        by_partition: dict[int, list[PartitionletRow]] = {}
        for row in rows:
            if row.state != INTENDED:
                by_partition.setdefault(row.partition, []).append(row)
        return [
            self._state(
                topic,
                chain=by_partition[partition],
                sizes=sizes,
                log_start=starts.get((topic.number, partition), Offset(0)),
            )
            for partition in sorted(by_partition)
        ]

    def _state(
        self,
        topic: TopicRow,
        *,
        chain: Sequence[PartitionletRow],
        sizes: Mapping[PartitionletId, Extent],
        log_start: int,
    ) -> PartitionState:
        last = chain[-1]
        stored = sizes.get(last.id)
        end = self.committed_end(topic.topic_id, last.partition)
        if end is None:
            end = max(log_start, stored.end if stored is not None else last.first)
        return PartitionState(
            partition=last.partition,
            log_start=log_start,
            end=end,
            leader_epoch=self.leader_epoch_now(last),
            size=sum(sizes[row.id].size for row in chain if row.id in sizes),
            partitionlets=len(chain),
        )

    def committed_end(self, topic_id: bytes, partition: int) -> int | None:
        """The high watermark of a partition that is in this node's memory; None for any other partition."""
        topic = self._topics.cached_id(topic_id)
        held = topic.partitions.get(partition) if topic is not None else None
        return held.high_watermark if held is not None else None

    def leader_epoch_now(self, row: PartitionletRow) -> int:
        """The present leader epoch of an open partitionlet, or the last one of a sealed partitionlet (invariant 10)."""
        if row.state == OPEN and (leader := self._cluster.leader(row.container)) is not None:
            return row.current_leader_epoch(leader[1])
        return row.epochs[-1][0] if row.epochs else row.leader_epoch

    async def ends(self, wanted: Iterable[tuple[bytes, int]]) -> dict[tuple[bytes, int], int]:
        """The high watermarks of these (topic id, partition); without those that do not exist or cannot be reached."""
        asked = set(wanted)
        found = {key: end for key in asked if (end := self.committed_end(key[0], key[1])) is not None}
        missing = asked - found.keys()
        if missing:
            rows = await self._catalog.query(lambda reader: _open_rows(reader, missing))
            stored = await self._remote_reads.extents(rows.values())
            found |= {key: stored[row.id].end for key, row in rows.items() if row.id in stored}
        return found


def _open_rows(reader: Reader, wanted: set[tuple[bytes, int]]) -> dict[tuple[bytes, int], PartitionletRow]:
    """[blocking] The open partitionlets of these partitions, by (topic id, partition)."""
    topics = reader.topics.by_ids({topic_id for topic_id, _ in wanted})
    ids = {topic.number: topic.topic_id for topic in topics.values()}
    return {
        (ids[number], row.partition): row
        for number, rows in reader.chains.open_of(ids).items()
        for row in rows
        if (ids[number], row.partition) in wanted
    }
