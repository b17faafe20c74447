"""The partitions that this node leads, brought into memory when a client asks.

Responsible for loading: the chain from the catalog, the end, the idempotent producers and the size of the open
partitionlet from its container's log, in reader threads; many partitions in one go. While a partition is not in
memory nothing can be appended to it, so what a load finds stays true until it ends.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from headrace.broker.partition import Partition
from headrace.broker.roll_frames import Carried, Open
from headrace.broker.topics import Topic
from headrace.catalog.reader import Reader
from headrace.catalog.rows import INTENDED, PartitionletRow
from headrace.container.container import Container
from headrace.container.producers import KnownBatch, Producer, Producers
from headrace.errors import Code, HeadraceError, KafkaError
from headrace.ids import Offset, PartitionletId, Position
from headrace.log.frames import FrameType

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

Key = tuple[bytes, int]
NOTHING = Position(0)


class Chain(NamedTuple):
    """A partition as the catalog has it."""

    rows: tuple[PartitionletRow, ...]
    log_start: int


class Tail(NamedTuple):
    """Where an open partitionlet stands, as its container's log has it."""

    next_offset: int
    producers: Producers
    size: int


class Partitions:
    """Loads leaders, each once."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._loading: dict[Key, asyncio.Future[Partition | KafkaError]] = {}
        self._moved: set[Key] = set()
        """Partitions whose log start moved while they were being loaded: what was read of them is no longer true."""

    async def leader(self, topic: Topic, index: int) -> Partition:
        """The leader's state of one partition. Raises `KafkaError`."""
        partition = topic.partitions.get(index)
        if partition is None:
            (found,) = await self.leaders([(topic, index)])
            if isinstance(found, KafkaError):
                raise found
            partition = found
        return partition

    async def leaders(self, wanted: Sequence[tuple[Topic, int]]) -> list[Partition | KafkaError]:
        """The leaders' states, loaded where they are not in memory; or why there is none.

        Of a partition there is one object, in the one `Topic` that is in the cache: a topic that was forgotten since
        it was looked up gets LEADER_NOT_AVAILABLE, and the client tries again.
        """
        mine: list[tuple[Topic, int]] = []
        loop = self._broker.loop
        for topic, index in wanted:
            key = (topic.topic_id, index)
            if index not in topic.partitions and key not in self._loading and self._in_memory(topic):
                self._loading[key] = loop.create_future()
                topic.loading += 1
                mine.append((topic, index))
        # Taken before the load begins, since it lets go of them when it ends.
        loading = {(topic.topic_id, index): self._loading.get((topic.topic_id, index)) for topic, index in wanted}
        if mine:
            # Loading goes on for those who wait for it, even if this caller's connection goes away.
            await asyncio.shield(self._broker.spawn(self._load(mine)))
        for future in loading.values():
            if future is not None:
                await asyncio.shield(future)
        found: list[Partition | KafkaError] = []
        for topic, index in wanted:  # at one moment: while one was waited for, another may have been forgotten
            future = loading[topic.topic_id, index]
            outcome = future.result() if future is not None else topic.partitions.get(index)
            if not self._in_memory(topic):
                code = Code.UNKNOWN_TOPIC_OR_PARTITION if topic.deleted else Code.LEADER_NOT_AVAILABLE
                outcome = KafkaError(code)
            found.append(outcome or KafkaError(Code.UNKNOWN_TOPIC_OR_PARTITION))
        return found

    def _in_memory(self, topic: Topic) -> bool:
        return self._broker.topics.cached_id(topic.topic_id) is topic

    def log_start_moved(self, topic_id: bytes, index: int) -> None:
        """A log start has moved by a committed command; bytes below may go from now on."""
        key = (topic_id, index)
        if key in self._loading:
            self._moved.add(key)

    def adopt_fresh(self, topic: Topic, row: PartitionletRow) -> None:
        """Bring a partition into memory without asking the disk, if that is possible."""
        if row.partition not in topic.partitions and (topic.topic_id, row.partition) not in self._loading:
            partition = self._fresh(topic, row)
            if partition is not None:
                topic.partitions[row.partition] = partition

    def _fresh(self, topic: Topic, row: PartitionletRow) -> Partition | None:
        """The partition of a first partitionlet that was made in this run and that nobody has written to; else None."""
        container = self._broker.containers.get(row.container)
        if (
            container is None
            or row.first != 0
            or row.container_epoch != container.epoch
            or self._broker.topics.forgot
            or topic.deleted
        ):
            return None
        return Partition(
            topic_id=topic.topic_id,
            index=row.partition,
            chain=(row,),
            container=container,
            next_offset=0,
            log_start=0,
            producers=Producers(),
            size=0,
        )

    async def _load(self, wanted: list[tuple[Topic, int]]) -> None:
        outcomes: dict[Key, Partition | KafkaError] = {}
        left = wanted
        try:
            while left:
                self._moved.difference_update((topic.topic_id, index) for topic, index in left)
                outcomes |= await self._read(left)
                left = [(topic, index) for topic, index in left if (topic.topic_id, index) in self._moved]
        finally:
            for topic, index in wanted:
                key = (topic.topic_id, index)
                topic.loading -= 1
                self._moved.discard(key)
                if not self._in_memory(topic) and not topic.deleted:
                    outcomes.pop(key, None)
                outcome = outcomes.get(key) or KafkaError(Code.LEADER_NOT_AVAILABLE, "the partition was not loaded")
                if isinstance(outcome, Partition):
                    if topic.deleted:
                        outcome.deleted = True
                    topic.partitions[index] = outcome
                self._loading.pop(key).set_result(outcome)

    async def _read(self, wanted: list[tuple[Topic, int]]) -> dict[Key, Partition | KafkaError]:
        outcomes: dict[Key, Partition | KafkaError] = {}
        numbers = {topic.row.number for topic, _ in wanted}
        opened = await self._broker.catalog.query(lambda reader: reader.open_partitionlets(numbers))
        rows = {(row.topic, row.partition): row for found in opened.values() for row in found}
        older: list[tuple[Topic, int]] = []
        for topic, index in wanted:
            row = rows.get((topic.row.number, index))
            partition = self._fresh(topic, row) if row is not None else None
            if partition is not None:
                outcomes[topic.topic_id, index] = partition
            else:
                older.append((topic, index))
        if older:
            outcomes.update(await self._read_older(older))
        return outcomes

    async def _read_older(self, wanted: list[tuple[Topic, int]]) -> dict[Key, Partition | KafkaError]:
        chains = await self._broker.catalog.query(lambda reader: _chains(reader, wanted))
        outcomes: dict[Key, Partition | KafkaError] = {}
        asked: list[tuple[Key, Chain, Container]] = []
        for topic, index in wanted:
            key = (topic.topic_id, index)
            chain = chains.get(key)
            if chain is None:
                outcomes[key] = KafkaError(Code.UNKNOWN_TOPIC_OR_PARTITION)
                continue
            container = self._broker.containers.get(chain.rows[-1].container)
            if container is None:
                outcomes[key] = KafkaError(Code.LEADER_NOT_AVAILABLE)
                continue
            asked.append((key, chain, container))
        tails = await self._broker.loop.run_in_executor(self._broker.executor, _tails, asked)
        for key, chain, container in asked:
            tail = tails[key]
            if not isinstance(tail, Tail):
                self._broker.read_failed(tail)
                outcomes[key] = KafkaError(Code.KAFKA_STORAGE_ERROR, str(tail))
                continue
            outcomes[key] = Partition(
                topic_id=key[0],
                index=key[1],
                chain=chain.rows,
                container=container,
                next_offset=tail.next_offset,
                log_start=chain.log_start,
                producers=tail.producers,
                size=tail.size,
            )
        return outcomes


