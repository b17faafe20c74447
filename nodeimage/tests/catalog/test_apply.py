"""Each command's outcome by example; test_apply_model holds them all against a model."""

import sqlite3
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.base.errors import Code, FolderRefused, KafkaError
from headrace.base.ids import (
    PARTITIONLET_BITS,
    ContainerId,
    Epoch,
    LeaderEpoch,
    Millis,
    Offset,
    PartitionletId,
    StreamNumber,
    partitionlet_id,
    serial_of,
    stream_of,
)
from headrace.catalog.apply_chains import LOST_ROLLS_GAP, ROLL_GAP, SKIPPED_BITS, SKIPPED_STREAMS
from headrace.catalog.commands import (
    AlterStream,
    AlterTopic,
    Command,
    CommitCursors,
    CreatePartitions,
    CreateStream,
    CreateTopics,
    Cursor,
    DeleteCursors,
    DeleteGroups,
    DeleteStream,
    DeleteTopics,
    ExpireCursors,
    LogStart,
    NewTopic,
    PolicyChanges,
    PutGroup,
    RetireContainer,
    RollDone,
    Rolled,
    RollIntent,
    RollTarget,
    SetLogStart,
    ShortenChains,
    Shortened,
    SkipNumbers,
    StreamPolicy,
)
from headrace.catalog.rows import INTENDED, OPEN, Expired, Retention
from headrace.catalog.tables import SCHEMA, open_tables
from headrace.tables.transactions import applied, apply_all
from kit.catalog import Tables

NOW = Millis(1_700_000_000_000)


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[Tables]:
    tables = Tables(tmp_path / "catalog.sqlite")
    tables.apply(CreateStream("/s", StreamPolicy(ttl_ms=1000), NOW))
    yield tables
    tables.close()


def new_topic(name: str, *, partitions: int = 1, stream: str = "/s", configs: dict[str, str] | None = None) -> NewTopic:
    return NewTopic(
        stream,
        name,
        uuid.uuid4().bytes,
        partitions,
        configs or {},
        [ContainerId(10 + index) for index in range(partitions)],
        [Epoch(3)] * partitions,
    )


def create(tables: Tables, name: str, **options: Any) -> bytes:
    item = new_topic(name, **options)
    (outcome,) = tables.apply(CreateTopics([item], NOW))
    assert outcome.code is Code.NONE
    return item.topic_id


def chain(tables: Tables, topic_id: bytes, partition: int = 0) -> list[Any]:
    topic = tables.reader.topic_by_id(topic_id)
    assert topic is not None
    return tables.reader.chain(topic.number, partition)


def roll(tables: Tables, topic_id: bytes, *, end: int, epochs: list[tuple[int, int]]) -> Any:
    (open_one,) = chain(tables, topic_id)[-1:]
    (intent,) = tables.apply(RollIntent([RollTarget(topic_id, 0, open_one.id, ContainerId(20))], NOW))
    item = Rolled(
        topic_id,
        0,
        open_one.id,
        Offset(end),
        [(LeaderEpoch(epoch), Offset(first)) for epoch, first in epochs],
        intent.partitionlet.id,
        Epoch(5),
    )
    (done,) = tables.apply(RollDone([item], NOW))
    assert done.code is Code.NONE
    return done.partitionlet


def test_a_stream_is_made_once_and_altered(tables: Tables) -> None:
    again = tables.apply(CreateStream("/s", StreamPolicy(ttl_ms=5), NOW))
    assert not again.changed
    assert again.stream.policy.ttl_ms == 1000
    altered = tables.apply(AlterStream("/s", PolicyChanges(auto_create=False)))
    assert altered.stream.policy == StreamPolicy(ttl_ms=1000, auto_create=False)
    assert tables.reader.stream("/s") == altered.stream
    moved = tables.apply(AlterStream("/s", PolicyChanges(volume="fast")))
    assert (altered.stream.policy.volume, moved.stream.policy.volume) == ("default", "fast")
    made = tables.apply(CreateStream("/fast", StreamPolicy(volume="fast"), NOW))
    assert tables.reader.stream("/fast") == made.stream
    with pytest.raises(KafkaError, match="no stream /t"):
        tables.apply(AlterStream("/t", PolicyChanges()))
    with pytest.raises(KafkaError):
        tables.apply(CreateStream("no/path", StreamPolicy(), NOW))


