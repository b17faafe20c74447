"""Topics of a stream, and the states of their partitions, for a link of another cluster.

Responsible for consistent answers to `link.meet`, which a target calls before it fetches from a partition's leader:
what it returns for a partition (leader epoch, home, history, ends) is from one moment, so that a target that fetches
with that leader epoch has compared the right history. After a change of home, a partition's state is reported only once
the partition is settled for the new home, that is, has been rolled for it (partitions/home_check.py). Until then the
answer is LEADER_NOT_AVAILABLE.
"""

from collections.abc import Sequence
from typing import Annotated, Final, NamedTuple

import msgspec

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import ContainerId, Home, PartitionletId
from headrace.catalog.catalog import Catalog
from headrace.catalog.reader import Reader
from headrace.catalog.rows import HomeStart, PartitionletRow, TopicRow
from headrace.links.serving.params import (
    MAX_ITEMS,
    MAX_ROWS,
    Index,
    OfStream,
    TopicId,
    Versioned,
    check_call,
    check_version,
)
from headrace.partitions.admin_params import Method, Methods
from headrace.partitions.admin_rights import COPY, Anybody, on_stream
from headrace.partitions.authorizer import Authorizer
from headrace.partitions.caller import Caller
from headrace.partitions.cluster_client import ClusterClient
from headrace.partitions.home_check import home_of, is_settled_for
from headrace.partitions.lookups import yield_to_loop
from headrace.partitions.partition import Partition
from headrace.partitions.partitions import Partitions
from headrace.partitions.topic import Topic
from headrace.partitions.topics import Topics
from headrace.security.access_rules import Kind, Permission

MAX_PARTITIONS: Final = 20_000
"""The maximum number of partitions in one page of topics; a topic with more has a page of its own."""
MAX_PARTITIONS_BY_ID: Final = 1_000_000
"""The maximum number of partitions of the topics that are requested by id."""
NOBODY: Final = -1


class TopicsAsked(OfStream, frozen=True):
    after: Annotated[str, msgspec.Meta(max_length=249)] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_ITEMS)] = MAX_ROWS
    ids: Annotated[list[TopicId], msgspec.Meta(max_length=MAX_ITEMS)] | None = None


class MeetAsked(Versioned, frozen=True):
    partitions: Annotated[list[tuple[TopicId, Index]], msgspec.Meta(max_length=MAX_ITEMS)]


class _Page(NamedTuple):
    rows: list[TopicRow]
    opened: dict[int, list[PartitionletRow]]
    after: str | None


class Homes(NamedTuple):
    """The homes of topics, by number, and of their partitions, as the catalog had them at one moment."""

    rows: dict[int, TopicRow]
    opened: dict[tuple[int, int], PartitionletId]
    settled: dict[tuple[int, int], Home]
    histories: dict[tuple[int, int], list[HomeStart]]


TAKEN: Final = (TopicsAsked, MeetAsked)
_DECODERS: Final = [msgspec.msgpack.Decoder(params) for params in TAKEN]
"""Decoders built as this module is loaded; see admin/admin_api.py."""