def read_chain(reader: Reader, topic: int, partition: int) -> Chain | None:
    """[blocking] The open and sealed partitionlets of one partition of a topic's number, in order."""
    rows = tuple(row for row in reader.chain(topic, partition) if row.state != INTENDED)
    if not rows:
        return None
    return Chain(rows, reader.log_starts([topic]).get((topic, partition), Offset(0)))


def read_tail(container: Container, partitionlet: PartitionletId, first: int, *, since: Position = NOTHING) -> Tail:
    """[blocking] Where an open partitionlet stands that ends at `first` or later; its frames lie behind `since`."""
    state = container.log.load(partitionlet, since=since)
    known: dict[int, Producer] = {}
    now = int(time.time() * 1000)
    for frame in container.log.controls_of(partitionlet):
        match frame.type:
            case FrameType.OPEN:
                (opened,) = msgspec.msgpack.decode(frame.payload, type=list[Open])
                entries = opened.producers
            case FrameType.PRODUCERS:
                entries = msgspec.msgpack.decode(frame.payload, type=list[Carried])
            case _:
                continue
        for entry in entries:
            known[entry.producer_id] = Producer(entry.epoch, [KnownBatch(*batch) for batch in entry.batches], seen=now)
    for producer_id, found in state.producers.items():
        batches = [KnownBatch(*batch) for batch in found.batches]
        carried_over = known.get(producer_id)
        if carried_over is not None and carried_over.epoch == found.epoch:
            oldest = batches[0].base_offset if batches else 0
            batches = [batch for batch in carried_over.batches if batch.base_offset < oldest] + batches
        if carried_over is None or found.epoch >= carried_over.epoch:
            known[producer_id] = Producer(found.epoch, batches, seen=now)
    next_offset = first if state.next_offset is None else max(first, state.next_offset)
    return Tail(next_offset, Producers(known), state.bytes)


def _chains(reader: Reader, wanted: list[tuple[Topic, int]]) -> Mapping[Key, Chain]:
    """[blocking]"""
    found = {}
    for topic, index in wanted:
        chain = read_chain(reader, topic.row.number, index)
        if chain is not None:
            found[topic.topic_id, index] = chain
    return found


def _tails(asked: list[tuple[Key, Chain, Container]]) -> dict[Key, Tail | Exception]:
    """[blocking] Each partition's tail, or why it cannot be read: damage harms those alone whom it meets."""
    tails: dict[Key, Tail | Exception] = {}
    for key, chain, container in asked:
        row = chain.rows[-1]
        # What was opened in this run has its frames behind this run's start.
        since = container.opened_at if row.container_epoch == container.epoch else NOTHING
        # The log start is never above the end, and tells it where all records have expired.
        try:
            tails[key] = read_tail(container, row.id, max(row.first, chain.log_start), since=since)
        except (HeadraceError, OSError) as error:
            tails[key] = error
    return tails
