"""Homes of topics and partitions, and copies of committed offsets."""

from typing import Any

import msgspec
import pytest

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import ContainerId, Epoch, Home, LeaderEpoch, Millis, Offset
from headrace.catalog.chains import RollDone, Rolled, RollIntent, RollTarget
from headrace.catalog.committed_offsets import CommitOffsets, CommittedOffset, CopyOffsets
from headrace.catalog.groups import PutGroup
from headrace.catalog.homes import HomeChange, SetHome
from headrace.catalog.rows import SEALED, HomeStart
from headrace.catalog.topics import CreatePartitions, DeleteTopics
from kit.catalog import NOW, Tables
from kit.catalog_commands import ID, create_copy

HERE, THERE = "here", "there"


def roll(tables: Tables, *, end: int, partition: int = 0, **then: Any) -> Any:
    topic = tables.reader.topics.by_id(ID)
    assert topic is not None
    open_one = tables.reader.chains.chain(topic.number, partition)[-1]
    (intent,) = tables.apply(RollIntent([RollTarget(ID, partition, open_one.id, ContainerId(2))], NOW))
    item = Rolled(ID, partition, open_one.id, Offset(end), [], intent.partitionlet.id, Epoch(1), **then)
    command = RollDone([item], NOW)
    (done,) = tables.apply(command)
    assert done.code is Code.NONE
    (again,) = tables.apply(command)
    assert (again.code, again.partitionlet) == (Code.NONE, done.partitionlet)
    return done


def set_home(tables: Tables, counter: int, cluster: str, lists: Any = None) -> Code:
    (code,) = tables.apply(SetHome([HomeChange(ID, counter, cluster, lists)]))
    return Code(code)


def pieces(tables: Tables, topic: int) -> list[tuple[int, int]]:
    return [(row.first, row.end) for row in tables.reader.chains.chain(topic)]


def test_a_copy_is_made_with_the_home_and_the_histories_of_its_source(tables: Tables) -> None:
    number = create_copy(
        tables,
        partitions=2,
        home=(2, THERE),
        origin="far",
        histories=[(0, 1, "far", Offset(5)), (0, 2, THERE, Offset(9))],
    )
    topic = tables.reader.topics.by_id(ID)
    assert topic is not None
    assert (topic.home, topic.origin) == (Home(2, THERE), "far")
    assert tables.reader.homes.settled([number]) == {(number, 0): Home(2, THERE), (number, 1): Home(2, THERE)}
    assert tables.reader.homes.histories([number]) == {(number, 0): [HomeStart(1, "far", Offset(5)), (2, THERE, 9)]}
    assert tables.reader.homes.unsettled() == []
    assert tables.reader.homes.copies("/s", HERE) == [topic]
    assert tables.reader.homes.copies("/s", HERE, after="t") == tables.reader.homes.copies("/s", THERE) == []

    grown = CreatePartitions(ID, 3, [ContainerId(1)], [Epoch(1)], NOW, [(2, 2, THERE, Offset(4))])
    assert tables.apply(grown).topic.home == Home(2, THERE)
    assert tables.apply(CreatePartitions(ID, 4, [ContainerId(1)], [Epoch(1)], NOW)).code is Code.NONE
    found = tables.reader.homes.histories([number])
    assert (found[number, 2], found[number, 3]) == ([(2, THERE, 4)], [(2, THERE, 0)])
    assert tables.reader.homes.unsettled() == []


def test_a_home_only_rises(tables: Tables) -> None:
    number = create_copy(tables)
    assert set_home(tables, 0, THERE) is Code.FENCED_LEADER_EPOCH
    assert set_home(tables, 2, "b") is Code.NONE
    assert set_home(tables, 2, "a") is set_home(tables, 1, "z") is Code.FENCED_LEADER_EPOCH
    assert set_home(tables, 2, "b", {0: [(2, "b", Offset(1))]}) is Code.NONE
    assert tables.reader.homes.pending([number]) == {}, "the same home again changes nothing"
    assert set_home(tables, 3, "a", {0: [(0, "a", Offset(1))]}) is Code.INVALID_REQUEST
    assert set_home(tables, 2, "c", {0: [(2, "c", Offset(1))]}) is Code.NONE
    assert tables.reader.homes.pending([number]) == {number: {0: [(2, "c", 1)]}}
    assert [topic.topic_id for topic in tables.reader.homes.unsettled()] == [ID]
    (code,) = tables.apply(SetHome([HomeChange(b"x" * 16, 9, "b")]))
    assert code is Code.UNKNOWN_TOPIC_ID


def test_a_settling_roll_begins_the_home_at_the_end_where_no_lists_are_pending(tables: Tables) -> None:
    number = create_copy(tables)
    set_home(tables, 1, THERE)
    done = roll(tables, end=7, home=(1, THERE))
    assert done.settled == HomeStart(1, THERE, Offset(7))
    assert pieces(tables, number) == [(0, 7), (7, -1)]
    assert tables.reader.homes.histories([number]) == {(number, 0): [(1, THERE, 7)]}
    assert tables.reader.homes.unsettled() == []