def test_a_stream_with_topics_is_deleted_only_by_force_and_its_number_never_returns(tables: Tables) -> None:
    topic_id = create(tables, "t", partitions=2)
    ids = [row.id for row in tables.reader.chain(1)]
    with pytest.raises(KafkaError, match="holds 1 topics"):
        tables.apply(DeleteStream("/s", NOW))
    tables.apply(DeleteStream("/s", NOW, force=True))
    assert tables.reader.topic_by_id(topic_id) is None
    assert tables.reader.live(ids) == {}
    assert tables.reader.totals() == (0, 0, 0)
    assert tables.apply(CreateStream("/s", StreamPolicy(), NOW)).stream.number == 2


def test_topics_of_one_command_are_decided_one_by_one(tables: Tables) -> None:
    existing = create(tables, "there")
    good, twice = new_topic("good", partitions=3), new_topic("good")
    lame = new_topic("lame")
    bad_id = NewTopic("/s", "short", b"id", 1, {}, [ContainerId(1)], [Epoch(1)])
    no_container = NewTopic("/s", "nowhere", uuid.uuid4().bytes, 2, {}, [ContainerId(1)], [Epoch(1)])
    items = [good, twice, new_topic("there"), new_topic("t", stream="/none"), bad_id, no_container, lame]
    refused = tables.reader.check_new_topics(items)
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
    assert outcomes[0].topic == tables.reader.topic("/s", "good")
    assert outcomes[0].partitionlets == tuple(tables.reader.chain(outcomes[0].topic.number))
    assert [(row.container, row.state, row.first) for row in outcomes[0].partitionlets] == [
        (10, OPEN, 0),
        (11, OPEN, 0),
        (12, OPEN, 0),
    ]
    assert {stream_of(row.id) for row in outcomes[0].partitionlets} == {1}
    stream = tables.reader.stream("/s")
    assert stream is not None
    assert (stream.topics, stream.partitions) == (3, 5)


def test_a_deleted_topic_leaves_nothing_and_its_name_is_free(tables: Tables) -> None:
    topic_id = create(tables, "t", partitions=2)
    ids = [row.id for row in tables.reader.chain(1)]
    tables.apply(SetLogStart([LogStart(topic_id, 0, Offset(5))]))
    tables.apply(CommitCursors("g", -1, "", [Cursor(topic_id, 0, Offset(3), LeaderEpoch(-1))], NOW))
    gone, unknown = tables.apply(DeleteTopics([topic_id, topic_id], NOW))
    assert (gone.code, gone.topic.name, len(gone.partitionlets)) == (Code.NONE, "t", 2)
    assert unknown.code is Code.UNKNOWN_TOPIC_ID
    assert tables.reader.live(ids) == {}
    assert tables.reader.cursors("g") == []
    assert tables.reader.log_starts([1]) == {}
    again = create(tables, "t")
    row = tables.reader.topic_by_id(again)
    assert row is not None
    assert row.number == 2
    assert not set(ids) & {each.id for each in tables.reader.chain(2)}


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
    assert [row.partition for row in tables.reader.open_partitionlets([1])[1]] == [0, 1, 2, 3]


def test_topics_that_an_earlier_copy_made_are_a_success_with_the_rows_that_are_there(tables: Tables) -> None:
    command = CreateTopics([new_topic("t", partitions=2), new_topic("u", configs={"segment.ms": "5"})], NOW)
    first = tables.apply(command)
    assert tables.apply(command) == first
    assert tables.reader.totals() == (1, 2, 3)
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
    assert tables.reader.totals() == (1, 1, 4)
    for places in ([(7, 1), (9, 1)], [(7, 1), (8, 2)], [(7, 1)], [(1, 1)] * 9, []):
        with pytest.raises(KafkaError) as caught:
            grow(4, *places)
        assert caught.value.code is Code.INVALID_PARTITIONS
    grow(5, (7, 1))
    with pytest.raises(KafkaError, match="never fall"):
        grow(4, (7, 1), (8, 1))


