"""Quarantines records: copies them from a partition's chain into the topic's diverged topic, each exactly once.

Runs on any node: records are read from this node's replicas or from other nodes (partitions/reads/remote_reads.py), and
appended at the leader of the diverged topic's partition. The diverged topic is created on demand, at home in this
cluster, and keeps its records forever. An interrupted quarantine starts again from the beginning: batches that are
there already are recognized by their token. A full disk or an unreachable leader is an error, and the caller retries.
"""

import uuid
from collections.abc import AsyncIterator, Collection, Sequence
from typing import Final

import structlog

from headrace.base.errors import Code, CorruptBatch, KafkaError
from headrace.base.ids import ContainerId, Offset
from headrace.base.runtime import Runtime
from headrace.catalog.catalog import Catalog
from headrace.catalog.reader import Reader
from headrace.catalog.rows import INTENDED, PartitionletRow, TopicRow
from headrace.catalog.topics import CreateTopics, NewTopic
from headrace.container.commit_wait import committed_to
from headrace.links.failover.diverged import Kept, diverged_name, place_of, quarantine_batches
from headrace.links.source.source import HomeStart
from headrace.log.frames import MAX_PAYLOAD_BYTES
from headrace.partitions.cluster_client import ClusterClient
from headrace.partitions.home_check import home_of
from headrace.partitions.lookups import create_partitions_command, now
from headrace.partitions.partition_states import PartitionStates
from headrace.partitions.partitions import Partitions
from headrace.partitions.placement import Placement
from headrace.partitions.reads.remote_reads import RemoteReads
from headrace.partitions.rolls.rolls import Rolls
from headrace.partitions.topics import Topics
from headrace.peer.messages import AppendOnce
from headrace.wire.batch import BatchHeader, batch_records, iter_batches, read_batch

__all__ = ["OnceAppender", "Quarantine"]

log = structlog.get_logger(__name__)

CONFIGS: Final = {"retention.ms": "-1", "retention.bytes": "-1", "message.timestamp.type": "CreateTime"}
READ_BYTES: Final = 4 << 20
COMMIT_S: Final = 10.0
ASK_S: Final = 15.0


class OnceAppender:
    """Appends batches with a token to the partitions that this node leads, each once."""

    def __init__(self, *, topics: Topics, partitions: Partitions, rolls: Rolls, runtime: Runtime) -> None:
        self._topics = topics
        self._partitions = partitions
        self._rolls = rolls
        self._runtime = runtime

    async def append(self, topic_id: bytes, partition: int, batch: bytearray) -> Offset:
        """Append a batch with a token to a partition that this node leads, unless it is there already; returns its
        offset once it is committed. Raises HeadraceError, for example NOT_LEADER_OR_FOLLOWER."""
        header = read_batch(batch)
        if header.producer_id >= -1 or header.length != len(batch):
            raise KafkaError(Code.INVALID_RECORD, "not a single batch with a token")
        if len(batch) > MAX_PAYLOAD_BYTES:
            raise KafkaError(
                Code.MESSAGE_TOO_LARGE, f"a batch of {len(batch)} bytes; at most {MAX_PAYLOAD_BYTES} can be replicated"
            )
        (topic,) = await self._topics.resolve_ids([topic_id])
        if isinstance(topic, KafkaError):
            raise topic
        while True:
            leader = await self._partitions.leader(topic, partition)
            await self._rolls.wait_for_roll(leader)
            if leader.left:
                continue
            if not leader.container.has_room(len(batch)):
                await leader.container.make_room()
                continue
            if not leader.rolling and leader.seal is None and not leader.container.lost:
                break
        known = leader.known(header, same_time=not topic.policy.append_time)
        if known is not None:
            base = Offset(known.base_offset)
        else:
            base = Offset(
                leader.append(
                    memoryview(batch),
                    header,
                    append_time=self._runtime.now() if topic.policy.append_time else None,
                    now=self._runtime.now(),
                    request=_IgnoredCommit(),
                )
            )
        # Also for a repeat, whose first copy may not be committed yet (invariant 11).
        await committed_to(leader.container, leader.container.log.end, timeout_s=COMMIT_S)
        return base


