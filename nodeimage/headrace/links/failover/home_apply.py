"""Applies topics' homes to the partitions that this node leads: each partition is rolled once for each new home.

A topic's home is changed in the catalog; nothing is appended under it before the partition is rolled for it. The
partition is then *settled* for that home. If the new home has a history of its own (a link took it from its source),
records beyond the point at which the histories diverge are quarantined first (quarantine.py), then cut from the chain
by the roll, which resumes at that point. A home without a history (a promotion by force, a demotion) begins where each
partition ends.

Level-triggered: applied commands, containers that this node begins to lead, and a slow sweep determine which topics to
look at; what is done follows from the tables' present state. After a crash before the roll is recorded everything is
done again, and batches that are quarantined already are recognized by their token. If the home rises meanwhile, the
roll applies the lower one, and the partition is looked at again. If records are appended between the comparison and the
roll, the comparison is repeated, since the roll begins only if the partition still ends at the same offset. Produce is
refused for a topic that is not settled, so no acknowledged record is cut without being quarantined.
"""

import asyncio
from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

import structlog

from headrace.base.errors import Code, HeadraceError, KafkaError
from headrace.base.ids import ContainerId, Home, Offset
from headrace.catalog.catalog import Catalog, CatalogFailed, Change
from headrace.catalog.chains import RollDone, Rolled
from headrace.catalog.homes import SetHome, history_in
from headrace.catalog.reader import Reader
from headrace.catalog.rows import OPEN, PartitionletRow, Replaced, TopicRow
from headrace.catalog.topics import CreatePartitions, CreateTopics
from headrace.links.failover.quarantine import Quarantine
from headrace.links.source.histories import divergence
from headrace.links.source.source import HomeStart
from headrace.partitions.partition import Partition
from headrace.partitions.partitions import Partitions
from headrace.partitions.rolls.rolls import Rolls
from headrace.partitions.topics import Topics

__all__ = ["HomeApplier"]

log = structlog.get_logger(__name__)

PAGE: Final = 500
AT_ONCE: Final = 64
SWEEP_S: Final = 60.0
RETRY_S: Final = 0.5
COMPARED: Final = 10
"""The maximum number of comparisons of a partition that grows meanwhile before others get their turn."""


class Unsettled(NamedTuple):
    """A partition that this node leads and that is not settled for its topic's home."""

    row: TopicRow
    partition: int
    home: Home
    history: Sequence[HomeStart]
    theirs: Sequence[HomeStart] | None
    """The history that it gets; None: it keeps its own."""
    chain: Sequence[PartitionletRow]