def test_repeats_of_the_other_commands_change_nothing_more(tables: Tables) -> None:
    topic_id = create(tables, "t")
    put_group(tables, generation=4, members=["m"])
    commands: list[Command] = [
        CreateStream("/v", StreamPolicy(), NOW),
        AlterStream("/v", PolicyChanges(ttl_ms=5)),
        AlterTopic(topic_id, {"retention.ms": "7"}, ["segment.ms"]),
        SetLogStart([LogStart(topic_id, 0, Offset(3))]),
        PutGroup("g", 4, "consumer", "range", "", ["m"], b"", "Stable", NOW),
        CommitCursors("g", 4, "m", [Cursor(topic_id, 0, Offset(9), LeaderEpoch(-1))], NOW),
        DeleteCursors("g", [(topic_id, 0)]),
        ExpireCursors(NOW),
    ]
    for command in commands:
        tables.apply(command)
        once = rows(tables)
        tables.apply(command)
        assert rows(tables) == once


def rows(tables: Tables) -> list[str]:
    return [line for line in tables.connection.iterdump() if "'applied'" not in line]


def test_configs_are_set_and_removed_and_give_a_topic_its_own_retention(tables: Tables) -> None:
    topic_id = create(tables, "t", configs={"segment.ms": "5"})
    create(tables, "plain")
    stream = StreamNumber(1)
    assert tables.reader.retention([stream])[stream].overrides == {}
    altered = tables.apply(AlterTopic(topic_id, {"retention.ms": "-1", "retention.bytes": "9"}, ["segment.ms"]))
    assert altered.topic.configs == {"retention.ms": "-1", "retention.bytes": "9"}
    assert tables.reader.topic_by_id(topic_id) == altered.topic
    kept = tables.reader.retention([stream, StreamNumber(9)])
    assert kept.keys() == {stream}
    assert kept[stream].rule == Retention(1000, -1)
    assert kept[stream].overrides == {1: Retention(0, 9)}
    tables.apply(AlterTopic(topic_id, {}, ["retention.ms", "retention.bytes"]))
    assert tables.reader.retention([stream])[stream].overrides == {}


def test_a_change_of_configs_made_from_others_than_there_are_is_refused(tables: Tables) -> None:
    topic_id = create(tables, "t", configs={"segment.ms": "5"})
    tables.apply(AlterTopic(topic_id, {"segment.ms": "6"}, [], expected={"segment.ms": "5"}))
    with pytest.raises(KafkaError, match="somebody else") as refused:
        tables.apply(AlterTopic(topic_id, {"segment.ms": "7"}, [], expected={"segment.ms": "5"}))
    assert refused.value.code is Code.OPERATION_NOT_ATTEMPTED
    assert tables.reader.topic_by_id(topic_id).configs == {"segment.ms": "6"}


def test_a_roll_goes_from_intent_to_done_and_each_step_may_be_repeated(tables: Tables) -> None:
    topic_id = create(tables, "t")
    (first,) = chain(tables, topic_id)
    intent = RollIntent([RollTarget(topic_id, 0, first.id, ContainerId(20))], NOW)
    (intended,) = tables.apply(intent)
    assert tables.apply(intent) == [intended]
    assert tables.reader.intended() == [intended.partitionlet]
    assert intended.partitionlet.state == INTENDED
    epochs = [(LeaderEpoch(0), Offset(0)), (LeaderEpoch(2), Offset(50))]
    done = RollDone([Rolled(topic_id, 0, first.id, Offset(100), epochs, intended.partitionlet.id, Epoch(5))], NOW)
    (opened,) = tables.apply(done)
    assert tables.apply(done) == [opened]
    sealed, now_open = chain(tables, topic_id)
    assert (sealed.id, sealed.end, sealed.epochs) == (first.id, 100, ((0, 0), (2, 50)))
    assert now_open == opened.partitionlet
    assert (now_open.first, now_open.container, now_open.container_epoch) == (100, 20, 5)
    assert tables.reader.intended() == []


