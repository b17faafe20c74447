"""Damage of the catalog's tables is found wherever it is: every answer is right, or an error."""

import asyncio
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from headrace.base.errors import Code, HeadraceError, KafkaError
from headrace.base.ids import (
    ContainerId,
    Epoch,
    LeaderEpoch,
    Offset,
    PartitionletId,
    Position,
    StreamNumber,
    partitionlet_id,
)
from headrace.catalog import deletions
from headrace.catalog import topics as catalog_topics
from headrace.catalog.access import AccessItem, SecureCluster, SetAccess
from headrace.catalog.catalog import Catalog
from headrace.catalog.chains import LogStart, RetireContainer, RollDone, Rolled, RollIntent, RollTarget, SetLogStart
from headrace.catalog.committed_offsets import CommitOffsets, CommittedOffset
from headrace.catalog.deletions import ForgetDeleted
from headrace.catalog.feature_level import RaiseLevel
from headrace.catalog.groups import PutGroup
from headrace.catalog.homes import HomeChange, SetHome
from headrace.catalog.link_config import LinkConfig
from headrace.catalog.links import PutLink
from headrace.catalog.policy import StreamPolicy
from headrace.catalog.quotas import AlterQuotas, Quota
from headrace.catalog.reader import Reader
from headrace.catalog.streams import CreateStream, DeleteStream
from headrace.catalog.tables import SCHEMA, UNSUMMED_FORMAT, open_tables
from headrace.catalog.topics import CreatePartitions, CreateTopics, DeleteTopics, NewTopic
from headrace.catalog.users import AlterCredentials, Credential, PutUser
from headrace.tables import snapshots, table_check
from headrace.tables.outcomes import CatalogFailed
from headrace.tables.row_checksums import COLUMNS, GRID, KEYS, SHAPE, row_sum, shape_of
from headrace.tables.sqlite_errors import TablesDamaged, is_damage
from headrace.tables.transactions import apply_all
from kit.catalog import NOW, MemoryLog, Tables, paths, stream, topics, until

TOPIC = b"t" * 16
MOVED = b"m" * 16


