"""Deletion in pieces: objects disappear at once for everybody, their rows in bounded steps, and numbers are reused
safely."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import (
    ContainerId,
    Epoch,
    LeaderEpoch,
    Millis,
    Offset,
    PartitionletId,
    Position,
    StreamNumber,
    partitionlet_id,
    serial_of,
)
from headrace.catalog import committed_offsets, deletions, recovery, streams
from headrace.catalog.chains import LogStart, RollIntent, RollTarget, SetLogStart
from headrace.catalog.committed_offsets import CommitOffsets, CommittedOffset, ExpireOffsets, ExpireSomeOffsets
from headrace.catalog.deletions import AT_ONCE, ForgetDeleted
from headrace.catalog.feature_level import RaiseLevel
from headrace.catalog.groups import DeleteGroups
from headrace.catalog.policy import StreamPolicy
from headrace.catalog.recovery import SkipNumbers
from headrace.catalog.streams import CreateStream, DeleteStream
from headrace.catalog.tables import SCHEMA, open_tables
from headrace.catalog.topics import CreateTopics, DeleteTopics, NewTopic
from headrace.tables.row_checksums import COLUMNS
from headrace.tables.transactions import apply_all
from kit.catalog import Tables

NOW = Millis(1)
ROWS_OF_TOPICS = ("partitionlets", "log_starts", "home_starts", "settled_homes", "pending_homes", "cursors", "topics")


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[Tables]:
    made = Tables(tmp_path / "catalog.sqlite")
    made.apply(RaiseLevel(1))
    made.apply(CreateStream("/s", StreamPolicy(), NOW))
    yield made
    made.close()


def create(tables: Tables, count: int, *, stream: str = "/s", partitions: int = 1) -> list[bytes]:
    ids = [uuid.uuid4().bytes for _ in range(count)]
    items = [
        NewTopic(stream, f"t-{at}", topic_id, partitions, {}, [ContainerId(5)] * partitions, [Epoch(1)] * partitions)
        for at, topic_id in enumerate(ids)
    ]
    assert {outcome.code for outcome in tables.apply(CreateTopics(items, NOW))} == {Code.NONE}
    return ids


def commit(tables: Tables, ids: list[bytes], *, group: str = "g", now: int = 1) -> None:
    committed_offsets = [CommittedOffset(topic_id, 0, Offset(1), LeaderEpoch(-1)) for topic_id in ids]
    assert set(tables.apply(CommitOffsets(group, -1, "", committed_offsets, Millis(now)))) == {Code.NONE}


def rows(tables: Tables) -> int:
    return sum(tables.connection.execute(f"SELECT count(*) FROM {each}").fetchone()[0] for each in ROWS_OF_TOPICS)


def forget_all(tables: Tables) -> int:
    """Apply ForgetDeleted until nothing is left to do; returns the number of commands."""
    for steps in range(1, 1000):
        before = rows(tables)
        outcome = tables.apply(ForgetDeleted())
        assert before - rows(tables) == outcome.rows <= AT_ONCE + AT_ONCE // 2
        if not outcome.more:
            return steps
    raise AssertionError("it does not end")


def test_a_stream_is_gone_at_once_and_its_rows_in_bounded_steps(tables: Tables) -> None:
    ids = create(tables, 1500)
    tables.apply(SetLogStart([LogStart(each, 0, Offset(3)) for each in ids[:700]]))
    commit(tables, ids)
    before = rows(tables)
    outcome = tables.apply(DeleteStream("/s", NOW, force=True))
    assert outcome.stream.topics == 1500
    assert before - rows(tables) <= 2 * AT_ONCE
    assert tables.reader.streams.at("/s") is None
    assert tables.reader.topics.by_ids(ids) == {}
    assert tables.reader.topics.of_all_streams() == []
    assert tables.reader.groups.committed_offsets("g") == []
    assert tables.reader.streams.totals() == (0, 0, 0)
    assert tables.reader.is_forgetting()
    assert tables.reader.chains.open_in(ContainerId(5)) == []
    commits = CommitOffsets("g", -1, "", [CommittedOffset(ids[-1], 0, Offset(1), LeaderEpoch(-1))], NOW)
    assert tables.apply(commits) == [Code.UNKNOWN_TOPIC_OR_PARTITION]
    assert forget_all(tables) > 2
    assert rows(tables) == 0
    assert not tables.reader.is_forgetting()


def test_names_can_be_used_again_at_once(tables: Tables) -> None:
    create(tables, 1500)
    first = tables.reader.streams.at("/s")
    tables.apply(DeleteStream("/s", NOW, force=True))
    assert tables.apply(CreateStream("/s", StreamPolicy(), NOW)).changed
    create(tables, 3)
    forget_all(tables)
    second = tables.reader.streams.at("/s")
    assert first is not None
    assert second is not None
    assert second.number != first.number
    assert [row.name for row in tables.reader.topics.page("/s")] == ["t-0", "t-1", "t-2"]
    assert len(tables.reader.chains.open_in(ContainerId(5))) == 3


def test_topic_ids_can_be_used_again_at_once_as_copies_do(tables: Tables) -> None:
    ids = create(tables, 1500)
    commit(tables, ids)
    tables.apply(DeleteStream("/s", NOW, force=True))
    tables.apply(CreateStream("/s", StreamPolicy(), NOW))
    again = [NewTopic("/s", f"t-{at}", id_, 1, {}, [ContainerId(6)], [Epoch(1)]) for at, id_ in enumerate(ids[-20:])]
    assert {each.code for each in tables.apply(CreateTopics(again, NOW))} == {Code.NONE}
    forget_all(tables)
    assert {row.topic_id for row in tables.reader.topics.page("/s")} == set(ids[-20:])
    assert tables.reader.groups.committed_offsets("g") == []  # none of the committed offsets of the topic's former life
    assert len(tables.reader.chains.open_in(ContainerId(6))) == 20


def test_an_id_with_too_many_rows_left_is_refused_with_a_clear_error(tables: Tables) -> None:
    (topic_id,) = create(tables, 1, partitions=3 * AT_ONCE)
    tables.apply(DeleteTopics([topic_id], NOW))
    item = NewTopic("/s", "again", topic_id, 1, {}, [ContainerId(6)], [Epoch(1)])
    (refused,) = tables.apply(CreateTopics([item], NOW))
    assert refused.code is Code.INVALID_REQUEST
    assert "try again" in refused.message
    forget_all(tables)
    (made,) = tables.apply(CreateTopics([item], NOW))
    assert made.code is Code.NONE


def test_topics_with_many_rows_are_gone_at_once_and_their_rows_in_bounded_steps(tables: Tables) -> None:
    heavy = create(tables, 2, partitions=2 * AT_ONCE)
    commit(tables, heavy)
    before = rows(tables)
    outcomes = tables.apply(DeleteTopics(heavy, NOW))
    assert [len(each.partitionlets) for each in outcomes] == [2 * AT_ONCE] * 2
    assert before - rows(tables) <= AT_ONCE + 2
    assert tables.reader.topics.by_ids(heavy) == {}
    assert tables.reader.streams.totals() == (1, 0, 0)
    assert create(tables, 1)
    forget_all(tables)
    assert rows(tables) == 2  # the topic of that name that was created meanwhile


def test_two_lives_of_a_heavy_topic_go_beside_each_other(tables: Tables) -> None:
    for _ in range(2):
        tables.apply(DeleteTopics(create(tables, 1, partitions=2 * AT_ONCE), NOW))
    forget_all(tables)
    assert rows(tables) == 0


def test_few_topics_are_gone_with_their_rows_at_once(tables: Tables) -> None:
    ids = create(tables, 100)
    tables.apply(DeleteTopics(ids[:50], NOW))
    assert not tables.reader.is_forgetting()
    tables.apply(DeleteStream("/s", NOW, force=True))
    assert not tables.reader.is_forgetting()
    assert rows(tables) == 0


def test_partitionlets_live_until_their_rows_go(tables: Tables) -> None:
    """The component that frees bytes looks only once: at the end, when it is notified."""
    create(tables, 1500)
    tables.apply(DeleteStream("/s", NOW, force=True))
    last = partitionlet_id(stream=StreamNumber(1), serial=1500)
    assert last in tables.reader.chains.owners([last])
    forget_all(tables)
    assert tables.reader.chains.owners([last]) == {}
    assert tables.reader.chains.not_yet_made([last]) == []


def test_replicas_delete_the_same_rows_at_the_same_command_be_there_checksums_and_indexes_or_not(
    tmp_path: Path,
) -> None:
    """While the level rises some nodes have checksums, and others do not yet; and a node may find rows by another plan,
    such as if its disk had no room for an index."""
    replicas = [Tables(tmp_path / f"{name}.sqlite", sums=name != "bare") for name in ("summed", "bare", "unindexed")]
    for index in ("chains", "cursors_by_topic"):
        replicas[-1].connection.execute(f"DROP INDEX {index}")
    ids = [at.to_bytes(16, "big") for at in range(900)]
    made = [
        NewTopic("/s", f"t-{7 * at % 900}", each, 1, {}, [ContainerId(5)], [Epoch(1)]) for at, each in enumerate(ids)
    ]
    loose = NewTopic("/o", "loose", b"l" * 16, 1300, {}, [ContainerId(5)] * 1300, [Epoch(1)] * 1300)
    committed_offsets = [CommittedOffset(each, 0, Offset(1), LeaderEpoch(-1)) for each in ids]
    steps = [
        RaiseLevel(1),
        *(CreateStream(path, StreamPolicy(), NOW) for path in ("/s", "/o", "/small")),
        CreateTopics([*made, loose], NOW),
        *(CommitOffsets(group, -1, "", committed_offsets, NOW) for group in ("b", "a")),
        DeleteTopics([loose.topic_id], NOW),
        DeleteStream("/s", NOW, force=True),
        DeleteStream("/small", NOW),
        *(ForgetDeleted() for _ in range(6)),
        SkipNumbers(1),
    ]
    for step in steps:
        assert len({repr(each.apply(step)) for each in replicas}) == 1
        for table, columns in COLUMNS.items():
            listed = ", ".join(f'"{column}"' for column in columns if column != "totals")
            found = [set(each.connection.execute(f"SELECT {listed} FROM {table}")) for each in replicas]
            assert found[0] == found[1] == found[2], (table, step)
    for each in replicas:
        assert not each.reader.is_forgetting()
        each.close()


def test_a_deletion_goes_on_behind_a_restart(tmp_path: Path) -> None:
    tables = Tables(tmp_path / "catalog.sqlite")
    tables.apply(RaiseLevel(1))
    tables.apply(CreateStream("/s", StreamPolicy(), NOW))
    create(tables, 1500)
    tables.apply(DeleteStream("/s", NOW, force=True))
    tables.apply(ForgetDeleted())
    position = tables.position
    tables.close()
    tables = Tables(tmp_path / "catalog.sqlite")
    tables.position = position
    forget_all(tables)
    assert rows(tables) == 0
    assert tables.apply(ForgetDeleted()).rows == 0
    tables.close()


def test_below_the_level_a_stream_goes_as_it_always_did(tmp_path: Path) -> None:
    tables = Tables(tmp_path / "catalog.sqlite")
    tables.apply(CreateStream("/s", StreamPolicy(), NOW))
    ids = create(tables, 1500)
    tables.apply(DeleteTopics(ids[:5], NOW))
    tables.apply(DeleteStream("/s", NOW, force=True))
    assert rows(tables) == 0
    assert not tables.reader.is_forgetting()
    assert tables.connection.execute("SELECT count(*) FROM free_streams").fetchone() == (0,)
    tables.close()


# --- numbers


def test_numbers_of_deleted_streams_are_given_again_and_never_a_partitionlets_id(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "MAX_STREAM_NUMBER", 5)
    seen: set[int] = set()
    for life in range(30):
        path = f"/life-{life}"
        assert tables.apply(CreateStream(path, StreamPolicy(), NOW)).changed
        create(tables, 3, stream=path)
        ids = {row.id for row in tables.reader.chains.open_in(ContainerId(5))}
        assert ids.isdisjoint(seen)
        seen |= ids
        tables.apply(DeleteStream(path, NOW, force=True))
    for number in range(4):  # "/s" has one already
        tables.apply(CreateStream(f"/more-{number}", StreamPolicy(), NOW))
    with pytest.raises(KafkaError, match="at most 5 streams; delete some") as refused:
        tables.apply(CreateStream("/one-too-many", StreamPolicy(), NOW))
    assert refused.value.code is Code.POLICY_VIOLATION


def test_what_lags_behind_does_not_take_a_new_life_of_a_number_for_dead(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "MAX_STREAM_NUMBER", 2)
    tables.apply(CreateStream("/a", StreamPolicy(), NOW))
    create(tables, 3, stream="/a")
    behind = partitionlet_id(stream=StreamNumber(2), serial=4)  # the first serial of the number's next life
    assert tables.reader.chains.not_yet_made([behind]) == [behind]
    tables.apply(DeleteStream("/a", NOW, force=True))
    assert tables.reader.chains.not_yet_made([behind]) == [behind]
    assert tables.reader.chains.not_yet_made([PartitionletId(behind - 1)]) == []
    tables.apply(CreateStream("/b", StreamPolicy(), NOW))
    assert tables.reader.chains.not_yet_made([behind]) == [behind]
    create(tables, 1, stream="/b")
    assert [row.id for row in tables.reader.chains.open_in(ContainerId(5))] == [behind]
    assert tables.reader.chains.not_yet_made([behind]) == []


def test_numbers_outlast_thousands_of_unclean_recoveries(tables: Tables) -> None:
    create(tables, 1)
    given = {row.id for row in tables.reader.chains.open_in(ContainerId(5))}
    for recovered in range(1, 1001):
        tables.apply(SkipNumbers(recovered))
        if recovered % 100 == 0:
            path = f"/r-{recovered}"
            tables.apply(CreateStream(path, StreamPolicy(), NOW))
            create(tables, 1, stream=path)
            given.update(row.id for row in tables.reader.chains.open_in(ContainerId(5)))
    assert len(given) == 11
    assert max(serial_of(id_) for id_ in given) < 1001 * 2**24 < 2**40


def test_what_a_lost_command_may_have_given_is_not_given_again(
    tables: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream may get the same number again, but never a partitionlet with the id of a lost stream's."""
    monkeypatch.setattr(streams, "MAX_STREAM_NUMBER", 4)
    monkeypatch.setattr(recovery, "MAX_STREAM_NUMBER", 4)
    lost = {partitionlet_id(stream=StreamNumber(number), serial=serial) for number in (2, 3, 4) for serial in range(9)}
    tables.apply(SkipNumbers(1))
    for number in range(3):
        tables.apply(CreateStream(f"/n-{number}", StreamPolicy(), NOW))
        create(tables, 2, stream=f"/n-{number}")
    made = {row.id for row in tables.reader.chains.open_in(ContainerId(5))}
    assert len(made) == 6
    assert made.isdisjoint(lost)
    assert tables.reader.chains.not_yet_made(lost) == []  # so their bytes are freed


