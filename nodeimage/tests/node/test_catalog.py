"""A snapshot of the catalog that cannot be written is reported to the follower."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import HeadraceError
from headrace.base.ids import Position
from headrace.tables import snapshot_pool, snapshots
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
