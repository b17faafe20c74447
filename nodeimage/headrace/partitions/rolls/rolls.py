"""Rolls, by which a partition continues in a new partitionlet: which partitions roll, and when.

A roll has four steps, each durable before the next: the catalog's intent (new id, target container), the seal of the
open partitionlet in its container, the open frame in the target, and the catalog's record of both (steps.py). Meanwhile
appends to the partition wait, and reads continue. The partition's leader, the node that leads the container of its open
partitionlet, drives the roll. A roll that an earlier leader began, or this node before a crash, is resumed when this
node begins to lead the container, and when an intent is applied for a partition in a container that this node leads.

A partition rolls when its open partitionlet reaches the limit, when its container closes, when full nodes keep its
container from taking records and another container has room, to move load, and on demand.
While the disk is full a roll that has begun waits for room; requests that wait for the roll get an error.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeVar

import structlog

from headrace.base.backoff import Backoff
from headrace.base.errors import Code, HeadraceError, KafkaError, StorageFull
from headrace.base.ids import ContainerId, Home
from headrace.base.runtime import Runtime
from headrace.catalog.catalog import Catalog, CatalogFailed, Change
from headrace.catalog.chains import RollIntent, RollOutcome
from headrace.catalog.reader import Reader
from headrace.catalog.rows import INTENDED, OPEN, PartitionletRow, Replaced
from headrace.container.leader import Leader
from headrace.partitions.cluster_client import ClusterClient
from headrace.partitions.partition import Partition
from headrace.partitions.partitions import Partitions
from headrace.partitions.placement import Placement
from headrace.partitions.refusals import why_not_committed
from headrace.partitions.rolls.opening import Opening
from headrace.partitions.rolls.steps import FIRST_PAUSE_S, LONGEST_PAUSE_S, RETRY_FULL_S, HomeRoll, Roll, RollSteps
from headrace.partitions.topics import Topic, Topics
from headrace.tracing.spans import ROLL, Span, error_type
from headrace.tracing.tracer import NO_TRACER, Tracer

__all__ = ["Rolls"]

log = structlog.get_logger()

T = TypeVar("T")
Key = tuple[bytes, int]
"""Topic id and partition."""

TAKEN_UP_AT_ONCE: Final = 64
"""Limit of interrupted rolls that are resumed at the same time."""
MEASURED_S: Final = 1.0
"""Seconds for which write rates are measured to find the partitions that are written to most."""
NEAR: Final = 1.3
"""Factor by which the load that is moved may exceed the requested share, since partitions move as a whole."""
ROLL_WAIT_S = 5.0
"""Seconds for which an append waits for a roll; after that its producer gets a retriable error."""
MOVED_S: Final = 3.0
"""Seconds for which `roll_away` waits for its rolls, which continue afterwards."""

_HOPELESS: Final = frozenset({Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_ID, Code.KAFKA_STORAGE_ERROR})
"""Errors after which retrying is of no use for now: the topic is gone, or the log is damaged."""


class _Intended(NamedTuple):
    """An intended roll, from the partition's open partitionlet `old` into the intended one `row`."""

    topic_id: bytes
    row: PartitionletRow
    old: PartitionletRow


