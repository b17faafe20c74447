import dataclasses
import os
import signal
import socket
import sys
from pathlib import Path

import msgspec
import psutil
import pytest

from headrace.base.errors import FolderRefused
from headrace.kafka_client.blocking_client import BrokerConnection
from headrace.local.cluster import (
    AlreadyRunning,
    NodeDied,
    PortTaken,
    Started,
    StartGivenUp,
    StartOptions,
    running_cluster,
    start,
    stop,
)
from headrace.local.folder import ClusterNotRunning, read_cluster_file, write_cluster_file
from headrace.local.founding import ensure_nodes
from headrace.local.processes import is_alive, port_is_free
from kit.own_ports import own_port


def started(folder: Path, **options: object) -> Started:
    return start(folder, StartOptions(**options), progress=lambda _: None)  # type: ignore[arg-type]


def cluster_id(running: Started) -> str:
    with BrokerConnection("127.0.0.1", running.cluster.nodes[0].port) as connection:
        return str(connection.admin("status")["cluster"])


def test_a_cluster_starts_is_found_and_stops(tmp_path: Path) -> None:
    running = started(tmp_path, port=own_port())
    node = running.cluster.nodes[0]
    assert running.check()
    assert node.node_id is not None
    assert running_cluster(tmp_path) == running.cluster
    with pytest.raises(AlreadyRunning, match=running.cluster.bootstrap):
        started(tmp_path)
    cluster, killed = stop(tmp_path)
    assert (cluster.nodes, killed) == ((node,), ())
    assert not running.check()
    assert running_cluster(tmp_path) is None
    with pytest.raises(ClusterNotRunning):
        stop(tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts a process's birth from its own boot")
def test_a_cluster_is_found_and_stopped_after_the_clock_was_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = started(tmp_path, port=own_port())
    (node,) = running.cluster.nodes
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: node.created + 3_600)
    assert running.check()
    with pytest.raises(AlreadyRunning):
        started(tmp_path)
    assert stop(tmp_path)[0].nodes == (node,)
    assert not running.check()


def test_a_child_that_its_record_does_not_name_is_watched_without_waiting_for_it_and_stopped(tmp_path: Path) -> None:
    running = started(tmp_path, port=own_port())
    stranger = msgspec.structs.replace(running.cluster.nodes[0], created=0.5, birth="")
    write_cluster_file(tmp_path, running.cluster.with_node(stranger))
    ours = dataclasses.replace(running._children[0], node=stranger)
    mistaken = Started(tmp_path, running.cluster.with_node(stranger), [ours])
    assert mistaken.check()
    mistaken.stop()
    assert ours.process.returncode == 0
    assert not mistaken.check()


def test_the_next_start_keeps_port_and_data(tmp_path: Path) -> None:
    first = started(tmp_path, port=own_port())
    before = cluster_id(first)
    first.stop()
    second = started(tmp_path)
    try:
        assert second.cluster.bootstrap == first.cluster.bootstrap
        assert cluster_id(second) == before
    finally:
        second.stop()


def test_a_port_that_was_asked_for_is_taken_by_somebody_who_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        with pytest.raises(PortTaken, match=f"pid {os.getpid()}"):
            started(tmp_path, port=other.getsockname()[1])
        assert read_cluster_file(tmp_path) is None


def test_a_port_that_nobody_asked_for_gives_way_when_it_is_taken(tmp_path: Path) -> None:
    first = started(tmp_path, port=own_port())
    first.stop()
    with socket.create_server(("127.0.0.1", first.cluster.nodes[0].port)):
        said: list[str] = []
        second = start(tmp_path, StartOptions(), progress=said.append)
        try:
            assert second.cluster.bootstrap != first.cluster.bootstrap
            assert any("is taken by" in line for line in said)
        finally:
            second.stop()


def test_a_node_that_is_killed_is_reported_with_its_last_lines(tmp_path: Path) -> None:
    running = started(tmp_path, port=own_port())
    os.kill(running.cluster.nodes[0].pid, signal.SIGKILL)
    running.children["node-1"].wait()
    with pytest.raises(NodeDied, match="SIGKILL") as death:
        running.check()
    assert any("ready" in line for line in death.value.log)
    assert running_cluster(tmp_path) is None


def test_a_node_that_refuses_its_folder_says_why_and_leaves_no_process(tmp_path: Path) -> None:
    ensure_nodes(tmp_path, 1)
    (tmp_path / "node-1" / "node.json").write_text("not JSON")
    with pytest.raises(NodeDied, match=r"node-1 refused to start: .+ is damaged"):
        started(tmp_path, port=own_port())
    assert running_cluster(tmp_path) is None


def test_what_stands_where_a_nodes_folder_should_be_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "node-1").write_text("not a folder")
    with pytest.raises(FolderRefused, match="node-1"):
        started(tmp_path, port=own_port())
    assert (tmp_path / "node-1").read_text() == "not a folder"


def test_a_start_that_is_given_up_leaves_no_process(tmp_path: Path) -> None:
    port = own_port()
    with pytest.raises(StartGivenUp):
        start(tmp_path, StartOptions(port=port), progress=lambda _: None, stopping=lambda: True)
    cluster = read_cluster_file(tmp_path)
    assert cluster is not None
    assert not any(is_alive(node) for node in cluster.nodes)
    assert port_is_free("127.0.0.1", port)


def test_what_a_start_that_was_cut_short_left_behind_is_found_and_stopped(tmp_path: Path) -> None:
    running = started(tmp_path, port=own_port())
    node = running.cluster.nodes[0]
    write_cluster_file(tmp_path, type(running.cluster)(state="starting", nodes=(node,)))
    with pytest.raises(AlreadyRunning, match="headrace down"):
        started(tmp_path)
    stop(tmp_path)
    assert not is_alive(node)


def test_a_folder_whose_start_is_under_way_is_refused(tmp_path: Path) -> None:
    tried: list[str] = []

    def meanwhile() -> bool:
        with pytest.raises(FolderRefused, match="starting or stopping"):
            started(tmp_path)
        tried.append("refused")
        return True

    with pytest.raises(StartGivenUp):
        start(tmp_path, StartOptions(port=own_port()), progress=lambda _: None, stopping=meanwhile)
    assert tried == ["refused"]
