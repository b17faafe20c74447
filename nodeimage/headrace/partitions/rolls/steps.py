"""The steps of one roll, each durable before the next: intent, seal, open frame, record.

    intent   the catalog assigns the next partitionlet's id and remembers its container: RollIntent
    seal     in the container of the open partitionlet, which this node leads
    open     in the target container, by its leader, which may be another node
    record   the catalog seals the one and opens the other: RollDone

Crash behaviour: before the seal is committed nothing has happened to the partition, and the intent remains until the
next roll carries it out. From then on the partitionlet takes no batch, and its end is in the log, so that every driver
of the roll opens the next partitionlet at the same offset: this node, which continues until the roll is done even if it
no longer leads the source, and the source's next leader. Each step may be repeated: a partitionlet is opened once
(opening.py), and recorded once (the catalog compares ids).

A roll waits for a target that cannot be reached. It intends another target only if the container of the first is
deleted, so that a partitionlet opened there late has no effect. (A seal in the first target is not
needed: a deleted container cannot commit one, and a target that could commit it is never abandoned.)
"""

import asyncio
import time
from typing import Final, NamedTuple, Protocol

import msgspec
import structlog

from headrace.base.backoff import Backoff
from headrace.base.errors import Code, HeadraceError, KafkaError, StorageFull
from headrace.base.ids import ContainerId, Epoch, Home, LeaderEpoch, Millis, Offset, PartitionletId
from headrace.base.runtime import Runtime
from headrace.catalog.catalog import Catalog
from headrace.catalog.chains import RollDone, Rolled, RollIntent, RollOutcome, RollTarget
from headrace.catalog.reader import Reader
from headrace.catalog.rows import INTENDED, PartitionletRow
from headrace.container.leader import Leader
from headrace.log.frames import FrameType
from headrace.partitions.cluster_client import ClusterClient
from headrace.partitions.partition import Partition
from headrace.partitions.partitions import Partitions, read_chain
from headrace.partitions.rolls.frames import Open, Seal, carried
from headrace.partitions.rolls.opening import AlreadySealed, Opening
from headrace.partitions.topics import Topic, Topics
from headrace.peer.messages import OpenPartitionlet

log = structlog.get_logger()

INTENT, SEAL, OPEN, RECORD = "intent", "seal", "open", "record"
RETRY_FULL_S = 1.0
"""Seconds between two attempts while a disk is full."""
FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 1.0
OPEN_S: Final = 2.0
"""Seconds after which the request to a target's leader is repeated: the container may have a new leader."""


class Roll:
    """A roll under way. `full`: done, with the reason as its result, while the roll waits for room on a disk; `begun`:
    the loop time of its beginning; `steps`: how many seconds each finished step took.
    """

    __slots__ = ("_since", "begun", "full", "steps", "task")

    task: "asyncio.Task[PartitionletRow]"

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.begun = self._since = loop.time()
        self.steps: dict[str, float] = {}
        self.full: asyncio.Future[StorageFull] = loop.create_future()

    def passed(self, step: str) -> None:
        """A step is over."""
        now = asyncio.get_running_loop().time()
        self.steps[step], self._since = now - self._since, now

    def waits_for_room(self, reason: str) -> None:
        """The roll cannot continue before there is room on a disk."""
        if not self.full.done():
            log.warning("a roll waits for room on the disk", reason=reason)
            self.full.set_result(StorageFull(reason))

    def resumed(self) -> None:
        """A step succeeded, so the roll does not wait for room any longer."""
        if self.full.done():
            self.full = asyncio.get_running_loop().create_future()


class HomeRoll(NamedTuple):
    """The home that a roll applies to its partition."""

    home: Home
    resume: int
    """The offset at which the partition resumes; -1: at its end."""


class Place(Protocol):
    """Chooses the container in which a partition continues."""

    def __call__(self, partition: Partition, *, avoid: ContainerId | None) -> ContainerId:
        """The target container; `avoid` only if there is no other. Raises `KafkaError`."""


