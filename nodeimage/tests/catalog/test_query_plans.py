"""No command and no query scans a table that grows: the plan of each executed statement is checked. A command, or a
method of Reader, that is not executed here fails as well."""

import inspect
import re
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import pytest

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import ContainerId, Epoch, LeaderEpoch, Millis, Offset, PartitionletId, StreamNumber
from headrace.catalog.access import AccessItem, SecureCluster, SetAccess
from headrace.catalog.chains import (
    LogStart,
    RetireContainer,
    RollDone,
    Rolled,
    RollIntent,
    RollTarget,
    SetLogStart,
    ShortenChains,
)
from headrace.catalog.chains import Shortened as Shorter
from headrace.catalog.command import CatalogCommand
from headrace.catalog.commands import COMMANDS
from headrace.catalog.committed_offsets import (
    CommitOffsets,
    CommittedOffset,
    CopyOffsets,
    DeleteOffsets,
    ExpireOffsets,
    ExpireSomeOffsets,
)
from headrace.catalog.deletions import ForgetDeleted
from headrace.catalog.feature_level import RaiseLevel
from headrace.catalog.groups import DeleteGroups, PutGroup
from headrace.catalog.homes import HomeChange, SetHome
from headrace.catalog.link_config import LinkConfig
from headrace.catalog.links import DeleteLink, PutLink, SetLinkSource, SetLinkState
from headrace.catalog.policy import PolicyChanges, StreamPolicy
from headrace.catalog.quotas import AlterQuotas, Quota
from headrace.catalog.recovery import SkipNumbers
from headrace.catalog.streams import AlterStream, CreateOwnedStream, CreateStream, DeleteStream
from headrace.catalog.topics import AlterTopic, CreatePartitions, CreateTopics, DeleteTopics, NewTopic
from headrace.catalog.users import AlterCredentials, Credential, DeleteUser, PutUser
from headrace.tables.row_checksums import COLUMNS, KEYS
from kit.catalog import Tables

NOW: Final = Millis(5)


def keys_of(table: str) -> str:
    return ", ".join(f'"{column}"' for column in COLUMNS[table][: KEYS.get(table, 1)])


SMALL: Final = ("counters", "retired", "links", "going", "json_each")
"""Tables of some hundred rows at most, or of as many rows as the caller wants."""
SCANS: Final = (
    {
        "SELECT name FROM groups WHERE changed <": "once an hour below level 1; from there on ExpireSomeCursors",
        'UPDATE main.streams SET "next_serial"': "once in each unclean recovery of the catalog",
        'UPDATE main.going SET "next_serial"': "the same",
        'UPDATE main.free_streams SET "next_serial"': "the same",
        "SELECT count(*), coalesce(sum(topics), 0), coalesce(sum(partitions), 0) FROM streams": "0.1 s for a million, "
        "by a reader, when a status is asked for",
        "SELECT turn, first, count, next_serial FROM free_streams ORDER BY turn LIMIT": "one row",
        "SELECT turn FROM free_streams ORDER BY turn DESC LIMIT": "one row",
        "SELECT 1 FROM going LIMIT": "one row",
        "SELECT entity, key, value FROM quotas": "all of them, at a start and when they change",
        "SELECT kind, object, permission, expression FROM access": "the same",
        "SELECT topic, permission, expression FROM topic_access": "the same",
    }
    | {
        f"SELECT {keys_of(table)} FROM {table} ORDER BY {keys_of(table)} LIMIT": "the first page of a scrub"
        for table in COLUMNS
    }
    | {
        f"SELECT {listed} FROM {table} ORDER BY {listed}": "up to the first row behind the one that is looked for"
        for table, listed in (
            ("streams", '"number"'),
            ("streams", '"path"'),
            ("topics", '"number"'),
            ("topics", '"topic_id"'),
            ("topics", '"stream", "name"'),
            ("partitionlets", '"id"'),
            ("partitionlets", '"topic", "state", "partition", "id"'),
            ("free_streams", '"first"'),
            ("log_starts", '"topic", "partition"'),
            ("log_starts", '"topic"'),
            ("home_starts", '"topic"'),
            ("home_starts", '"topic", "partition", "counter", "cluster"'),
            ("settled_homes", '"topic"'),
            ("settled_homes", '"topic", "partition"'),
            ("pending_homes", '"topic"'),
            ("groups", '"name"'),
            ("users", '"name"'),
            ("credentials", '"user", "mechanism"'),
            ("cursors", '"group", "topic", "partition"'),
        )
    }
)
"""Statements that scan tables that may grow, each with the reason."""
SCANNED_INDEXES: Final = ("partitionlets_intended", "topics_own_retention", "topics_with_home", "topics_moved")
"""Indexes of a few rows of a large table: a scan of one reads only wanted rows."""