class HomeApplier:
    """Rolls the partitions that this node leads for their topics' homes."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        topics: Topics,
        partitions: Partitions,
        rolls: Rolls,
        led: Collection[ContainerId],
        quarantine: Quarantine,
        own_cluster: str,
    ) -> None:
        """`led`: the containers that this node leads."""
        self._catalog = catalog
        self._topics = topics
        self._partitions = partitions
        self._rolls = rolls
        self._led = led
        self._quarantine = quarantine
        self._own = own_cluster
        self._due: dict[bytes, None] = {}
        self._again: dict[bytes, None] = {}
        """Topics that could not be finished yet."""
        self._look_at_all = True
        self._wake = asyncio.Event()
        self.quarantined = 0
        """Records quarantined since the node's start."""
        self.unsettled: dict[bytes, str] = {}
        """By topic id, the streams of topics whose homes are being applied here, or could not be applied yet."""
        self.problem: str | None = None
        """Why some partition is not settled yet; None if there is no problem."""

    # --- changes

    def applied(self, changes: Sequence[Change]) -> None:
        """Handle applied commands (Catalog.on_applied)."""
        for command, _ in changes:
            match command:
                case SetHome():
                    self._due.update(dict.fromkeys(item.topic_id for item in command.items))
                case RollDone():
                    self._due.update(dict.fromkeys(item.topic_id for item in command.items if self._moved(item)))
                case CreateTopics() | CreatePartitions():
                    continue  # created as settled
                case Replaced():
                    self._look_at_all = True
                case _:
                    continue
            self._wake.set()

    def _moved(self, item: Rolled) -> bool:
        """Whether a roll applied a home, or moved a partition to which a home may have to be applied."""
        topic = self._topics.cached_id(item.topic_id)
        return item.home is not None or topic is None or topic.home is not None

    def container_led(self) -> None:
        """Handle that this node has become the leader of a container."""
        self._look_at_all = True
        self._wake.set()

    # --- run

    async def run(self) -> None:
        """Apply homes until cancelled."""
        loop = asyncio.get_running_loop()
        sweep_at = 0.0
        while True:
            try:
                if self._look_at_all or loop.time() >= sweep_at:
                    self._look_at_all = False
                    sweep_at = loop.time() + SWEEP_S
                    await self._sweep()
                while self._due:
                    ids = list(self._due)[:PAGE]
                    for topic_id in ids:
                        del self._due[topic_id]
                    self._again.update(dict.fromkeys(ids))  # until they are finished
                    await self._apply_all(await self._catalog.query(lambda reader: self._of(reader, ids)), ids)  # noqa: B023
            except CatalogFailed:
                return  # this node ends
            except Exception as error:  # no error may stop this: unsettled partitions accept no writes
                self._look_at_all = True
                self.problem = str(error) or repr(error)
                if isinstance(error, HeadraceError):
                    log.info("partitions are not settled yet", reason=str(error))
                else:
                    log.exception("settling partitions failed")
                await asyncio.sleep(RETRY_S)
            else:
                if not self._again:
                    self.problem = None
            until = loop.time() + RETRY_S if self._again else sweep_at
            if not (self._due or self._look_at_all):
                self._wake.clear()
                try:
                    async with asyncio.timeout_at(until):
                        await self._wake.wait()
                except TimeoutError:
                    pass
            self._due.update(self._again)
            self._again.clear()

    async def _sweep(self) -> None:
        after = 0
        while True:
            rows = await self._catalog.query(lambda reader: reader.homes.unsettled(after=after, limit=PAGE))  # noqa: B023
            self._due.update(dict.fromkeys(row.topic_id for row in rows))
            if len(rows) < PAGE:
                return
            after = rows[-1].number

    # --- partitions

    def _of(self, reader: Reader, ids: Sequence[bytes]) -> list[Unsettled]:
        """[blocking] The unsettled partitions of these topics that this node may lead."""
        rows = [row for row in reader.topics.by_ids(ids).values() if row.home is not None and row.home.counter > 0]
        numbers = [row.number for row in rows]
        settled, histories = reader.homes.settled(numbers), reader.homes.histories(numbers)
        pending = reader.homes.pending(numbers)
        found: list[Unsettled] = []
        for row in rows:
            assert row.home is not None
            missing = [index for index in range(row.partitions) if settled.get((row.number, index)) != row.home]
            if not missing:
                continue
            lists = pending.get(row.number)
            chains = _by_partition(reader.chains.chain(row.number))
            for index in missing:
                chain = chains.get(index, [])
                if not any(part.state == OPEN and part.container in self._led for part in chain):
                    continue
                found.append(
                    Unsettled(
                        row=row,
                        partition=index,
                        home=row.home,
                        history=[HomeStart(*start) for start in histories.get((row.number, index), ())],
                        theirs=None
                        if lists is None
                        else [HomeStart(*start) for start in history_in(lists, index, row.home)],
                        chain=chain,
                    )
                )
        return found

    async def _apply_all(self, wanted: Sequence[Unsettled], ids: Collection[bytes]) -> None:
        gate = asyncio.Semaphore(AT_ONCE)
        failed: set[bytes] = set()
        self.unsettled.update((each.row.topic_id, each.row.stream) for each in wanted)

        async def one(each: Unsettled) -> None:
            async with gate:
                try:
                    await self._apply_home(each)
                except Exception as error:  # no error may stop the others; the partition is retried
                    if not _is_elsewhere(error):
                        failed.add(each.row.topic_id)
                        self.problem = f"{each.row.full_name}/{each.partition}: {error}"
                        log.info(
                            "a partition is not settled yet",
                            topic=each.row.full_name,
                            partition=each.partition,
                            reason=str(error),
                            exc_info=not isinstance(error, HeadraceError | OSError),
                        )

        await asyncio.gather(*map(one, wanted))
        for topic_id in ids:
            if topic_id not in failed:
                self._again.pop(topic_id, None)
                self.unsettled.pop(topic_id, None)

    async def _apply_home(self, wanted: Unsettled) -> None:
        """Settle one partition. Raises HeadraceError if it has to be retried."""
        (topic,) = await self._topics.resolve_ids([wanted.row.topic_id])
        if isinstance(topic, KafkaError):
            return  # deleted
        for _ in range(COMPARED):
            leader = await self._partitions.leader(topic, wanted.partition)
            end = Offset(leader.next_offset)
            diverged_at = self._divergence(wanted, end)
            if diverged_at is None:
                await self._rolls.apply_home(leader, wanted.home)
                return
            try:
                await self._quarantine_records(wanted, leader, diverged_at, end)
            except KafkaError as error:
                if _is_elsewhere(error):  # about the diverged topic, whose leaders do not look at this partition
                    raise KafkaError(
                        Code.LEADER_NOT_AVAILABLE, f"diverged records cannot be set aside now: {error}"
                    ) from error
                raise
            if leader.next_offset == end and not leader.left:
                await self._rolls.apply_home(leader, wanted.home, resume=diverged_at)
                return
        raise KafkaError(Code.LEADER_NOT_AVAILABLE, "it keeps growing while it is compared")

    def _divergence(self, wanted: Unsettled, end: Offset) -> Offset | None:
        if wanted.theirs is None:
            return None
        origin = wanted.row.origin or self._own
        return divergence(wanted.history, origin, end, wanted.theirs, origin)

    async def _quarantine_records(self, wanted: Unsettled, leader: Partition, diverged_at: Offset, end: Offset) -> None:
        """Quarantine the records from `diverged_at` on."""
        await leader.container.all_committed()
        first = Offset(max(diverged_at, leader.log_start))
        if first >= end:
            return
        into, records = await self._quarantine.add(
            wanted.row,
            wanted.partition,
            diverged_at=diverged_at,
            first=first,
            end=end,
            chain=leader.chain,
            history=wanted.history,
            origin=wanted.row.origin or self._own,
        )
        self.quarantined += records
        log.warning(
            "records diverged from the home's history, and were set aside",
            topic=wanted.row.full_name,
            partition=wanted.partition,
            diverged_at=diverged_at,
            records=records,
            into=into,
            home=f"{wanted.home.counter}:{wanted.home.cluster}",
        )


def _by_partition(chain: Iterable[PartitionletRow]) -> dict[int, list[PartitionletRow]]:
    found: dict[int, list[PartitionletRow]] = {}
    for part in chain:
        found.setdefault(part.partition, []).append(part)
    return found


def _is_elsewhere(error: Exception) -> bool:
    """Whether another node leads the partition, or begins to, and applies the home; or the topic was deleted."""
    return isinstance(error, KafkaError) and error.code in (Code.NOT_LEADER_OR_FOLLOWER, Code.UNKNOWN_TOPIC_ID)
