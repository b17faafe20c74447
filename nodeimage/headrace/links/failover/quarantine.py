"""Sets records aside: copies them from a partition's chain into the topic's diverged topic, each exactly once.

Runs on any node: what is read lies in this node's replicas or comes from others (partitions/reads/remote_reads.py), and
what is appended goes to whoever leads the partition of the diverged topic, which is made on demand, at home here, and
keeps its records for ever. Broken off anywhere, it is done again from the beginning: batches that are there already are
known by their token. A full disk, or a leader that is away, is an error: the caller comes again.
"""

import uuid
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Final

import structlog

from headrace.base.errors import Code, CorruptBatch, KafkaError
from headrace.base.ids import Offset
from headrace.catalog.commands import CreateTopics, NewTopic
from headrace.catalog.reader import Reader
from headrace.catalog.rows import INTENDED, PartitionletRow, TopicRow
from headrace.container.commit_wait import committed_to
from headrace.links.failover.diverged import Kept, aside_batches, diverged_name, place_of
from headrace.links.source.source import HomeStart
from headrace.links.topics.topic_plan import home_of
from headrace.log.frames import MOST_PAYLOAD_BYTES
from headrace.partitions.lookups import growth, now
from headrace.peer.messages import AppendOnce
from headrace.wire.batch import BatchHeader, batch_records, iter_batches, read_batch

if TYPE_CHECKING:
    from headrace.kafka.dispatch import Broker

__all__ = ["append_once", "keep_aside"]

log = structlog.get_logger(__name__)

CONFIGS: Final = {"retention.ms": "-1", "retention.bytes": "-1", "message.timestamp.type": "CreateTime"}
READ_BYTES: Final = 4 << 20
COMMIT_S: Final = 10.0
ASK_S: Final = 15.0


async def keep_aside(
    broker: "Broker",
    row: TopicRow,
    partition: int,
    *,
    parted: Offset,
    first: Offset,
    end: Offset,
    chain: Sequence[PartitionletRow],
    history: Sequence[HomeStart],
    origin: str,
) -> tuple[str, int]:
    """Keep the records of `partition` from `first` to `end` (exclusive), all committed, in its diverged topic.

    `parted`: where the histories part; `first` is higher where the log starts behind that. The batch in which it lies
    is kept from `parted` on, since the log start may have moved on when this is done again.

    Into which topic, and how many records. Raises HeadraceError.
    """
    name = diverged_name(row.stream, row.name)
    already = await _kept_already(broker, row, name, partition, first=first, end=end)
    kept = 0
    target: TopicRow | None = None
    async for header, batch in _batches(broker, chain, first, end):
        for aside in aside_batches(
            header,
            batch,
            topic_id=row.topic_id,
            partition=partition,
            parted=parted,
            history=history,
            origin=origin,
            kept=already,
        ):
            if target is None:
                target = await _target(broker, row, name, partition)
            await _append(broker, target, partition, aside.batch)
            kept += aside.records
    return name, kept


async def _batches(
    broker: "Broker", chain: Sequence[PartitionletRow], first: Offset, end: Offset
) -> AsyncIterator[tuple[BatchHeader, memoryview]]:
    """The committed batches of a partition, from the one that holds `first` on, below `end`."""
    at = first
    for part in chain:
        limit = Offset(end if part.end < 0 else min(part.end, end))
        at = max(at, part.first)
        while part.state != INTENDED and at < limit:
            runs = await broker.old_reads.read(part, offset=at, limit=limit, max_bytes=READ_BYTES)
            if not runs:
                break  # the rest of it has expired
            for run in runs:
                for header, batch in iter_batches(run):
                    at = Offset(header.base_offset + header.last_offset_delta + 1)
                    yield header, batch


# --- the diverged topic


async def _kept_already(
    broker: "Broker", row: TopicRow, name: str, partition: int, *, first: Offset, end: Offset
) -> set[Kept]:
    """Of the records of `row` from `first` to `end`, those that the diverged topic has. Raises KafkaError where it
    cannot be read: else they might be there twice."""

    def look(reader: Reader) -> tuple[TopicRow | None, list[PartitionletRow]]:
        found = reader.topic(row.stream, name)
        return found, [] if found is None else reader.chain(found.number, partition)

    topic, chain = await broker.catalog.query(look)
    if topic is None or not chain:
        return set()
    reached = (await broker.partition_states.ends([(topic.topic_id, partition)])).get((topic.topic_id, partition))
    if reached is None:
        raise KafkaError(Code.LEADER_NOT_AVAILABLE, f"{topic.full_name} cannot be read now")
    found: set[Kept] = set()
    async for header, batch in _batches(broker, chain, Offset(0), Offset(reached)):
        if header.producer_id < -1:  # it bears a token; clients may write anything, or send on what they read here
            found.update(
                place for place in _places(header, batch) if place[2] < end and (place[3] or first <= place[2])
            )
    return found


