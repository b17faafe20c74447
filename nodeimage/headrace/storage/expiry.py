"""Expiry: committed commands move the log starts over records that exceed their time to live or their partition's size
limit.

Nothing is freed here: chunk_gc.py does so afterwards. Only leaders expire records, each in its own containers. Chunks
in which nothing can have expired are not read. A size limit also counts what other nodes lead of the partition; they
are asked periodically, and count as empty if they do not answer, which keeps more than the limit, never less. Committed
offsets of groups that have been empty for long expire as well.

Age is measured by the cluster's time (control.cluster_clock), so that a node whose own clock is ahead drops nothing
early. While the cluster's time is unknown, because too few nodes have been heard, nothing is too old.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from headrace.base.errors import CorruptLog
from headrace.base.ids import Millis, Offset, PartitionletId, StreamNumber
from headrace.base.levels import Level
from headrace.base.runtime import Runtime
from headrace.catalog.catalog import Catalog
from headrace.catalog.chains import LogStart, SetLogStart
from headrace.catalog.committed_offsets import ExpireOffsets, ExpireSomeOffsets
from headrace.catalog.deletions import ForgetDeleted
from headrace.catalog.reader import Reader
from headrace.catalog.rows import INTENDED, Owner, PartitionletRow, StreamRetention
from headrace.log.container_log import Chunk, ContainerLog
from headrace.partitions.cluster_client import ClusterClient, ClusterTime
from headrace.partitions.reads.remote_reads import RemoteReads
from headrace.storage.chunk_inventory import ChunkInventory, Held
from headrace.storage.retention_rules import PartitionKey, Share, expired, rule_of

COMMANDS_AT_ONCE: Final = 500
"""Log starts in one command, which takes some 15 ms to apply."""
OFFSETS_KEPT_S: Final = 7 * 24 * 3600
OFFSETS_EVERY_S: Final = 3600.0
READING_S: Final = 0.5
"""Seconds of a round for reading the indexes of closed chunks that were not read yet: after a start, all of them."""
NEVER: Final = Millis(-(1 << 62))
"""A time at which every record is younger than any time to live."""
ELSEWHERE_EVERY_S: Final = 30.0
"""Seconds between two requests to other nodes for what they hold of partitions with a size limit."""


class Expiry:
    """Moves log starts in containers that this node leads, expires committed offsets, and removes rows of deleted
    topics."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        catalog: Catalog,
        cluster: ClusterClient,
        cluster_time: ClusterTime,
        remote_reads: RemoteReads,
        inventory: ChunkInventory,
    ) -> None:
        self._runtime = runtime
        self._catalog = catalog
        self._led = cluster.replicas.led
        self._cluster_time = cluster_time
        self._remote_reads = remote_reads
        self._inventory = inventory
        self._elsewhere: dict[PartitionKey, int] = {}
        """Bytes that other nodes lead of partitions that also lie on this node."""
        self._elsewhere_due = 0.0
        self._committed_offsets_due = runtime.loop.time() + OFFSETS_EVERY_S
        self._forgetting: asyncio.Task[None] | None = None

    async def step(self) -> None:
        """Move the log starts over what has expired in closed chunks."""
        oldest: list[tuple[Held, Chunk, Mapping[StreamNumber, int]]] = []
        until = self._runtime.loop.time() + READING_S
        for held in self._inventory.data():
            if held.led is None or not held.led.serves:
                continue
            for chunk in held.log.closed_chunks():
                found = self._inventory.known_oldest(held, chunk)
                if found is None:
                    if self._runtime.loop.time() >= until:
                        break  # younger chunks expire after it
                    found = await self._inventory.oldest(held, chunk)
                if found is not None:  # else it is damaged
                    oldest.append((held, chunk, found))
        streams = {stream for _, _, found in oldest for stream in found}
        if not streams:
            return
        rules = await self._catalog.query(lambda reader: reader.streams.retention_of(streams))
        now = self._cluster_time.agreed()
        if now is None:
            now = NEVER
        shares: list[Share] = []
        logs: dict[PartitionletId, ContainerLog] = {}
        for held, chunk, found in oldest:
            due = {stream for stream, newest in found.items() if _may_expire(rules, stream, newest, now)}
            if due:
                here = await self._inventory.shares(held, chunk, due)
                shares += here
                logs |= {share.partitionlet: held.log for share in here}
        if not shares:
            return
        owners = await self._inventory.owners(shares)
        elsewhere = await self._bytes_elsewhere(shares, owners, rules)

        def due_starts() -> list[LogStart]:
            seen = {**owners, **_owners_after_gaps(shares, owners, logs)}
            # A partition's records may lie in several containers: sorting by offset puts them in order.
            return expired(sorted(shares, key=_first), owners=seen, rules=rules, now=now, elsewhere=elsewhere)

        starts = await self._inventory.blocking(due_starts)
        for index in range(0, len(starts), COMMANDS_AT_ONCE):
            await self._catalog.submit(SetLogStart(items=starts[index : index + COMMANDS_AT_ONCE]))

    async def _bytes_elsewhere(
        self,
        shares: Sequence[Share],
        owners: Mapping[PartitionletId, Owner],
        rules: Mapping[StreamNumber, StreamRetention],
    ) -> Mapping[PartitionKey, int]:
        """The bytes that other nodes lead of the partitions with a size limit whose oldest records lie on this node."""
        limited: dict[PartitionKey, int] = {}
        for share in shares:
            owner = owners.get(share.partitionlet)
            rule = None if owner is None else rule_of(rules, share.partitionlet, owner.topic)
            if owner is None or rule is None or rule.bytes < 0:
                continue
            if share.first <= owner.log_start <= share.last:
                limited[owner.topic_id, owner.partition] = owner.topic
        now = self._runtime.loop.time()
        if not limited or now < self._elsewhere_due:
            return {key: size for key, size in self._elsewhere.items() if key in limited}
        self._elsewhere_due = now + ELSEWHERE_EVERY_S
        led = frozenset(self._led)
        rows = await self._catalog.query(lambda reader: _rows_elsewhere(reader, limited, led))
        sizes = await self._remote_reads.extents(row for some in rows.values() for row in some)
        self._elsewhere = {
            key: sum(sizes[row.id].size for row in some if row.id in sizes) for key, some in rows.items()
        }
        return self._elsewhere

    async def expire_committed_offsets(self) -> None:
        """Delete committed offsets of groups that have been empty for `OFFSETS_KEPT_S`, as Kafka does
        (offsets.retention.minutes)."""
        now = self._runtime.loop.time()
        if now < self._committed_offsets_due:
            return
        self._committed_offsets_due = now + OFFSETS_EVERY_S
        agreed = self._cluster_time.agreed()
        if agreed is not None and self._inventory.catalog_id in self._led:  # one node is enough
            before = Millis(agreed - OFFSETS_KEPT_S * 1000)
            if await self._catalog.query(lambda reader: reader.level()) < Level.FENCED:
                await self._catalog.submit(ExpireOffsets(before=before))
                return
            after: tuple[str, int, int] | None = ("", -1, -1)
            while after is not None:
                after = (await self._catalog.submit(ExpireSomeOffsets(before=before, after=after))).after

    async def forget_deleted(self) -> None:
        """Start to remove the rows of deleted streams and topics in the background, if this node leads the catalog."""
        if self._forgetting is not None and not self._forgetting.done():
            return
        leads = self._inventory.catalog_id in self._led
        if leads and await self._catalog.query(lambda reader: reader.is_forgetting()):
            self._forgetting = self._runtime.spawn(self._forget_all())

    async def _forget_all(self) -> None:
        """Remove rows one command after the other, so that other commands can come in between. The next round continues
        after an error."""
        more = True
        while more and self._inventory.catalog_id in self._led:
            more = (await self._catalog.submit(ForgetDeleted(), here=True)).more