def test_leader_epochs_strictly_rise_at_every_roll_with_a_gap(tables: Tables) -> None:
    """Invariant 10."""
    topic_id = create(tables, "t")
    highest, end = 0, 0
    for failovers in (0, 4, 0, 300):
        (open_one,) = chain(tables, topic_id)[-1:]
        assert (
            open_one.current_leader_epoch(Epoch(open_one.container_epoch + failovers))
            == open_one.leader_epoch + failovers
        )
        end += 10
        opened = roll(
            tables,
            topic_id,
            end=end,
            epochs=[(open_one.leader_epoch, end - 10), (open_one.leader_epoch + failovers, end - 1)],
        )
        highest = max(highest, open_one.leader_epoch + failovers)
        assert opened.leader_epoch >= highest + ROLL_GAP
        highest = opened.leader_epoch


def test_an_intent_changes_its_target_only_once_the_first_was_sealed(tables: Tables) -> None:
    topic_id = create(tables, "t")
    (first,) = chain(tables, topic_id)
    (intended,) = tables.apply(RollIntent([RollTarget(topic_id, 0, first.id, ContainerId(20))], NOW))
    other = RollTarget(topic_id, 0, first.id, ContainerId(21))
    (refused,) = tables.apply(RollIntent([other], NOW))
    assert (refused.code, refused.partitionlet) == (Code.INVALID_REQUEST, intended.partitionlet)
    moved = RollTarget(topic_id, 0, first.id, ContainerId(21), abandoned=intended.partitionlet.id)
    (instead,) = tables.apply(RollIntent([moved], NOW))
    assert (instead.code, instead.partitionlet.container) == (Code.NONE, 21)
    assert instead.partitionlet.id > intended.partitionlet.id
    assert tables.reader.live([intended.partitionlet.id]) == {}
    stale = Rolled(topic_id, 0, first.id, Offset(5), [], intended.partitionlet.id, Epoch(1))
    assert tables.apply(RollDone([stale], NOW))[0].code is Code.INVALID_REQUEST


def test_an_intent_from_before_a_roll_is_refused(tables: Tables) -> None:
    topic_id = create(tables, "t")
    (first,) = chain(tables, topic_id)
    opened = roll(tables, topic_id, end=5, epochs=[])
    stale, unknown, beyond = tables.apply(
        RollIntent(
            [
                RollTarget(topic_id, 0, first.id, ContainerId(20)),
                RollTarget(uuid.uuid4().bytes, 0, first.id, ContainerId(20)),
                RollTarget(topic_id, 7, first.id, ContainerId(20)),
            ],
            NOW,
        )
    )
    assert (stale.code, stale.partitionlet) == (Code.INVALID_REQUEST, opened)
    assert unknown.code is beyond.code is Code.UNKNOWN_TOPIC_OR_PARTITION


def test_an_empty_partitionlet_does_not_stay_in_the_chain(tables: Tables) -> None:
    topic_id = create(tables, "t")
    for _ in range(5):
        roll(tables, topic_id, end=0, epochs=[])
    (only,) = chain(tables, topic_id)
    assert only.first == 0
    assert only.leader_epoch == 5 * ROLL_GAP


def test_what_is_not_made_yet_is_told_from_what_is_gone(tables: Tables) -> None:
    """A container may hold records of partitionlets, and of streams, that this catalog has not heard of yet."""
    topic_id = create(tables, "t")
    (first,) = chain(tables, topic_id)
    stream = stream_of(first.id)
    later = partitionlet_id(stream=stream, serial=serial_of(first.id) + 1)
    elsewhere = partitionlet_id(stream=StreamNumber(stream + 1), serial=1)
    ids = [first.id, later, elsewhere]
    assert tables.reader.not_yet_made(ids) == [later, elsewhere]
    assert roll(tables, topic_id, end=5, epochs=[]).id == later
    tables.apply(DeleteTopics([topic_id], NOW))
    assert tables.reader.not_yet_made(ids) == [elsewhere]
    assert tables.reader.live(ids) == {}
    path = tables.reader.streams()[0].path
    tables.apply(DeleteStream(path, NOW, force=True))
    assert tables.reader.not_yet_made(ids) == [elsewhere]


