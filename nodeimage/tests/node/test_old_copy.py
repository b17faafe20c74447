"""A data folder counts as an older copy only if it is one: otherwise no replica of it could become leader."""

import errno
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.base.errors import OutOfDescriptors, StorageFull
from headrace.base.ids import NodeId
from headrace.container import replica_folder
from headrace.node.changes import Changes
from headrace.node.containers import NodeContainers
from headrace.node.folder import DataFolder
from headrace.node.node import Node
from headrace.node.options import parse
from headrace.store import records
from headrace.store.protocol import ClusterStore
from headrace.store.records import NodeRecord
from headrace.store.sqlite import SqliteStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(tmp_path / "cluster.sqlite")) as opened:
        yield opened


def register(store: ClusterStore, folder: Path) -> NodeRecord:
    """Register as another start of the node's process does."""
    node = Node(parse(["--data", str(folder), "--store", "unused"]))
    try:
        return node._register(store, 1, 2)[1]
    finally:
        node._folder.close()
        for executor in (node._executor, node._store_executor, node._lease_executor):
            executor.shutdown()


@pytest.mark.parametrize(
    "error", [StorageFull("planted"), OutOfDescriptors("planted")], ids=lambda each: each.__class__
)
async def test_a_run_that_cannot_be_noted_does_not_register(
    tmp_path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    folder = tmp_path / "node"
    first = register(store, folder)
    format = replica_folder.prepare(folder / "containers" / "7").format

    def fails(*_: object) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr("headrace.node.folder.rewrite_file", fails)
        with pytest.raises(type(error)):
            register(store, folder)
    assert records.get_node(store, first.node_id) == first
    assert register(store, folder).run != first.run
    assert replica_folder.prepare(folder / "containers" / "7").format == format


@pytest.mark.parametrize("error", [StorageFull("planted"), OSError(errno.EMFILE, "planted")])
async def test_a_stop_that_cannot_be_noted_is_not_told(tmp_path: Path, store: SqliteStore, error: Exception) -> None:
    folder = tmp_path / "node"
    node = register(store, folder)
    format = replica_folder.prepare(folder / "containers" / "7").format

    def note_stop() -> None:
        raise error

    async def call(change: Callable[[ClusterStore], Any]) -> Any:
        return change(store)

    other = SimpleNamespace(node=NodeId(node.node_id + 1), format=str(uuid.uuid4()))
    container = SimpleNamespace(id=7, state=SimpleNamespace(in_sync=[other]), handing_over=False)
    containers = NodeContainers(
        node=node,
        view=SimpleNamespace(nodes={}),  # type: ignore[arg-type]
        replicas=SimpleNamespace(led={7: container}),  # type: ignore[arg-type]
        controller=SimpleNamespace(heard=set),  # type: ignore[arg-type]
        store=call,
        changes=Changes(),
        note_stop=note_stop,
    )
    await containers.hand_over()
    found = records.get_node(store, node.node_id)
    assert found is not None
    assert not found.stopping
    register(store, folder)
    assert replica_folder.prepare(folder / "containers" / "7").format == format
    identity = DataFolder(folder, -1).identity()
    assert identity is not None
    assert not identity.stopped