def test_a_settling_roll_takes_the_pending_list_and_cuts_the_chain(tables: Tables) -> None:
    number = create_copy(tables, partitions=2)
    for end in (10, 20, 30):
        roll(tables, end=end)
    lists = {0: [(1, THERE, Offset(15)), (2, THERE, Offset(40))]}
    set_home(tables, 2, THERE, lists)
    done = roll(tables, end=33, home=(2, THERE), resume=Offset(15))
    assert done.settled == HomeStart(2, THERE, Offset(40))
    assert done.log_start == -1
    assert pieces(tables, number)[:-1] == [(0, 10), (10, 15), (15, -1)]
    assert [row.cut for row in tables.reader.chains.chain(number, 0)] == [False, True, False]
    assert tables.reader.homes.pending([number]) == {number: lists}, "partition 1 is not settled yet"
    roll(tables, end=0, partition=1, home=(2, THERE))
    assert tables.reader.homes.pending([number]) == {}
    beginning = [(2, THERE, 0)]  # the list of the home lacks partition 1, which would begin there
    assert tables.reader.homes.histories([number]) == {(number, 0): lists[0], (number, 1): beginning}


def test_committed_offsets_behind_the_cut_go_on_where_the_homes_records_follow(tables: Tables) -> None:
    number = create_copy(tables, partitions=2)
    for group, offset in (("before", 79), ("at", 80), ("behind", 100)):
        items = [CommittedOffset(ID, index, Offset(offset), LeaderEpoch(3), "m", Millis(500)) for index in range(2)]
        tables.apply(CommitOffsets(group, -1, "", items, NOW))
    set_home(tables, 1, THERE, {0: [(1, THERE, Offset(80))]})
    roll(tables, end=100, home=(1, THERE), resume=Offset(80))

    def stored(group: str) -> list[tuple[int, int, str, int]]:
        rows = tables.reader.groups.committed_offsets(group, [number])
        return [(row.offset, row.leader_epoch, row.metadata, row.committed_at) for row in rows]

    assert stored("before") == [(79, 3, "m", 500)] * 2
    assert stored("at") == [(80, 3, "m", 500)] * 2
    assert stored("behind") == [(80, -1, "m", 500), (100, 3, "m", 500)], "the other partition is not cut"
    older = CopyOffsets("behind", [CommittedOffset(ID, 0, Offset(75), LeaderEpoch(-1), "", Millis(400))], NOW, HERE)
    tables.apply(msgspec.structs.replace(older, only_newer=True))
    assert stored("behind")[0][0] == 80, "what is below was read"
    tables.apply(CommitOffsets("behind", -1, "", [CommittedOffset(ID, 0, Offset(95), LeaderEpoch(9))], NOW))
    roll(tables, end=120)
    assert stored("behind")[0][:2] == (95, 9), "a roll that cuts nothing leaves them, and so does a repeat"


def test_a_roll_that_jumps_keeps_what_there_is_and_raises_the_log_start_where_there_is_nothing(tables: Tables) -> None:
    number = create_copy(tables, partitions=2, home=(0, THERE), origin=THERE)
    done = roll(tables, end=10, resume=Offset(50))
    assert (done.log_start, done.settled) == (-1, None)
    assert pieces(tables, number)[:2] == [(0, 10), (50, -1)]
    done = roll(tables, end=0, partition=1, resume=Offset(50))
    assert done.log_start == 50
    assert pieces(tables, number)[2:] == [(50, -1)]
    assert tables.reader.chains.log_starts([number]) == {(number, 1): 50}


def test_a_roll_for_a_home_that_was_overtaken_leaves_the_history_to_the_next(tables: Tables) -> None:
    number = create_copy(tables)
    set_home(tables, 1, THERE)
    set_home(tables, 2, HERE, {0: [(1, THERE, Offset(3)), (2, HERE, Offset(5))]})
    roll(tables, end=7, home=(1, THERE))
    assert tables.reader.homes.settled([number]) == {(number, 0): Home(1, THERE)}
    assert tables.reader.homes.histories([number]) == {}
    assert len(tables.reader.homes.unsettled()) == 1
    roll(tables, end=7, home=(2, HERE), resume=Offset(3))
    assert tables.reader.homes.histories([number]) == {(number, 0): [(1, THERE, 3), (2, HERE, 5)]}
    roll(tables, end=8, home=(1, THERE))
    assert tables.reader.homes.settled([number]) == {(number, 0): Home(2, HERE)}, "a late one settles nothing"


def test_homes_that_did_not_get_here_leave_the_history_of_who_takes_over(tables: Tables) -> None:
    number = create_copy(tables, home=(0, THERE), origin=THERE)
    set_home(tables, 1, HERE, {0: [(1, HERE, Offset(500))]})
    roll(tables, end=300, home=(1, HERE))
    set_home(tables, 2, HERE)
    roll(tables, end=310, home=(2, HERE))
    assert tables.reader.homes.histories([number]) == {(number, 0): [(2, HERE, 310)]}