def commands() -> list[Any]:
    """Commands that put rows into each table."""
    return [
        CreateStream("/s", StreamPolicy(), NOW),
        CreateTopics(
            [
                NewTopic("/s", "t", TOPIC, 2, {"retention.ms": "5"}, [ContainerId(1)] * 2, [Epoch(1)] * 2),
                NewTopic(
                    "/s", "m", MOVED, 1, {}, [ContainerId(1)], [Epoch(1)], home=(2, "there"),
                    histories=[(0, 2, "there", Offset(0))],
                ),
            ],
            NOW,
        ),
        SetLogStart([LogStart(TOPIC, 0, Offset(3))]),
        PutGroup("g", 1, "consumer", "range", "", ["a"], b"members", "Stable", NOW),
        CommitOffsets("g", 1, "a", [CommittedOffset(TOPIC, 0, Offset(77), LeaderEpoch(4), "noted")], NOW),
        RetireContainer(ContainerId(9)),
        PutLink("l", "/s", LinkConfig(["there:1"], "/s"), NOW, create=True),
        SetHome([HomeChange(MOVED, 3, "here", lists={0: [(3, "here", Offset(0))]})]),
        RaiseLevel(1),
        CreateStream("/gone", StreamPolicy(), NOW),
        DeleteStream("/gone", NOW),
        CreateStream("/going", StreamPolicy(), NOW),
        CreateTopics(
            [
                NewTopic("/going", f"g{each}", bytes([each]) * 16, 1, {}, [ContainerId(1)], [Epoch(1)])
                for each in range(3)
            ],
            NOW,
        ),
        DeleteStream("/going", NOW, force=True),
        RaiseLevel(2),
        PutUser("alice", ["ops", "sensors"], NOW, create=True),
        AlterCredentials(
            [], [Credential(user, "SCRAM-SHA-256", b"salt", b"s" * 32, b"v" * 32, 4096) for user in ("alice", "bob")],
            NOW,
        ),
        SetAccess([AccessItem("cluster", "", "admin", "u:alice"), AccessItem("group", "g", "consume", "g:ops")], NOW),
        SetAccess([AccessItem("stream", "/s", "produce", "p"), AccessItem("topic", "", "copy", "", TOPIC)], NOW),
        SecureCluster(on=True),
        AlterQuotas([Quota('{"user":"alice"}', "producer_byte_rate", 1e6)]),
    ]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def few_at_once() -> Iterator[None]:
    """Make deletions stop after few rows, so that a stream is still being deleted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deletions, "AT_ONCE", 2)
        yield


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[Tables]:
    made = Tables(tmp_path / "catalog.sqlite")
    for command in commands():
        made.apply(command)
    yield made
    made.close()


def all_answers(reader: Reader) -> dict[str, Any]:
    """The answers about every row of every table, as queries return them."""
    return {table: answered(reader, table) for table in COLUMNS}


def answered(reader: Reader, table: str) -> list[Any]:
    columns = ", ".join(f'"{column}"' for column in COLUMNS[table] if column != "totals")
    return reader._connection.execute(f"SELECT {columns} FROM {table} ORDER BY 1").fetchall()


def test_there_is_a_row_in_each_table(tables: Tables) -> None:
    assert [table for table, rows in all_answers(tables.reader).items() if not rows] == []
    assert table_check.damage_in(Path(tables.reader._connection.execute("PRAGMA database_list").fetchone()[2])) == []


def test_the_columns_are_those_of_the_schema(tables: Tables) -> None:
    for table, columns in COLUMNS.items():
        found = tables.connection.execute(f"SELECT name, pk FROM pragma_table_info('{table}', 'main')").fetchall()
        assert [name for name, _ in found] == [*columns, "sum"]
        assert [name for name, pk in found if pk] == list(columns[: KEYS.get(table, 1)])
    names = "SELECT name FROM main.sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    assert {name for (name,) in tables.connection.execute(names)} == {*COLUMNS, "deaths"}, "that one is each node's own"


PAGE = 4096
PAGE_HEAD = 128
"""Bytes at the beginning of a page with few rows that hold its head and the locations of the rows."""
MATTERS: list[Callable[[Reader, list[PartitionletId]], Any]] = [
    lambda reader, alive: reader.chains.owners(alive),
    lambda reader, alive: reader.chains.live(alive),
    lambda reader, alive: reader.chains.not_yet_made(alive),
    lambda reader, _: reader.chains.not_yet_made([partitionlet_id(stream=at, serial=99) for at in (1, 2, 3, 4, 77)]),
    lambda reader, _: reader.groups.committed_offsets("g"),
    lambda reader, _: reader.groups.committed_offsets("g", [1]),
    lambda reader, _: reader.groups.committed_offsets_after(("", -1, -1), limit=1),
    lambda reader, _: reader.groups.committed_offsets_after(("g", 1, 0), limit=50),
    lambda reader, _: reader.groups.committed_offsets_after(("", -1, -1), limit=-1),
    lambda reader, _: [reader.streams.at(path) for path in ("/s", "/none")],
    lambda reader, _: [reader.streams.by_number(StreamNumber(number)) for number in (1, 77)],
    lambda reader, _: reader.streams.page(),
    lambda reader, _: reader.streams.page(after="/s", limit=1),
    lambda reader, _: reader.streams.totals(),
    lambda reader, _: [reader.topics.at("/s", name) for name in ("t", "m", "none")],
    lambda reader, _: reader.topics.named("/s", ["m", "none", "t"]),
    lambda reader, _: reader.topics.by_ids([TOPIC, MOVED, b"n" * 16]),
    lambda reader, _: reader.topics.page("/s"),
    lambda reader, _: reader.topics.page("/s", after="m", limit=1),
    lambda reader, _: reader.topics.of_all_streams(),
    lambda reader, _: reader.topics.of_all_streams(after=(1, "m"), limit=1),
    lambda reader, _: reader.topics.of_all_streams(limit=-1),
    lambda reader, _: reader.topics.check_new(
        [
            NewTopic(path, name, topic_id, 1, {}, [ContainerId(container)], [Epoch(1)])
            for path, name, topic_id, container in (
                ("/s", "t", b"n" * 16, 1),
                ("/s", "n", TOPIC, 1),
                ("/s", "o", b"o" * 16, 9),
                ("/none", "t", TOPIC, 1),
            )
        ]
    ),
    lambda reader, _: [reader.groups.named(name) for name in ("g", "none")],
    lambda reader, _: reader.groups.page(),
    lambda reader, _: reader.groups.page(after="a", limit=1),
    lambda reader, _: reader.chains.open_of([1, 2, 77]),
    lambda reader, _: [reader.chains.chain(topic) for topic in (1, 2, 77)],
    lambda reader, _: [reader.chains.chain(1, partition) for partition in (0, 1, 7)],
    lambda reader, _: reader.chains.of_stream(StreamNumber(1), after=PartitionletId(0)),
    lambda reader, _: reader.chains.of_stream(StreamNumber(1), after=partitionlet_id(stream=StreamNumber(1), serial=2)),
    lambda reader, _: reader.chains.intended(),
    lambda reader, _: [reader.chains.open_in(ContainerId(number)) for number in (1, 2, 3, 77)],
    lambda reader, _: reader.chains.open_in(ContainerId(1), limit=1),
    lambda reader, _: reader.chains.open_in(ContainerId(1), after=partitionlet_id(stream=StreamNumber(1), serial=1)),
    lambda reader, _: reader.chains.open_in(ContainerId(1), before=1),
    lambda reader, _: reader.chains.open_in(ContainerId(1), before=2),
    lambda reader, _: [reader.chains.sealed_in(ContainerId(number)) for number in (1, 2)],
    lambda reader, _: reader.chains.containers(),
    lambda reader, _: reader.chains.log_starts([1, 2]),
    lambda reader, _: reader.level(),
    lambda reader, _: reader.is_forgetting(),
    lambda reader, _: reader.streams.retention_of([StreamNumber(1), StreamNumber(77)]),
    lambda reader, _: reader.streams.retention_of([StreamNumber(number) for number in (1, 2, 3, 4, 5)]),
    lambda reader, _: reader.links.all(),
    lambda reader, _: [reader.links.all(path) for path in ("/s", "/none")],
    lambda reader, _: [reader.links.named(name) for name in ("l", "none")],
    lambda reader, _: reader.homes.copies("/s", "here"),
    lambda reader, _: reader.homes.copies("/s", "there", limit=1),
    lambda reader, _: reader.homes.copies("/s", "here", limit=-1),
    lambda reader, _: reader.homes.histories([1, 2, 77]),
    lambda reader, _: reader.homes.settled([1, 2, 77]),
    lambda reader, _: [reader.homes.settled_at(topic, 0) for topic in (1, 2, 77)],
    lambda reader, _: reader.homes.pending([1, 2, 77]),
    lambda reader, _: reader.homes.unsettled(),
    lambda reader, _: reader.homes.unsettled(after=2, limit=1),
    lambda reader, _: [reader.users.named(name) for name in ("alice", "bob", "none")],
    lambda reader, _: reader.users.page(),
    lambda reader, _: reader.users.page(after="alice", limit=1),
    lambda reader, _: [
        reader.users.credential(user, mechanism)
        for user, mechanism in (("alice", "SCRAM-SHA-256"), ("alice", "SCRAM-SHA-512"), ("none", "SCRAM-SHA-256"))
    ],
    lambda reader, _: reader.users.mechanisms(),
    lambda reader, _: reader.users.quotas(),
    lambda reader, _: reader.access.is_secured(),
    lambda reader, _: reader.access.all(),
]
"""Queries whose answer must never be as if an existing row were missing."""


class Whole:
    """The bytes of a file of the tables, complete in one file, and the answers from it."""

    def __init__(self, content: bytes, answers: dict[str, Any], alive: list[PartitionletId], asked: list[Any]) -> None:
        self.content = content
        self.answers = answers
        self.alive = alive
        self.asked = asked


def more_rows(tables: Tables) -> None:
    """Commands that surround rows by others: streams, topics, a chain, partitionlets of containers, groups, links."""

    def opened(topic: int, partition: int) -> PartitionletId:
        return tables.reader.chains.open_of([topic])[topic][partition].id

    def roll(topic_id: bytes, topic: int, to: int, *, end: int, done: bool = True) -> None:
        sealed = opened(topic, 0)
        (intent,) = tables.apply(RollIntent([RollTarget(topic_id, 0, sealed, ContainerId(to))], NOW))
        if done:
            epochs = [(LeaderEpoch(0), Offset(0))]
            item = Rolled(topic_id, 0, sealed, Offset(end), epochs, intent.partitionlet.id, Epoch(2))
            tables.apply(RollDone([item], NOW))

    for path in ("/u", "/b"):
        tables.apply(CreateStream(path, StreamPolicy(ttl_ms=7), NOW))
        tables.apply(PutLink(f"l{path}", path, LinkConfig(["there:1"], path), NOW, create=True))
    copies = [
        NewTopic(
            "/s", f"c{at}", bytes([40 + at]) * 16, 1, {}, [ContainerId(2)], [Epoch(1)], home=(3 + at, "there"),
            histories=[(0, 3 + at, "there", Offset(0))],
        )
        for at in range(3)
    ]  # fmt: skip
    topics = [
        NewTopic(path, f"n{at}", bytes([50 + at]) * 16, 2, configs, [ContainerId(1)] * 2, [Epoch(at)] * 2)
        for at, (path, configs) in enumerate(
            [("/s", {"retention.ms": "6"}), ("/s", {}), ("/u", {"retention.bytes": "9"}), ("/b", {"retention.ms": "1"})]
        )
    ]
    made = [outcome.topic for outcome in tables.apply(CreateTopics([*copies, *topics], NOW))]
    tables.apply(SetHome([HomeChange(copies[1].topic_id, 9, "here", lists={0: [(9, "here", Offset(0))]})]))
    for end in (5, 7, 9):
        roll(TOPIC, 1, 2, end=end)
    roll(topics[1].topic_id, made[4].number, 3, end=0, done=False)
    roll(topics[2].topic_id, made[5].number, 3, end=0, done=False)
    for group in ("b", "h"):
        committed_offsets = [
            CommittedOffset(topic_id, 0, Offset(5), LeaderEpoch(1)) for topic_id in (TOPIC, MOVED, topics[0].topic_id)
        ]
        tables.apply(CommitOffsets(group, -1, "", committed_offsets, NOW))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Whole:
    made = Tables(tmp_path_factory.mktemp("whole") / "catalog.sqlite")
    for command in commands():
        made.apply(command)
    if (more := getattr(request, "param", None)) is not None:
        more(made)
    answers = all_answers(made.reader)
    live = Path(made.reader._connection.execute("PRAGMA database_list").fetchone()[2])
    alive = "SELECT p.id FROM partitionlets p JOIN topics t ON t.number = p.topic JOIN streams s ON s.number = t.stream"
    ids = [PartitionletId(id_) for (id_,) in made.connection.execute(alive)]
    asked = [each(made.reader, ids) for each in MATTERS]
    made.close()
    return Whole(live.read_bytes(), answers, ids, asked)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_whichever_bit_of_the_file_flips_no_answer_is_wrong_and_the_check_finds_it(
    tmp_path: Path, whole: Whole, where: float, bit: int
) -> None:
    """A flip that changes no answer (such as of a free byte) need not be found."""
    content, answers = whole.content, whole.answers
    used = [at for at, byte in enumerate(content) if byte]  # most of a small file consists of zeros that are never read
    at = used[int(where * len(used))]
    flipped = bytearray(content)
    flipped[at] ^= 1 << bit
    path = tmp_path / "flipped.sqlite"
    for part in ("", "-wal", "-shm"):
        path.with_name(path.name + part).unlink(missing_ok=True)
    path.write_bytes(flipped)
    found = table_check.damage_in(path)
    reader = None
    try:
        reader = Reader(path)
        for table, rows in answers.items():
            try:
                found_rows = answered(reader, table)
            except UnicodeDecodeError:
                continue
            except sqlite3.DatabaseError as error:
                assert is_damage(error), repr(error)  # noqa: PT017
                continue
            # Damage that no row shows, such as a missing row, is found by the check, before the tables are used or
            # given away.
            assert found_rows == rows or found, (at, bit, table)
            assert all(row in rows for row in found_rows), (at, bit, table)
    except (sqlite3.DatabaseError, UnicodeDecodeError, HeadraceError):
        pass  # the file cannot be opened at all
    finally:
        if reader is not None:
            reader.close()


def changed(path: Path, statement: str, *parameters: object) -> None:
    """Change rows without updating the checksums."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=30)
    assert connection.execute(statement, parameters).rowcount > 0
    connection.close()