def _places(header: BatchHeader, batch: memoryview) -> list[Kept]:
    try:
        return [place for place in map(place_of, batch_records(header, batch)) if place is not None]
    except CorruptBatch:
        return []  # none of ours


async def _target(broker: "Broker", row: TopicRow, name: str, partition: int) -> TopicRow:
    """The diverged topic of `row`, with that partition. Raises KafkaError where a copy of that name is in the way."""

    def look(reader: Reader) -> tuple[TopicRow | None, str]:
        stream = reader.stream(row.stream)
        return reader.topic(row.stream, name), "" if stream is None else stream.policy.volume

    found, volume = await broker.catalog.query(look)
    if found is None:
        places = broker.place(row.partitions, volume)
        item = NewTopic(
            stream=row.stream,
            name=name,
            topic_id=uuid.uuid4().bytes,
            partitions=row.partitions,
            configs=CONFIGS,
            container_ids=[container for container, _ in places],
            container_epochs=[epoch for _, epoch in places],
        )
        (made,) = await broker.catalog.submit(CreateTopics(items=[item], now=now()))
        if made.code not in (Code.NONE, Code.TOPIC_ALREADY_EXISTS) or made.topic is None:
            raise KafkaError(made.code, made.message)
        found = made.topic
    if home_of(found, broker.node.cluster_id).cluster != broker.node.cluster_id:
        raise KafkaError(
            Code.POLICY_VIOLATION,
            f"{found.full_name} is a copy, and would have to keep what diverged of {row.full_name}: delete it",
        )
    if partition >= found.partitions:
        grown = await broker.catalog.submit(growth(broker.placement, found, count=row.partitions, volume=volume))
        if grown.topic is None or partition >= grown.topic.partitions:
            raise KafkaError(grown.code, grown.message or f"{found.full_name} has no partition {partition} yet")
        found = grown.topic
    return found


async def _append(broker: "Broker", target: TopicRow, partition: int, batch: bytearray) -> None:
    """Append at whoever leads the partition."""
    opened = await broker.catalog.query(lambda reader: reader.open_partitionlets([target.number]))
    container = next((each.container for each in opened.get(target.number, ()) if each.partition == partition), None)
    if container is None:
        raise KafkaError(Code.LEADER_NOT_AVAILABLE, f"{target.full_name} has no partition {partition} yet")
    if container in broker.containers:
        await append_once(broker, target.topic_id, partition, batch)
    else:
        asked = AppendOnce(target.topic_id, partition)
        await broker.cluster.ask_leader(container, asked, [bytes(batch)], timeout_s=ASK_S)


async def append_once(broker: "Broker", topic_id: bytes, partition: int, batch: bytearray) -> Offset:
    """Append a batch that bears a token to a partition that this node leads, unless it is there; its offset, once it is
    committed. Raises HeadraceError, NOT_LEADER_OR_FOLLOWER among others."""
    header = read_batch(batch)
    if header.producer_id >= -1 or header.length != len(batch):
        raise KafkaError(Code.INVALID_RECORD, "not one batch that bears a token")
    if len(batch) > MOST_PAYLOAD_BYTES:
        raise KafkaError(
            Code.MESSAGE_TOO_LARGE, f"a batch of {len(batch)} bytes; {MOST_PAYLOAD_BYTES} can be replicated"
        )
    (topic,) = await broker.topics.resolve_ids([topic_id])
    if isinstance(topic, KafkaError):
        raise topic
    while True:
        leader = await broker.partitions.leader(topic, partition)
        await broker.rolls.settle(leader)
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
                append_time=broker.now() if topic.policy.append_time else None,
                now=broker.now(),
                request=_Nobody(),
            )
        )
    # Of a repeat, too: the first copy may not be committed yet (invariant 11).
    await committed_to(leader.container, leader.container.log.end, timeout_s=COMMIT_S)
    return base


class _Nobody:
    """Nobody is told of the one batch: who appended waits for the container."""

    __slots__ = ()

    def committed(self) -> None:
        """Nothing."""

    def lost(self) -> None:
        """Nothing."""
