"""Applies the commands on streams and topics. Deterministic: no clock, no chance; called inside a transaction."""

import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

import msgspec

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import (
    PARTITIONLET_BITS,
    ContainerId,
    Epoch,
    Home,
    LeaderEpoch,
    Offset,
    StreamNumber,
    partitionlet_id,
)
from headrace.catalog.apply_deleted import (
    AT_ONCE,
    forget_some_of_stream,
    forget_topics,
    hide_stream,
    hide_topics,
    ids_still_held,
    in_pieces,
    take_free_stream,
)
from headrace.catalog.commands import (
    AlterStream,
    AlterTopic,
    CreatePartitions,
    CreateStream,
    CreateTopics,
    DeleteStream,
    DeleteTopics,
    NewTopic,
)
from headrace.catalog.homes import settle_new
from headrace.catalog.names import MAX_LENGTH, check_stream
from headrace.catalog.retention import overrides_retention
from headrace.catalog.rows import OPEN, PartitionletRow, StreamOutcome, StreamRow, TopicOutcome, TopicRow
from headrace.catalog.selects import (
    counter,
    encode_configs,
    encode_policy,
    json_list,
    needed_counter,
    select_open,
    select_retired,
    select_stream,
    select_topics_by_id,
    select_topics_by_name,
    taken_out,
)
from headrace.tables.row_checksums import Parameters, Tables

MAX_STREAM_NUMBER = 2**23 - 1
MAX_SERIAL = 1 << PARTITIONLET_BITS
NO_SERIALS = f"a stream makes at most {MAX_SERIAL} partitionlets in its life; go on in another stream"


def create_stream(connection: Tables, command: CreateStream) -> StreamOutcome:
    """Make the stream unless it exists."""
    check_stream(command.path)
    existing = select_stream(connection, command.path)
    if existing is not None:
        return StreamOutcome(existing, changed=False)
    number, serial = _take_stream(connection)
    connection.insert("streams", [(number, command.path, encode_policy(command.policy), command.now, serial, 0, 0)])
    return StreamOutcome(StreamRow(StreamNumber(number), command.path, command.policy, command.now, 0, 0), changed=True)


def alter_stream(connection: Tables, command: AlterStream) -> StreamOutcome:
    """Change the fields given."""
    stream = require_stream(connection, command.path)
    changes = {name: value for name, value in msgspec.structs.asdict(command.changes).items() if value is not None}
    policy = msgspec.structs.replace(stream.policy, **changes)
    if policy == stream.policy:
        return StreamOutcome(stream, changed=False)
    connection.update("streams", {"policy": "?1"}, "number = ?2", encode_policy(policy), stream.number)
    return StreamOutcome(stream._replace(policy=policy), changed=True)


def delete_stream(connection: Tables, command: DeleteStream) -> StreamOutcome:
    """Remove the stream, with its topics if forced."""
    stream = require_stream(connection, command.path)
    if stream.topics and not command.force:
        raise KafkaError(
            Code.POLICY_VIOLATION,
            f"stream {stream.path} holds {stream.topics} topics; delete them first, or delete all with --force",
        )
    links = [name for (name,) in connection.execute("SELECT name FROM links WHERE stream = ?", (stream.number,))]
    if links and not command.force:
        raise KafkaError(
            Code.POLICY_VIOLATION,
            f"stream {stream.path} has the links {', '.join(sorted(links))}; delete them first, or all with --force",
        )
    connection.delete("links", "stream = ?1", stream.number)
    if in_pieces(connection):
        hide_stream(connection, stream.number)
        forget_some_of_stream(connection, stream.number)  # of a small one nothing is left at once
    else:
        numbers = [row[0] for row in connection.execute("SELECT number FROM topics WHERE stream = ?", (stream.number,))]
        _forget_topics(connection, numbers)
        connection.delete("streams", "number = ?1", stream.number)
    return StreamOutcome(stream, changed=True)