class _Opened(NamedTuple):
    """An opened target: its row, its container's epoch, and the container itself if this node leads it."""

    row: PartitionletRow
    epoch: Epoch
    container: Leader | None


class RollSteps:
    """Carries out one roll of one partition; nothing is appended to the partition meanwhile."""

    def __init__(
        self,
        partition: Partition,
        roll: Roll,
        *,
        home_roll: HomeRoll | None = None,
        runtime: Runtime,
        catalog: Catalog,
        cluster: ClusterClient,
        topics: Topics,
        partitions: Partitions,
        opening: Opening,
        place: Place,
    ) -> None:
        """`home_roll`: the home to apply with the seal; None: no new home. Ignored if the partition is sealed already,
        since the existing seal then decides."""
        self._partition = partition
        self._roll = roll
        self._home_roll = home_roll
        self._runtime = runtime
        self._catalog = catalog
        self._cluster = cluster
        self._led = cluster.replicas.led
        self._topics = topics
        self._partitions = partitions
        self._opening = opening
        self._place = place
        self._old = partition.chain[-1]

    async def run(self, *, to: ContainerId | None = None) -> PartitionletRow:
        """Roll the partition, into container `to` if it is given; returns the partitionlet that is open afterwards.

        An existing intent is carried out unchanged. Raises `KafkaError`, and `StorageFull` before the seal.
        """
        partition = self._partition
        await partition.container.all_committed()
        intended = await self._intend(to)
        if intended is None:
            return await self._reload()
        self._roll.passed(INTENT)
        fresh = partition.seal is None
        seal = partition.seal or await self._seal()
        self._roll.passed(SEAL)
        opened = await self._open(intended, seal)
        self._roll.passed(OPEN)
        if opened is not None and await self._record(opened, seal):
            self._roll.passed(RECORD)
            return await self._continue(opened, seal, fresh=fresh)
        return await self._reload()

    # --- intent

    async def _intend(
        self,
        to: ContainerId | None,
        abandoned: PartitionletId = PartitionletId(0),  # noqa: B008
    ) -> PartitionletRow | None:
        """Record the intent; returns the partitionlet to open, None if the partition has rolled already."""
        partition = self._partition
        if to is None:
            source = partition.container
            # The view of the cluster store may not show yet that the container closes.
            avoid = source.id if source.closing or source.leaving else None
            try:
                to = self._place(partition, avoid=avoid)
            except KafkaError as error:  # the topic exists, so its producers must get a retriable error
                raise KafkaError(Code.LEADER_NOT_AVAILABLE, str(error)) from error
        target = RollTarget(
            topic_id=partition.topic_id,
            partition=partition.index,
            expected_open=self._old.id,
            container=to,
            abandoned=abandoned,
        )
        (outcome,) = await self._catalog.submit(RollIntent(items=[target], now=_now()))
        found = outcome.partitionlet
        if outcome.code is Code.INVALID_REQUEST and found is not None:
            if found.state != INTENDED:
                return None
            # An earlier roll got no further than its intent, in which it chose another container: its choice remains.
            log.info("a roll continues with its earlier intent", partitionlet=found.id, container=found.container)
            return found
        if outcome.code is not Code.NONE or found is None:
            raise KafkaError(outcome.code, outcome.message)
        return found

    # --- seal

    async def _seal(self) -> Seal:
        """Seal the open partitionlet. After NOT_LEADER_OR_FOLLOWER only the next leader knows whether it is sealed."""
        partition, old = self._partition, self._old
        container = partition.container
        epochs = await self._runtime.loop.run_in_executor(self._runtime.executor, leader_epochs, container, old)
        if not epochs or epochs[-1][0] < partition.leader_epoch:
            # Epochs without records are listed, too, or many restarts would use up the epochs that a roll skips
            # (ROLL_GAP, invariant 10).
            epochs.append((partition.leader_epoch, partition.next_offset))
        end = partition.next_offset
        producers, resume, home = partition.producers, -1, None
        if self._home_roll is not None:
            resume, home = self._home_roll.resume, self._home_roll.home
            if 0 <= resume < end:
                producers = producers.cut(resume)
        seal = Seal(partition.topic_id, partition.index, old.first, end, epochs, carried(producers), resume, home)
        await container.append_control(
            FrameType.SEAL,
            msgspec.msgpack.encode(seal),
            partitionlet=old.id,
            first=old.first,
            last=end - 1,
            from_reserve=True,  # a partition must be able to leave a full disk
        )
        partition.seal = seal
        return seal

    # --- open

    async def _open(self, intended: PartitionletRow, seal: Seal) -> _Opened | None:
        """Open the next partitionlet, however long that takes; None if another driver has finished the roll."""
        backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        target: PartitionletRow | None = intended
        while target is not None:
            pause = backoff.failed()
            try:
                opened = await self._open_at(target, seal)
            except AlreadySealed:
                return None
            except (HeadraceError, OSError) as error:
                if _is_full(error):
                    self._roll.waits_for_room(str(error))
                    pause = RETRY_FULL_S
                else:
                    log.info("a roll waits for its target", container=target.container, reason=str(error))
            else:
                self._roll.resumed()
                return opened
            await asyncio.sleep(pause)
            try:
                if not await self._catalog.query(self._is_due):
                    return None
                target = await self._target_now(target)
            except HeadraceError as error:
                log.info("a roll waits for the catalog", reason=str(error))
        return None

    async def _target_now(self, target: PartitionletRow) -> PartitionletRow | None:
        """The partitionlet to open now: the same, or a new one if its container is deleted; None if the roll is over.

        A target that merely does not answer is never replaced: a request under way to open it might arrive after the
        replacement was chosen, and both would be open. In a deleted container such a request has no effect.
        """
        if not self._cluster.is_deleted(target.container):
            return target
        log.warning("a roll's target is deleted, so it chooses another one", container=target.container)
        return await self._intend(None, abandoned=target.id)

    async def _open_at(self, target: PartitionletRow, seal: Seal) -> _Opened:
        topic = self._topics.cached_id(seal.topic_id)
        opening = Open(
            partitionlet=target.id,
            stream=topic.stream if topic is not None else "",
            topic=topic.name if topic is not None else "",
            topic_id=seal.topic_id,
            partition=seal.partition,
            first=seal.next_first,
            leader_epoch=target.leader_epoch,
            container_epoch=-1,
            producers=seal.producers,
            home=seal.home,
        )
        container = self._led.get(target.container)
        if container is not None:
            try:
                epoch = await self._opening.open(container, opening)
            except AlreadySealed as sealed:
                if sealed.epoch is None:
                    raise
                return _Opened(target, sealed.epoch, None)  # without its container: this partitionlet takes no batch
            return _Opened(target, epoch, container)
        first = Offset(seal.next_first)
        asked = OpenPartitionlet(target.container, target.id, first, Offset(first - 1))
        try:
            answer, _ = await self._cluster.ask_leader(
                target.container, asked, [msgspec.msgpack.encode([opening])], timeout_s=OPEN_S
            )
        except KafkaError as error:
            if error.code is Code.INVALID_REQUEST:
                raise AlreadySealed(target.id) from error
            raise
        return _Opened(target, answer.epoch, None)

    def _is_due(self, reader: Reader) -> bool:
        """[blocking] Whether the catalog here has not recorded the roll yet."""
        chain = read_chain(reader, self._old.topic, self._partition.index)
        return chain is not None and chain.rows[-1].id == self._old.id

    # --- record

    async def _record(self, opened: _Opened, seal: Seal) -> bool:
        """Record the roll in the catalog, however long that takes; false if another driver of the roll was first.

        Raises UNKNOWN_TOPIC_OR_PARTITION if the topic was deleted meanwhile.
        """
        item = Rolled(
            topic_id=seal.topic_id,
            partition=seal.partition,
            sealed=self._old.id,
            end=Offset(seal.end),
            epochs=[(LeaderEpoch(epoch), Offset(first)) for epoch, first in seal.epochs],
            opened=opened.row.id,
            container_epoch=opened.epoch,
            resume=Offset(seal.resume),
            home=seal.home,
        )
        backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        while True:
            pause = backoff.failed()
            try:
                outcomes: list[RollOutcome] = await self._catalog.submit(RollDone(items=[item], now=_now()))
            except StorageFull as full:
                self._roll.waits_for_room(str(full))
                pause = RETRY_FULL_S
            except HeadraceError as error:
                log.info("a roll waits for the catalog", reason=str(error))
            else:
                self._roll.resumed()
                break
            await asyncio.sleep(pause)
        (outcome,) = outcomes
        if outcome.code is Code.UNKNOWN_TOPIC_OR_PARTITION:
            raise KafkaError(outcome.code, outcome.message)
        return outcome.code is Code.NONE

    # --- afterwards

    async def _continue(self, opened: _Opened, seal: Seal, *, fresh: bool) -> PartitionletRow:
        """Continue with the new partitionlet in the partition's object if this node leads its container, too; otherwise
        forget the object. Returns the open partitionlet."""
        partition = self._partition
        chain = await self._catalog.query(lambda reader: read_chain(reader, self._old.topic, partition.index))
        if chain is None:
            raise KafkaError(Code.UNKNOWN_TOPIC_OR_PARTITION, "the topic was deleted meanwhile")
        row = chain.rows[-1]
        topic = self._topics.cached_id(partition.topic_id)
        container = opened.container
        log.info(
            "partition rolled",
            partition=f"{partition.topic_id.hex()}/{partition.index}",
            end=seal.end,
            container=row.container,
            partitionlet=row.id,
        )
        if topic is None:
            return row
        # The object's state is valid for the new partitionlet only if nobody can have written to that meanwhile: this
        # node has led source and target without interruption, and this very roll wrote the seal.
        present = topic.partitions.get(partition.index) is partition and not partition.left and row.id == opened.row.id
        if fresh and present and container is not None and self._led.get(row.container) is container:
            topic.encoded = None
            producers = partition.producers
            if seal.next_first < seal.end:
                producers = producers.cut(seal.next_first)
            partition.set_chain(
                chain=chain.rows, container=container, next_offset=seal.next_first, producers=producers, size=0
            )
            partition.advance(seal.next_first)  # everything before the seal is committed
            partition.log_start = max(partition.log_start, chain.log_start)
            partition.set_home(chain.settled)
        else:
            self._leave(topic)
        return row

    async def _reload(self) -> PartitionletRow:
        """Forget the partition after a roll that another driver finished; returns the partitionlet that is open in this
        node's catalog.

        Raises UNKNOWN_TOPIC_OR_PARTITION if the topic is deleted.
        """
        partition = self._partition
        topic = self._topics.cached_id(partition.topic_id)
        if topic is not None:
            self._leave(topic)
        chain = await self._catalog.query(lambda reader: read_chain(reader, self._old.topic, partition.index))
        if chain is None:
            raise KafkaError(Code.UNKNOWN_TOPIC_OR_PARTITION, "the topic was deleted meanwhile")
        return chain.rows[-1]

    def _leave(self, topic: Topic) -> None:
        """Forget the object that the partition had before the roll, but keep one that was looked up since then."""
        held = topic.partitions.get(self._partition.index)
        if held is None or held.open == self._old.id:
            self._partitions.moved_away(topic, self._partition.index)


def leader_epochs(container: Leader, row: PartitionletRow) -> list[tuple[int, int]]:
    """[blocking] The (leader epoch, first offset) history of a partitionlet, from its frames."""
    state = container.log.load(row.id)
    return [(row.leader_epoch + epoch - row.container_epoch, first) for epoch, first in state.epochs]


def _is_full(error: Exception) -> bool:
    return isinstance(error, StorageFull) or (isinstance(error, KafkaError) and error.code is Code.KAFKA_STORAGE_ERROR)


def _now() -> Millis:
    return Millis(int(time.time() * 1000))
