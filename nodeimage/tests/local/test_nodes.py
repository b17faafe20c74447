"""A cluster of three processes: its nodes die, restart, join and leave."""

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.kafka_client.blocking_client import BrokerConnection
from headrace.local.cluster import AlreadyRunning, NodeDied, Started, StartOptions, running_cluster, start, stop
from headrace.local.folder import ClusterNotRunning, NodeProcess, node_folders, read_cluster_file
from headrace.local.founding import OtherNodes
from headrace.local.nodes import NodeRefused, add_node, drop_node, start_node, stop_node
from headrace.local.processes import is_alive
from headrace.local.store_recovery import recover_store
from headrace.log.files import FILE_HEAD_BYTES
from headrace.log.frames import HEADER_BYTES

SMALL = ("--chunk-bytes=1048576",)


def silent(_: str) -> None:
    """Discard progress messages."""


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Started]:
    running = start(tmp_path / "c", StartOptions(nodes=3, port=0, node_options=SMALL), progress=silent)
    yield running
    try:
        stop(tmp_path / "c", timeout_s=10)
    except ClusterNotRunning:
        pass
    for child in running.children.values():
        child.wait()


def node_list(port: int) -> list[dict[str, object]]:
    with BrokerConnection("127.0.0.1", port) as connection:
        return list(connection.admin("node.list"))


def await_state(port: int, node: int, state: str) -> dict[str, object]:
    """What the node behind `port` reports about a node, once that is in the state: it may learn of that a moment
    later."""
    deadline = time.monotonic() + 10
    while True:
        (shown,) = [each for each in node_list(port) if each["node"] == node]
        if shown["state"] == state:
            return shown
        assert time.monotonic() < deadline, shown


def killed(running: Started, name: str) -> NodeProcess:
    node = running.cluster.node(name)
    assert node is not None
    os.kill(node.pid, signal.SIGKILL)
    running.children[name].wait()
    return node


def test_three_nodes_start_at_the_same_time_each_with_the_id_of_its_folder(three: Started) -> None:
    assert [(node.name, node.node_id) for node in three.cluster.nodes] == [("node-1", 1), ("node-2", 2), ("node-3", 3)]
    assert len(three.cluster.bootstrap.split(",")) == 3
    for node in three.cluster.nodes:
        listed = node_list(node.port)
        assert [(each["node"], each["state"]) for each in listed] == [(1, "up"), (2, "up"), (3, "up")]
    with pytest.raises(AlreadyRunning):
        start(three.folder, StartOptions(), progress=silent)


def test_a_node_that_dies_is_told_once_and_the_others_go_on(three: Started) -> None:
    killed(three, "node-2")
    assert three.check()
    (death,) = three.deaths()
    assert death.name == "node-2"
    assert "SIGKILL" in str(death)
    assert three.check()
    assert three.deaths() == []
    running = running_cluster(three.folder)
    assert running is not None
    assert [node.name for node in running.nodes] == ["node-1", "node-3"]
    with pytest.raises(AlreadyRunning, match="node start node-2"):
        start(three.folder, StartOptions(), progress=silent)


def test_the_last_node_that_dies_ends_it(three: Started) -> None:
    for name in ("node-1", "node-2", "node-3"):
        killed(three, name)
    with pytest.raises(NodeDied, match="SIGKILL"):
        three.check()


def test_a_node_that_died_starts_again_on_its_port_and_is_stopped_with_the_rest(three: Started) -> None:
    before = killed(three, "node-2")
    again = start_node(three.folder, "2", progress=silent)
    assert (again.name, again.port, again.node_id) == ("node-2", before.port, 2)
    with pytest.raises(NodeRefused, match="runs already"):
        start_node(three.folder, "node-2", progress=silent)
    with pytest.raises(NodeRefused, match="has no node-9"):
        start_node(three.folder, "9", progress=silent)
    assert three.stop() == ()
    assert not is_alive(again)


def test_a_node_that_is_stopped_on_request_is_no_death(three: Started) -> None:
    assert stop_node(three.folder, "3") == ("node-3", False)
    assert three.check()
    assert three.deaths() == []
    with pytest.raises(NodeRefused, match="does not run"):
        stop_node(three.folder, "3")


def test_a_node_is_added_with_options_of_its_own_and_kept_by_the_next_start(three: Started) -> None:
    ports = [node.port for node in three.cluster.nodes]
    added = add_node(three.folder, port=None, options=["--zone", "b"], progress=silent)
    assert (added.name, added.node_id) == ("node-4", 4)
    assert added.port not in ports
    assert await_state(ports[0], 4, "up")["zone"] == "b"
    stop(three.folder)
    with pytest.raises(OtherNodes, match="has 4 nodes"):
        start(three.folder, StartOptions(nodes=3), progress=silent)
    again = start(three.folder, StartOptions(), progress=silent)
    assert [node.port for node in again.cluster.nodes] == [*ports, added.port]
    assert await_state(ports[0], 4, "up")["zone"] == "b"
    again.stop()


def test_a_node_that_cannot_be_added_leaves_nothing_behind(three: Started) -> None:
    with pytest.raises(NodeDied, match="node-4 refused to start"):
        add_node(three.folder, port=None, options=["--no-such-option"], progress=silent)
    assert node_folders(three.folder) == ["node-1", "node-2", "node-3"]
    cluster = read_cluster_file(three.folder)
    assert cluster is not None
    assert len(cluster.nodes) == 3
    deadline = time.monotonic() + 10
    while len(node_list(three.cluster.nodes[0].port)) != 3:
        assert time.monotonic() < deadline


