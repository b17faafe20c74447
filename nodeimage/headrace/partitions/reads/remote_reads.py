"""Reads of partitionlets whose container another node leads: batches by offset and by time, and stored sizes.

A partition's leader serves its whole chain. Records in a container that the node does not lead are
read from its own replica if that has them, else from the container's leader, else from another replica; nodes that did
not answer lately are tried last. Records that no node can read cause REPLICA_NOT_AVAILABLE, which clients retry.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeVar

import structlog
from crc32c import crc32c

from headrace.base.errors import Code, CorruptLog, HeadraceError, KafkaError
from headrace.base.ids import ContainerId, Millis, NodeId, Offset, PartitionletId
from headrace.base.runtime import Runtime
from headrace.catalog.rows import INTENDED, OPEN, PartitionletRow
from headrace.partitions.cluster_client import ClusterClient
from headrace.partitions.reads import local_reads
from headrace.partitions.reads.local_reads import Extent, ReadFailed, Replica
from headrace.peer.messages import Extents, FindTime, RangeRead, ReadRange, Request, TimeFound
from headrace.peer.session import PeerUnreachable
from headrace.store.records import NodeRecord
from headrace.wire.primitives import Buffer

log = structlog.get_logger()

A = TypeVar("A", RangeRead, TimeFound)
T = TypeVar("T")

ANSWER_S: Final = 2.0
"""Seconds to wait for a node's answer."""
SILENT_S: Final = 3.0
"""Seconds for which a node that did not answer is tried only after the others."""
MAX_ASKED: Final = 3
"""Limit of nodes that one read tries."""
AT_ONCE: Final = 500
"""Partitionlets that are measured in one visit to a reader thread, so that fetches get their turn in between."""
IN_ONE_CALL: Final = 20_000
"""Limit of partitionlets in one Extents request, since the size of a message's header is limited."""


class RemoteReads:
    """Reads partitionlets of containers that other nodes lead, from this node's replica or through other nodes."""

    def __init__(self, *, runtime: Runtime, cluster: ClusterClient, read_failed: ReadFailed) -> None:
        self._runtime = runtime
        self._cluster = cluster
        self._read_failed = read_failed
        self._silent: dict[NodeId, float] = {}
        """Nodes that did not answer, each with the loop time until which it is tried last."""

    # --- records

    async def read(self, row: PartitionletRow, *, offset: int, limit: int, max_bytes: int) -> list[Buffer]:
        """Committed batches of a partitionlet from the one that holds `offset` on, below `limit`, about `max_bytes`.

        Empty if there are no such records any more. Raises `KafkaError`.
        """
        found = await self._from_own_replica(
            row.container,
            lambda replica: local_reads.read_range(replica, row.id, offset=offset, limit=limit, max_bytes=max_bytes),
        )
        if found is not None:
            return found
        answer, payload = await self._ask(
            row.container, ReadRange(row.container, row.id, Offset(offset), Offset(limit), max_bytes)
        )
        return _pieces(payload, answer.lengths)

    async def find_time(self, row: PartitionletRow, timestamp: int, limit: int) -> bytes | None:
        """The first batch of a partitionlet below `limit` with a record of `timestamp` (milliseconds) or later.

        -1: the batch with the largest timestamp. Raises `KafkaError`.
        """

        def look(replica: Replica) -> tuple[bytes | None] | None:
            if not local_reads.has_all(replica, row.id, limit):
                return None
            return (local_reads.find_time(replica, row.id, timestamp, limit),)

        found = await self._from_own_replica(row.container, look)
        if found is not None:
            return found[0]
        answer, payload = await self._ask(
            row.container, FindTime(row.container, row.id, Millis(timestamp), Offset(limit))
        )
        return bytes(payload) if answer.found else None

    async def _from_own_replica(self, container: ContainerId, look: Callable[[Replica], T | None]) -> T | None:
        """What `look` finds in this node's replica; None if there is no replica here, or it cannot tell."""
        replica = replica_of(self._cluster, container)
        if replica is None:
            return None
        try:
            return await self._runtime.loop.run_in_executor(self._runtime.executor, look, replica)
        except (HeadraceError, OSError) as error:
            if replica.led:
                self._read_failed(error, container)
                raise KafkaError(Code.KAFKA_STORAGE_ERROR, str(error)) from error
            # A follower's files may be cut while they are read. If they are damaged, the scrub reports it.
            log.info("a follower's replica could not be read", container=container, reason=str(error))
            return None

    # --- sizes

    async def extents(
        self, rows: Iterable[PartitionletRow], *, first: Mapping[PartitionletId, Offset] = MappingProxyType({})
    ) -> dict[PartitionletId, Extent]:
        """The extents of these partitionlets, from the leaders of their containers, which are all asked at the same
        time. Partitionlets whose leader does not answer, or cannot read them, are left out. `first`: for partitionlets
        whose oldest record's time is wanted, the offset of that record."""
        by_container: dict[ContainerId, list[PartitionletRow]] = {}
        for row in rows:
            if row.state != INTENDED:
                by_container.setdefault(row.container, []).append(row)
        found: dict[PartitionletId, Extent] = {}
        for part in await asyncio.gather(*(self._extents_in(*each, first) for each in by_container.items())):
            found |= part
        return found

    async def _extents_in(
        self, container: ContainerId, rows: Sequence[PartitionletRow], first: Mapping[PartitionletId, Offset]
    ) -> dict[PartitionletId, Extent]:
        replica = replica_of(self._cluster, container)
        opened = {row.id for row in rows if row.state == OPEN}
        if replica is not None and replica.led:
            try:
                found = await extents_of(self._runtime, replica, [row.id for row in rows], opened, first)
            except (HeadraceError, OSError) as error:
                self._read_failed(error, container)
                return {}
        else:
            found = {}
            for start in range(0, len(rows), IN_ONE_CALL):
                wanted = [row.id for row in rows[start : start + IN_ONE_CALL]]
                times = {each: first[each] for each in wanted if each in first}
                asked = Extents(container, wanted, [each for each in wanted if each in opened], times)
                try:
                    answer, _ = await self._cluster.ask_leader(container, asked, timeout_s=ANSWER_S)
                except (HeadraceError, OSError) as error:
                    log.info("a leader did not report sizes", container=container, reason=str(error))
                    break
                found |= {id_: Extent(size, end, answer.times.get(id_)) for id_, size, end in answer.items}
        return {
            row.id: found[row.id]._replace(end=max(row.first, found[row.id].end) if row.state == OPEN else row.end)
            for row in rows
            if row.id in found
        }

    # --- requests

    async def _ask(self, container: ContainerId, message: Request[A]) -> tuple[A, memoryview]:
        """Send a request to nodes that have a container, one after the other, until one answers. Raises
        `KafkaError`."""
        why = "no node is known to have it"
        for node in self._candidates(container)[:MAX_ASKED]:
            try:
                answer, payload = await self._cluster.ask(node, message, timeout_s=ANSWER_S)
                check_sum(payload, answer.crc, node.node_id)
                return answer, payload
            except PeerUnreachable as error:
                self._silent[node.node_id] = self._runtime.loop.time() + SILENT_S
                why = str(error)
            except (HeadraceError, OSError) as error:
                why = str(error)
        raise KafkaError(Code.REPLICA_NOT_AVAILABLE, f"container {container} cannot be read: {why}")

    def _candidates(self, container: ContainerId) -> list[NodeRecord]:
        """The other nodes that may have a container, in the order in which to try them: its leader, its in-sync set,
        its other replicas; nodes that did not answer lately come last."""
        cluster = self._cluster
        record = cluster.record(container)
        if record is None:
            return []
        every = dict.fromkeys([record.leader, *(node for node, _ in record.in_sync), *record.replicas])
        every.pop(cluster.node_id, None)
        now = self._runtime.loop.time()
        ordered = sorted(every, key=lambda node: self._silent.get(node, 0.0) > now)
        return [node for each in ordered if (node := cluster.node(each)) is not None]