def create_topics(connection: Tables, command: CreateTopics) -> list[TopicOutcome]:
    """Make each topic that can be made. Numbers and serials are taken in one go per stream.

    A topic that an earlier copy of the command made is a success, with the partitionlets that are open now.
    """
    held = ids_still_held(connection, [item.topic_id for item in command.items])
    refused = check_new_topics(connection, command.items, held)
    wanted = [item for item, refusal in zip(command.items, refused, strict=True) if refusal is None]
    number = take_numbers(connection, "next_topic", len(wanted))
    streams = {path: require_stream(connection, path) for path in dict.fromkeys(item.stream for item in wanted)}
    partitions_of = Counter[str]()
    topics_of = Counter(item.stream for item in wanted)
    for item in wanted:
        partitions_of[item.stream] += item.partitions
    serials = {
        path: _take_serials(connection, stream.number, topics=topics_of[path], partitions=partitions_of[path])
        for path, stream in streams.items()
    }
    repeated = [each.topic.number for each in refused if each is not None and each.topic and each.code is Code.NONE]
    open_of = _open_of(connection, repeated)
    topic_rows: list[Parameters] = []
    partitionlet_rows: list[Parameters] = []
    outcomes = []
    copies: list[tuple[TopicRow, Sequence[tuple[int, int, str, Offset]]]] = []
    for item, refusal in zip(command.items, refused, strict=True):
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
            command.now,
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


def check_new_topics(
    connection: sqlite3.Connection, items: Sequence[NewTopic], held: Collection[bytes] = ()
) -> list[TopicOutcome | None]:
    """Per item the refusal that creating it would meet, or the topic that an earlier copy made, or None. Reads only.

    `held`: topic ids that cannot be given yet.
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
            answer = TopicOutcome(Code.TOPIC_ALREADY_EXISTS, f"topic {item.stream}:{item.name} is twice in the request")
        else:
            answer = _shape_fault(item, seen_ids) or _place_fault(item, retired)
        if answer is None:
            seen.add(key)
            seen_ids.add(item.topic_id)
        answers.append(answer)
    return answers


def delete_topics(connection: Tables, command: DeleteTopics) -> list[TopicOutcome]:
    """Remove topics with their chains, log starts and cursors; a second mention of one is unknown."""
    topics = select_topics_by_id(connection, set(command.topic_ids))
    open_of = _open_of(connection, [topic.number for topic in topics.values()])
    outcomes, gone = [], []
    topics_of, partitions_of = Counter[StreamNumber](), Counter[StreamNumber]()
    for topic_id in command.topic_ids:
        topic = topics.pop(topic_id, None)
        if topic is None:
            outcomes.append(TopicOutcome(Code.UNKNOWN_TOPIC_ID, "no topic has this id"))
            continue
        gone.append(topic.number)
        topics_of[topic.stream_number] += 1
        partitions_of[topic.stream_number] += topic.partitions
        outcomes.append(TopicOutcome(Code.NONE, "", topic, tuple(open_of.get(topic.number, ()))))
    if not in_pieces(connection):
        _forget_topics(connection, gone)
    elif gone and not forget_topics(connection, gone, most=AT_ONCE)[1]:
        hide_topics(connection, gone)
    less = {"topics": "topics - ?1", "partitions": "partitions - ?2"}
    for stream, count in topics_of.items():
        connection.update("streams", less, "number = ?3", count, partitions_of[stream], stream)
    return outcomes


def create_partitions(connection: Tables, command: CreatePartitions) -> TopicOutcome:
    """Add partitions; their number only rises."""
    topic = require_topic(connection, command.topic_id)
    added = command.count - topic.partitions
    if added == 0 and (before := _made_before(connection, topic, command)):
        return TopicOutcome(Code.NONE, "", topic, before)
    if added <= 0:
        raise KafkaError(
            Code.INVALID_PARTITIONS, f"topic {topic.full_name} has {topic.partitions} partitions, and they never fall"
        )
    if command.home is not None and topic.home != command.home and (topic.home is not None or command.home[0] > 0):
        raise KafkaError(Code.OPERATION_NOT_ATTEMPTED, f"topic {topic.full_name} has another home by now; try again")
    if not len(command.container_ids) == len(command.container_epochs) == added:
        raise KafkaError(Code.INVALID_PARTITIONS, f"topic {topic.full_name} has other partitions by now; try again")
    if retired := select_retired(connection, command.container_ids):
        raise KafkaError(Code.LEADER_NOT_AVAILABLE, taken_out(min(retired)))
    serial = _take_serials(connection, topic.stream_number, topics=0, partitions=added)
    opened = _open_partitionlets(
        topic,
        first=topic.partitions,
        containers=command.container_ids,
        epochs=command.container_epochs,
        serial=serial,
    )
    connection.insert("partitionlets", map(_partitionlet_columns, opened))
    connection.update("topics", {"partitions": "?1"}, "number = ?2", command.count, topic.number)
    settle_new(connection, topic, range(topic.partitions, command.count), command.histories)
    return TopicOutcome(Code.NONE, "", topic._replace(partitions=command.count), opened)


def alter_topic(connection: Tables, command: AlterTopic) -> TopicOutcome:
    """Set and remove configs. Values were checked before the command was written."""
    topic = require_topic(connection, command.topic_id)
    if command.expected is not None and topic.configs != command.expected:
        raise KafkaError(Code.OPERATION_NOT_ATTEMPTED, f"somebody else has changed the configs of {topic.full_name}")
    configs = {name: value for name, value in topic.configs.items() if name not in command.remove} | command.set
    connection.update(
        "topics",
        {"configs": "?1", "own_retention": "?2"},
        "number = ?3",
        encode_configs(configs),
        overrides_retention(configs),
        topic.number,
    )
    return TopicOutcome(Code.NONE, "", topic._replace(configs=configs))


def require_stream(connection: sqlite3.Connection, path: str) -> StreamRow:
    """The stream. Raises KafkaError(UNKNOWN_TOPIC_OR_PARTITION)."""
    stream = select_stream(connection, path)
    if stream is None:
        raise KafkaError(Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no stream {path}")
    return stream


def require_topic(connection: sqlite3.Connection, topic_id: bytes) -> TopicRow:
    """The topic. Raises KafkaError(UNKNOWN_TOPIC_ID)."""
    topic = select_topics_by_id(connection, [topic_id]).get(topic_id)
    if topic is None:
        raise KafkaError(Code.UNKNOWN_TOPIC_ID, "no topic has this id; it may have been deleted")
    return topic


def take_numbers(connection: Tables, name: str, count: int) -> int:
    """The first of `count` numbers that were never given out."""
    first = needed_counter(connection, name)
    connection.update("counters", {"value": "?1"}, "name = ?2", first + count, name)
    return first


def _take_stream(connection: Tables) -> tuple[int, int]:
    """A number that no stream has, and the first serial of its partitionlets. Raises KafkaError."""
    recovered = counter(connection, "first_serial") or 1
    if needed_counter(connection, "next_stream") <= MAX_STREAM_NUMBER:
        return take_numbers(connection, "next_stream", 1), recovered
    free = take_free_stream(connection)
    if free is None:
        raise KafkaError(Code.POLICY_VIOLATION, f"a catalog has at most {MAX_STREAM_NUMBER} streams; delete some")
    number, serial = free
    return number, max(serial, recovered)


def _take_serials(connection: Tables, stream: StreamNumber, *, topics: int, partitions: int) -> int:
    """The first of `partitions` new partitionlet serials, and the stream's counts raised."""
    (first,) = connection.execute("SELECT next_serial FROM streams WHERE number = ?", (stream,)).fetchone()
    if first + partitions > MAX_SERIAL:
        raise KafkaError(Code.POLICY_VIOLATION, NO_SERIALS)
    more = {"next_serial": "?1", "topics": "topics + ?2", "partitions": "partitions + ?3"}
    connection.update("streams", more, "number = ?4", first + partitions, topics, partitions, stream)
    return int(first)