class TopicApis:
    """Answers link calls about topics and partitions."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        cluster: ClusterClient,
        topics: Topics,
        partitions: Partitions,
        authorizer: Authorizer,
        own_cluster: str,
    ) -> None:
        self._authorizer = authorizer
        self._catalog = catalog
        self._cluster = cluster
        self._topics = topics
        self._partitions = partitions
        self._own = own_cluster

    def methods(self) -> Methods:
        """By method name: its parameters, its handler, and the right that it requires."""
        told = Anybody("tells of the topics on which the caller has `copy`")
        return {
            "link.topics": Method(TopicsAsked, self.topics, on_stream(COPY, "stream"), of_caller=True, is_traced=False),
            "link.meet": Method(MeetAsked, self.meet, told, of_caller=True, is_traced=False),
        }

    async def topics(self, params: TopicsAsked, caller: Caller) -> dict[str, object]:
        """A page of a stream's topics in order of name, or those of `ids`. Topics that do not exist are left out, and
        so are those that the caller may not copy."""
        check_call(params)
        page = await self._catalog.query(lambda reader: _page(reader, params))
        leaders: dict[ContainerId, int] = {}
        shown = []
        for index, row in enumerate(page.rows):
            if self._authorizer.sees(caller, COPY, Kind.TOPIC, row.full_name):
                shown.append(self._shown(row, page.opened.get(row.number, ()), leaders))
            await yield_to_loop(index)
        return {"topics": shown, "after": page.after}

    def _shown(
        self, row: TopicRow, opened: Sequence[PartitionletRow], known: dict[ContainerId, int]
    ) -> dict[str, object]:
        leaders = [NOBODY] * row.partitions
        for each in opened:
            if each.container not in known:
                found = self._cluster.leader(each.container)
                known[each.container] = NOBODY if found is None else found[0]
            leaders[each.partition] = known[each.container]
        return {
            "name": row.name,
            "topic_id": row.topic_id,
            "partitions": row.partitions,
            "configs": dict(row.configs),
            "home": home_of(row, self._own),
            "origin": row.origin or self._own,
            "leaders": leaders,
        }

    async def meet(self, params: MeetAsked, caller: Caller) -> dict[str, object]:
        """The states of these partitions, which this node leads; one answer for each, in order, with its own error."""
        check_version(params)
        wanted = params.partitions
        ids = list({topic_id for topic_id, _ in wanted})
        found = dict(zip(ids, await self._topics.resolve_ids(ids), strict=True))
        found = {topic_id: self._copied(topic_id, each, caller) for topic_id, each in found.items()}
        known = [
            (topic, index)
            for topic_id, index in dict.fromkeys(wanted)
            if isinstance(topic := found[topic_id], Topic) and index < topic.partition_count
        ]
        leaders = await self._partitions.leaders(known)
        held = {(topic.topic_id, index): each for (topic, index), each in zip(known, leaders, strict=True)}
        homes = await self._catalog.query(lambda reader: read_homes(reader, ids))
        shown = []
        for at, key in enumerate(wanted):
            topic = found[key[0]]
            try:
                if isinstance(topic, KafkaError):
                    raise topic
                partition = held.get(key)
                if partition is None:
                    raise KafkaError(
                        Code.UNKNOWN_TOPIC_OR_PARTITION, f"{topic.row.full_name} has no partition {key[1]}"
                    )
                if isinstance(partition, KafkaError):
                    raise partition
                shown.append(self._meeting(topic.row.number, partition, homes))
            except KafkaError as error:
                shown.append({"error": int(error.code), "message": str(error)})
            await yield_to_loop(at)
        return {"partitions": shown}

    def _copied(self, topic_id: bytes, found: Topic | KafkaError, caller: Caller) -> Topic | KafkaError:
        """The topic if the caller may copy it; any other is answered like one that does not exist."""
        if isinstance(found, Topic) and not self._authorizer.allows(
            caller, Permission.COPY, Kind.TOPIC, found.row.full_name, api="link.meet"
        ):
            found = KafkaError(Code.UNKNOWN_TOPIC_ID, "no topic has this id")
        if isinstance(found, KafkaError) and self._authorizer.is_on:
            return KafkaError(found.code, f"there is no topic {topic_id.hex()} that {caller.principal} may copy")
        return found

    def _meeting(self, number: int, partition: Partition, homes: Homes) -> dict[str, object]:
        row = homes.rows.get(number)
        if row is None or partition.deleted:
            raise KafkaError(Code.UNKNOWN_TOPIC_ID, "the topic was deleted meanwhile")
        place = (number, partition.index)
        if partition.left or partition.container.lost:
            raise KafkaError(Code.NOT_LEADER_OR_FOLLOWER, "the partition has just changed hands")
        if partition.open != homes.opened.get(place):
            raise KafkaError(Code.LEADER_NOT_AVAILABLE, f"{row.full_name} partition {partition.index} is being rolled")
        home = home_of(row, self._own)
        if not is_settled_for(home, homes.settled.get(place)):
            raise KafkaError(
                Code.LEADER_NOT_AVAILABLE,
                f"{row.full_name} partition {partition.index} has not been rolled for its new home yet (counter "
                f"{home.counter}, cluster {home.cluster})",
            )
        return {
            "error": 0,
            "message": None,
            "leader_epoch": partition.leader_epoch,
            "home": home,
            "origin": row.origin or self._own,
            "history": homes.histories.get(place, []),
            "log_start": partition.log_start,
            "high_watermark": partition.high_watermark,
            "empty_from": partition.empty_from,
        }


def _page(reader: Reader, params: TopicsAsked) -> _Page:
    """[blocking] A page of topics with their open partitionlets. Raises KafkaError."""
    if reader.streams.at(params.stream) is None:
        raise KafkaError(Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no stream {params.stream}")
    after = None
    if params.ids is not None:
        rows = [row for row in reader.topics.by_ids(set(params.ids)).values() if row.stream == params.stream]
        if sum(row.partitions for row in rows) > MAX_PARTITIONS_BY_ID:
            raise KafkaError(
                Code.INVALID_REQUEST, f"these topics have more than {MAX_PARTITIONS_BY_ID} partitions; request fewer"
            )
    else:
        limit = min(params.limit, MAX_ROWS)
        found = reader.topics.page(params.stream, after=params.after or "", limit=limit)
        rows = found[: _fitting(found)]
        if rows and (len(rows) < len(found) or len(found) == limit):
            after = rows[-1].name
    return _Page(rows, reader.chains.open_of([row.number for row in rows]), after)


def _fitting(rows: Sequence[TopicRow]) -> int:
    """How many of these topics fit into a page."""
    partitions = 0
    for index, row in enumerate(rows):
        partitions += row.partitions
        if partitions > MAX_PARTITIONS:
            return max(1, index)
    return len(rows)


def read_homes(reader: Reader, ids: Sequence[bytes]) -> Homes:
    """[blocking] The homes of those of these topics that exist."""
    rows = {row.number: row for row in reader.topics.by_ids(ids).values()}
    opened = reader.chains.open_of(rows)
    return Homes(
        rows,
        {(row.topic, row.partition): row.id for each in opened.values() for row in each},
        reader.homes.settled(rows),
        reader.homes.histories(rows),
    )
