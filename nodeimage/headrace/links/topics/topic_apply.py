"""The steps by which a link brings topics in line with its source: topics are created, grown and configured, and homes
applied or announced.

Each step is a few catalog commands or calls for thousands of topics, may be repeated, and does nothing that is done
already, so it can be interrupted anywhere. Topics that cannot be finished yet are returned by id, to be looked at
again."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

import structlog

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import NodeId, Offset
from headrace.catalog.catalog import Catalog
from headrace.catalog.homes import HomeChange, SetHome
from headrace.catalog.reader import Reader
from headrace.catalog.rows import HomeStart as StoredStart
from headrace.catalog.rows import TopicRow
from headrace.catalog.topics import AlterTopic, CreateTopics, NewTopic
from headrace.links.source.source import NO_NODE, Announcement, HomeStart, Meeting, Source, SourceTopic, TopicPartition
from headrace.links.topics.topic_plan import Grow, Plan, Reconfigure, kept_configs
from headrace.partitions.home_check import home_of
from headrace.partitions.lookups import create_partitions_command, now
from headrace.partitions.placement import Placement

__all__ = ["PlanResult", "TopicApplier", "meet_all"]

log = structlog.get_logger(__name__)

PARTITIONS_PER_COMMAND: Final = 20_000
TOPICS_PER_COMMAND: Final = 2_000
MET_AT_ONCE: Final = 2_000
ANNOUNCED_AT_ONCE: Final = 500

_CHANGED_MEANWHILE: Final = frozenset(
    {Code.LEADER_NOT_AVAILABLE, Code.OPERATION_NOT_ATTEMPTED, Code.INVALID_PARTITIONS, Code.UNKNOWN_TOPIC_ID}
)
_NOTHING_TO_ANNOUNCE: Final = frozenset({Code.NONE, Code.FENCED_LEADER_EPOCH, Code.UNSUPPORTED_VERSION})
"""Answers of a source after which there is nothing more to announce: with a higher home of its own, its feed will
report that home; an Apache Kafka cluster cannot follow."""


class PlanResult(NamedTuple):
    """The result of a plan."""

    refused: dict[str, str]
    """By topic name, why it cannot be brought in line."""
    later: set[bytes]
    """Topics that could not be brought in line yet."""


class TopicApplier:
    """Carries out links' plans for topics; one object serves all links."""

    def __init__(self, *, catalog: Catalog, placement: Placement, own_cluster: str) -> None:
        self._catalog = catalog
        self._placement = placement
        self._own = own_cluster

    async def carry_out(self, source: Source, plan: Plan, *, stream: str, bootstrap: Sequence[str]) -> PlanResult:
        """Carry out a plan. Raises HeadraceError if the source or the catalog cannot be reached at all."""
        done = PlanResult({}, set())
        await self._make(source, plan.make, stream, done)
        done.later.update(await self.apply_homes(source, [topic for _, topic in plan.homes]))
        await self._grow(source, plan.grow, stream, done)
        await self._configure(plan.configure, done)
        done.later.update(await self.announce(source, plan.announce, stream=stream, bootstrap=bootstrap))
        done.later.update(row.topic_id for row in plan.relay)
        return done

    # --- homes

    async def apply_homes(self, source: Source, topics: Sequence[SourceTopic]) -> set[bytes]:
        """Apply the higher homes that these topics have at the source, with their histories; returns the topics that
        could not be finished yet."""
        later: set[bytes] = set()
        for some in _batches(topics):
            met = await meet_all(source, some)
            later.update(topic.topic_id for topic in some if topic.topic_id not in met)
            short = await self._grow_first(some, met)
            later.update(short)
            met = {topic_id: meetings for topic_id, meetings in met.items() if topic_id not in short}
            items = [
                HomeChange(
                    topic_id=topic.topic_id,
                    counter=topic.home.counter,
                    cluster=topic.home.cluster,
                    lists={
                        index: [(start.counter, start.cluster, start.offset) for start in each.history]
                        for index, each in enumerate(met[topic.topic_id])
                    },
                )
                for topic in some
                if topic.topic_id in met
            ]
            if items:
                codes = await self._catalog.submit(SetHome(items=items))
                log.info(
                    "homes of topics taken over from the source",
                    count=sum(code is Code.NONE for code in codes),
                    source=source.name,
                )
        return later

    async def _grow_first(self, topics: Sequence[SourceTopic], met: Mapping[bytes, Sequence[Meeting]]) -> set[bytes]:
        """Add missing partitions to copies before their home changes: once a topic is at home here, nobody would notice
        that some are missing.

        Returns the topics that could not be grown. New partitions begin under the home that is known here, with
        their history at the source up to it; if that home is this cluster, which lacked them, their history begins
        with it.
        """
        rows = await self._catalog.query(lambda reader: reader.topics.by_ids([topic.topic_id for topic in topics]))
        short: set[bytes] = set()
        for topic in topics:
            row = rows.get(topic.topic_id)
            if row is None or topic.topic_id not in met or row.partitions >= topic.partitions:
                continue
            known = row.home if row.home is not None and row.home.counter else None
            histories = None
            if known is not None and known.cluster != self._own:
                theirs = _histories(met[topic.topic_id], first=row.partitions)
                histories = [each for each in theirs if (each[1], each[2]) <= known]
            command = create_partitions_command(
                self._placement,
                row,
                count=topic.partitions,
                volume=await self._volume(row.stream),
                histories=histories,
                home=home_of(row, self._own),
            )
            try:
                await self._catalog.submit(command)
            except KafkaError as error:
                log.info("a copy could not be grown", topic=row.full_name, reason=str(error))
                short.add(topic.topic_id)
        return short

    async def announce(
        self, source: Source, rows: Sequence[TopicRow], *, stream: str, bootstrap: Sequence[str]
    ) -> set[bytes]:
        """Announce the higher homes of these topics to the source, once all of their partitions here are settled for
        them.

        Returns the topics that could not be finished yet. A source that knows no homes has nothing to record.
        """
        later: set[bytes] = set()
        refused: tuple[Code, str] | None = None
        for start in range(0, len(rows), ANNOUNCED_AT_ONCE):
            some = rows[start : start + ANNOUNCED_AT_ONCE]
            ids = [row.topic_id for row in some]
            items = await self._catalog.query(partial(_announcements, ids=ids, own_cluster=self._own))
            later.update(set(ids) - {item.topic_id for item in items})
            if not items:
                continue
            answers = await source.announce(items, bootstrap=bootstrap, cluster=self._own, stream=stream)
            for item, (code, message) in zip(items, answers, strict=True):
                if code not in _NOTHING_TO_ANNOUNCE:
                    later.add(item.topic_id)
                    refused = (code, message)
        if refused is not None:
            log.info("a source did not record a home", source=source.name, code=refused[0].name, reason=refused[1])
        return later

    # --- topics

    async def _make(self, source: Source, topics: Sequence[SourceTopic], stream: str, done: PlanResult) -> None:
        for some in _batches(topics):
            moved = [topic for topic in some if topic.home.counter > 0]
            met = await meet_all(source, moved) if moved else {}
            ready = [topic for topic in some if topic.home.counter == 0 or topic.topic_id in met]
            done.later.update(topic.topic_id for topic in some if topic not in ready)
            if not ready:
                continue
            places = iter(self._placement.place(sum(topic.partitions for topic in ready), await self._volume(stream)))
            items: list[NewTopic] = []
            for topic in ready:
                mine = list(islice(places, topic.partitions))
                items.append(
                    NewTopic(
                        stream=stream,
                        name=topic.name,
                        topic_id=topic.topic_id,
                        partitions=topic.partitions,
                        configs=kept_configs(topic.configs or {}),
                        container_ids=[container for container, _ in mine],
                        container_epochs=[epoch for _, epoch in mine],
                        home=(topic.home.counter, topic.home.cluster),
                        origin=topic.origin,
                        histories=_histories(met.get(topic.topic_id, ())),
                    )
                )
            outcomes = await self._catalog.submit(CreateTopics(items=items, now=now()))
            made = 0
            for topic, outcome in zip(ready, outcomes, strict=True):
                if outcome.code is Code.NONE:
                    made += 1
                elif outcome.code in (Code.TOPIC_ALREADY_EXISTS, Code.LEADER_NOT_AVAILABLE):
                    done.later.add(topic.topic_id)
                else:
                    done.refused[topic.name] = outcome.message or outcome.code.name
            log.info("copies of topics created", count=made, stream=stream, source=source.name)

    async def _grow(self, source: Source, grown: Sequence[Grow], stream: str, done: PlanResult) -> None:
        if not grown:
            return
        volume = await self._volume(stream)
        moved = [each.topic for each in grown if each.topic.home.counter > 0]
        met = await meet_all(source, moved) if moved else {}
        for each in grown:
            topic, row = each.topic, each.row
            if topic.home.counter > 0 and topic.topic_id not in met:
                done.later.add(topic.topic_id)
                continue
            command = create_partitions_command(
                self._placement,
                row,
                count=topic.partitions,
                volume=volume,
                histories=_histories(met.get(topic.topic_id, ()), first=row.partitions),
                home=home_of(row, self._own),
            )
            try:
                await self._catalog.submit(command)
            except KafkaError as error:  # affects this topic alone
                if error.code in _CHANGED_MEANWHILE:
                    done.later.add(topic.topic_id)
                else:
                    done.refused[topic.name] = str(error)

    async def _configure(self, changes: Sequence[Reconfigure], done: PlanResult) -> None:
        """Change configs concurrently, so that all the commands share a sync."""

        async def one(change: Reconfigure) -> None:
            command = AlterTopic(
                topic_id=change.row.topic_id,
                set=dict(change.set),
                remove=list(change.remove),
                expected=dict(change.row.configs),
            )
            try:
                outcome = await self._catalog.submit(command)
            except KafkaError as error:
                done.refused[change.row.name] = str(error)
                return
            if outcome.code is Code.OPERATION_NOT_ATTEMPTED:
                done.later.add(change.row.topic_id)

        for start in range(0, len(changes), TOPICS_PER_COMMAND):
            await asyncio.gather(*map(one, changes[start : start + TOPICS_PER_COMMAND]))

    async def _volume(self, stream: str) -> str:
        row = await self._catalog.query(lambda reader: reader.streams.at(stream))
        if row is None:
            raise KafkaError(Code.UNKNOWN_TOPIC_OR_PARTITION, f"the link's stream {stream} no longer exists here")
        return row.policy.volume