class Watched(Tables):
    """Tables that record the executed statements."""

    def __init__(self, path: Path, *, sums: bool) -> None:
        super().__init__(path, sums=sums)
        self.statements: set[str] = set()
        self.connection.set_trace_callback(self.statements.add)
        self.reader._connection.set_trace_callback(self.statements.add)
        self.applied: set[str] = set()

    def apply(self, command: CatalogCommand[Any]) -> Any:
        self.applied.add(str(type(command).__struct_config__.tag))
        try:
            return super().apply(command)
        except KafkaError as error:
            if error.code is Code.UNKNOWN_SERVER_ERROR:
                raise
            return error


@pytest.fixture(params=[True])
def tables(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Watched]:
    """With and without checksums of rows, since the statements differ."""
    made = Watched(tmp_path / "catalog.sqlite", sums=request.param)
    yield made
    made.close()


def scans(tables: Watched) -> list[tuple[str, str]]:
    """(scanned table, statement) of each executed statement that must not scan."""
    tables.connection.set_trace_callback(None)
    tables.reader._connection.set_trace_callback(None)
    found = []
    for statement in sorted(tables.statements):
        if not re.match(r"(SELECT|UPDATE|DELETE|INSERT)\b", statement):
            continue
        plan = [detail for *_, detail in tables.connection.execute(f"EXPLAIN QUERY PLAN {statement}")]
        may_scan = any(statement.startswith(each) for each in SCANS) and not (
            " LIMIT " in statement and any("TEMP B-TREE" in detail for detail in plan)
        )
        for detail in plan:
            scanned = re.match(
                r"SCAN (?:main\.)?(?!CONSTANT ROW$)(\w+|\(.*\))", detail
            )  # a constant row is the check of another row
            if scanned is None or any(f"INDEX {each}" in detail for each in SCANNED_INDEXES):
                continue
            table = _table_of(scanned[1], statement)
            if table not in SMALL and not may_scan:
                found.append((detail, statement))
    return found


def _table_of(name: str, statement: str) -> str:
    alias = re.search(rf"(?:FROM|JOIN) (\w+)(?:\([^)]*\))? {name}\b", statement)
    return alias[1] if alias else name