def test_log_starts_never_fall_and_drop_what_lies_wholly_below(tables: Tables) -> None:
    topic_id = create(tables, "t")
    ids = [chain(tables, topic_id)[0].id]
    ids += [roll(tables, topic_id, end=end, epochs=[]).id for end in (10, 20)]

    def set_start(offset: int) -> Any:
        (outcome,) = tables.apply(SetLogStart([LogStart(topic_id, 0, Offset(offset))]))
        return outcome.code, outcome.offset, list(outcome.dropped)

    assert set_start(9) == (Code.NONE, 9, [])
    assert tables.reader.live(ids) == {ids[0]: 9, ids[1]: 10, ids[2]: 20}
    assert set_start(4) == (Code.NONE, 9, [])
    assert set_start(10) == (Code.NONE, 10, [ids[0]])
    assert set_start(25) == (Code.NONE, 25, [ids[1]])
    assert tables.reader.live(ids) == {ids[2]: 25}
    assert tables.reader.owners([ids[2]])[ids[2]] == (1, topic_id, 0, 20, -1, 25)
    assert [row.id for row in chain(tables, topic_id)] == [ids[2]]
    roll(tables, topic_id, end=25, epochs=[])
    assert tables.reader.live(ids) == {}
    unknown, beyond = tables.apply(
        SetLogStart([LogStart(uuid.uuid4().bytes, 0, Offset(1)), LogStart(topic_id, 5, Offset(1))])
    )
    assert unknown.code is beyond.code is Code.UNKNOWN_TOPIC_OR_PARTITION


def test_a_log_start_goes_on_behind_what_was_lost_of_a_sealed_partitionlet(tables: Tables) -> None:
    """Invariant 15. Else retention would wait for ever for records that are not there."""
    topic_id = create(tables, "t")
    ids = [chain(tables, topic_id)[0].id]
    ids += [roll(tables, topic_id, end=end, epochs=[]).id for end in (10, 20, 30)]

    def shorten(partitionlet: PartitionletId, end: int) -> Any:
        (outcome,) = tables.apply(ShortenChains([Shortened(topic_id, 0, partitionlet, Offset(end))]))
        return outcome.code, outcome.offset, list(outcome.dropped)

    assert shorten(ids[1], 15) == (Code.NONE, 0, [])
    assert shorten(ids[1], 18) == (Code.NONE, 0, []), "an end never rises"
    assert shorten(ids[3], 30) == (Code.NONE, 0, []), "what is open has no end"
    assert [(row.first, row.end) for row in chain(tables, topic_id)] == [(0, 10), (10, 15), (20, 30), (30, -1)]
    (moved,) = tables.apply(SetLogStart([LogStart(topic_id, 0, Offset(15))]))
    assert (moved.offset, list(moved.dropped)) == (20, [ids[0], ids[1]])
    assert shorten(ids[2], 20) == (Code.NONE, 30, [ids[2]])
    assert shorten(ids[2], 20) == (Code.NONE, 30, []), "it may come again"
    assert [row.first for row in chain(tables, topic_id)] == [30]
    unknown = tables.apply(ShortenChains([Shortened(uuid.uuid4().bytes, 0, ids[0], Offset(1))]))
    assert [each.code for each in unknown] == [Code.UNKNOWN_TOPIC_OR_PARTITION]


def test_numbers_that_lost_commands_may_have_given_away_are_left_out_once(tables: Tables) -> None:
    topic_id = create(tables, "t")
    (before,) = chain(tables, topic_id)
    tables.apply(SkipNumbers(1))
    tables.apply(SkipNumbers(1))
    first = roll(tables, topic_id, end=10, epochs=[])
    assert first.id - (stream_of(first.id) << PARTITIONLET_BITS) == 1 << SKIPPED_BITS
    assert first.leader_epoch == before.leader_epoch + LOST_ROLLS_GAP, "rolls that were lost had given some away"
    second = roll(tables, topic_id, end=20, epochs=[])
    assert (second.id, second.leader_epoch) == (first.id + 1, first.leader_epoch + ROLL_GAP)
    stream = tables.apply(CreateStream("/new", StreamPolicy(), NOW)).stream
    assert stream.number > SKIPPED_STREAMS
    tables.apply(SkipNumbers(2))
    assert roll(tables, topic_id, end=30, epochs=[]).id > second.id + 1