class Quarantine:
    """Copies diverged records of a partition into the topic's diverged topic. It works on any node."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        cluster: ClusterClient,
        led: Collection[ContainerId],
        remote_reads: RemoteReads,
        placement: Placement,
        states: PartitionStates,
        once: OnceAppender,
        own_cluster: str,
    ) -> None:
        """`led`: the containers that this node leads."""
        self._catalog = catalog
        self._cluster = cluster
        self._led = led
        self._remote_reads = remote_reads
        self._placement = placement
        self._states = states
        self._once = once
        self._own = own_cluster

    async def add(
        self,
        row: TopicRow,
        partition: int,
        *,
        diverged_at: Offset,
        first: Offset,
        end: Offset,
        chain: Sequence[PartitionletRow],
        history: Sequence[HomeStart],
        origin: str,
    ) -> tuple[str, int]:
        """Copy the records of `partition` from `first` to `end` (exclusive), all committed, into its diverged topic.

        `diverged_at`: where the histories diverge; `first` is higher if the log starts after that. The batch that
        contains `first` is kept from `diverged_at` on, since the log start may have moved when this is repeated.

        Returns the diverged topic's name and the number of records. Raises HeadraceError.
        """
        name = diverged_name(row.stream, row.name)
        already = await self._kept_already(row, name, partition, first=first, end=end)
        kept = 0
        target: TopicRow | None = None
        async for header, batch in self._batches(chain, first, end):
            for quarantined in quarantine_batches(
                header,
                batch,
                topic_id=row.topic_id,
                partition=partition,
                diverged_at=diverged_at,
                history=history,
                origin=origin,
                kept=already,
            ):
                if target is None:
                    target = await self._target(row, name, partition)
                await self._append(target, partition, quarantined.batch)
                kept += quarantined.records
        return name, kept

    async def _batches(
        self, chain: Sequence[PartitionletRow], first: Offset, end: Offset
    ) -> AsyncIterator[tuple[BatchHeader, memoryview]]:
        """The committed batches of a partition below `end`, beginning with the one that contains `first`."""
        at = first
        for part in chain:
            limit = Offset(end if part.end < 0 else min(part.end, end))
            at = max(at, part.first)
            while part.state != INTENDED and at < limit:
                runs = await self._remote_reads.read(part, offset=at, limit=limit, max_bytes=READ_BYTES)
                if not runs:
                    break  # the rest of this partitionlet has expired
                for run in runs:
                    for header, batch in iter_batches(run):
                        at = Offset(header.base_offset + header.last_offset_delta + 1)
                        yield header, batch

    # --- the diverged topic

    async def _kept_already(self, row: TopicRow, name: str, partition: int, *, first: Offset, end: Offset) -> set[Kept]:
        """The records of `row` from `first` to `end` that the diverged topic has already. Raises KafkaError if it
        cannot be read, since they might be copied twice."""

        def look(reader: Reader) -> tuple[TopicRow | None, list[PartitionletRow]]:
            found = reader.topics.at(row.stream, name)
            return found, [] if found is None else reader.chains.chain(found.number, partition)

        topic, chain = await self._catalog.query(look)
        if topic is None or not chain:
            return set()
        reached = (await self._states.ends([(topic.topic_id, partition)])).get((topic.topic_id, partition))
        if reached is None:
            raise KafkaError(Code.LEADER_NOT_AVAILABLE, f"{topic.full_name} cannot be read at present")
        found: set[Kept] = set()
        async for header, batch in self._batches(chain, Offset(0), Offset(reached)):
            if header.producer_id < -1:  # with a token; clients may write anything, even records they read here
                found.update(
                    place for place in _places(header, batch) if place[2] < end and (place[3] or first <= place[2])
                )
        return found

    async def _target(self, row: TopicRow, name: str, partition: int) -> TopicRow:
        """The diverged topic of `row`, with at least that partition. Raises KafkaError if a copy has taken its name."""

        def look(reader: Reader) -> tuple[TopicRow | None, str]:
            stream = reader.streams.at(row.stream)
            return reader.topics.at(row.stream, name), "" if stream is None else stream.policy.volume

        found, volume = await self._catalog.query(look)
        if found is None:
            places = self._placement.place(row.partitions, volume)
            item = NewTopic(
                stream=row.stream,
                name=name,
                topic_id=uuid.uuid4().bytes,
                partitions=row.partitions,
                configs=CONFIGS,
                container_ids=[container for container, _ in places],
                container_epochs=[epoch for _, epoch in places],
            )
            (made,) = await self._catalog.submit(CreateTopics(items=[item], now=now()))
            if made.code not in (Code.NONE, Code.TOPIC_ALREADY_EXISTS) or made.topic is None:
                raise KafkaError(made.code, made.message)
            found = made.topic
        if home_of(found, self._own).cluster != self._own:
            raise KafkaError(
                Code.POLICY_VIOLATION,
                f"{found.full_name} is a copy, but the diverged records of {row.full_name} need its name: delete it",
            )
        if partition >= found.partitions:
            grown = await self._catalog.submit(
                create_partitions_command(self._placement, found, count=row.partitions, volume=volume)
            )
            if grown.topic is None or partition >= grown.topic.partitions:
                raise KafkaError(grown.code, grown.message or f"{found.full_name} has no partition {partition} yet")
            found = grown.topic
        return found

    async def _append(self, target: TopicRow, partition: int, batch: bytearray) -> None:
        """Append at the leader of the partition, which may be another node."""
        opened = await self._catalog.query(lambda reader: reader.chains.open_of([target.number]))
        container = next(
            (each.container for each in opened.get(target.number, ()) if each.partition == partition), None
        )
        if container is None:
            raise KafkaError(Code.LEADER_NOT_AVAILABLE, f"{target.full_name} has no partition {partition} yet")
        if container in self._led:
            await self._once.append(target.topic_id, partition, batch)
        else:
            asked = AppendOnce(target.topic_id, partition)
            await self._cluster.ask_leader(container, asked, [bytes(batch)], timeout_s=ASK_S)


def _places(header: BatchHeader, batch: memoryview) -> list[Kept]:
    try:
        return [place for place in map(place_of, batch_records(header, batch)) if place is not None]
    except CorruptBatch:
        return []  # not written by a quarantine


class _IgnoredCommit:
    """Ignores the batch's commit: the caller waits for the container instead."""

    __slots__ = ()

    def committed(self) -> None:
        """Do nothing."""

    def lost(self) -> None:
        """Do nothing."""
