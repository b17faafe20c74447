"""Links and homes by example; test_apply_model holds the rules of homes against a model."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import ContainerId, Epoch, Home, LeaderEpoch, Millis, Offset
from headrace.catalog.commands import (
    CommitCursors,
    CopyCursors,
    CreatePartitions,
    CreateTopics,
    Cursor,
    DeleteLink,
    DeleteStream,
    DeleteTopics,
    HomeChange,
    LinkConfig,
    NewTopic,
    PutGroup,
    PutLink,
    RollDone,
    Rolled,
    RollIntent,
    RollTarget,
    SetHome,
    SetLinkSource,
    SetLinkState,
    decode,
    encode,
)
from headrace.catalog.rows import PAUSED, RUNNING, SEALED, HomeStart
from kit.catalog import NOW, Tables, stream

HERE, THERE = "here", "there"
CONFIG = LinkConfig(["far:9092"], "/src", ["pump-*"], throttle=5, credentials=b"sealed")
ID = bytes(16)


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[Tables]:
    tables = Tables(tmp_path / "catalog.sqlite")
    tables.apply(stream("/s"))
    yield tables
    tables.close()


def make(tables: Tables, *, partitions: int = 1, **copy: Any) -> int:
    places = [ContainerId(1)] * partitions
    item = NewTopic("/s", "t", ID, partitions, {}, places, [Epoch(1)] * partitions, **copy)
    (outcome,) = tables.apply(CreateTopics([item], NOW))
    assert outcome.code is Code.NONE
    return int(outcome.topic.number)


def roll(tables: Tables, *, end: int, partition: int = 0, **then: Any) -> Any:
    topic = tables.reader.topic_by_id(ID)
    assert topic is not None
    open_one = tables.reader.chain(topic.number, partition)[-1]
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
    return [(row.first, row.end) for row in tables.reader.chain(topic)]


def test_a_link_is_made_altered_paused_and_deleted(tables: Tables) -> None:
    made = tables.apply(PutLink("l", "/s", CONFIG, NOW, create=True))
    assert made.changed
    assert (made.link.stream, made.link.state, made.link.config) == ("/s", RUNNING, CONFIG)
    assert not tables.apply(PutLink("l", "/s", CONFIG, Millis(9), create=True)).changed
    other = msgspec.structs.replace(CONFIG, throttle=6)
    with pytest.raises(KafkaError, match="there is a link l already"):
        tables.apply(PutLink("l", "/s", other, NOW, create=True))
    with pytest.raises(KafkaError, match="there is no link m"):
        tables.apply(PutLink("m", "/s", other, NOW, create=False))
    assert tables.apply(PutLink("l", "/s", other, NOW, create=False)).changed
    assert tables.apply(SetLinkState("l", PAUSED)).changed
    assert not tables.apply(SetLinkState("l", PAUSED)).changed
    with pytest.raises(KafkaError, match="never 'Sleeping'"):
        tables.apply(SetLinkState("l", "Sleeping"))
    expected = made.link._replace(config=other, state=PAUSED)
    assert tables.reader.links() == tables.reader.links("/s") == [expected]
    assert tables.reader.link("l") == expected
    assert tables.reader.links("/other") == []
    assert tables.apply(DeleteLink("l")).link == expected
    with pytest.raises(KafkaError, match="there is no link l"):
        tables.apply(DeleteLink("l"))
    again = tables.apply(PutLink("l", "/s", CONFIG, NOW, create=True))
    assert again.link.id > made.link.id


def test_a_stream_with_links_is_deleted_by_force_only(tables: Tables) -> None:
    tables.apply(PutLink("l", "/s", CONFIG, NOW, create=True))
    with pytest.raises(KafkaError, match="has the links l"):
        tables.apply(DeleteStream("/s", NOW))
    tables.apply(DeleteStream("/s", NOW, force=True))
    assert tables.reader.links() == []
    assert tables.connection.execute("SELECT count(*) FROM links").fetchone() == (0,)


def test_a_copy_is_made_with_the_home_and_the_histories_of_its_source(tables: Tables) -> None:
    number = make(
        tables,
        partitions=2,
        home=(2, THERE),
        origin="far",
        histories=[(0, 1, "far", Offset(5)), (0, 2, THERE, Offset(9))],
    )
    topic = tables.reader.topic_by_id(ID)
    assert topic is not None
    assert (topic.home, topic.origin) == (Home(2, THERE), "far")
    assert tables.reader.settled([number]) == {(number, 0): Home(2, THERE), (number, 1): Home(2, THERE)}
    assert tables.reader.histories([number]) == {(number, 0): [HomeStart(1, "far", Offset(5)), (2, THERE, 9)]}
    assert tables.reader.unsettled() == []
    assert tables.reader.copies("/s", HERE) == [topic]
    assert tables.reader.copies("/s", HERE, after="t") == tables.reader.copies("/s", THERE) == []

    grown = CreatePartitions(ID, 3, [ContainerId(1)], [Epoch(1)], NOW, [(2, 2, THERE, Offset(4))])
    assert tables.apply(grown).topic.home == Home(2, THERE)
    assert tables.apply(CreatePartitions(ID, 4, [ContainerId(1)], [Epoch(1)], NOW)).code is Code.NONE
    found = tables.reader.histories([number])
    assert (found[number, 2], found[number, 3]) == ([(2, THERE, 4)], [(2, THERE, 0)])
    assert tables.reader.unsettled() == []


def test_a_home_only_rises(tables: Tables) -> None:
    number = make(tables)
    assert set_home(tables, 0, THERE) is Code.FENCED_LEADER_EPOCH
    assert set_home(tables, 2, "b") is Code.NONE
    assert set_home(tables, 2, "a") is set_home(tables, 1, "z") is Code.FENCED_LEADER_EPOCH
    assert set_home(tables, 2, "b", {0: [(2, "b", Offset(1))]}) is Code.NONE
    assert tables.reader.pending([number]) == {}, "the same home again changes nothing"
    assert set_home(tables, 3, "a", {0: [(0, "a", Offset(1))]}) is Code.INVALID_REQUEST
    assert set_home(tables, 2, "c", {0: [(2, "c", Offset(1))]}) is Code.NONE
    assert tables.reader.pending([number]) == {number: {0: [(2, "c", 1)]}}
    assert [topic.topic_id for topic in tables.reader.unsettled()] == [ID]
    (code,) = tables.apply(SetHome([HomeChange(b"x" * 16, 9, "b")]))
    assert code is Code.UNKNOWN_TOPIC_ID


def test_a_settling_roll_begins_the_home_at_the_end_where_no_lists_are_pending(tables: Tables) -> None:
    number = make(tables)
    set_home(tables, 1, THERE)
    done = roll(tables, end=7, home=(1, THERE))
    assert done.settled == HomeStart(1, THERE, Offset(7))
    assert pieces(tables, number) == [(0, 7), (7, -1)]
    assert tables.reader.histories([number]) == {(number, 0): [(1, THERE, 7)]}
    assert tables.reader.unsettled() == []


def test_a_settling_roll_takes_the_pending_list_and_cuts_the_chain(tables: Tables) -> None:
    number = make(tables, partitions=2)
    for end in (10, 20, 30):
        roll(tables, end=end)
    lists = {0: [(1, THERE, Offset(15)), (2, THERE, Offset(40))]}
    set_home(tables, 2, THERE, lists)
    done = roll(tables, end=33, home=(2, THERE), resume=Offset(15))
    assert done.settled == HomeStart(2, THERE, Offset(40))
    assert done.log_start == -1
    assert pieces(tables, number)[:-1] == [(0, 10), (10, 15), (15, -1)]
    assert [row.cut for row in tables.reader.chain(number, 0)] == [False, True, False]
    assert tables.reader.pending([number]) == {number: lists}, "partition 1 is not settled yet"
    roll(tables, end=0, partition=1, home=(2, THERE))
    assert tables.reader.pending([number]) == {}
    beginning = [(2, THERE, 0)]  # the home lacks partition 1, and would begin it there
    assert tables.reader.histories([number]) == {(number, 0): lists[0], (number, 1): beginning}


def test_cursors_behind_the_cut_go_on_where_the_homes_records_follow(tables: Tables) -> None:
    number = make(tables, partitions=2)
    for group, offset in (("before", 79), ("at", 80), ("behind", 100)):
        items = [Cursor(ID, index, Offset(offset), LeaderEpoch(3), "m", Millis(500)) for index in range(2)]
        tables.apply(CommitCursors(group, -1, "", items, NOW))
    set_home(tables, 1, THERE, {0: [(1, THERE, Offset(80))]})
    roll(tables, end=100, home=(1, THERE), resume=Offset(80))

    def stored(group: str) -> list[tuple[int, int, str, int]]:
        rows = tables.reader.cursors(group, [number])
        return [(row.offset, row.leader_epoch, row.metadata, row.committed_at) for row in rows]

    assert stored("before") == [(79, 3, "m", 500)] * 2
    assert stored("at") == [(80, 3, "m", 500)] * 2
    assert stored("behind") == [(80, -1, "m", 500), (100, 3, "m", 500)], "the other partition is not cut"
    older = CopyCursors("behind", [Cursor(ID, 0, Offset(75), LeaderEpoch(-1), "", Millis(400))], NOW, HERE)
    tables.apply(msgspec.structs.replace(older, only_newer=True))
    assert stored("behind")[0][0] == 80, "what is below was read"
    tables.apply(CommitCursors("behind", -1, "", [Cursor(ID, 0, Offset(95), LeaderEpoch(9))], NOW))
    roll(tables, end=120)
    assert stored("behind")[0][:2] == (95, 9), "a roll that cuts nothing leaves them, and so does a repeat"


def test_a_roll_that_jumps_keeps_what_there_is_and_raises_the_log_start_where_there_is_nothing(tables: Tables) -> None:
    number = make(tables, partitions=2, home=(0, THERE), origin=THERE)
    done = roll(tables, end=10, resume=Offset(50))
    assert (done.log_start, done.settled) == (-1, None)
    assert pieces(tables, number)[:2] == [(0, 10), (50, -1)]
    done = roll(tables, end=0, partition=1, resume=Offset(50))
    assert done.log_start == 50
    assert pieces(tables, number)[2:] == [(50, -1)]
    assert tables.reader.log_starts([number]) == {(number, 1): 50}


def test_a_roll_for_a_home_that_was_overtaken_leaves_the_history_to_the_next(tables: Tables) -> None:
    number = make(tables)
    set_home(tables, 1, THERE)
    set_home(tables, 2, HERE, {0: [(1, THERE, Offset(3)), (2, HERE, Offset(5))]})
    roll(tables, end=7, home=(1, THERE))
    assert tables.reader.settled([number]) == {(number, 0): Home(1, THERE)}
    assert tables.reader.histories([number]) == {}
    assert len(tables.reader.unsettled()) == 1
    roll(tables, end=7, home=(2, HERE), resume=Offset(3))
    assert tables.reader.histories([number]) == {(number, 0): [(1, THERE, 3), (2, HERE, 5)]}
    roll(tables, end=8, home=(1, THERE))
    assert tables.reader.settled([number]) == {(number, 0): Home(2, HERE)}, "a late one settles nothing"


def test_homes_that_did_not_get_here_leave_the_history_of_who_takes_over(tables: Tables) -> None:
    number = make(tables, home=(0, THERE), origin=THERE)
    set_home(tables, 1, HERE, {0: [(1, HERE, Offset(500))]})
    roll(tables, end=300, home=(1, HERE))
    set_home(tables, 2, HERE)
    roll(tables, end=310, home=(2, HERE))
    assert tables.reader.histories([number]) == {(number, 0): [(2, HERE, 310)]}


def test_deleting_a_topic_leaves_nothing_of_its_homes(tables: Tables) -> None:
    make(tables, partitions=2, home=(1, THERE), origin=THERE, histories=[(0, 1, THERE, Offset(5))])
    set_home(tables, 2, THERE, {0: [(2, THERE, Offset(6))]})
    tables.apply(DeleteTopics([ID], NOW))
    for table in ("home_starts", "settled_homes", "pending_homes"):
        assert tables.connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,), table


def test_cursors_of_a_copy_come_from_its_home_unless_the_group_is_at_work_here(tables: Tables) -> None:
    number = make(tables, home=(0, THERE), origin=THERE)
    items = [Cursor(ID, 0, Offset(5), LeaderEpoch(-1), "m"), Cursor(ID, 1, Offset(5), LeaderEpoch(-1))]
    command = CopyCursors("g", items, NOW, HERE)
    for _ in range(2):
        assert tables.apply(command) == [Code.NONE, Code.UNKNOWN_TOPIC_OR_PARTITION]
    (cursor,) = tables.reader.cursors("g", [number])
    assert (cursor.offset, cursor.metadata, cursor.committed_at) == (5, "m", NOW)
    group = tables.reader.group("g")
    assert group is not None
    assert group.state == "Empty"
    at_home = msgspec.structs.replace(command, cluster=THERE, group="other")
    assert tables.apply(at_home) == [Code.POLICY_VIOLATION, Code.UNKNOWN_TOPIC_OR_PARTITION]
    assert tables.reader.group("other") is None
    tables.apply(PutGroup("g", 1, "consumer", "range", "m1", ["m1"], b"", "Stable", NOW))
    assert tables.apply(command) == [Code.NON_EMPTY_GROUP] * 2


def test_of_copied_cursors_the_newer_counts_where_it_is_asked_for(tables: Tables) -> None:
    number = make(tables, home=(0, THERE), origin=THERE)

    def copied(offset: int, at: int, **flags: bool) -> tuple[int, int]:
        cursor = Cursor(ID, 0, Offset(offset), LeaderEpoch(-1), committed_ms=Millis(at))
        assert tables.apply(CopyCursors("g", [cursor], NOW, HERE, **flags)) == [Code.NONE]
        (stored,) = tables.reader.cursors("g", [number])
        return stored.offset, stored.committed_at

    assert copied(5, 100) == (5, 100)
    assert copied(9, 100, only_newer=True) == (5, 100)
    assert copied(3, 101, only_newer=True) == (3, 101), "a reset"
    assert copied(2, -1, only_newer=True) == (3, 101)
    assert copied(4, -1, only_newer=True) == (4, NOW)
    assert copied(1, 50) == (1, 50)
    set_home(tables, 1, HERE)
    refused = CopyCursors("g", [Cursor(ID, 0, Offset(7), LeaderEpoch(-1))], NOW, HERE, only_newer=True)
    assert tables.apply(refused) == [Code.POLICY_VIOLATION]
    assert copied(7, 60, only_newer=True, moved=True) == (7, 60)

    def expecting(offset: int, *expected: int) -> int:
        cursor = Cursor(ID, 0, Offset(offset), LeaderEpoch(-1), expected=expected)  # type: ignore[arg-type]
        assert tables.apply(CopyCursors("g", [cursor], NOW, HERE, moved=True)) == [Code.NONE]
        (stored,) = tables.reader.cursors("g", [number])
        return stored.offset

    assert expecting(9, 6, 60) == expecting(9, -1, -1) == 7
    assert expecting(9, 7, 60) == 9


def test_commands_of_earlier_versions_are_read_as_they_were_meant() -> None:
    topic = ["/s", "t", ID, 1, {}, [1], [1]]
    made = decode(msgspec.msgpack.encode({"type": "CreateTopics", "items": [topic], "now": 1}))
    assert made == CreateTopics([NewTopic("/s", "t", ID, 1, {}, [ContainerId(1)], [Epoch(1)])], Millis(1))
    rolled = decode(msgspec.msgpack.encode({"type": "RollDone", "items": [[ID, 0, 5, 9, [], 6, 1]], "now": 1}))
    assert isinstance(rolled, RollDone)
    assert (rolled.items[0].resume, rolled.items[0].home) == (-1, None)


def test_commands_on_links_and_homes_are_read_as_they_were_written() -> None:
    for command in (
        PutLink("l", "/s", CONFIG, NOW, create=True),
        SetHome([HomeChange(ID, 1, HERE, {0: [(1, HERE, Offset(5))], 7: []}), HomeChange(ID, 1, HERE)]),
        CopyCursors("g", [Cursor(ID, 0, Offset(1), LeaderEpoch(-1))], NOW, HERE),
        CopyCursors("g", [Cursor(ID, 0, Offset(1), LeaderEpoch(-1), "", Millis(3))], NOW, HERE, True, True),
    ):
        assert decode(encode(command)) == command


def test_a_home_without_pieces_that_are_sealed_is_a_chain_of_one(tables: Tables) -> None:
    number = make(tables)
    roll(tables, end=5, resume=Offset(0))
    (only,) = tables.reader.chain(number)
    assert (only.first, only.state) == (0, 1)
    assert all(row.state != SEALED for row in tables.reader.chain(number))


def test_partitions_are_added_under_the_home_that_their_histories_belong_to(tables: Tables) -> None:
    make(tables, home=(2, THERE), origin=THERE, histories=[(0, 2, THERE, Offset(0))])
    late = CreatePartitions(
        ID, 2, [ContainerId(1)], [Epoch(1)], NOW, histories=[(1, 1, THERE, Offset(0))], home=(1, THERE)
    )
    with pytest.raises(KafkaError) as refused:
        tables.apply(late)
    assert refused.value.code is Code.OPERATION_NOT_ATTEMPTED


def test_partitions_are_added_under_the_first_home_while_it_is_the_home(tables: Tables) -> None:
    make(tables)

    def grown(count: int) -> CreatePartitions:
        return CreatePartitions(ID, count, [ContainerId(1)], [Epoch(1)], NOW, histories=[], home=(0, HERE))

    assert tables.apply(grown(2)).code is Code.NONE
    set_home(tables, 1, THERE)
    with pytest.raises(KafkaError) as refused:
        tables.apply(grown(3))
    assert refused.value.code is Code.OPERATION_NOT_ATTEMPTED


def test_who_the_source_is_is_kept_of_that_link_and_those_addresses_alone(tables: Tables) -> None:
    made = tables.apply(PutLink("l", "/s", CONFIG, NOW, create=True)).link
    told = SetLinkSource("l", made.id, CONFIG.source, THERE)
    altered = msgspec.structs.replace(CONFIG, source=["other:9092"], throttle=7)
    tables.apply(PutLink("l", "/s", altered, NOW, create=False))  # while the source answered
    assert tables.apply(told).link.config == altered
    tables.apply(PutLink("l", "/s", msgspec.structs.replace(altered, source=CONFIG.source), NOW, create=False))
    for changed in (True, False):
        outcome = tables.apply(told)
        assert (outcome.changed, outcome.link.config.source_cluster, outcome.link.config.throttle) == (
            changed,
            THERE,
            7,
        )
    assert tables.apply(SetLinkSource("l", made.id, CONFIG.source, "third")).link.config.source_cluster == THERE
    tables.apply(DeleteLink("l"))
    with pytest.raises(KafkaError):
        tables.apply(told)
    again = tables.apply(PutLink("l", "/s", CONFIG, NOW, create=True)).link
    assert tables.apply(told).link == again
