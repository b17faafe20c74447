"""Damaged tables of the catalog: found, reported, and rebuilt from another node; a node that has them does not lead."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec import structs

from headrace.base.errors import HeadraceError
from headrace.base.ids import NodeId, Position
from headrace.catalog.policy import PolicyChanges
from headrace.catalog.streams import AlterStream
from headrace.catalog.tables import SCHEMA
from headrace.node import tables_repair
from headrace.node.tables_repair import differing
from headrace.store import features
from headrace.store.records import CATALOG_ID
from headrace.tables import table_check
from headrace.tables.outcomes import CatalogFailed
from headrace.tables.transactions import apply_all
from kit.catalog_nodes import WithTables
from kit.several_replicas import until

PATHS = ["/a", "/b", "/c"]
ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)


@pytest.fixture
async def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[WithTables]:
    monkeypatch.setattr(tables_repair, "RETRY_S", 0.05)
    nodes = WithTables(tmp_path)
    await nodes.several.start()
    await nodes.node(0).store(features.found)
    await nodes.several.create(replicas=2, min_in_sync=1, kind="catalog", container_id=CATALOG_ID)
    await nodes.several.led(CATALOG_ID)
    for number in range(3):
        await until(lambda number=number: nodes.node(number).view.may(1) or None)
        await nodes.open(number)
    for path in PATHS:
        await nodes.write(0, path, applied_by=(1, 2))
    yield nodes
    for number in range(3):
        await nodes.stop(number)


def live(nodes: WithTables, number: int) -> Path:
    return nodes.node(number).folder.parent / "catalog" / "catalog.sqlite"


def damage(
    nodes: WithTables, number: int, statement: str = "UPDATE streams SET created = 65 WHERE path = '/b'"
) -> None:
    connection = sqlite3.connect(live(nodes, number), isolation_level=None, timeout=30)
    assert connection.execute(statement).rowcount > 0
    connection.close()


async def finds(nodes: WithTables, number: int) -> None:
    with pytest.raises(CatalogFailed, match="damaged"):
        await nodes.tables(number).query(lambda reader: reader.streams.at("/b"))


async def whole(nodes: WithTables, number: int) -> None:
    await until(lambda: not nodes.tables(number).damage or None)
    await nodes.tables(number).wait_applied(max(nodes.tables(each).applied for each in range(3)))
    assert await nodes.paths(number) == await nodes.paths((number + 1) % 3)
    assert await asyncio.to_thread(table_check.damage_in, live(nodes, number)) == []


@pytest.mark.parametrize("number", [1, 2], ids=["follower", "observer"])
async def test_damaged_tables_of_a_node_that_follows_come_from_the_leader_and_its_replica_stays(
    nodes: WithTables, number: int
) -> None:
    incarnation = nodes.several.replica(number, CATALOG_ID).incarnation
    damage(nodes, number)
    await finds(nodes, number)
    await until(lambda: nodes.tables(number).damage or None)
    assert nodes.node(number).replicas.states()[0].damaged
    await nodes.write(0, "/d", applied_by=())
    await whole(nodes, number)
    assert nodes.several.replica(number, CATALOG_ID).incarnation == incarnation
    assert not nodes.node(number).replicas.states()[0].damaged
    assert len(nodes.node(0).view.containers[CATALOG_ID].in_sync) == 2
    await nodes.write(0, "/e", applied_by=(1, 2))


@pytest.mark.parametrize("minimum", [1, 2])
async def test_a_leader_with_damaged_tables_lets_another_lead_and_gets_its_tables(
    nodes: WithTables, minimum: int
) -> None:
    await nodes.several.change(CATALOG_ID, lambda record: structs.replace(record, min_in_sync=minimum))
    damage(nodes, 0)
    await finds(nodes, 0)
    await until(lambda: nodes.leads_in(1) or None)
    await whole(nodes, 0)
    await nodes.write(1, "/d", applied_by=(0, 2))
    assert await nodes.paths(0) == [*PATHS, "/d"]


async def test_damage_that_applying_meets_ends_no_node(nodes: WithTables) -> None:
    damage(nodes, 1)
    await nodes.tables(0).submit(AlterStream("/b", PolicyChanges(ttl_ms=5)), here=True)
    await until(lambda: nodes.tables(1).damage or None)
    await whole(nodes, 1)
    stream = await nodes.tables(1).query(lambda reader: reader.streams.at("/b"))
    assert stream is not None
    assert stream.policy.ttl_ms == 5


async def test_a_file_that_sqlite_calls_malformed_is_made_anew_while_the_node_goes_on(nodes: WithTables) -> None:
    await nodes.stop(1)
    await nodes.start(1)
    content = await asyncio.to_thread(live(nodes, 1).read_bytes)
    await asyncio.to_thread(live(nodes, 1).write_bytes, content[:4096] + b"\xee" * (len(content) - 4096))
    with pytest.raises(CatalogFailed, match="damaged"):
        await nodes.paths(1)
    await until(lambda: nodes.tables(1).damage or None)
    await whole(nodes, 1)
    assert not nodes.tables(1).failed.done()


async def test_a_damaged_snapshot_reaches_nobody(nodes: WithTables) -> None:
    damage(nodes, 0)
    with pytest.raises(HeadraceError, match=r"damaged|not what was written"):
        await nodes.tables(0).newest_snapshot(nodes.tables(0).applied, keeps_log=True)
    await whole(nodes, 0)


async def test_a_node_that_has_applied_in_another_way_finds_it_by_the_others(nodes: WithTables) -> None:
    tables = nodes.tables(2)
    connection, applied = tables._connection, tables.applied
    connection.delete("streams", "path = ?1", "/b")  # as a bug in the program would
    apply_all(connection, [], SCHEMA)
    connection.committed(connection.applied)
    assert await asyncio.to_thread(table_check.damage_in, live(nodes, 2)) == []
    await nodes.catalog(2)._repair.compare()  # type: ignore[union-attr]
    assert "differ from those of the nodes" in tables.damage
    await whole(nodes, 2)
    assert tables.applied >= applied
    for number in range(3):
        await nodes.catalog(number)._repair.compare()  # type: ignore[union-attr]
        assert not nodes.tables(number).damage


async def test_a_leader_that_is_alone_makes_its_tables_anew_of_its_own_log(nodes: WithTables) -> None:
    for number in (1, 2):
        await nodes.several.change(
            CATALOG_ID,
            lambda record: structs.replace(record, replicas=record.replicas[:1], in_sync=record.in_sync[:1], wanted=1),
        )
        await nodes.tables(number).close()
        await nodes.node(number).stop()
    damage(nodes, 0)
    await finds(nodes, 0)
    await until(lambda: nodes.tables(0).damage or None)
    await until(lambda: not nodes.tables(0).damage or None)
    assert await nodes.paths(0) == PATHS
    assert nodes.leads_in(0)
    await nodes.write(0, "/d", applied_by=())


def test_most_of_the_replicas_count_and_the_leader_where_they_are_as_many() -> None:
    at, before = Position(200), Position(100)
    mine, others = {before: "x", at: "a"}, {at: "b"}
    assert differing(mine, {TWO: {at: "a"}, THREE: {at: "a"}}, votes=True, leader=ONE) == []
    assert differing(mine, {TWO: others, THREE: others}, votes=True, leader=ONE) == [TWO, THREE]
    assert differing(mine, {TWO: {at: "a"}, THREE: others}, votes=True, leader=THREE) == []
    assert differing(mine, {TWO: others}, votes=True, leader=TWO) == [TWO]
    assert differing(mine, {TWO: others}, votes=True, leader=ONE) == []
    assert differing(mine, {TWO: others}, votes=False, leader=TWO) == [TWO]
    assert differing(mine, {TWO: {}, THREE: {Position(300): "b"}}, votes=True, leader=TWO) == []
    assert differing(mine, {TWO: {before: "y"}}, votes=False, leader=TWO) == [TWO]