def test_serials_end_with_an_error_and_never_in_the_next_stream(tables: Tables) -> None:
    (topic_id,) = create(tables, 1)
    last = 2**40 - 1
    tables.connection.update("streams", {"next_serial": "?1"}, "true", last)
    create_one = CreateTopics([NewTopic("/s", "last", b"l" * 16, 1, {}, [ContainerId(5)], [Epoch(1)])], NOW)
    assert tables.apply(create_one)[0].partitionlets[0].id == partitionlet_id(stream=StreamNumber(1), serial=last)
    with pytest.raises(KafkaError, match="at most 1099511627776 partitionlets"):
        tables.apply(CreateTopics([NewTopic("/s", "no", b"n" * 16, 1, {}, [ContainerId(5)], [Epoch(1)])], NOW))
    (open_one,) = tables.reader.chains.chain(1, 0)
    (refused,) = tables.apply(RollIntent([RollTarget(topic_id, 0, open_one.id, ContainerId(6))], NOW))
    assert refused.code is Code.POLICY_VIOLATION


def test_a_partition_whose_leader_epochs_are_used_up_rolls_no_more(tables: Tables) -> None:
    (topic_id,) = create(tables, 1)
    tables.connection.update("partitionlets", {"leader_epoch": "?1"}, "true", 2**31 - 2**20)
    (open_one,) = tables.reader.chains.chain(1, 0)
    (refused,) = tables.apply(RollIntent([RollTarget(topic_id, 0, open_one.id, ContainerId(6))], NOW))
    assert refused.code is Code.POLICY_VIOLATION
    assert "leader epochs are used up" in refused.message