def replica_of(cluster: ClusterClient, container: ContainerId) -> Replica | None:
    """This node's replica of a container; None if it has none."""
    led = cluster.replicas.led.get(container)
    if led is not None:
        # A new leader does not know yet how much of what it has is committed (invariant 8).
        return Replica(container, led.log, led.committed, led.serves)
    here = cluster.any_log(container)
    return None if here is None else Replica(container, *here, False)


async def extents_of(
    runtime: Runtime,
    replica: Replica,
    wanted: Sequence[PartitionletId],
    opened: set[PartitionletId],
    first: Mapping[PartitionletId, Offset] = MappingProxyType({}),
) -> dict[PartitionletId, Extent]:
    """The extents of these partitionlets in a replica of this node; `opened` names the open ones; `first` as in
    `RemoteReads.extents`. Raises `CorruptLog`."""

    def look(some: Sequence[PartitionletId]) -> dict[PartitionletId, Extent]:
        return {each: local_reads.extent(replica, each, is_open=each in opened, first=first.get(each)) for each in some}

    found: dict[PartitionletId, Extent] = {}
    for start in range(0, len(wanted), AT_ONCE):
        found |= await runtime.loop.run_in_executor(runtime.executor, look, wanted[start : start + AT_ONCE])
    return found


def sum_of(batches: Iterable[Buffer]) -> int:
    """The CRC-32C of the payload of an answer with these batches."""
    crc = 0
    for batch in batches:
        crc = crc32c(batch, crc)
    return crc


def check_sum(payload: memoryview, crc: int | None, node: NodeId) -> None:
    """Raise CorruptLog if a payload was damaged on its way here; TCP's checksum has 16 bits only.

    The batches' own CRCs would not do: they do not cover the offsets.
    """
    if crc is not None and crc32c(payload) != crc:
        log.error("data from another node arrived damaged", node=node, bytes=len(payload))
        raise CorruptLog(f"data from node {node} arrived damaged")


def _pieces(payload: memoryview, lengths: Sequence[int]) -> list[Buffer]:
    pieces: list[Buffer] = []
    at = 0
    for length in lengths:
        pieces.append(payload[at : at + length])
        at += length
    return pieces