COLUMNS_OF_ALL = [(table, column) for table, columns in COLUMNS.items() for column in columns]


@pytest.mark.parametrize(("table", "column"), COLUMNS_OF_ALL)
def test_a_column_that_has_another_value_is_found_by_whoever_reads_the_row(
    tables: Tables, tmp_path: Path, table: str, column: str
) -> None:
    path = tmp_path / "catalog.sqlite"
    (value,) = tables.connection.execute(f'SELECT "{column}" FROM main.{table} LIMIT 1').fetchone()
    other: object
    match value:
        case int():
            other = value ^ 1 << 12
        case str():
            other = value + "!" if not value else chr(ord(value[0]) ^ 1) + value[1:]
        case bytes():
            other = bytes([value[0] ^ 4]) + value[1:]
        case _:
            other = 7
    key = ", ".join(f'"{each}"' for each in COLUMNS[table][: KEYS.get(table, 1)])
    changed(
        path,
        f'UPDATE {table} SET "{column}" = ? WHERE ({key}) = (SELECT {key} FROM {table} ORDER BY {key} LIMIT 1)',
        other,
    )
    with pytest.raises(sqlite3.OperationalError) as raised:
        tables.reader._connection.execute(f"SELECT * FROM {table}").fetchall()
    assert is_damage(raised.value)
    assert any(line.startswith(f"{table}: ") for line in table_check.damage_in(path))


