"""Topics: creation, changes, deletion, further partitions, and repeated commands."""

import uuid
from typing import Any

import pytest

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import (
    ContainerId,
    Epoch,
    LeaderEpoch,
    Offset,
    StreamNumber,
    stream_of,
)
from headrace.catalog.chains import (
    LogStart,
    SetLogStart,
)
from headrace.catalog.committed_offsets import CommitOffsets, CommittedOffset
from headrace.catalog.rows import OPEN, Retention
from headrace.catalog.topics import AlterTopic, CreatePartitions, CreateTopics, DeleteTopics, NewTopic
from kit.catalog import Tables
from kit.catalog_commands import NOW, create, new_topic, roll


def test_topics_of_one_command_are_decided_one_by_one(tables: Tables) -> None:
    existing = create(tables, "there")
    good, twice = new_topic("good", partitions=3), new_topic("good")
    lame = new_topic("lame")
    bad_id = NewTopic("/s", "short", b"id", 1, {}, [ContainerId(1)], [Epoch(1)])
    no_container = NewTopic("/s", "nowhere", uuid.uuid4().bytes, 2, {}, [ContainerId(1)], [Epoch(1)])
    items = [good, twice, new_topic("there"), new_topic("t", stream="/none"), bad_id, no_container, lame]
    refused = tables.reader.topics.check_new(items)
    outcomes = tables.apply(CreateTopics(items, NOW))
    assert [outcome.code for outcome in outcomes] == [
        Code.NONE,
        Code.TOPIC_ALREADY_EXISTS,
        Code.TOPIC_ALREADY_EXISTS,
        Code.INVALID_TOPIC_EXCEPTION,
        Code.INVALID_REQUEST,
        Code.INVALID_PARTITIONS,
        Code.NONE,
    ]
    assert [None if each is None else each.code for each in refused] == [
        None if outcome.code is Code.NONE else outcome.code for outcome in outcomes
    ]
    assert outcomes[2].topic.topic_id == existing
    assert outcomes[0].topic == tables.reader.topics.at("/s", "good")
    assert outcomes[0].partitionlets == tuple(tables.reader.chains.chain(outcomes[0].topic.number))
    assert [(row.container, row.state, row.first) for row in outcomes[0].partitionlets] == [
        (10, OPEN, 0),
        (11, OPEN, 0),
        (12, OPEN, 0),
    ]
    assert {stream_of(row.id) for row in outcomes[0].partitionlets} == {1}
    stream = tables.reader.streams.at("/s")
    assert stream is not None
    assert (stream.topics, stream.partitions) == (3, 5)


def test_a_deleted_topic_leaves_nothing_and_its_name_is_free(tables: Tables) -> None:
    topic_id = create(tables, "t", partitions=2)
    ids = [row.id for row in tables.reader.chains.chain(1)]
    tables.apply(SetLogStart([LogStart(topic_id, 0, Offset(5))]))
    tables.apply(CommitOffsets("g", -1, "", [CommittedOffset(topic_id, 0, Offset(3), LeaderEpoch(-1))], NOW))
    gone, unknown = tables.apply(DeleteTopics([topic_id, topic_id], NOW))
    assert (gone.code, gone.topic.name, len(gone.partitionlets)) == (Code.NONE, "t", 2)
    assert unknown.code is Code.UNKNOWN_TOPIC_ID
    assert tables.reader.chains.live(ids) == {}
    assert tables.reader.groups.committed_offsets("g") == []
    assert tables.reader.chains.log_starts([1]) == {}
    again = create(tables, "t")
    row = tables.reader.topics.by_id(again)
    assert row is not None
    assert row.number == 2
    assert not set(ids) & {each.id for each in tables.reader.chains.chain(2)}


def test_partitions_only_rise(tables: Tables) -> None:
    topic_id = create(tables, "t", partitions=2)

    def grow(count: int, containers: list[int]) -> Any:
        ids = [ContainerId(each) for each in containers]
        return tables.apply(CreatePartitions(topic_id, count, ids, [Epoch(1)] * len(ids), NOW))

    grown = grow(4, [7, 8])
    assert [(row.partition, row.container) for row in grown.partitionlets] == [(2, 7), (3, 8)]
    assert grown.topic.partitions == 4
    for count, containers in ((4, []), (3, []), (6, [1])):
        with pytest.raises(KafkaError) as caught:
            grow(count, containers)
        assert caught.value.code is Code.INVALID_PARTITIONS
    assert [row.partition for row in tables.reader.chains.open_of([1])[1]] == [0, 1, 2, 3]