def put_group(tables: Tables, *, generation: int, members: list[str], now: int = NOW) -> None:
    state = "Stable" if members else "Empty"
    tables.apply(PutGroup("g", generation, "consumer", "range", "", members, b"opaque", state, Millis(now)))


def commit(
    tables: Tables, topic_id: bytes, *, generation: int, member: str = "m", offset: int = 1, now: int = NOW
) -> Any:
    item = Cursor(topic_id, 0, Offset(offset), LeaderEpoch(2), "note")
    return tables.apply(CommitCursors("g", generation, member, [item], Millis(now)))


def test_commits_are_fenced_by_the_group_as_stored(tables: Tables) -> None:
    topic_id = create(tables, "t")
    with pytest.raises(KafkaError) as before:
        commit(tables, topic_id, generation=0)
    assert before.value.code is Code.ILLEGAL_GENERATION
    put_group(tables, generation=4, members=["m", "n"])
    assert commit(tables, topic_id, generation=4, offset=11) == [Code.NONE]
    for generation, member, code in (
        (3, "m", Code.ILLEGAL_GENERATION),
        (5, "m", Code.ILLEGAL_GENERATION),
        (4, "stranger", Code.UNKNOWN_MEMBER_ID),
        (-1, "", Code.UNKNOWN_MEMBER_ID),
    ):
        with pytest.raises(KafkaError) as caught:
            commit(tables, topic_id, generation=generation, member=member, offset=99)
        assert caught.value.code is code
    (cursor,) = tables.reader.cursors("g")
    assert cursor == (topic_id, "/s", "t", 0, 11, 2, "note", NOW)
    put_group(tables, generation=5, members=[])
    assert commit(tables, topic_id, generation=-1, member="", offset=12) == [Code.NONE]


def test_a_generation_never_falls(tables: Tables) -> None:
    put_group(tables, generation=4, members=["m"])
    with pytest.raises(KafkaError) as caught:
        put_group(tables, generation=3, members=["old"])
    assert caught.value.code is Code.ILLEGAL_GENERATION
    group = tables.reader.group("g")
    assert group is not None
    assert (group.generation, group.member_ids, group.members) == (4, ("m",), b"opaque")


def test_a_commit_outside_a_group_makes_an_empty_one(tables: Tables) -> None:
    topic_id = create(tables, "t")
    other = create(tables, "other")
    items = [
        Cursor(topic_id, 0, Offset(1), LeaderEpoch(-1)),
        Cursor(uuid.uuid4().bytes, 0, Offset(1), LeaderEpoch(-1)),
        Cursor(other, 1, Offset(1), LeaderEpoch(-1)),
        Cursor(other, 0, Offset(7), LeaderEpoch(-1)),
    ]
    assert tables.apply(CommitCursors("g", -1, "", items, NOW)) == [
        Code.NONE,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.NONE,
    ]
    assert [group.state for group in tables.reader.groups()] == ["Empty"]
    assert [cursor.offset for cursor in tables.reader.cursors("g")] == [1, 7]
    assert [cursor.offset for cursor in tables.reader.cursors("g", [2])] == [7]
    assert tables.apply(DeleteCursors("g", [(other, 0), (other, 9)])) == [Code.NONE, Code.UNKNOWN_TOPIC_OR_PARTITION]
    assert [cursor.name for cursor in tables.reader.cursors("g")] == ["t"]
    with pytest.raises(KafkaError) as caught:
        tables.apply(DeleteCursors("nobody", []))
    assert caught.value.code is Code.GROUP_ID_NOT_FOUND


