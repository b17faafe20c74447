"""Rolls: a partition goes on in a new partitionlet (DESIGN section 5).

In order, each step durable before the next: the catalog's intent (new id, target container), the seal of the open
partitionlet in its container, the open frame in the target, the catalog's record of both. Appends to the partition
wait meanwhile; reads go on. After a crash `finish` does what was intended: every step can be repeated.

A partition rolls when its open partitionlet reaches the limit, when its container closes, and on demand. Where the disk
is full a roll that has begun waits for room, and whoever waits for the roll is told so instead of waiting with it.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import msgspec
import structlog

from headrace.broker.partition import Partition
from headrace.broker.partitions import read_chain
from headrace.broker.roll_frames import Open, Seal, carried
from headrace.broker.topics import Topic
from headrace.catalog.commands import RollDone, Rolled, RollIntent, RollTarget
from headrace.catalog.reader import Reader
from headrace.catalog.rows import INTENDED, PartitionletRow, RollOutcome
from headrace.container.container import Container
from headrace.errors import Code, KafkaError, StorageFull
from headrace.ids import Epoch, LeaderEpoch, Millis, Offset
from headrace.log.frames import FrameType

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

log = structlog.get_logger()

T = TypeVar("T")

RETRY_FULL_S = 1.0


class _Roll:
    """A roll under way. `full` is done, with the reason, while it waits for room on the disk."""

    __slots__ = ("full", "task")

    task: asyncio.Task[None]

    def __init__(self) -> None:
        self.full: asyncio.Future[StorageFull] = asyncio.get_running_loop().create_future()


Steps = Callable[[Partition, _Roll], Awaitable[None]]


class Rolls:
    """Rolls the partitions of one node."""

    def __init__(self, broker: "Broker", *, limit: int) -> None:
        """`limit`: bytes at which a partitionlet ends."""
        self._broker = broker
        self._limit = limit
        self._under_way: dict[tuple[bytes, int], _Roll] = {}

    def due(self, partition: Partition) -> bool:
        """Its next batch belongs in a new partitionlet."""
        return partition.bytes >= self._limit or partition.container.closing

    async def settle(self, partition: Partition) -> None:
        """Return when `partition` can be appended to: after the roll under way, or after one that is due.

        Raises `KafkaError`, `StorageFull`.
        """
        under_way = self._under_way.get((partition.topic_id, partition.index))
        if under_way is not None:
            await self._over(under_way)
        elif self.due(partition):
            await self.roll(partition)

    async def roll(self, partition: Partition) -> None:
        """Let `partition` go on in a new partitionlet. Raises `KafkaError`, `StorageFull`."""
        under_way = self._under_way.get((partition.topic_id, partition.index))
        if under_way is None:
            under_way = self._begin(partition, self._roll)
        await self._over(under_way)

    async def _over(self, under_way: _Roll) -> None:
        """Return when a roll is over. Raises its error, or `StorageFull` while it waits for room."""
        either = (under_way.task, under_way.full)
        while not under_way.task.done():
            await asyncio.wait(either, timeout=RETRY_FULL_S, return_when=asyncio.FIRST_COMPLETED)
            if under_way.full.done() and not under_way.task.done():
                raise under_way.full.result()
            if self._broker.catalog.full and not under_way.task.done():
                raise StorageFull("a roll waits until the catalog has room on the disk")
        await asyncio.shield(under_way.task)

    def _begin(self, partition: Partition, steps: Steps) -> _Roll:
        """From now on nothing is appended to `partition`, until `steps` are through."""
        under_way = self._under_way[partition.topic_id, partition.index] = _Roll()
        partition.rolling = True
        under_way.task = self._broker.spawn(self._run(partition, under_way, steps))
        return under_way

    async def _run(self, partition: Partition, under_way: _Roll, steps: Steps) -> None:
        try:
            await steps(partition, under_way)
        finally:
            partition.rolling = False
            del self._under_way[partition.topic_id, partition.index]
            partition.wake_all()

    async def _roll(self, partition: Partition, under_way: _Roll) -> None:
        await self._all_committed(partition)
        ((container_id, _),) = self._broker.place(1, "")
        target = RollTarget(
            topic_id=partition.topic_id,
            partition=partition.index,
            expected_open=partition.open,
            container=container_id,
        )
        (outcome,) = await self._broker.catalog.submit(RollIntent(items=[target], now=_now()))
        intended = outcome.partitionlet
        if outcome.code is Code.INVALID_REQUEST and intended is not None and intended.state == INTENDED:
            # An earlier roll got no further than its intent, and had chosen another container: that one stands.
            log.info("a roll goes on as it was intended", partitionlet=intended.id, container=intended.container)
        else:
            intended = _only([outcome])
        await self._carry_out(partition, intended, under_way)

    async def _all_committed(self, partition: Partition) -> None:
        """Nothing is appended while a roll is under way, so that what was appended before ends the partitionlet."""
        if partition.high_watermark < partition.next_offset:
            done = self._broker.loop.create_future()
            partition.container.when_committed(partition.container.log.end, _Done(done))
            await done

    async def _carry_out(self, partition: Partition, intended: PartitionletRow, under_way: _Roll) -> None:
        old = partition.chain[-1]
        source, target = partition.container, self._broker.containers.get(intended.container)
        if target is None:
            raise KafkaError(Code.NOT_LEADER_OR_FOLLOWER, f"container {intended.container} is not on this node")
        epochs = await self._broker.loop.run_in_executor(self._broker.executor, leader_epochs, source, old)
        if not epochs or epochs[-1][0] < partition.leader_epoch:
            # Epochs in which nothing was written count too, or many restarts would outrun the gap (invariant 10).
            epochs.append((partition.leader_epoch, partition.next_offset))
        producers = carried(partition.producers)
        end = partition.next_offset
        await source.append_control(
            FrameType.SEAL,
            msgspec.msgpack.encode(Seal(partition.topic_id, partition.index, old.first, end, list(epochs), producers)),
            partitionlet=old.id,
            first=old.first,
            last=end - 1,
        )
        topic = self._broker.topics.cached_id(partition.topic_id)
        opening = Open(
            partitionlet=intended.id,
            stream=topic.stream if topic is not None else "",
            topic=topic.name if topic is not None else "",
            topic_id=partition.topic_id,
            partition=partition.index,
            first=end,
            leader_epoch=intended.leader_epoch,
            container_epoch=target.epoch,
            producers=producers,
        )
        # From the seal on the old partitionlet takes no batch: what follows is tried until it succeeds.
        await self._until_room(
            under_way,
            lambda: target.append_control(
                FrameType.OPEN,
                msgspec.msgpack.encode([opening]),
                partitionlet=intended.id,
                first=end,
                last=end - 1,
            ),
        )
        done = RollDone(
            items=[
                Rolled(
                    topic_id=partition.topic_id,
                    partition=partition.index,
                    sealed=old.id,
                    end=Offset(end),
                    epochs=[(LeaderEpoch(epoch), Offset(first)) for epoch, first in epochs],
                    opened=intended.id,
                    container_epoch=Epoch(target.epoch),
                )
            ],
            now=_now(),
        )
        opened = _only(await self._until_room(under_way, lambda: self._broker.catalog.submit(done)))
        chain = await self._broker.catalog.query(lambda reader: read_chain(reader, opened.topic, opened.partition))
        if chain is None:  # the topic was deleted meanwhile
            return
        topic = self._broker.topics.cached_id(partition.topic_id)
        if topic is not None:
            topic.encoded = None
        partition.adopt(chain=chain.rows, container=target, next_offset=end, producers=partition.producers, size=0)
        log.info(
            "partition rolled",
            partition=f"{partition.topic_id.hex()}/{partition.index}",
            end=end,
            container=target.id,
            partitionlet=opened.id,
        )

    async def _until_room(self, under_way: _Roll, step: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                done = await step()
            except StorageFull as full:
                if not under_way.full.done():
                    log.warning("a roll waits for room on the disk", reason=str(full))
                    under_way.full.set_result(full)
                await asyncio.sleep(RETRY_FULL_S)
            else:
                if under_way.full.done():
                    under_way.full = self._broker.loop.create_future()
                return done

    async def finish(self) -> int:
        """After a start: begin to carry out the rolls that were intended before a crash; returns how many.

        Their partitions are read meanwhile, and take records when it is done.
        """
        taken_up = 0
        pending = await self._broker.catalog.query(lambda reader: reader.intended())
        for row in pending:
            topic_id = await self._broker.catalog.query(lambda reader, row=row: _topic_id(reader, row))  # type: ignore[misc]
            (topic,) = await self._broker.topics.resolve_ids([topic_id])
            if isinstance(topic, Topic):
                try:
                    partition = await self._broker.partitions.leader(topic, row.partition)
                except KafkaError as error:  # damage: the intent stands, and is carried out at the next roll
                    log.error("a roll was not taken up again", topic=topic.name, reason=str(error))
                    continue
                taken_up += 1
                self._begin(partition, lambda partition, roll, row=row: self._finish(partition, roll, row))  # type: ignore[misc]
        return taken_up

    async def _finish(self, partition: Partition, under_way: _Roll, intended: PartitionletRow) -> None:
        await self._until_room(under_way, lambda: self._carry_out(partition, intended, under_way))


def leader_epochs(container: Container, row: PartitionletRow) -> list[tuple[int, int]]:
    """[blocking] The (leader epoch, first offset) history of a partitionlet, from its frames."""
    state = container.log.load(row.id)
    return [(row.leader_epoch + epoch - row.container_epoch, first) for epoch, first in state.epochs]


class _Done:
    """A future as somebody who waits for a commit."""

    __slots__ = ("_future",)

    def __init__(self, future: asyncio.Future[None]) -> None:
        self._future = future

    def committed(self) -> None:
        if not self._future.done():
            self._future.set_result(None)


def _only(outcome: object) -> PartitionletRow:
    assert isinstance(outcome, list)
    (result,) = outcome
    assert isinstance(result, RollOutcome)
    if result.code is not Code.NONE or result.partitionlet is None:
        raise KafkaError(result.code, result.message)
    return result.partitionlet


def _topic_id(reader: Reader, row: PartitionletRow) -> bytes:
    """[blocking]"""
    return reader.owners([row.id])[row.id].topic_id


def _now() -> Millis:
    return Millis(int(time.time() * 1000))
