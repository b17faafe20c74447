"""The catalog of one node: its feature level, and snapshots that cannot be written."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import HeadraceError
from headrace.base.ids import Position
from headrace.base.levels import NEWEST
from headrace.catalog.catalog import Catalog
from headrace.container.local_replica import LocalReplica
from headrace.node import Node
from headrace.node.catalog import NodeCatalog
from headrace.store.records import CATALOG_ID
from headrace.tables import snapshot_pool, snapshots
from kit.parts import options
from kit.patience import PATIENCE
from kit.storage import NewNode


async def test_a_snapshot_for_a_follower_that_cannot_be_written_is_an_error_that_its_leader_tells(
    new_node: NewNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, this silently ended the task that accepts the follower."""
    node = await new_node()

    def full(folder: Path, **_how: Any) -> Position:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(snapshots, "write_snapshot", full)
        with pytest.raises(HeadraceError, match="disk is full"):
            await node.node._catalog.snapshot(Position(0))
    monkeypatch.setattr(snapshot_pool, "AGAIN_S", 0.0)
    node.node.catalog._snapshots._again_at = 0.0
    (await node.node._catalog.snapshot(Position(0))).close()


async def test_a_level_that_is_seen_before_the_tables_are_open_reaches_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, it then counted as noted, and the log stayed below it until another node led the catalog."""
    made, original = Node(options(tmp_path)), NodeCatalog.open

    async def opened_late(catalog: NodeCatalog, replica: LocalReplica) -> Catalog:
        while CATALOG_ID not in made.replicas.led:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        made._follow_level()
        while made._level_task is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return await original(catalog, replica)

    monkeypatch.setattr(NodeCatalog, "open", opened_late)
    try:
        async with asyncio.timeout(10 * PATIENCE):
            await made.start()
            while await made.catalog.query(lambda reader: reader.level()) < NEWEST:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    finally:
        await made.stop()
