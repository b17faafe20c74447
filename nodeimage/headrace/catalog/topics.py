"""Commands that create, alter and delete topics, and add partitions to them."""

import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import msgspec

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import ContainerId, Epoch, Home, LeaderEpoch, Millis, Offset, StreamNumber, partitionlet_id
from headrace.catalog.command import CatalogCommand, Item
from headrace.catalog.counters import take_numbers
from headrace.catalog.deletions import (
    AT_ONCE,
    forget_topics,
    forget_whole_topics,
    hide_topics,
    ids_still_held,
    in_pieces,
)
from headrace.catalog.homes import settle_new
from headrace.catalog.names import MAX_LENGTH
from headrace.catalog.retention import overrides_retention
from headrace.catalog.rows import OPEN, PartitionletRow, TopicRow
from headrace.catalog.selects import (
    encode_configs,
    select_open,
    select_retired,
    select_stream,
    select_topics_by_id,
    select_topics_by_name,
    taken_out,
)
from headrace.catalog.streams import require_stream, take_serials
from headrace.tables.row_checksums import Parameters, Tables


class TopicOutcome(NamedTuple):
    """The outcome for one topic. `topic`: None if there is none; `partitionlets`: the open ones that were created, or
    deleted with the topic."""

    code: Code
    message: str = ""
    topic: TopicRow | None = None
    partitionlets: tuple[PartitionletRow, ...] = ()


class NewTopic(Item, frozen=True):
    """A topic to create. `stream` is a path; `container_ids` and `container_epochs` have one entry per partition, in
    order.

    With `home` the topic is a copy, settled for that home: `origin` is the cluster of the home with counter 0,
    `histories` are (partition, counter, cluster, start). The home is the source's; the records are copied later.
    """

    stream: str
    name: str
    topic_id: bytes
    partitions: int
    configs: dict[str, str]
    container_ids: list[ContainerId]
    container_epochs: list[Epoch]
    home: tuple[int, str] | None = None
    origin: str = ""
    histories: list[tuple[int, int, str, Offset]] = msgspec.field(default_factory=list)


class CreateTopics(CatalogCommand[list[TopicOutcome]], frozen=True):
    """Create each topic that can be created.

    One outcome per item; with TOPIC_ALREADY_EXISTS it contains the existing topic. A topic of that name that has the
    item's topic id was created by an earlier copy of the command: that is a success, with the partitionlets that are
    open now.
    """

    items: list[NewTopic]
    now: Millis

    def apply(self, connection: Tables) -> list[TopicOutcome]:
        held = ids_still_held(connection, [item.topic_id for item in self.items])
        refused = check_new_topics(connection, self.items, held)
        wanted = [item for item, refusal in zip(self.items, refused, strict=True) if refusal is None]
        number = take_numbers(connection, "next_topic", len(wanted))
        streams = {path: require_stream(connection, path) for path in dict.fromkeys(item.stream for item in wanted)}
        partitions_of = Counter[str]()
        topics_of = Counter(item.stream for item in wanted)
        for item in wanted:
            partitions_of[item.stream] += item.partitions
        serials = {
            path: take_serials(connection, streams[path].number, count, topics=topics_of[path], partitions=count)
            for path, count in partitions_of.items()
        }
        repeated = [each.topic.number for each in refused if each is not None and each.topic and each.code is Code.NONE]
        open_of = _open_of(connection, repeated)
        topic_rows: list[Parameters] = []
        partitionlet_rows: list[Parameters] = []
        outcomes = []
        copies: list[tuple[TopicRow, Sequence[tuple[int, int, str, Offset]]]] = []
        for item, refusal in zip(self.items, refused, strict=True):
            if refusal is not None:
                if refusal.topic is not None and refusal.code is Code.NONE:
                    refusal = refusal._replace(partitionlets=tuple(open_of[refusal.topic.number]))
                outcomes.append(refusal)
                continue
            stream = streams[item.stream]
            topic = TopicRow(
                number,
                item.topic_id,
                stream.number,
                stream.path,
                item.name,
                item.partitions,
                item.configs,
                self.now,
                None if item.home is None else Home(*item.home),
                item.origin,
            )
            if topic.home is not None:
                copies.append((topic, item.histories))
            opened = _open_partitionlets(
                topic, first=0, containers=item.container_ids, epochs=item.container_epochs, serial=serials[item.stream]
            )
            serials[item.stream] += item.partitions
            number += 1
            topic_rows.append(_topic_columns(topic))
            partitionlet_rows += map(_partitionlet_columns, opened)
            outcomes.append(TopicOutcome(Code.NONE, "", topic, opened))
        connection.insert("topics", topic_rows)
        connection.insert("partitionlets", partitionlet_rows)
        for topic, histories in copies:
            settle_new(connection, topic, range(topic.partitions), histories)
        return outcomes


