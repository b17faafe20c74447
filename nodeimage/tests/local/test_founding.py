import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from headrace.base.errors import FolderRefused
from headrace.base.ids import NodeId
from headrace.local.founding import (
    OtherNodes,
    default_volume,
    ensure_nodes,
    forget_if_new,
    new_node,
    opened_store,
    removed_nodes,
)
from headrace.store import container_records, records


def serve_something(folder: Path) -> None:
    """Create what distinguishes a cluster that has served from one whose first start failed."""
    with opened_store(folder) as store:
        container_records.create_container(store, kind="catalog", leader=records.nodes(store)[0])


@pytest.mark.parametrize(("nodes", "replicas", "least"), [(1, 1, 1), (2, 2, 1), (3, 3, 2), (7, 3, 2)])
def test_the_default_volume_has_three_replicas_where_there_are_nodes_for_them(
    nodes: int, replicas: int, least: int
) -> None:
    volume = default_volume(nodes)
    assert (volume.replicas, volume.min_in_sync) == (replicas, least)
    records.check_volume(volume)


def test_the_number_in_a_folders_name_is_the_nodes_id(tmp_path: Path) -> None:
    assert ensure_nodes(tmp_path, 3) == ["node-1", "node-2", "node-3"]
    for number in (1, 2, 3):
        assert json.loads((tmp_path / f"node-{number}" / "node.json").read_text())["node"] == number
    with opened_store(tmp_path) as store:
        cluster = records.ensure_cluster(store)
        assert cluster.first_nodes == 3
        assert records.get_volume(store, "default") == default_volume(3)
        assert [node.node_id for node in records.nodes(store)] == [1, 2, 3]
    assert new_node(tmp_path).name == "node-4"


def test_a_folder_that_has_nodes_starts_those(tmp_path: Path) -> None:
    ensure_nodes(tmp_path, 2)
    serve_something(tmp_path)
    assert ensure_nodes(tmp_path, None) == ["node-1", "node-2"]
    assert ensure_nodes(tmp_path, 2) == ["node-1", "node-2"]
    with pytest.raises(OtherNodes, match="node add"):
        ensure_nodes(tmp_path, 3)
    with pytest.raises(OtherNodes, match="node drain"):
        ensure_nodes(tmp_path, 1)


def test_a_node_that_the_cluster_has_no_more_is_left_out_and_its_folder_left_alone(tmp_path: Path) -> None:
    ensure_nodes(tmp_path, 3)
    serve_something(tmp_path)
    assert removed_nodes(tmp_path) == []
    with opened_store(tmp_path) as store:
        records.remove_node(store, NodeId(3))
    assert ensure_nodes(tmp_path, None) == ensure_nodes(tmp_path, 2) == ["node-1", "node-2"]
    assert removed_nodes(tmp_path) == ["node-3"]
    assert (tmp_path / "node-3" / "node.json").exists()


def test_a_store_that_never_had_one_of_the_nodes_is_an_old_copy_and_refused(tmp_path: Path) -> None:
    ensure_nodes(tmp_path, 2)
    serve_something(tmp_path)
    with closing(sqlite3.connect(tmp_path / "cluster.sqlite")) as store:
        store.execute("VACUUM INTO ?", (str(tmp_path / "copy"),))
    new_node(tmp_path)
    for path in tmp_path.glob("cluster.sqlite*"):
        path.unlink()
    (tmp_path / "copy").rename(tmp_path / "cluster.sqlite")
    with pytest.raises(FolderRefused, match=r"does not know node-3.*recover-store"):
        ensure_nodes(tmp_path, None)


def test_a_store_that_has_none_of_the_nodes_any_more_is_refused(tmp_path: Path) -> None:
    ensure_nodes(tmp_path, 1)
    with opened_store(tmp_path) as store:
        records.remove_node(store, NodeId(1))
    with pytest.raises(FolderRefused, match=r"does not know node-1.*recover-store"):
        ensure_nodes(tmp_path, None)


def test_a_first_start_that_was_cut_short_is_completed(tmp_path: Path) -> None:
    ensure_nodes(tmp_path, 1)
    assert ensure_nodes(tmp_path, 3) == ["node-1", "node-2", "node-3"]
    with opened_store(tmp_path) as store:
        assert records.get_volume(store, "default") == default_volume(3)


def test_nodes_without_their_cluster_store_are_not_given_a_new_one(tmp_path: Path) -> None:
    ensure_nodes(tmp_path, 2)
    (tmp_path / "cluster.sqlite").unlink()
    with pytest.raises(FolderRefused, match="recover-store"):
        ensure_nodes(tmp_path, None)
    assert not (tmp_path / "cluster.sqlite").exists()


def test_a_node_that_never_ran_is_forgotten_with_its_folder(tmp_path: Path) -> None:
    ensure_nodes(tmp_path, 1)
    node = new_node(tmp_path)
    assert forget_if_new(tmp_path, node)
    assert not (tmp_path / node.name).exists()
    assert new_node(tmp_path).node_id == NodeId(3), "ids are never used again"


def test_a_node_that_has_registered_itself_is_kept(tmp_path: Path) -> None:
    ensure_nodes(tmp_path, 1)
    node = new_node(tmp_path)
    with opened_store(tmp_path) as store:
        record = records.get_node(store, node.node_id)
        assert record is not None
        records.register_node(
            store, node_id=node.node_id, format=record.format, run=record.format, host="127.0.0.1", port=9
        )
    assert not forget_if_new(tmp_path, node)
    assert (tmp_path / node.name).exists()