def run_commands(tables: Watched) -> None:
    """Apply each command, with something to do, below level 1 and from it on."""
    for level in (0, 1):
        if level:
            tables.apply(RaiseLevel(level))
        path = f"/s{level}"
        a, b, c = (bytes([level * 3 + at]) * 16 for at in range(3))

        def new(name: str, topic_id: bytes, path: str = path) -> NewTopic:
            return NewTopic(path, name, topic_id, 1, {}, [ContainerId(5)], [Epoch(1)])

        def open_of(topic_id: bytes) -> PartitionletId:
            row = tables.reader.topics.by_id(topic_id)
            assert row is not None
            return tables.reader.chains.open_of([row.number])[row.number][0].id

        tables.apply(CreateStream(path, StreamPolicy(), NOW))
        tables.apply(AlterStream(path, PolicyChanges(ttl_ms=5)))
        copy = NewTopic(
            path, "c", c, 1, {}, [ContainerId(5)], [Epoch(1)], (3, "other"), "o", [(0, 3, "other", Offset(0))]
        )
        tables.apply(CreateTopics([new("a", a), new("b", b), copy], NOW))
        tables.apply(CreatePartitions(a, 2, [ContainerId(6)], [Epoch(1)], NOW))
        tables.apply(CreatePartitions(a, 2, [ContainerId(6)], [Epoch(1)], NOW))
        tables.apply(AlterTopic(a, {"retention.ms": "5"}, []))
        tables.apply(RetireContainer(ContainerId(99)))
        for home in (None, (4, "third")):
            sealed = open_of(a if home is None else c)
            topic_id = a if home is None else c
            (intent,) = tables.apply(RollIntent([RollTarget(topic_id, 0, sealed, ContainerId(7))], NOW))
            opened = intent.partitionlet.id
            item = Rolled(
                topic_id, 0, sealed, Offset(9), [(LeaderEpoch(0), Offset(0))], opened, Epoch(1), Offset(-1), home
            )
            tables.apply(RollDone([item], NOW))
        sealed = open_of(a)
        (intent,) = tables.apply(RollIntent([RollTarget(a, 0, sealed, ContainerId(8))], NOW))
        cut = Rolled(
            a, 0, sealed, Offset(20), [(LeaderEpoch(300), Offset(9))], intent.partitionlet.id, Epoch(1), Offset(5)
        )
        tables.apply(RollDone([cut], NOW))
        tables.apply(RollIntent([RollTarget(b, 0, open_of(b), ContainerId(8))], NOW))
        tables.apply(ShortenChains([Shorter(a, 0, sealed, Offset(2))]))
        tables.apply(SetLogStart([LogStart(a, 0, Offset(3)), LogStart(b, 0, Offset(1))]))
        tables.apply(SetHome([HomeChange(b, 7, "other", {0: [(7, "other", Offset(0))]})]))
        committed_offsets = [
            CommittedOffset(a, 0, Offset(1), LeaderEpoch(-1)),
            CommittedOffset(b, 0, Offset(1), LeaderEpoch(-1)),
        ]
        tables.apply(PutGroup("g", 1, "consumer", "range", "", [], b"", "Empty", NOW))
        tables.apply(CommitOffsets("g", -1, "", committed_offsets, NOW))
        tables.apply(
            CopyOffsets("h", [CommittedOffset(c, 0, Offset(1), LeaderEpoch(-1))], NOW, "me", True, False, True)
        )
        tables.apply(DeleteOffsets("g", [(b, 0)]))
        tables.apply(PutLink("l", path, LinkConfig(["x:1"], "/o"), NOW, True))
        tables.apply(SetLinkState("l", "Paused"))
        tables.apply(SetLinkSource("l", 1 + level, ["x:1"], "c"))
        run_queries(tables, path, a)
        tables.apply(DeleteLink("l"))
        if level:
            tables.apply(PutUser("u", ["g"], NOW, True))
            tables.apply(PutUser("u", ["h"], NOW, False))
            tables.apply(AlterCredentials([("u", "X")], [Credential("u", "SCRAM-SHA-256", b"", b"", b"", 1)], NOW))
            tables.apply(AlterCredentials([("u", "SCRAM-SHA-256")], [], NOW))
            for expression in ("u:u", None, "p"):
                for kind, named, topic_id in (("cluster", "", b""), ("stream", path, b""), ("topic", "", a)):
                    tables.apply(SetAccess([AccessItem(kind, named, "admin", expression, topic_id)], NOW))
            tables.apply(AlterQuotas([Quota("{}", "key", 1.0), Quota("{}", "other", None)]))
            tables.apply(SecureCluster(True))
            run_queries(tables, path, a)
            tables.apply(DeleteUser("u"))
            tables.apply(CreateOwnedStream("/owned", StreamPolicy(), [("admin", "u:u")], NOW))
        tables.apply(DeleteGroups(["h"]))
        tables.apply(ExpireOffsets(NOW))
        tables.apply(ExpireOffsets(Millis(100)))
        tables.apply(CommitOffsets("i", -1, "", committed_offsets, NOW))
        if level:
            tables.apply(ExpireSomeOffsets(Millis(100)))
        tables.apply(SkipNumbers(level + 1))
        tables.apply(CommitOffsets("i", -1, "", committed_offsets, NOW))
        many = NewTopic(path, "m", b"m" * 16, 1500, {}, [ContainerId(5)] * 1500, [Epoch(1)] * 1500)
        tables.apply(CreateTopics([many], NOW))
        tables.apply(DeleteTopics([a, many.topic_id], NOW))
        tables.apply(CreateTopics([new("n", many.topic_id)], NOW))
        more = [new(f"x{at}", at.to_bytes(16, "big")) for at in range(1500 * level, 1500 * (level + 1))]
        tables.apply(CreateTopics(more, NOW))
        tables.apply(DeleteStream(path, NOW, True))
        run_queries(tables, path, a)
        while level and tables.apply(ForgetDeleted()).more:
            pass
    tables.connection.update("counters", {"value": "1 << 23"}, "name = 'next_stream'")
    for path in ("/again", "/and-again"):
        tables.apply(CreateStream(path, StreamPolicy(), NOW))