# --- committed offsets


def test_committed_offsets_expire_in_steps_as_they_do_in_one(tmp_path: Path) -> None:
    left = []
    for name in ("whole", "steps"):
        tables = Tables(tmp_path / f"{name}.sqlite")
        tables.apply(CreateStream("/s", StreamPolicy(), NOW))
        ids = [topic.to_bytes(16, "big") for topic in range(1, 401)]
        items = [NewTopic("/s", each.hex(), each, 1, {}, [ContainerId(5)], [Epoch(1)]) for each in ids]
        tables.apply(CreateTopics(items, NOW))
        for group in range(30):
            commit(tables, ids[: 1 + group * 13], group=f"g-{group:02d}", now=5)
            if group % 3 == 1:
                commit(tables, ids[: group * 5], group=f"g-{group:02d}", now=50)
        before = Millis(20)
        steps = 0
        if name == "whole":
            tables.apply(ExpireOffsets(before))
        else:
            after: tuple[str, int, int] | None = ("", -1, -1)
            while after is not None:
                changes = tables.connection.total_changes
                after = tables.apply(ExpireSomeOffsets(before, after)).after
                assert tables.connection.total_changes - changes <= 2 * 1000 + 2
                steps += 1
            assert steps > 3
        left.append(
            (
                tables.connection.execute("SELECT * FROM cursors").fetchall(),
                tables.connection.execute("SELECT name FROM groups").fetchall(),
            )
        )
        tables.close()
    assert left[0] == left[1]
    assert left[0][0]


