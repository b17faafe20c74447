"""The catalog's file: formats, and commands that cannot be applied."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import Code, FolderRefused, KafkaError
from headrace.base.ids import (
    ContainerId,
    Epoch,
    LeaderEpoch,
    Offset,
)
from headrace.catalog.chains import (
    LogStart,
    SetLogStart,
)
from headrace.catalog.command import CatalogCommand
from headrace.catalog.committed_offsets import CommitOffsets, CommittedOffset, DeleteOffsets, ExpireOffsets
from headrace.catalog.groups import PutGroup
from headrace.catalog.policy import PolicyChanges, StreamPolicy
from headrace.catalog.streams import AlterStream, CreateStream, DeleteStream
from headrace.catalog.tables import SCHEMA, open_tables
from headrace.catalog.topics import AlterTopic, CreateTopics, NewTopic
from headrace.tables.transactions import applied, apply_all
from kit.catalog import Tables
from kit.catalog_commands import NOW, create, new_topic, put_group


def rows(tables: Tables) -> list[str]:
    return [line for line in tables.connection.iterdump() if "'applied'" not in line]


def test_repeats_of_the_other_commands_change_nothing_more(tables: Tables) -> None:
    topic_id = create(tables, "t")
    put_group(tables, generation=4, members=["m"])
    commands: list[CatalogCommand[Any]] = [
        CreateStream("/v", StreamPolicy(), NOW),
        AlterStream("/v", PolicyChanges(ttl_ms=5)),
        AlterTopic(topic_id, {"retention.ms": "7"}, ["segment.ms"]),
        SetLogStart([LogStart(topic_id, 0, Offset(3))]),
        PutGroup("g", 4, "consumer", "range", "", ["m"], b"", "Stable", NOW),
        CommitOffsets("g", 4, "m", [CommittedOffset(topic_id, 0, Offset(9), LeaderEpoch(-1))], NOW),
        DeleteOffsets("g", [(topic_id, 0)]),
        ExpireOffsets(NOW),
    ]
    for command in commands:
        tables.apply(command)
        once = rows(tables)
        tables.apply(command)
        assert rows(tables) == once


def test_a_command_that_breaks_on_a_value_leaves_no_trace_and_the_next_one_goes_on(tables: Tables) -> None:
    good, huge = new_topic("good"), new_topic("huge")
    huge = NewTopic("/s", "huge", huge.topic_id, 1, {}, [ContainerId(2**63)], [Epoch(1)])
    with pytest.raises(KafkaError) as caught:
        tables.apply(CreateTopics([good, huge], NOW))
    assert caught.value.code is Code.UNKNOWN_SERVER_ERROR
    assert tables.reader.streams.totals() == (1, 0, 0)
    assert tables.reader.topics.page("/s") == []
    create(tables, "good")
    assert tables.reader.streams.totals() == (1, 1, 1)


def test_a_log_that_goes_backwards_is_refused_and_changes_nothing(tables: Tables) -> None:
    tables.apply(CreateStream("/t", StreamPolicy(), NOW))
    at = applied(tables.connection)
    with pytest.raises(AssertionError, match="backwards"):
        apply_all(tables.connection, [(at, DeleteStream("/t", NOW))], SCHEMA)
    assert tables.reader.streams.at("/t") is not None
    assert applied(tables.connection) == at


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
        topic = tables.reader.topics.at("/s", "t")
        assert topic is not None
        assert (topic.home, topic.origin, tables.reader.links.all()) == (None, "", [])
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