class DeleteTopics(CatalogCommand[list[TopicOutcome]], frozen=True):
    """Delete topics with their chains, log starts and committed offsets.

    One outcome per id, with the deleted rows; for a topic listed twice the second outcome is UNKNOWN_TOPIC_ID. Applying
    a repeat yields UNKNOWN_TOPIC_ID, but its submitter gets the outcome of the first copy.
    """

    topic_ids: list[bytes]
    now: Millis

    def apply(self, connection: Tables) -> list[TopicOutcome]:
        topics = select_topics_by_id(connection, set(self.topic_ids))
        open_of = _open_of(connection, [topic.number for topic in topics.values()])
        outcomes, gone = [], []
        topics_of, partitions_of = Counter[StreamNumber](), Counter[StreamNumber]()
        for topic_id in self.topic_ids:
            topic = topics.pop(topic_id, None)
            if topic is None:
                outcomes.append(TopicOutcome(Code.UNKNOWN_TOPIC_ID, "no topic has this id"))
                continue
            gone.append(topic.number)
            topics_of[topic.stream_number] += 1
            partitions_of[topic.stream_number] += topic.partitions
            outcomes.append(TopicOutcome(Code.NONE, "", topic, tuple(open_of.get(topic.number, ()))))
        if not in_pieces(connection):
            forget_whole_topics(connection, gone)
        elif gone and not forget_topics(connection, gone, most=AT_ONCE)[1]:
            hide_topics(connection, gone)
        less = {"topics": "topics - ?1", "partitions": "partitions - ?2"}
        for stream, count in topics_of.items():
            connection.update("streams", less, "number = ?3", count, partitions_of[stream], stream)
        return outcomes


class CreatePartitions(CatalogCommand[TopicOutcome], frozen=True):
    """Add partitions to a topic, up to `count`; the number only rises. The outcome contains the new partitionlets.

    If the topic has `count` partitions already, and the last ones are open in these containers, an earlier copy of the
    command created them: that is a success, with their rows.

    The new partitions are settled for the topic's home: their `histories` are as in NewTopic, or begin with that home
    (None). Refused with OPERATION_NOT_ATTEMPTED if the topic's home is not `home`, to which the histories belong
    (counter 0: a topic whose home was never moved); `home` None: any home.
    """

    topic_id: bytes
    count: int
    container_ids: list[ContainerId]
    container_epochs: list[Epoch]
    now: Millis
    histories: list[tuple[int, int, str, Offset]] | None = None
    home: tuple[int, str] | None = None

    def apply(self, connection: Tables) -> TopicOutcome:
        topic = require_topic(connection, self.topic_id)
        added = self.count - topic.partitions
        if added == 0 and (before := _created_before(connection, topic, self)):
            return TopicOutcome(Code.NONE, "", topic, before)
        if added <= 0:
            raise KafkaError(
                Code.INVALID_PARTITIONS,
                f"topic {topic.full_name} has {topic.partitions} partitions, and cannot have fewer",
            )
        if self.home is not None and topic.home != self.home and (topic.home is not None or self.home[0] > 0):
            raise KafkaError(Code.OPERATION_NOT_ATTEMPTED, f"topic {topic.full_name} has another home now; try again")
        if not len(self.container_ids) == len(self.container_epochs) == added:
            raise KafkaError(
                Code.INVALID_PARTITIONS, f"topic {topic.full_name} has had its partitions changed meanwhile; try again"
            )
        if retired := select_retired(connection, self.container_ids):
            raise KafkaError(Code.LEADER_NOT_AVAILABLE, taken_out(min(retired)))
        serial = take_serials(connection, topic.stream_number, added, partitions=added)
        opened = _open_partitionlets(
            topic,
            first=topic.partitions,
            containers=self.container_ids,
            epochs=self.container_epochs,
            serial=serial,
        )
        connection.insert("partitionlets", map(_partitionlet_columns, opened))
        connection.update("topics", {"partitions": "?1"}, "number = ?2", self.count, topic.number)
        settle_new(connection, topic, range(topic.partitions, self.count), self.histories)
        return TopicOutcome(Code.NONE, "", topic._replace(partitions=self.count), opened)