def test_a_node_whose_folder_is_gone_is_told_and_not_made_up(three: Started) -> None:
    three.stop()
    shutil.rmtree(three.folder / "node-2")
    said: list[str] = []
    again = start(three.folder, StartOptions(), progress=said.append)
    assert [node.name for node in again.cluster.nodes] == ["node-1", "node-3"]
    assert any("node-2 has no data" in line and "node add" in line for line in said)
    listed = {each["node"]: each["state"] for each in node_list(again.cluster.nodes[0].port)}
    assert listed == {1: "up", 2: "down", 3: "up"}
    again.stop()


def test_a_cluster_whose_node_was_removed_by_way_of_an_address_starts_without_it(three: Started) -> None:
    with BrokerConnection("127.0.0.1", three.cluster.nodes[0].port) as connection:
        connection.admin("node.remove", {"node": 3, "force": True})
    assert three.children["node-3"].wait(timeout=30) == 0
    three.stop()
    said: list[str] = []
    again = start(three.folder, StartOptions(), progress=said.append)
    try:
        assert [node.name for node in again.cluster.nodes] == ["node-1", "node-2"]
        assert [line for line in said if "node-3" in line] == [
            (
                f"node-3 was removed from the cluster and is not started; its data stay in {three.folder / 'node-3'}: "
                "delete that folder once nothing in it is missed"
            )
        ]
        assert (three.folder / "node-3" / "containers").exists()
    finally:
        again.stop()


def test_a_node_that_is_dropped_is_no_node_of_the_folder(three: Started) -> None:
    stop_node(three.folder, "3")
    drop_node(three.folder, "3", erase=False)
    assert node_folders(three.folder) == ["node-1", "node-2"]
    assert (three.folder / "node-3" / "containers").exists()
    with pytest.raises(NodeRefused, match="has no node-3"):
        start_node(three.folder, "3", progress=silent)


def test_nothing_is_added_to_a_cluster_that_does_not_run(tmp_path: Path) -> None:
    with pytest.raises(ClusterNotRunning, match="headrace up"):
        add_node(tmp_path, port=None, options=[], progress=silent)


@pytest.mark.parametrize("lost", [True, False], ids=["lost", "old"])
def test_a_store_that_is_lost_or_old_is_built_anew_from_the_nodes(
    three: Started, new_topic: Callable[..., str], lost: bool
) -> None:
    store = three.folder / "cluster.sqlite"
    topic = new_topic(three)
    before = [(each["node"], each["replicas"]) for each in node_list(three.cluster.nodes[0].port)]
    assert three.stop() == ()
    copy = store.read_bytes()
    if lost:
        store.unlink()
    else:  # an older copy: every container has had a new epoch since
        again = start(three.folder, StartOptions(), progress=silent)
        killed(again, "node-1")
        again.stop()
        store.write_bytes(copy)
    taken = occupied(three.folder)
    done = recover_store(three.folder)
    assert occupied(three.folder) <= taken, "it needs room that a full disk has not"
    assert (done.kept_as is None) == lost
    assert [each.kind for each in done.containers].count("catalog") == 1
    assert {(each.name, each.replicas, each.min_in_sync) for each in done.volumes} == {("default", 3, 2)}
    again = start(three.folder, StartOptions(), progress=silent)
    port = again.cluster.nodes[0].port
    assert [(each["node"], each["replicas"]) for each in node_list(port)] == before
    with BrokerConnection("127.0.0.1", port) as connection:
        assert connection.admin("topic.show", {"topic": topic})["topic"] == topic
    again.stop()


def test_a_lone_node_that_lost_what_it_had_synced_goes_on_once_recover_store_was_told_so(
    tmp_path: Path, new_topic: Callable[..., str]
) -> None:
    """No other node has the missing part of its catalog. The node does not continue as if nothing was missing."""
    options = StartOptions(nodes=1, port=0, node_options=SMALL)
    running = start(tmp_path / "c", options, progress=silent)
    topic = new_topic(running)
    running.stop()
    folder = running.folder / "node-1" / "containers" / "1"
    (path,) = folder.glob("*.chunk")
    harm(path)
    with pytest.raises(NodeDied):
        start(running.folder, replace(options, ready_timeout_s=20), progress=silent)
    assert "has lost what it had synced" in (running.folder / "logs" / "node-1.log").read_text()
    for warned in (False, True):
        done = recover_store(running.folder)
        assert any("after its end are lost" in warning for warning in done.warnings) == warned
        again = start(running.folder, StartOptions(), progress=silent)
        with BrokerConnection("127.0.0.1", again.cluster.nodes[0].port) as connection:
            assert connection.admin("topic.show", {"topic": topic})["topic"] == topic, "tables keep it"
        new_topic(again, "/default:next")
        again.stop()
        harm(path)


def harm(path: Path) -> None:
    """Flip a bit in a chunk's first frame."""
    raw = bytearray(path.read_bytes())
    raw[FILE_HEAD_BYTES + HEADER_BYTES] ^= 4
    path.write_bytes(raw)


def occupied(folder: Path) -> int:
    """Bytes that a folder occupies on the disk."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*"))


@pytest.fixture
def new_topic() -> Callable[..., str]:
    from headrace.cli.connect import connected
    from headrace.cli.topics import create_topics

    def make(running: Started, name: str = "/default:kept") -> str:
        with connected(running.cluster.bootstrap, None) as cluster:
            create_topics(cluster, [name], partitions=3)
        return name

    return make


def test_a_folder_that_was_named_by_mistake_stays_as_it_is(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ClusterNotRunning):
            add_node(folder, port=None, options=(), progress=silent)
        with pytest.raises(ClusterNotRunning):
            start_node(folder, "1", progress=silent)
        with pytest.raises(ClusterNotRunning):
            stop_node(folder, "1")
        with pytest.raises(ClusterNotRunning):
            drop_node(folder, "1", erase=True)
    assert list(tmp_path.iterdir()) == []