def test_a_group_that_is_at_work_keeps_its_committed_offsets(tables: Tables) -> None:
    ids = create(tables, 3)
    commit(tables, ids, group="b")
    tables.connection.update("groups", {"member_ids": "x'91a16d'"}, "true")
    assert tables.apply(ExpireSomeOffsets(Millis(99))) == (0, 0, None)
    tables.connection.update("groups", {"member_ids": "x'90'"}, "true")
    assert tables.apply(ExpireSomeOffsets(Millis(99))) == (3, 1, None)
    assert tables.apply(DeleteGroups(["b"])) == [Code.GROUP_ID_NOT_FOUND]


# --- tables of before


def test_tables_of_before_get_what_is_new_and_a_full_disk_does_not_keep_them_shut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "catalog.sqlite"
    connection = open_tables(path, sums=False)
    apply_all(connection, [(Position(1), CreateStream("/s", StreamPolicy(), NOW))], SCHEMA)
    for each in ("partitionlets_by_container", "partitionlets_intended", "topics_moved"):
        connection.execute(f"DROP INDEX {each}")
    connection.execute("DROP TABLE going")
    connection.execute("DROP TABLE free_streams")
    connection.close()
    connection = open_tables(path)
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    assert {"going", "free_streams", "partitionlets_by_container", "partitionlets_intended", "topics_moved"} <= names
    connection.close()


def test_how_much_one_step_does_belongs_to_the_commands_and_never_changes() -> None:
    """Every replica deletes the same rows at the same command, whichever version it runs."""
    assert deletions.AT_ONCE == committed_offsets.AT_ONCE == 1000
