"""Resolution of name clashes: the source is home of topics whose names are taken by other topics of this cluster.

This cluster's topics are closed to writes, quarantined whole in `<topic>.diverged`, and deleted; the link then copies
the source's topics. A resolution that is interrupted continues when it is requested again: quarantined batches are
recognized by their token, and a topic is deleted only after all of it is quarantined.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import structlog

from headrace.base.errors import Code, HeadraceError, KafkaError
from headrace.base.ids import Offset
from headrace.catalog.catalog import Catalog
from headrace.catalog.homes import HomeChange, SetHome
from headrace.catalog.reader import Reader
from headrace.catalog.rows import INTENDED, LinkRow, PartitionletRow, TopicRow
from headrace.catalog.topics import DeleteTopics
from headrace.links.failover.quarantine import Quarantine
from headrace.links.source.source import HomeStart, Source, SourceTopic
from headrace.links.topics.topic_plan import is_copied
from headrace.partitions.home_check import home_of
from headrace.partitions.lookups import now
from headrace.partitions.partition_states import PartitionStates

__all__ = ["NameClashes"]

log = structlog.get_logger(__name__)

PAGE: Final = 1_000
APPLY_WAIT_S: Final = 30.0
LOOK_S: Final = 0.05


class NameClashes:
    """Resolves clashes of this cluster's topics with those of a link's source. It works on any node."""

    def __init__(self, *, catalog: Catalog, quarantine: Quarantine, states: PartitionStates, own_cluster: str) -> None:
        self._catalog = catalog
        self._quarantine = quarantine
        self._states = states
        self._own = own_cluster

    async def resolve_to_source(
        self, source: Source, link: LinkRow, names: Sequence[str] | None
    ) -> list[dict[str, Any]]:
        """Quarantine and delete the topics that clash with the source's, all or those named; returns each outcome.

        Raises HeadraceError if the source cannot be reached.
        """
        answers: list[dict[str, Any]] = []
        seen: set[str] = set()
        after: str | None = None
        while True:
            page = await source.topics(after=after, limit=PAGE)
            wanted = [
                topic
                for topic in page.topics
                if is_copied(topic.name, link.config.topics) and (names is None or topic.name in names)
            ]
            rows = await self._catalog.query(partial(_named, stream=link.stream, names=[each.name for each in wanted]))
            for topic in wanted:
                row = rows.get(topic.name)
                if row is None or row.topic_id == topic.topic_id:
                    if names is not None:
                        seen.add(topic.name)
                        answers.append(_answer(topic.name, error="it does not clash with any topic here"))
                    continue
                seen.add(topic.name)
                answers.append(await self._resolve_one(row, topic, link))
            after = page.after
            if after is None:
                break
        missing = "the source has no such topic, or the link does not copy it"
        return answers + [_answer(name, error=missing) for name in names or () if name not in seen]

    async def _resolve_one(self, row: TopicRow, topic: SourceTopic, link: LinkRow) -> dict[str, Any]:
        own = self._own
        try:
            home = home_of(row, own)
            if home.cluster == own:  # from now on it takes no writes
                cluster = topic.home.cluster if topic.home.cluster != own else link.config.source_cluster
                change = HomeChange(row.topic_id, *home.given_to(cluster), None)
                (code,) = await self._catalog.submit(SetHome(items=[change]))
                if code is not Code.NONE:
                    raise KafkaError(code, "its home has just changed; ask again")
            row, chains = await self._settled(row.topic_id)
            reached = await self._states.ends((row.topic_id, index) for index in range(row.partitions))
            starts = await self._catalog.query(lambda reader: reader.chains.log_starts([row.number]))
            into, records = "", 0
            for index in range(row.partitions):
                end = reached.get((row.topic_id, index))
                if end is None:
                    raise KafkaError(Code.LEADER_NOT_AVAILABLE, f"where partition {index} ends is not known; ask again")
                history = await self._catalog.query(partial(_history, number=row.number, index=index))
                into, kept = await self._quarantine.add(
                    row,
                    index,
                    diverged_at=Offset(0),
                    first=starts.get((row.number, index), Offset(0)),
                    end=Offset(end),
                    chain=chains.get(index, ()),
                    history=history,
                    origin=row.origin or own,
                )
                records += kept
            (deleted,) = await self._catalog.submit(DeleteTopics(topic_ids=[row.topic_id], now=now()))
            if deleted.code not in (Code.NONE, Code.UNKNOWN_TOPIC_ID):
                raise KafkaError(deleted.code, deleted.message)
        except HeadraceError as error:
            return _answer(row.name, error=str(error))
        log.warning(
            "a topic was set aside for the source's topic of the same name",
            topic=row.full_name,
            records=records,
            into=into,
            link=link.name,
        )
        return _answer(row.name, records=records, into=f"{row.stream}:{into}" if records else None)

    async def _settled(self, topic_id: bytes) -> tuple[TopicRow, dict[int, list[PartitionletRow]]]:
        """The topic and its chains once all of its partitions are rolled: the chains no longer grow. Raises
        KafkaError."""
        deadline = asyncio.get_running_loop().time() + APPLY_WAIT_S
        while True:
            row, whole, chains = await self._catalog.query(partial(_look, topic_id=topic_id))
            if row is None:
                raise KafkaError(Code.UNKNOWN_TOPIC_ID, "it has been deleted meanwhile")
            if whole:
                return row, chains
            if asyncio.get_running_loop().time() >= deadline:
                raise KafkaError(Code.LEADER_NOT_AVAILABLE, "it takes no writes, and is not rolled yet; ask again")
            await asyncio.sleep(LOOK_S)


def _look(reader: Reader, *, topic_id: bytes) -> tuple[TopicRow | None, bool, dict[int, list[PartitionletRow]]]:
    """[blocking] The topic, whether all of its partitions are settled for its home, and its chains by partition."""
    row = reader.topics.by_ids([topic_id]).get(topic_id)
    if row is None:
        return None, False, {}
    settled = reader.homes.settled([row.number])
    chains: dict[int, list[PartitionletRow]] = {}
    for part in reader.chains.chain(row.number):
        if part.state != INTENDED:
            chains.setdefault(part.partition, []).append(part)
    first = row.home is None or row.home.counter == 0
    whole = first or all(settled.get((row.number, index)) == row.home for index in range(row.partitions))
    return row, whole, chains


def _named(reader: Reader, *, stream: str, names: Sequence[str]) -> dict[str, TopicRow]:
    """[blocking] The stream's topics with these names, by name."""
    return reader.topics.named(stream, names)


def _history(reader: Reader, *, number: int, index: int) -> list[HomeStart]:
    """[blocking] The history of one partition."""
    return [HomeStart(*start) for start in reader.homes.histories([number]).get((number, index), ())]


def _answer(
    topic: str, *, records: int | None = None, into: str | None = None, error: str | None = None
) -> dict[str, Any]:
    return {"topic": topic, "records": records, "into": into, "error": error}