def test_only_empty_groups_are_deleted(tables: Tables) -> None:
    topic_id = create(tables, "t")
    put_group(tables, generation=1, members=["m"])
    commit(tables, topic_id, generation=1)
    assert tables.apply(DeleteGroups(["g", "nobody"])) == [Code.NON_EMPTY_GROUP, Code.GROUP_ID_NOT_FOUND]
    put_group(tables, generation=1, members=[])
    assert tables.apply(DeleteGroups(["g"])) == [Code.NONE]
    assert tables.reader.cursors("g") == []
    assert tables.reader.groups() == []


def test_cursors_expire_only_in_groups_long_empty(tables: Tables) -> None:
    topic_id = create(tables, "t")
    put_group(tables, generation=1, members=["m"], now=NOW)
    commit(tables, topic_id, generation=1, now=NOW)
    assert tables.apply(ExpireCursors(Millis(NOW + 100))) == Expired(0, 0)
    put_group(tables, generation=2, members=[], now=NOW + 50)
    assert tables.apply(ExpireCursors(Millis(NOW + 50))) == Expired(0, 0)
    commit(tables, topic_id, generation=-1, member="", now=NOW + 90)
    assert tables.apply(ExpireCursors(Millis(NOW + 60))) == Expired(0, 0)
    assert tables.apply(ExpireCursors(Millis(NOW + 91))) == Expired(1, 1)
    assert tables.reader.groups() == []


def test_a_command_that_breaks_on_a_value_leaves_no_trace_and_the_next_one_goes_on(tables: Tables) -> None:
    good, huge = new_topic("good"), new_topic("huge")
    huge = NewTopic("/s", "huge", huge.topic_id, 1, {}, [ContainerId(2**63)], [Epoch(1)])
    with pytest.raises(KafkaError) as caught:
        tables.apply(CreateTopics([good, huge], NOW))
    assert caught.value.code is Code.UNKNOWN_SERVER_ERROR
    assert tables.reader.totals() == (1, 0, 0)
    assert tables.reader.topics("/s") == []
    create(tables, "good")
    assert tables.reader.totals() == (1, 1, 1)


def test_a_log_that_goes_backwards_is_refused_and_changes_nothing(tables: Tables) -> None:
    tables.apply(CreateStream("/t", StreamPolicy(), NOW))
    at = applied(tables.connection)
    with pytest.raises(AssertionError, match="backwards"):
        apply_all(tables.connection, [(at, DeleteStream("/t", NOW))], SCHEMA)
    assert tables.reader.stream("/t") is not None
    assert applied(tables.connection) == at


def test_pages_and_names_cover_every_topic_once(tables: Tables) -> None:
    tables.apply(CreateStream("/a", StreamPolicy(), NOW))
    items = [new_topic(f"t{index:03}", stream=path) for path in ("/s", "/a") for index in range(25)]
    tables.apply(CreateTopics(items, NOW))
    seen, after = [], (StreamNumber(0), "")
    while page := tables.reader.all_topics(after=after, limit=7):
        seen += [topic.full_name for topic in page]
        after = (page[-1].stream_number, page[-1].name)
    assert seen == [f"{path}:t{index:03}" for path in ("/s", "/a") for index in range(25)]
    assert [topic.name for topic in tables.reader.topics("/s", after="t003", limit=2)] == ["t004", "t005"]
    assert tables.reader.topics("/none") == []
    found = tables.reader.topics_named("/s", [f"t{index:03}" for index in range(0, 60, 5)])
    assert sorted(found) == ["t000", "t005", "t010", "t015", "t020"]
    assert [stream.path for stream in tables.reader.streams()] == ["/a", "/s"]
    assert len(tables.reader.topics_by_id([item.topic_id for item in items])) == 50
    opened = tables.reader.open_in(ContainerId(10), limit=30)
    assert len(opened) == 30
    assert len(tables.reader.open_in(ContainerId(10), after=PartitionletId(opened[-1].id))) == 20