ARGUMENTS: Final[dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]]] = {
    "streams.by_number": [((StreamNumber(1),), {})],
    "topics.named": [(("PATH", ["a", "b"]), {})],
    "topics.at": [(("PATH", "a"), {})],
    "streams.at": [(("PATH",), {})],
    "streams.page": [((), {}), ((), {"after": "/a", "limit": 5})],
    "topics.page": [(("PATH",), {}), (("PATH",), {"after": "a", "limit": 5})],
    "topics.of_all_streams": [((), {}), ((), {"after": (1, "a"), "limit": 5})],
    "topics.by_ids": [(([b"a" * 16, b"b" * 16],), {})],
    "topics.by_id": [((b"a" * 16,), {})],
    "topics.check_new": [(([NewTopic("PATH", "t", b"t" * 16, 1, {}, [ContainerId(5)], [Epoch(1)])],), {})],
    "chains.open_of": [(([1, 2],), {})],
    "chains.chain": [((1,), {}), ((1, 0), {})],
    "chains.of_stream": [((StreamNumber(1),), {"after": PartitionletId(0)})],
    "chains.log_starts": [(([1, 2],), {})],
    "chains.open_in": [((ContainerId(5),), {}), ((ContainerId(5),), {"before": 9, "after": 1, "limit": 5})],
    "chains.sealed_in": [((ContainerId(5),), {})],
    "chains.live": [(([PartitionletId(1 << 40)],), {})],
    "chains.owners": [(([PartitionletId(1 << 40)],), {})],
    "chains.not_yet_made": [(([PartitionletId(1 << 40), PartitionletId(5 << 40)],), {})],
    "streams.retention_of": [(([StreamNumber(1)],), {})],
    "links.all": [((), {}), (("PATH",), {})],
    "links.named": [(("l",), {})],
    "homes.copies": [(("PATH", "me"), {})],
    "homes.histories": [(([1, 2],), {})],
    "homes.settled": [(([1, 2],), {})],
    "homes.settled_at": [((1, 0), {})],
    "homes.pending": [(([1, 2],), {})],
    "homes.unsettled": [((), {}), ((), {"after": 1, "limit": 5})],
    "groups.named": [(("g",), {})],
    "groups.page": [((), {}), ((), {"after": "a", "limit": 5})],
    "groups.committed_offsets": [(("g",), {}), (("g", [1, 2]), {})],
    "check_rows": [
        call
        for table in COLUMNS
        for call in (((table,), {"limit": 5}), ((table,), {"after": ("",) * KEYS.get(table, 1), "limit": 5}))
    ],
    "users.named": [(("u",), {})],
    "users.page": [((), {}), ((), {"after": "a", "limit": 5})],
    "users.credential": [(("u", "SCRAM-SHA-256"), {})],
    "users.mechanisms": [((), {}), ((), {"after": "a"})],
    "groups.committed_offsets_after": [((("", -1, -1),), {"limit": 5}), ((("g", 1, 0),), {"limit": 5})],
}
WITHOUT: Final = (
    "applied",
    "streams.totals",
    "chains.containers",
    "chains.intended",
    "level",
    "is_forgetting",
    "users.quotas",
    "access.is_secured",
    "access.all",
)
"""Queries that take no arguments."""


def run_queries(tables: Watched, path: str, topic_id: bytes) -> None:
    reader = tables.reader
    for name, calls in ARGUMENTS.items():
        for args, options in calls:
            given = [path if each == "PATH" else each for each in args]
            attrgetter(name)(reader)(*given, **options)
    for name in WITHOUT:
        attrgetter(name)(reader)()


@pytest.mark.parametrize("tables", [True, False], ids=["sums", "none"], indirect=True)
def test_no_statement_scans_a_table_that_grows(tables: Watched) -> None:
    run_commands(tables)
    assert scans(tables) == []


def test_every_command_and_every_query_is_looked_at(tables: Watched) -> None:
    run_commands(tables)
    assert tables.applied == COMMANDS.keys()
    queries = set(_methods(tables.reader))
    for family in ("streams", "topics", "chains", "links", "homes", "groups", "users", "access"):
        queries |= {f"{family}.{name}" for name in _methods(getattr(tables.reader, family))}
    assert queries - {"begin", "end", "close"} == {*ARGUMENTS, *WITHOUT}


def _methods(queries: object) -> list[str]:
    return [name for name, _ in inspect.getmembers(queries, inspect.ismethod) if not name.startswith("_")]


def test_a_scan_is_found(tables: Watched) -> None:
    run_commands(tables)
    tables.connection.execute("SELECT * FROM partitionlets WHERE first = 5 AND container_epoch = 1").fetchall()
    tables.connection.execute("DELETE FROM main.cursors WHERE committed_at < 5")
    tables.connection.execute("SELECT t.name FROM topics t ORDER BY t.name").fetchall()
    assert len(scans(tables)) == 3