class AlterTopic(CatalogCommand[TopicOutcome], frozen=True):
    """Set and remove a topic's configs. Values were checked before the command was written.

    Refused with OPERATION_NOT_ATTEMPTED unless the present configs are `expected`, on which the change is based; None:
    no condition.
    """

    topic_id: bytes
    set: dict[str, str]
    remove: list[str]
    expected: dict[str, str] | None = None

    def apply(self, connection: Tables) -> TopicOutcome:
        topic = require_topic(connection, self.topic_id)
        if self.expected is not None and topic.configs != self.expected:
            raise KafkaError(
                Code.OPERATION_NOT_ATTEMPTED, f"somebody else has changed the configs of {topic.full_name}"
            )
        configs = {name: value for name, value in topic.configs.items() if name not in self.remove} | self.set
        connection.update(
            "topics",
            {"configs": "?1", "own_retention": "?2"},
            "number = ?3",
            encode_configs(configs),
            overrides_retention(configs),
            topic.number,
        )
        return TopicOutcome(Code.NONE, "", topic._replace(configs=configs))


def check_new_topics(
    connection: sqlite3.Connection, items: Sequence[NewTopic], held: Collection[bytes] = ()
) -> list[TopicOutcome | None]:
    """Check topics without creating them. Returns per item its refusal, or the topic that an earlier copy of the
    command created, or None if it can be created.

    `held`: topic ids that cannot be used yet.
    """
    names_of: dict[str, list[str]] = {}
    for item in items:
        names_of.setdefault(item.stream, []).append(item.name)
    streams = {path: select_stream(connection, path) for path in names_of}
    existing = {
        path: select_topics_by_name(connection, stream.number, names_of[path])
        for path, stream in streams.items()
        if stream is not None
    }
    known_ids = select_topics_by_id(connection, {item.topic_id for item in items})
    retired = select_retired(connection, {container for item in items for container in item.container_ids})
    seen: set[tuple[str, str]] = set()
    seen_ids: set[bytes] = {*known_ids, *held}
    answers: list[TopicOutcome | None] = []
    for item in items:
        key = (item.stream, item.name)
        answer: TopicOutcome | None
        if streams[item.stream] is None:
            answer = TopicOutcome(Code.INVALID_TOPIC_EXCEPTION, f"there is no stream {item.stream}; create it first")
        elif (topic := existing[item.stream].get(item.name)) is not None:
            if topic.topic_id == item.topic_id and key not in seen:
                answer = TopicOutcome(Code.NONE, "", topic)
            else:
                answer = TopicOutcome(Code.TOPIC_ALREADY_EXISTS, f"topic {topic.full_name} exists", topic)
            seen.add(key)
        elif key in seen:
            answer = TopicOutcome(Code.TOPIC_ALREADY_EXISTS, f"topic {item.stream}:{item.name} is listed twice")
        else:
            answer = _shape_fault(item, seen_ids) or _place_fault(item, retired)
        if answer is None:
            seen.add(key)
            seen_ids.add(item.topic_id)
        answers.append(answer)
    return answers