def test_topics_that_an_earlier_copy_made_are_a_success_with_the_rows_that_are_there(tables: Tables) -> None:
    command = CreateTopics([new_topic("t", partitions=2), new_topic("u", configs={"segment.ms": "5"})], NOW)
    first = tables.apply(command)
    assert tables.apply(command) == first
    assert tables.reader.streams.totals() == (1, 2, 3)
    again, new, twice = tables.apply(CreateTopics([command.items[0], new_topic("v"), command.items[0]], NOW))
    assert (again, new.code) == (first[0], Code.NONE)
    assert (twice.code, twice.topic) == (Code.TOPIC_ALREADY_EXISTS, first[0].topic)
    (other_id,) = tables.apply(CreateTopics([new_topic("t", partitions=2)], NOW))
    assert (other_id.code, other_id.topic) == (Code.TOPIC_ALREADY_EXISTS, first[0].topic)
    moved = command.items[0]
    elsewhere = NewTopic("/s", "w", moved.topic_id, 2, {}, moved.container_ids, moved.container_epochs)
    assert tables.apply(CreateTopics([elsewhere], NOW))[0].code is Code.INVALID_REQUEST
    roll(tables, moved.topic_id, end=5, epochs=[])
    (rolled, _) = tables.apply(command)
    assert [row.first for row in rolled.partitionlets] == [5, 0]


def test_partitions_that_an_earlier_copy_added_are_a_success_with_the_rows_that_are_there(tables: Tables) -> None:
    topic_id = create(tables, "t", partitions=2)

    def grow(count: int, *places: tuple[int, int]) -> Any:
        containers = [ContainerId(container) for container, _ in places]
        return tables.apply(CreatePartitions(topic_id, count, containers, [Epoch(epoch) for _, epoch in places], NOW))

    first = grow(4, (7, 1), (8, 1))
    assert grow(4, (7, 1), (8, 1)) == first
    assert tables.reader.streams.totals() == (1, 1, 4)
    for places in ([(7, 1), (9, 1)], [(7, 1), (8, 2)], [(7, 1)], [(1, 1)] * 9, []):
        with pytest.raises(KafkaError) as caught:
            grow(4, *places)
        assert caught.value.code is Code.INVALID_PARTITIONS
    grow(5, (7, 1))
    with pytest.raises(KafkaError, match="cannot have fewer"):
        grow(4, (7, 1), (8, 1))


def test_configs_are_set_and_removed_and_give_a_topic_its_own_retention(tables: Tables) -> None:
    topic_id = create(tables, "t", configs={"segment.ms": "5"})
    create(tables, "plain")
    stream = StreamNumber(1)
    assert tables.reader.streams.retention_of([stream])[stream].overrides == {}
    altered = tables.apply(AlterTopic(topic_id, {"retention.ms": "-1", "retention.bytes": "9"}, ["segment.ms"]))
    assert altered.topic.configs == {"retention.ms": "-1", "retention.bytes": "9"}
    assert tables.reader.topics.by_id(topic_id) == altered.topic
    kept = tables.reader.streams.retention_of([stream, StreamNumber(9)])
    assert kept.keys() == {stream}
    assert kept[stream].rule == Retention(1000, -1)
    assert kept[stream].overrides == {1: Retention(0, 9)}
    tables.apply(AlterTopic(topic_id, {}, ["retention.ms", "retention.bytes"]))
    assert tables.reader.streams.retention_of([stream])[stream].overrides == {}


def test_a_change_of_configs_made_from_others_than_there_are_is_refused(tables: Tables) -> None:
    topic_id = create(tables, "t", configs={"segment.ms": "5"})
    tables.apply(AlterTopic(topic_id, {"segment.ms": "6"}, [], expected={"segment.ms": "5"}))
    with pytest.raises(KafkaError, match="somebody else") as refused:
        tables.apply(AlterTopic(topic_id, {"segment.ms": "7"}, [], expected={"segment.ms": "5"}))
    assert refused.value.code is Code.OPERATION_NOT_ATTEMPTED
    assert tables.reader.topics.by_id(topic_id).configs == {"segment.ms": "6"}