def _open_of(connection: Tables, topics: Iterable[int]) -> dict[int, list[PartitionletRow]]:
    """By topic number, its open partitionlets in order of partition."""
    found: dict[int, list[PartitionletRow]] = {}
    for row in select_open(connection, topics):
        found.setdefault(row.topic, []).append(row)
    return found


def _made_before(connection: Tables, topic: TopicRow, command: CreatePartitions) -> tuple[PartitionletRow, ...]:
    """The partitionlets that an earlier copy of the command made; none if it was not this command that made them."""
    places = list(zip(command.container_ids, command.container_epochs, strict=False))
    made = _open_of(connection, [topic.number])[topic.number][-len(places) :] if places else []
    return tuple(made) if [(row.container, row.container_epoch) for row in made] == places else ()


def _open_partitionlets(
    topic: TopicRow, *, first: int, containers: Sequence[ContainerId], epochs: Sequence[Epoch], serial: int
) -> tuple[PartitionletRow, ...]:
    """The first partitionlets of partitions `first` and up, open at offset 0 and leader epoch 0."""
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
    """Of one that is not sealed."""
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


def _forget_topics(connection: Tables, numbers: Iterable[int]) -> None:
    """Remove everything of the topics with these numbers, but not their stream's counts."""
    listed = json_list(sorted(numbers))
    for table, column in (
        ("partitionlets", "topic"),
        ("log_starts", "topic"),
        ("home_starts", "topic"),
        ("settled_homes", "topic"),
        ("pending_homes", "topic"),
        ("cursors", "topic"),
        ("topics", "number"),
    ):
        connection.delete(table, f"{column} IN (SELECT value FROM json_each(?1))", listed)