# --- histories


async def meet_all(source: Source, topics: Sequence[SourceTopic]) -> dict[bytes, list[Meeting]]:
    """By topic id, the states of all partitions at the source, in order; only of topics whose partitions could all be
    met, at the home under which the topic was listed."""
    by_node: dict[NodeId, list[TopicPartition]] = {}
    for topic in topics:
        for partition, leader in enumerate(topic.leaders):
            if leader != NO_NODE:
                by_node.setdefault(leader, []).append(TopicPartition(topic.topic_id, partition))
    calls = [
        (node, asked[start : start + MET_AT_ONCE])
        for node, asked in by_node.items()
        for start in range(0, len(asked), MET_AT_ONCE)
    ]
    met: dict[TopicPartition, Meeting] = {}
    for answers in await asyncio.gather(*(source.meet(node, asked) for node, asked in calls)):
        met.update((each.at, each) for each in answers if each.code is Code.NONE)
    found: dict[bytes, list[Meeting]] = {}
    for topic in topics:
        meetings = [met.get(TopicPartition(topic.topic_id, index)) for index in range(topic.partitions)]
        whole = [each for each in meetings if each is not None and each.home == topic.home]
        if len(whole) == topic.partitions:
            found[topic.topic_id] = whole
    return found


def _announcements(reader: Reader, *, ids: Sequence[bytes], own_cluster: str) -> list[Announcement]:
    """[blocking] The announcements for those of these topics that are settled for their homes."""
    rows = list(reader.topics.by_ids(ids).values())
    numbers = [row.number for row in rows]
    settled, histories = reader.homes.settled(numbers), reader.homes.histories(numbers)
    return [
        Announcement(
            topic_id=row.topic_id,
            home=home_of(row, own_cluster),
            origin=row.origin or own_cluster,
            histories={index: _starts(histories.get((row.number, index), ())) for index in range(row.partitions)},
        )
        for row in rows
        if row.home is not None and all(settled.get((row.number, index)) == row.home for index in range(row.partitions))
    ]


def _starts(history: Iterable[StoredStart]) -> list[HomeStart]:
    return [HomeStart(*start) for start in history]


def _histories(met: Sequence[Meeting], *, first: int = 0) -> list[tuple[int, int, str, Offset]]:
    return [
        (index, start.counter, start.cluster, start.offset)
        for index, meeting in enumerate(met)
        if index >= first
        for start in meeting.history
    ]


def _batches(topics: Sequence[SourceTopic]) -> Iterable[list[SourceTopic]]:
    """Runs of topics that each fit into one command."""
    some: list[SourceTopic] = []
    partitions = 0
    for topic in topics:
        if some and (len(some) >= TOPICS_PER_COMMAND or partitions + topic.partitions > PARTITIONS_PER_COMMAND):
            yield some
            some, partitions = [], 0
        some.append(topic)
        partitions += topic.partitions
    if some:
        yield some