def _may_expire(rules: Mapping[StreamNumber, StreamRetention], stream: StreamNumber, oldest: int, now: int) -> bool:
    """Whether records of `stream` in a chunk may exceed a rule."""
    rule = rules.get(stream)
    if rule is None:
        return False
    every = [rule.rule, *rule.overrides.values()]
    return any((each.ttl_ms > 0 and oldest + each.ttl_ms <= now) or each.bytes >= 0 for each in every)


def _owners_after_gaps(
    shares: Iterable[Share], owners: Mapping[PartitionletId, Owner], logs: Mapping[PartitionletId, ContainerLog]
) -> dict[PartitionletId, Owner]:
    """[blocking] The owners of copies with a gap at their log start, with the log start moved to the end of the gap."""
    first: dict[PartitionletId, int] = {}
    for share in shares:
        if share.last >= 0 and (owner := owners.get(share.partitionlet)) is not None and share.last >= owner.log_start:
            first[share.partitionlet] = min(first.get(share.partitionlet, share.first), share.first)
    found: dict[PartitionletId, Owner] = {}
    for partitionlet, begin in first.items():
        owner = owners[partitionlet]
        if 0 <= owner.first <= owner.log_start < begin:  # older records may lie in chunks that are not due
            try:
                older = logs[partitionlet].read(partitionlet, owner.log_start, limit=begin, max_bytes=1)
            except CorruptLog:
                continue  # there are records
            if not older:
                found[partitionlet] = owner._replace(log_start=Offset(begin))
    return found


def _rows_elsewhere(
    reader: Reader, limited: Mapping[PartitionKey, int], led: Collection[int]
) -> dict[PartitionKey, list[PartitionletRow]]:
    """[blocking] The partitionlets of these partitions in containers that this node does not lead."""
    return {
        key: [row for row in reader.chains.chain(topic, key[1]) if row.state != INTENDED and row.container not in led]
        for key, topic in limited.items()
    }


def _first(share: Share) -> int:
    return share.first