class Rolls:
    """Rolls the partitions of one node."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        catalog: Catalog,
        cluster: ClusterClient,
        topics: Topics,
        partitions: Partitions,
        placement: Placement,
        limit: int,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        """`limit`: bytes at which a partitionlet ends."""
        self._tracer = tracer
        self._runtime = runtime
        self._catalog = catalog
        self._cluster = cluster
        self._led = cluster.replicas.led
        self._topics = topics
        self._partitions = partitions
        self._placement = placement
        self._limit = limit
        self._under_way: dict[Key, Roll] = {}
        self._newly_led: set[Leader] = set()
        """Containers that this node has just begun to lead, whose intended rolls are to be resumed."""
        self._resuming: asyncio.Task[None] | None = None
        self._at_once = asyncio.Semaphore(TAKEN_UP_AT_ONCE)
        self._without_room: set[ContainerId] = set()
        """Containers whose partitions could not roll for lack of room: logged once, although producers keep
        retrying."""
        self.ended = 0
        """Number of rolls that were completed on this node since its start."""
        self.opening = Opening(runtime=runtime, catalog=catalog)
        """Opens partitionlets in the containers that this node leads."""

    @property
    def under_way(self) -> int:
        """Number of rolls under way."""
        return len(self._under_way)

    def due(self, partition: Partition) -> bool:
        """Whether a partition has to roll before its next batch."""
        container = partition.container
        return partition.bytes >= self._limit or container.closing or container.leaving or partition.seal is not None

    async def wait_for_roll(self, partition: Partition) -> None:
        """Wait until `partition` can be appended to: for the roll under way, or for one that is due, which this begins.

        If the partition has `left` afterwards, another node may lead it. Raises `KafkaError` (LEADER_NOT_AVAILABLE if
        the roll has been under way for longer than `ROLL_WAIT_S`; as `why_not_committed` where no roll is possible),
        and `StorageFull`.
        """
        under_way = self._under_way.get((partition.topic_id, partition.index))
        if under_way is None and not self.due(partition):
            return
        if (why_not := why_not_committed(partition.container)) is not None:  # the roll's frames could not be committed
            raise why_not
        under_way = under_way or self._begin(partition, None)
        try:
            async with asyncio.timeout_at(under_way.begun + ROLL_WAIT_S):
                await self._wait_for(under_way)
        except TimeoutError:
            raise KafkaError(Code.LEADER_NOT_AVAILABLE, "the partition rolls, and its target does not answer") from None

    async def roll(self, partition: Partition, *, to: ContainerId | None = None) -> PartitionletRow:
        """Roll `partition`, into container `to` if it is given; returns the partitionlet that is open afterwards.

        If this node does not lead the container of that partitionlet, `partition` has `left`. Raises `KafkaError`,
        `StorageFull`.
        """
        under_way = self._under_way.get((partition.topic_id, partition.index))
        if under_way is None:
            under_way = self._begin(partition, to)
        return await self._wait_for(under_way)

    def place(self, partition: Partition, *, avoid: ContainerId | None) -> ContainerId:
        """The container to roll `partition` into: one of its stream's volume, or else of the volume that it lies in
        now.

        `avoid` is chosen only if there is no other. Raises `KafkaError` as `Placement.place`.
        """
        volume = self._volume(partition)
        try:
            ((found, _),) = self._placement.place(1, volume, avoid=avoid)
        except KafkaError:
            if volume == partition.container.volume:
                raise
            ((found, _),) = self._placement.place(1, partition.container.volume, avoid=avoid)
        return found

    def _volume(self, partition: Partition) -> str:
        return self._topics.volume(partition.topic_id) or partition.container.volume

    async def apply_home(
        self, partition: Partition, home: Home, resume: int = -1, *, to: ContainerId | None = None
    ) -> PartitionletRow:
        """Roll `partition` for its topic's home, to resume at `resume`, or at its end (-1); returns the partitionlet
        that is open afterwards.

        A `resume` below the end removes all records from there on from the chain; the caller has quarantined them. One
        above it leaves a gap. Where another roll is under way, or has left a seal, that roll is finished first, and
        LEADER_NOT_AVAILABLE raised: the caller checks again whether `home` and `resume` still hold. Otherwise raises as
        `roll`.
        """
        if (partition.topic_id, partition.index) in self._under_way or partition.seal is not None:
            await self.roll(partition)
            raise KafkaError(Code.LEADER_NOT_AVAILABLE, "the partition has rolled for another reason; look again")
        if partition.left or partition.deleted:
            raise KafkaError(Code.NOT_LEADER_OR_FOLLOWER, "this node no longer leads the partition")
        # What lies below the log start is gone here, whatever another cluster has of it.
        home_roll = HomeRoll(home, -1 if resume < 0 else max(resume, partition.log_start))
        return await self._wait_for(self._begin(partition, to, home_roll))

    async def _wait_for(self, under_way: Roll) -> PartitionletRow:
        """Wait for the end of a roll; returns the open partitionlet. Raises the roll's error, or `StorageFull` if the
        roll waits for room."""
        either = (under_way.task, under_way.full)
        while not under_way.task.done():
            await asyncio.wait(either, timeout=RETRY_FULL_S, return_when=asyncio.FIRST_COMPLETED)
            if under_way.full.done() and not under_way.task.done():
                raise under_way.full.result()
            if self._catalog.full and not under_way.task.done():
                raise StorageFull("a roll waits until the catalog has room on the disk")
        return await asyncio.shield(under_way.task)

    def _begin(self, partition: Partition, to: ContainerId | None, home_roll: HomeRoll | None = None) -> Roll:
        """Begin to roll `partition`; appends to it wait until the roll is over."""
        under_way = self._under_way[partition.topic_id, partition.index] = Roll()
        partition.rolling = True
        under_way.task = self._runtime.spawn(self._run(partition, under_way, to, home_roll))
        return under_way

    async def _run(
        self, partition: Partition, under_way: Roll, to: ContainerId | None, home_roll: HomeRoll | None
    ) -> PartitionletRow:
        source = partition.container.id
        target: ContainerId | None = None
        error = ""
        try:
            steps = RollSteps(
                partition,
                under_way,
                home_roll=home_roll,
                runtime=self._runtime,
                catalog=self._catalog,
                cluster=self._cluster,
                topics=self._topics,
                partitions=self._partitions,
                opening=self.opening,
                place=self.place,
            )
            row = await steps.run(to=to)
            self.ended += 1
            self._without_room.discard(source)
            target = row.container
            return row
        except StorageFull as full:
            error = full.code.name
            if source not in self._without_room:
                self._without_room.add(source)
                log.warning(
                    "partitions cannot be rolled, as there is too little room on the disk",
                    container=source,
                    reason=str(full),
                )
            raise
        except BaseException as raised:
            error = error_type(raised)
            raise
        finally:
            if self._tracer.is_on:
                self._tracer.ended(self._span(partition, under_way, source, target, home_roll is not None, error))
            partition.rolling = False
            del self._under_way[partition.topic_id, partition.index]
            partition.wake_all()

    def _span(
        self,
        partition: Partition,
        under_way: Roll,
        source: ContainerId,
        target: ContainerId | None,
        is_home_roll: bool,
        error: str,
    ) -> Span:
        topic = self._topics.cached_id(partition.topic_id)
        return Span(
            ROLL,
            self._runtime.loop.time() - under_way.begun,
            {
                "headrace.path": None if topic is None else topic.row.full_name,
                "headrace.partition": partition.index,
                "headrace.from_container": source,
                "headrace.to_container": target,
                "headrace.is_home_roll": is_home_roll,
                **{f"headrace.{step}_seconds": took_s for step, took_s in under_way.steps.items()},
            },
            error=error,
        )

    # --- resuming rolls

    def take_up(self, container: Leader) -> None:
        """This node leads a container from now on: begin to carry out the rolls that were intended there.

        Meanwhile the partitions concerned can be read; they take records again after their roll.
        """
        self._newly_led.add(container)
        if self._resuming is None or self._resuming.done():
            self._resuming = self._runtime.spawn(self._resume_all())

    async def _resume_all(self) -> None:
        while self._newly_led:
            newly_led = frozenset(container.id for container in self._newly_led if not container.lost)
            self._newly_led.clear()
            found = await self._resume_found(partial(_intended_in, containers=newly_led))
            if found:
                log.info("rolls resumed", count=len(found))

    async def _resume_found(self, look: Callable[[Reader], list[_Intended]]) -> list[_Intended]:
        """Begin to finish the rolls that `look` finds in the catalog; returns those rolls."""
        while True:
            try:
                found = await self._catalog.query(look)
                break
            except CatalogFailed:
                return []  # this node is about to stop
            except HeadraceError as error:
                log.warning("intended rolls could not be looked up", reason=str(error))
                await asyncio.sleep(LONGEST_PAUSE_S)
        for intended in found:
            self._runtime.spawn(self._finish(intended))
        return found

    async def _finish(self, intended: _Intended) -> None:
        """Carry out an intended roll, retrying for as long as this node leads the container it rolls from."""
        container = self._led.get(intended.old.container)
        backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        while container is not None and not container.lost:
            pause = backoff.failed()
            try:
                async with self._at_once:
                    await self._finish_once(intended)
                return
            except StorageFull:
                pause = RETRY_FULL_S
            except KafkaError as error:
                if error.code in _HOPELESS:  # after damage the intent remains, and the next roll carries it out
                    log.error("a roll could not be resumed", partitionlet=intended.row.id, reason=str(error))
                    return
            except HeadraceError as error:
                log.warning("a roll is not resumed yet", partitionlet=intended.row.id, reason=str(error))
            await asyncio.sleep(pause)

    async def _finish_once(self, intended: _Intended) -> None:
        (topic,) = await self._topics.resolve_ids([intended.topic_id])
        if not isinstance(topic, Topic):
            return  # deleted
        partition = await self._partitions.leader(topic, intended.row.partition)
        if partition.open == intended.old.id:
            await self.roll(partition, to=intended.row.container)

    def applied(self, changes: Sequence[Change]) -> None:
        """Commands were applied (Catalog.on_applied). Carries out intents of nodes that no longer lead the container
        that they wanted to roll from, if this node leads it."""
        intended: set[Key] = set()
        for command, outcome in changes:
            match command:
                case RollIntent():
                    assert isinstance(outcome, list)
                    for target, result in zip(command.items, outcome, strict=True):
                        key = (target.topic_id, target.partition)
                        assert isinstance(result, RollOutcome)
                        if _is_intended(result) and key not in self._under_way:
                            intended.add(key)
                case Replaced():
                    for container in self._led.values():
                        self.take_up(container)
        if intended:
            led = frozenset(self._led)
            self._runtime.spawn(self._resume(intended, led))

    async def _resume(self, keys: Collection[Key], led: Collection[ContainerId]) -> None:
        await self._resume_found(partial(_intended_of, keys=keys, containers=led))

    # --- moving load

    async def roll_away(
        self, container: Leader, *, most: int, to: ContainerId | None, share: float, limit: float, reason: str
    ) -> int:
        """Roll the partitions of a container that are written to most; returns how many rolls have succeeded.

        Rolls partitions that together receive about `share` of what is written to the container, never more than
        `limit`, and at most `most` partitions (see `to_move`). `to`: the target container. Rolls that take longer than
        `MOVED_S` continue. Raises `KafkaError`.
        """
        before = {partition: partition.bytes for partition in self._partitions_in(container)}
        await asyncio.sleep(MEASURED_S)
        # Partitions that began to roll meanwhile count as well: the shares of simultaneous requests refer to the same
        # total.
        rates = {partition: max(partition.bytes - then, 0) for partition, then in before.items()}
        staying = {each: rates[each] for each in self._partitions_in(container) if each in rates and not each.rolling}
        chosen = to_move(staying, written=sum(rates.values()), most=most, share=share, limit=limit)
        if not chosen:
            return 0
        log.info(
            "partitions are rolled to other containers", container=container.id, count=len(chosen), to=to, reason=reason
        )
        targets: list[ContainerId] = []
        for partition in chosen:  # nothing begins to roll unless all of them have somewhere to go
            target = to
            if target is None or self._volume(partition) != container.volume:
                target = self.place(partition, avoid=container.id)
            if target == container.id:
                raise KafkaError(Code.INVALID_REQUEST, f"no other container than {container.id} takes partitions")
            targets.append(target)
        rolls = []
        for partition, target in zip(chosen, targets, strict=True):
            under_way = self._under_way.get((partition.topic_id, partition.index))
            rolls.append((under_way or self._begin(partition, target)).task)
        done, _ = await asyncio.wait(rolls, timeout=MOVED_S)
        return sum(not task.cancelled() and task.exception() is None for task in done)

    def _partitions_in(self, container: Leader) -> list[Partition]:
        """The partitions in memory whose open partitionlet lies in a container."""
        return [
            partition
            for topic in self._topics.all()
            for partition in topic.partitions.values()
            if partition.container is container and not partition.deleted and not partition.left
        ]


def to_move(rates: Mapping[T, int], *, written: int, most: int, share: float, limit: float) -> list[T]:
    """Choose at most `most` partitions whose `rates` add up to about `share` of all that is `written`: the hottest
    first, without those that would exceed the share by more than a little (`NEAR`). If the chosen ones add up to less
    than half of it, choose instead the least hot partition that exceeds it alone, if its rate is within `limit` (a
    fraction of `written`).
    """
    hottest = sorted((each for each in rates if rates[each]), key=lambda each: -rates[each])
    near = min(limit, NEAR * share) * written
    chosen: list[T] = []
    moved = 0
    for each in hottest:
        if moved >= share * written or len(chosen) >= most:
            break
        if moved + rates[each] <= near:
            chosen.append(each)
            moved += rates[each]
    larger = [each for each in hottest if near < rates[each] <= limit * written]
    return larger[-1:] if larger and moved < share * written / 2 else chosen


def _is_intended(result: RollOutcome) -> bool:
    return result.partitionlet is not None and result.partitionlet.state == INTENDED


def _intended_in(reader: Reader, containers: Collection[ContainerId]) -> list[_Intended]:
    """[blocking] The unfinished rolls of partitions whose open partitionlet lies in these containers."""
    rows = reader.chains.intended()
    owners = reader.chains.owners([row.id for row in rows])
    found = (_intended_roll(owners[row.id].topic_id, reader.chains.chain(row.topic, row.partition)) for row in rows)
    return [each for each in found if each is not None and each.old.container in containers]


def _intended_of(reader: Reader, keys: Collection[Key], containers: Collection[ContainerId]) -> list[_Intended]:
    """[blocking] The unfinished rolls of these partitions, if their open partitionlet lies in these containers."""
    topics = reader.topics.by_ids({topic_id for topic_id, _ in keys})
    found = (
        _intended_roll(topic_id, reader.chains.chain(topics[topic_id].number, partition))
        for topic_id, partition in keys
        if topic_id in topics
    )
    return [each for each in found if each is not None and each.old.container in containers]


def _intended_roll(topic_id: bytes, chain: Sequence[PartitionletRow]) -> _Intended | None:
    row = next((each for each in chain if each.state == INTENDED), None)
    old = next((each for each in chain if each.state == OPEN), None)
    return None if row is None or old is None else _Intended(topic_id, row, old)