def test_deleting_a_topic_leaves_nothing_of_its_homes(tables: Tables) -> None:
    create_copy(tables, partitions=2, home=(1, THERE), origin=THERE, histories=[(0, 1, THERE, Offset(5))])
    set_home(tables, 2, THERE, {0: [(2, THERE, Offset(6))]})
    tables.apply(DeleteTopics([ID], NOW))
    for table in ("home_starts", "settled_homes", "pending_homes"):
        assert tables.connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,), table


def test_committed_offsets_of_a_copy_come_from_its_home_unless_the_group_is_at_work_here(tables: Tables) -> None:
    number = create_copy(tables, home=(0, THERE), origin=THERE)
    items = [
        CommittedOffset(ID, 0, Offset(5), LeaderEpoch(-1), "m"),
        CommittedOffset(ID, 1, Offset(5), LeaderEpoch(-1)),
    ]
    command = CopyOffsets("g", items, NOW, HERE)
    for _ in range(2):
        assert tables.apply(command) == [Code.NONE, Code.UNKNOWN_TOPIC_OR_PARTITION]
    (committed_offset,) = tables.reader.groups.committed_offsets("g", [number])
    assert (committed_offset.offset, committed_offset.metadata, committed_offset.committed_at) == (5, "m", NOW)
    group = tables.reader.groups.named("g")
    assert group is not None
    assert group.state == "Empty"
    at_home = msgspec.structs.replace(command, cluster=THERE, group="other")
    assert tables.apply(at_home) == [Code.POLICY_VIOLATION, Code.UNKNOWN_TOPIC_OR_PARTITION]
    assert tables.reader.groups.named("other") is None
    tables.apply(PutGroup("g", 1, "consumer", "range", "m1", ["m1"], b"", "Stable", NOW))
    assert tables.apply(command) == [Code.NON_EMPTY_GROUP] * 2


def test_of_copied_committed_offsets_the_newer_counts_where_it_is_asked_for(tables: Tables) -> None:
    number = create_copy(tables, home=(0, THERE), origin=THERE)

    def copied(offset: int, at: int, **flags: bool) -> tuple[int, int]:
        committed_offset = CommittedOffset(ID, 0, Offset(offset), LeaderEpoch(-1), committed_ms=Millis(at))
        assert tables.apply(CopyOffsets("g", [committed_offset], NOW, HERE, **flags)) == [Code.NONE]
        (stored,) = tables.reader.groups.committed_offsets("g", [number])
        return stored.offset, stored.committed_at

    assert copied(5, 100) == (5, 100)
    assert copied(9, 100, only_newer=True) == (5, 100)
    assert copied(3, 101, only_newer=True) == (3, 101), "a reset"
    assert copied(2, -1, only_newer=True) == (3, 101)
    assert copied(4, -1, only_newer=True) == (4, NOW)
    assert copied(1, 50) == (1, 50)
    set_home(tables, 1, HERE)
    refused = CopyOffsets("g", [CommittedOffset(ID, 0, Offset(7), LeaderEpoch(-1))], NOW, HERE, only_newer=True)
    assert tables.apply(refused) == [Code.POLICY_VIOLATION]
    assert copied(7, 60, only_newer=True, moved=True) == (7, 60)

    def expecting(offset: int, *expected: int) -> int:
        committed_offset = CommittedOffset(ID, 0, Offset(offset), LeaderEpoch(-1), expected=expected)  # type: ignore[arg-type]
        assert tables.apply(CopyOffsets("g", [committed_offset], NOW, HERE, moved=True)) == [Code.NONE]
        (stored,) = tables.reader.groups.committed_offsets("g", [number])
        return stored.offset

    assert expecting(9, 6, 60) == expecting(9, -1, -1) == 7
    assert expecting(9, 7, 60) == 9


def test_a_home_without_pieces_that_are_sealed_is_a_chain_of_one(tables: Tables) -> None:
    number = create_copy(tables)
    roll(tables, end=5, resume=Offset(0))
    (only,) = tables.reader.chains.chain(number)
    assert (only.first, only.state) == (0, 1)
    assert all(row.state != SEALED for row in tables.reader.chains.chain(number))


def test_partitions_are_added_under_the_home_that_their_histories_belong_to(tables: Tables) -> None:
    create_copy(tables, home=(2, THERE), origin=THERE, histories=[(0, 2, THERE, Offset(0))])
    late = CreatePartitions(
        ID, 2, [ContainerId(1)], [Epoch(1)], NOW, histories=[(1, 1, THERE, Offset(0))], home=(1, THERE)
    )
    with pytest.raises(KafkaError) as refused:
        tables.apply(late)
    assert refused.value.code is Code.OPERATION_NOT_ATTEMPTED


def test_partitions_are_added_under_the_first_home_while_it_is_the_home(tables: Tables) -> None:
    create_copy(tables)

    def grown(count: int) -> CreatePartitions:
        return CreatePartitions(ID, count, [ContainerId(1)], [Epoch(1)], NOW, histories=[], home=(0, HERE))

    assert tables.apply(grown(2)).code is Code.NONE
    set_home(tables, 1, THERE)
    with pytest.raises(KafkaError) as refused:
        tables.apply(grown(3))
    assert refused.value.code is Code.OPERATION_NOT_ATTEMPTED