def test_nothing_is_placed_in_a_container_that_is_about_to_be_deleted(tables: Tables) -> None:
    before = new_topic("before", partitions=2)
    tables.apply(CreateTopics([before], NOW))
    (open_one,) = chain(tables, before.topic_id)
    (intended,) = tables.apply(RollIntent([RollTarget(before.topic_id, 0, open_one.id, ContainerId(11))], NOW))
    for _ in range(2):  # it may come twice
        assert tables.apply(RetireContainer(ContainerId(11))) == [Code.NONE]

    items = [new_topic("elsewhere"), new_topic("there", partitions=2), before]
    refused = tables.reader.check_new_topics(items)
    outcomes = tables.apply(CreateTopics(items, NOW))
    assert [each.code for each in outcomes] == [Code.NONE, Code.LEADER_NOT_AVAILABLE, Code.NONE]  # the last: a repeat
    assert [each and each.code for each in refused] == [None, Code.LEADER_NOT_AVAILABLE, Code.NONE]
    assert "container 11 takes no new partitions" in outcomes[1].message
    assert [row.name for row in tables.reader.topics("/s")] == ["before", "elsewhere"]

    grown = CreatePartitions(before.topic_id, 3, [ContainerId(11)], [Epoch(3)], NOW)
    with pytest.raises(KafkaError, match="container 11 takes no new partitions"):
        tables.apply(grown)
    assert tables.apply(msgspec.structs.replace(grown, container_ids=[ContainerId(12)])).code is Code.NONE

    # An intent from before goes on; a new one takes another container, and so does one whose target gave it up.
    (again,) = tables.apply(RollIntent([RollTarget(before.topic_id, 0, open_one.id, ContainerId(11))], NOW))
    assert again == intended
    target = RollTarget(before.topic_id, 0, open_one.id, ContainerId(11), abandoned=intended.partitionlet.id)
    (outcome,) = tables.apply(RollIntent([target], NOW))
    assert (outcome.code, outcome.partitionlet) == (Code.LEADER_NOT_AVAILABLE, None)
    assert [row.id for row in chain(tables, before.topic_id)] == [open_one.id, intended.partitionlet.id]


def test_an_older_format_is_brought_up(tmp_path: Path) -> None:
    open_tables(tmp_path / "c.sqlite", sums=False).close()
    older = sqlite3.connect(tmp_path / "c.sqlite")
    older.executescript(
        "DROP TABLE retired; DROP TABLE links; DROP TABLE home_starts; DROP TABLE settled_homes;"
        "DROP TABLE pending_homes; DROP INDEX topics_with_home; DROP INDEX topics_moved;"
        "DELETE FROM counters WHERE name = 'next_link';"
        "ALTER TABLE topics DROP COLUMN home_counter; ALTER TABLE topics DROP COLUMN home_cluster;"
        "ALTER TABLE topics DROP COLUMN home_origin; ALTER TABLE partitionlets DROP COLUMN cut;"
        "INSERT INTO streams VALUES (1, '/s', CAST('{}' AS BLOB), 1, 3, 1, 2);"
        "INSERT INTO topics VALUES (1, zeroblob(16), 1, 't', 2, NULL, 1, 0); PRAGMA user_version=1;"
    )
    older.close()
    for _ in range(2):
        tables = Tables(tmp_path / "c.sqlite")
        assert tables.connection.execute("PRAGMA user_version").fetchone() == (4,)
        tables.connection.execute("SELECT * FROM retired")
        topic = tables.reader.topic("/s", "t")
        assert topic is not None
        assert (topic.home, topic.origin, tables.reader.links()) == (None, "", [])
        tables.close()
    fresh = open_tables(tmp_path / "fresh.sqlite")
    brought_up = open_tables(tmp_path / "c.sqlite")
    schema = "SELECT type, name, tbl_name FROM sqlite_schema ORDER BY 1, 2"
    assert brought_up.execute(schema).fetchall() == fresh.execute(schema).fetchall()
    columns = "SELECT name, type FROM pragma_table_info('topics')"
    assert brought_up.execute(columns).fetchall() == fresh.execute(columns).fetchall()
    for connection in (fresh, brought_up):
        connection.close()


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    open_tables(tmp_path / "c.sqlite").close()
    newer = sqlite3.connect(tmp_path / "c.sqlite")
    newer.execute("PRAGMA user_version=7")
    newer.close()
    with pytest.raises(FolderRefused, match="newer headrace"):
        open_tables(tmp_path / "c.sqlite")