def test_a_damaged_row_is_not_changed_and_its_sum_is_not_made_anew(tables: Tables, tmp_path: Path) -> None:
    changed(tmp_path / "catalog.sqlite", "UPDATE streams SET next_serial = 1")
    (open_one,) = tables.connection.execute("SELECT id FROM partitionlets WHERE partition = 1").fetchone()
    with pytest.raises(sqlite3.OperationalError):
        tables.apply(RollIntent([RollTarget(TOPIC, 1, open_one, ContainerId(3))], NOW))
    tables.position -= 100
    assert table_check.damage_in(tmp_path / "catalog.sqlite")


@pytest.mark.parametrize("whole", [None, more_rows], ids=["few", "more"], indirect=True)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
@example(where=0.41185707, bit=0)  # few rows: the stream of a topic in the index of topics with their own retention
@example(where=0.39922765, bit=0)  # more rows: the same
@example(where=0.7887724056585746, bit=0)  # few rows: the number of a moved topic in the index of these
def test_whichever_bit_flips_no_query_answers_as_if_a_row_were_not_there(
    tmp_path: Path, whole: Whole, where: float, bit: int
) -> None:
    """Even if a key has changed, and a row is not found by it. The exception are bytes that locate rows in a page,
    whose damage the check of the whole file finds."""
    used = [at for at, byte in enumerate(whole.content) if byte and at % PAGE >= PAGE_HEAD]
    at = used[int(where * len(used))]
    flipped = bytearray(whole.content)
    flipped[at] ^= 1 << bit
    path = tmp_path / "flipped.sqlite"
    for part in ("", "-wal", "-shm"):
        path.with_name(path.name + part).unlink(missing_ok=True)
    path.write_bytes(flipped)
    reader = None
    try:
        reader = Reader(path)
        for number, asked in enumerate(MATTERS):
            try:
                assert asked(reader, whole.alive) == whole.asked[number], (at, bit, number)
            except UnicodeDecodeError:
                continue
            except sqlite3.DatabaseError as error:
                assert is_damage(error), repr(error)  # noqa: PT017
    except (sqlite3.DatabaseError, UnicodeDecodeError, HeadraceError):
        pass  # the file cannot be opened at all
    finally:
        if reader is not None:
            reader.close()