def require_topic(connection: sqlite3.Connection, topic_id: bytes) -> TopicRow:
    """The topic with that id. Raises KafkaError(UNKNOWN_TOPIC_ID) if there is none."""
    topic = select_topics_by_id(connection, [topic_id]).get(topic_id)
    if topic is None:
        raise KafkaError(Code.UNKNOWN_TOPIC_ID, "no topic has this id; it may have been deleted")
    return topic


def _open_of(connection: Tables, topics: Iterable[int]) -> dict[int, list[PartitionletRow]]:
    """By topic number, the open partitionlets in order of partition."""
    found: dict[int, list[PartitionletRow]] = {}
    for row in select_open(connection, topics):
        found.setdefault(row.topic, []).append(row)
    return found


def _created_before(connection: Tables, topic: TopicRow, command: CreatePartitions) -> tuple[PartitionletRow, ...]:
    """The partitionlets that an earlier copy of the command created; empty if the last ones are not from this
    command."""
    places = list(zip(command.container_ids, command.container_epochs, strict=False))
    made = _open_of(connection, [topic.number])[topic.number][-len(places) :] if places else []
    return tuple(made) if [(row.container, row.container_epoch) for row in made] == places else ()


def _open_partitionlets(
    topic: TopicRow, *, first: int, containers: Sequence[ContainerId], epochs: Sequence[Epoch], serial: int
) -> tuple[PartitionletRow, ...]:
    """The first partitionlets of the partitions from `first` on, open at offset 0 and leader epoch 0."""
    return tuple(
        PartitionletRow(
            id=partitionlet_id(stream=topic.stream_number, serial=serial + index),
            topic=topic.number,
            partition=first + index,
            container=container,
            first=Offset(0),
            end=Offset(-1),
            leader_epoch=LeaderEpoch(0),
            container_epoch=epoch,
            state=OPEN,
            epochs=(),
        )
        for index, (container, epoch) in enumerate(zip(containers, epochs, strict=True))
    )


def _shape_fault(item: NewTopic, known_ids: set[bytes]) -> TopicOutcome | None:
    if not item.name or len(item.stream) + 1 + len(item.name) > MAX_LENGTH:
        return TopicOutcome(Code.INVALID_TOPIC_EXCEPTION, f"{item.stream}:{item.name} is too long, or has no topic")
    if not len(item.container_ids) == len(item.container_epochs) == item.partitions >= 1:
        return TopicOutcome(Code.INVALID_PARTITIONS, "a topic has one partition at least, each with its container")
    if len(item.topic_id) != 16 or item.topic_id in known_ids:
        return TopicOutcome(Code.INVALID_REQUEST, "a topic id is 16 bytes that no other topic has; try again")
    if item.home is None and (item.histories or item.origin):
        return TopicOutcome(Code.INVALID_REQUEST, "only a copy has a home, an origin and histories")
    return None


def _place_fault(item: NewTopic, retired: set[ContainerId]) -> TopicOutcome | None:
    if retired.isdisjoint(item.container_ids):
        return None
    return TopicOutcome(Code.LEADER_NOT_AVAILABLE, taken_out(min(retired.intersection(item.container_ids))))


def _partitionlet_columns(row: PartitionletRow) -> Parameters:
    """The columns of a partitionlet that is not sealed."""
    return (*row[:9], None, None)


def _topic_columns(topic: TopicRow) -> Parameters:
    return (
        topic.number,
        topic.topic_id,
        topic.stream_number,
        topic.name,
        topic.partitions,
        encode_configs(topic.configs),
        topic.created,
        int(overrides_retention(topic.configs)),
        *((None, None, None) if topic.home is None else (*topic.home, topic.origin)),
    )