def test_a_command_that_misses_a_row_that_has_to_be_there_is_no_refusal(
    tables: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command succeeds on all other nodes."""

    def misses(*_: object, **__: object) -> None:
        (_value,) = None  # type: ignore[misc]  # what a row that is not there gives

    monkeypatch.setattr(catalog_topics, "take_serials", misses)
    make = CreateTopics([NewTopic("/s", "u", b"u" * 16, 1, {}, [ContainerId(1)], [Epoch(1)])], NOW)
    with pytest.raises(KafkaError):
        tables.apply(make)
    changed(
        tmp_path / "catalog.sqlite", "UPDATE streams SET number = number + 4096 WHERE path = '/gone' OR path = '/s'"
    )
    with pytest.raises(sqlite3.DatabaseError) as told:
        tables.apply(make)
    assert is_damage(told.value)


def test_rows_that_are_missing_or_older_than_the_others_are_found_by_the_totals(tables: Tables, tmp_path: Path) -> None:
    path = tmp_path / "catalog.sqlite"
    older = tables.connection.execute("SELECT *, sum FROM main.cursors").fetchone()
    tables.apply(CommitOffsets("g", 1, "a", [CommittedOffset(TOPIC, 0, Offset(99), LeaderEpoch(4))], NOW))
    assert table_check.damage_in(path) == []
    changed(path, 'UPDATE cursors SET "offset" = ?, metadata = ?, sum = ?', older[3], older[5], older[-1])
    assert table_check.damage_in(path) == ["cursors: rows are missing, or are older than the others"]
    changed(path, "DELETE FROM cursors")
    assert table_check.damage_in(path) == ["cursors: rows are missing, or are older than the others"]


def test_an_index_that_leads_to_no_row_is_found_by_the_check(tables: Tables, tmp_path: Path) -> None:
    path = tmp_path / "catalog.sqlite"
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA writable_schema=ON")
    connection.execute("UPDATE sqlite_schema SET sql = 'CREATE INDEX chains ON partitionlets(topic, state, container)' "
                       "WHERE name = 'chains'")  # fmt: skip
    connection.close()
    assert any(line.startswith("structure: ") for line in table_check.damage_in(path))


def test_the_totals_of_two_that_applied_the_same_are_equal_however_it_was_cut_into_transactions(tmp_path: Path) -> None:
    work = [(Position(GRID // 3 * number), command) for number, command in enumerate(commands(), start=1)]
    one, other = open_tables(tmp_path / "one.sqlite"), open_tables(tmp_path / "other.sqlite")
    apply_all(one, work, SCHEMA)
    for each in work:
        apply_all(other, [each], SCHEMA)
    assert len(one.marks) == (len(work) - 1) // 3
    assert list(one.marks) == list(other.marks)
    assert one.now() == other.now()
    apply_all(one, [(Position(GRID * 8), SetLogStart([LogStart(TOPIC, 1, Offset(5))]))], SCHEMA)
    apply_all(other, [(Position(GRID * 8), SetLogStart([LogStart(TOPIC, 1, Offset(6))]))], SCHEMA)
    assert one.marks[-1].position == other.marks[-1].position
    assert one.marks[-1].digest != other.marks[-1].digest
    one.close()
    other.close()


def test_a_refused_command_moves_no_total(tables: Tables, tmp_path: Path) -> None:
    before = tables.connection.now().digest
    with pytest.raises(KafkaError):
        tables.apply(CommitOffsets("g", 7, "a", [CommittedOffset(TOPIC, 0, Offset(99), LeaderEpoch(4))], NOW))
    assert tables.connection.now().digest == before
    assert table_check.damage_in(tmp_path / "catalog.sqlite") == []


def test_commits_of_offsets_know_a_topic_as_the_commands_before_have_left_it(tables: Tables) -> None:
    def commit(partition: int) -> Any:
        return CommitOffsets("g", 1, "a", [CommittedOffset(TOPIC, partition, Offset(5), LeaderEpoch(4))], NOW)

    assert tables.apply(commit(1)) == [Code.NONE]
    assert tables.apply(commit(2)) == [Code.UNKNOWN_TOPIC_OR_PARTITION]
    more = CreatePartitions(TOPIC, 3, [ContainerId(1)], [Epoch(1)], NOW)
    before = tables.position
    decided = apply_all(tables.connection, [(before + each, command) for each, command in enumerate(
        (commit(2), more, commit(2), DeleteTopics([TOPIC], NOW), commit(0)), start=1
    )], SCHEMA)  # fmt: skip
    tables.position = before + 5
    assert [decided[each] for each in (0, 2, 4)] == [
        [Code.UNKNOWN_TOPIC_OR_PARTITION], [Code.NONE], [Code.UNKNOWN_TOPIC_OR_PARTITION]
    ]  # fmt: skip


def test_what_a_transaction_that_failed_has_read_is_forgotten(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = CommitOffsets("g", 1, "a", [CommittedOffset(TOPIC, 2, Offset(5), LeaderEpoch(4))], NOW)
    more = CreatePartitions(TOPIC, 3, [ContainerId(1)], [Epoch(1)], NOW)

    def fails(_: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as patched:
        patched.setattr(tables.connection, "keep", fails)
        with pytest.raises(sqlite3.OperationalError):
            apply_all(tables.connection, [(tables.position + 1, more), (tables.position + 2, commit)], SCHEMA)
    assert tables.apply(commit) == [Code.UNKNOWN_TOPIC_OR_PARTITION]
    assert table_check.damage_in(path_of(tables)) == []


def path_of(tables: Tables) -> Path:
    return Path(tables.connection.execute("PRAGMA database_list").fetchone()[2])


# --- files without sums


def test_a_file_without_sums_is_written_as_before_until_they_may_be_there(tmp_path: Path) -> None:
    path = tmp_path / "catalog.sqlite"
    older = open_tables(path, sums=False)
    apply_all(older, [(Position(100 * at), command) for at, command in enumerate(commands(), start=1)], SCHEMA)
    assert older.execute("PRAGMA user_version").fetchone() == (UNSUMMED_FORMAT,)
    older.execute("INSERT INTO retired VALUES (5)")  # as the previous version writes it
    assert table_check.damage_in(path) == []
    answers = all_answers(Reader(path))
    older.close()
    newer = open_tables(path)
    assert newer.summed
    assert newer.filled
    assert all_answers(Reader(path)) == answers
    assert table_check.damage_in(path) == []
    changed(path, 'UPDATE cursors SET "offset" = 78')
    with pytest.raises(sqlite3.OperationalError):
        newer.execute("SELECT * FROM cursors").fetchall()
    newer.close()


def test_rows_get_their_sums_piece_by_piece_while_commands_are_applied(tmp_path: Path) -> None:
    path = tmp_path / "catalog.sqlite"
    older = open_tables(path, sums=False)
    apply_all(older, [(Position(100), stream("/s")), (Position(200), topics(30))], SCHEMA)
    older.add_sums()
    position = 200
    while older.fill_some(rows=4):
        position += 100
        apply_all(older, [(Position(position), topics(1))], SCHEMA)
        assert table_check.damage_in(path) == []
    assert position > 2000
    assert older.filled
    assert older.execute("SELECT count(*) FROM main.topics WHERE sum IS NULL").fetchone() == (0,)
    changed(path, "UPDATE topics SET sum = NULL WHERE number = 3")
    with pytest.raises(sqlite3.OperationalError):
        older.execute("SELECT * FROM topics").fetchall()
    older.close()


async def test_a_catalog_gives_its_rows_their_sums_once_the_level_is_raised(tmp_path: Path) -> None:
    level = 0
    catalog = await Catalog.open(tmp_path, MemoryLog(), may=lambda asked: asked <= level)
    await catalog.submit(stream("/s"))
    assert not catalog._connection.summed
    assert await catalog.marks() == []
    assert await paths(catalog) == ["/s"]
    level = 1
    await catalog.submit(stream("/t"))
    await until(lambda: catalog._connection.summed and catalog._connection.filled)
    assert await paths(catalog) == ["/s", "/t"]
    assert await catalog.query(lambda reader: reader.checks)
    assert await catalog.marks() != []
    await catalog.close()
    assert table_check.damage_in(tmp_path / "catalog.sqlite") == []


# --- a catalog at work


async def opened(folder: Path, log: MemoryLog) -> Catalog:
    catalog = await Catalog.open(folder, log)
    for path in ("/a", "/b"):
        await catalog.submit(stream(path))
    return catalog


def damage_stream(folder: Path) -> None:
    changed(folder / "catalog.sqlite", "UPDATE streams SET created = created + 64 WHERE path = '/a'")


def finds_by_query(catalog: Catalog) -> Any:
    return catalog.query(lambda reader: reader.streams.at("/a"))


def finds_by_snapshot(catalog: Catalog) -> Any:
    return catalog.newest_snapshot(catalog.applied, keeps_log=False)


def finds_by_scrub(catalog: Catalog) -> Any:
    return catalog._check_rows("streams", (), 500)


@pytest.mark.parametrize("finds", [finds_by_query, finds_by_snapshot, finds_by_scrub])
async def test_damage_is_told_and_the_tables_are_made_anew_of_the_snapshot_and_the_log(
    tmp_path: Path, finds: Callable[[Catalog], Any]
) -> None:
    log = MemoryLog()
    catalog = await opened(tmp_path, log)
    told = asyncio.Event()
    catalog.on_damage(told.set)
    await catalog.snapshot()
    await catalog.submit(stream("/c"))
    damage_stream(tmp_path)
    with pytest.raises(HeadraceError):
        await finds(catalog)
    await asyncio.wait_for(told.wait(), 10)
    assert "streams" in catalog.damage or "function" in catalog.damage
    assert await catalog.query(lambda reader: reader.streams.at("/b")) is not None  # rows that check are served
    await catalog.rebuild_alone()
    assert catalog.damage == ""
    assert await paths(catalog) == ["/a", "/b", "/c"]
    await catalog.submit(stream("/d"))
    assert await paths(catalog) == ["/a", "/b", "/c", "/d"]
    await catalog.close()
    assert (tmp_path / "catalog.damaged").exists()
    assert table_check.damage_in(tmp_path / "catalog.sqlite") == []


async def test_a_snapshot_of_damaged_tables_is_neither_kept_nor_given_away(tmp_path: Path) -> None:
    catalog = await opened(tmp_path, MemoryLog())
    catalog.on_damage(lambda: None)
    damage_stream(tmp_path)
    with pytest.raises(TablesDamaged):
        await catalog.snapshot()
    assert snapshots.snapshots(tmp_path) == []
    await catalog.close()
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".tmp")]


async def test_a_command_that_meets_damage_waits_until_the_tables_are_made_anew(tmp_path: Path) -> None:
    log = MemoryLog()
    catalog = await opened(tmp_path, log)
    await catalog.submit(topics(3, path="/a"))
    told = asyncio.Event()
    catalog.on_damage(told.set)
    damage_stream(tmp_path)
    making = asyncio.ensure_future(catalog.submit(topics(1, path="/a")))
    await asyncio.wait_for(told.wait(), 10)
    assert not making.done()
    await catalog.rebuild_alone()
    (made,) = await asyncio.wait_for(making, 10)
    assert made.code is Code.NONE
    assert await catalog.query(lambda reader: len(reader.topics.page("/a"))) == 4
    await catalog.close()


async def test_without_any_other_copy_what_is_damaged_is_refused_and_the_rest_goes_on(tmp_path: Path) -> None:
    log = MemoryLog()
    catalog = await opened(tmp_path, log)
    log.trim(log.committed)  # and there is no snapshot
    told = asyncio.Event()
    catalog.on_damage(told.set)
    damage_stream(tmp_path)
    making = asyncio.ensure_future(catalog.submit(topics(1, path="/a")))
    await asyncio.wait_for(told.wait(), 10)
    with pytest.raises(HeadraceError):
        await catalog.rebuild_alone()
    catalog.serve_damaged()
    with pytest.raises(KafkaError) as refused:
        await asyncio.wait_for(making, 10)
    assert refused.value.code is Code.KAFKA_STORAGE_ERROR
    (made,) = await catalog.submit(topics(1, path="/b"))
    assert made.code is Code.NONE
    assert catalog.served_damaged
    assert catalog.damage
    with pytest.raises(CatalogFailed, match="damaged"):
        await catalog.query(lambda reader: reader.streams.at("/a"))
    await catalog.close()
    assert (tmp_path / "catalog.sqlite").exists()


async def test_another_nodes_snapshot_and_the_log_here_make_damaged_tables_anew(tmp_path: Path) -> None:
    log = MemoryLog()
    here, there = await opened(tmp_path / "here", log), await Catalog.open(tmp_path / "there", log)
    here.on_damage(lambda: None)
    await until(lambda: there.applied == log.committed)
    position = await there.snapshot()
    path = snapshots.path_of(tmp_path / "there", position)
    await here.submit(stream("/c"))
    assert await here.snapshot() > position
    damage_stream(tmp_path / "here")
    with pytest.raises(CatalogFailed):
        await finds_by_query(here)
    await until(lambda: bool(here.damage))
    await here.rebuild(path, position)
    assert await paths(here) == ["/a", "/b", "/c"]
    assert snapshots.positions(tmp_path / "here") == [position]  # earlier snapshots are gone, as they may be wrong
    assert (await here.marks())[-1] == (await there.marks())[-1]
    await here.close()
    await there.close()


@pytest.mark.parametrize("elsewhere", [True, False])
async def test_a_crash_at_any_step_of_making_tables_anew_leaves_what_the_next_start_makes_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    log = MemoryLog()
    here, there = await opened(tmp_path / "here", log), await Catalog.open(tmp_path / "there", log)
    here.on_damage(lambda: None)
    await here.snapshot()
    await until(lambda: there.applied == log.committed)
    position = await there.snapshot()
    path = snapshots.path_of(tmp_path / "there", position)
    await here.submit(stream("/c"))
    damage_stream(tmp_path / "here")
    with pytest.raises(CatalogFailed):
        await finds_by_query(here)
    await until((tmp_path / "here" / "catalog.suspect").exists)
    images: list[Path] = []

    def before(module: Any, name: str) -> None:
        done = getattr(module, name)

        def step(*arguments: Any, **more: Any) -> Any:
            images.append(tmp_path / f"image-{len(images)}")
            shutil.copytree(tmp_path / "here", images[-1])
            return done(*arguments, **more)

        patched.setattr(module, name, step)

    with monkeypatch.context() as patched:
        for each in ("sync", "_link", "_set_aside"):
            before(snapshots, each)
        before(SCHEMA, "open")
        for each in ("rename", "replace", "unlink"):
            before(Path, each)
        await (here.rebuild(path, position) if elsewhere else here.rebuild_alone())
    assert len(images) >= 10
    for image in images:
        again = await Catalog.open(image, log)
        assert await paths(again) == ["/a", "/b", "/c"], image.name
        await again.close()
        assert table_check.damage_in(image / "catalog.sqlite") == []
    await here.close()
    await there.close()


async def test_a_start_does_not_go_on_with_damaged_tables(tmp_path: Path) -> None:
    log = MemoryLog()
    catalog = await opened(tmp_path, log)
    await catalog.close()
    damage_stream(tmp_path)
    catalog = await Catalog.open(tmp_path, log)
    assert await paths(catalog) == ["/a", "/b"]
    assert (tmp_path / "catalog.damaged").exists()
    await catalog.close()


async def test_a_large_file_is_checked_in_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = await opened(tmp_path, MemoryLog())
    monkeypatch.setattr(table_check, "SMALL_BYTES", 0)
    assert await catalog.snapshot() == catalog.applied
    await catalog.close()  # closing checks the file now and then, through the same copy
    snapshots.check_live(tmp_path)
    damage_stream(tmp_path)
    with pytest.raises(TablesDamaged, match="streams: the row"):
        snapshots.check_live(tmp_path)


async def test_a_node_that_stops_waits_for_no_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_check, "SMALL_BYTES", -1)
    os.mkfifo(tmp_path / "endless")  # opening it blocks until there is a writer
    stop = threading.Event()
    checking = asyncio.ensure_future(asyncio.to_thread(table_check.damage, tmp_path / "endless", stop=stop))
    stop.set()
    with pytest.raises(sqlite3.OperationalError, match="could not be checked"):
        await asyncio.wait_for(checking, 30)


@pytest.mark.parametrize("large", [False, True])
def test_what_cannot_be_opened_just_now_has_no_damage(
    tables: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    if large:
        monkeypatch.setattr(table_check, "SMALL_BYTES", 0)
    path = tmp_path / "folder"
    path.mkdir()  # SQLite reports only that it cannot open it
    with pytest.raises(sqlite3.OperationalError):
        table_check.damage(path)


async def test_a_snapshot_whose_check_came_to_no_end_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = await opened(tmp_path, MemoryLog())
    position = await catalog.snapshot()
    with monkeypatch.context() as patched:
        patched.setattr(table_check, "SMALL_BYTES", 0)
        patched.setattr(
            table_check.sys, "executable", "/bin/false"
        )  # as if the kernel had killed the process for lack of memory
        with pytest.raises(sqlite3.OperationalError, match="could not be checked"):
            await catalog.newest_snapshot(position, keeps_log=False)
    assert snapshots.positions(tmp_path) == [position]
    (await catalog.newest_snapshot(position, keeps_log=False)).close()
    await catalog.close()


@pytest.mark.parametrize("table", ["partitionlets", "topics", "going"])
def test_a_step_of_a_deletion_that_meets_damage_deletes_nothing(tables: Tables, tmp_path: Path, table: str) -> None:
    path = tmp_path / "catalog.sqlite"
    last = tables.connection.execute("SELECT max(number) FROM topics").fetchone()[0]
    (partitionlet,) = tables.connection.execute("SELECT id FROM partitionlets WHERE topic = ?", (last,)).fetchone()
    damages = {
        "partitionlets": f"UPDATE partitionlets SET first = first + 1 WHERE id = {partitionlet}",
        "topics": f"UPDATE topics SET created = created + 1 WHERE number = {last}",
        "going": "UPDATE going SET next_serial = next_serial - 1",
    }
    changed(path, damages[table])
    with pytest.raises(sqlite3.DatabaseError) as found:
        _ = [tables.apply(ForgetDeleted()) for _ in range(9)]
    assert is_damage(found.value)
    assert any(line.startswith(f"{table}: ") for line in table_check.damage_in(path))


def test_the_shape_of_the_tables_is_pinned(tables: Tables) -> None:
    """Tables of another shape have another format, or are damaged."""
    assert shape_of(tables.connection) == SHAPE


def test_the_sum_of_a_row_is_pinned() -> None:
    """The checksum is part of the format of existing files."""
    assert row_sum("cursors", ("g", 1, 0, 77, 4, "noted", 1)) == row_sum("cursors", ["g", 1, 0, 77, 4, "noted", 1])
    assert row_sum("cursors", ("g", 1, 0, 77, 4, "noted", 1)) == 3200492967
