"""Clusters whose nodes change their version one by one, under load: forward, back, and no further back than may be."""

import json
import time
from pathlib import Path

import pytest

from headrace.base.levels import NEWEST, format_of
from kit.cluster_clients import Load
from kit.cluster_nodes import Cluster, MakeCluster, until
from kit.old_versions import LEVEL_0, needs_level_0, old_version

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), needs_level_0]

EXIT_REFUSED = 2


def roll(cluster: Cluster, load: Load, code: Path | None) -> None:
    """All nodes run another version from now on; each is stopped when the one before it is back."""
    for number in cluster.nodes:
        run_by(cluster, number, code)
        load.await_writes(time.monotonic())


def run_by(cluster: Cluster, number: int, code: Path | None) -> None:
    """A node runs another version from now on."""
    cluster.terminate(number)
    cluster.nodes[number].code = code
    cluster.start(number)
    cluster.await_ready(number)
    cluster.await_whole()


def level(cluster: Cluster) -> int:
    """The cluster's."""
    return int(cluster.admin("features.show")["level"])


def folder_format(cluster: Cluster, number: int) -> int:
    """As node.json has it."""
    return int(json.loads((cluster.nodes[number].data / "node.json").read_bytes())["format"])


def test_a_cluster_rolls_forward_back_and_forward_again_until_its_level_is_raised(make_cluster: MakeCluster) -> None:
    old = old_version(LEVEL_0)
    three = make_cluster(code=old)
    load = Load(three)
    roll(three, load, None)
    shown = three.admin("features.show")
    assert (shown["level"], shown["supported_by_all"]) == (0, NEWEST)
    roll(three, load, old)
    run_by(three, 1, None)
    shown = three.admin("features.show", node=1)
    newest = {each["node"]: each["newest_level"] for each in shown["nodes"]}
    assert newest == {node.node_id: NEWEST if number == 1 else 0 for number, node in three.nodes.items()}
    roll(three, load, None)

    three.admin("features.hold", {"level": 0})
    with pytest.raises(AssertionError, match="held at 0"):
        three.admin("features.upgrade")
    three.admin("features.hold", {"off": True})
    assert [folder_format(three, number) for number in three.nodes] == [1, 1, 1]
    assert three.admin("features.upgrade")["level"] == NEWEST
    assert [folder_format(three, number) for number in three.nodes] == [format_of(NEWEST)] * 3
    load.await_writes(time.monotonic())

    three.terminate(2)
    three.nodes[2].code = old
    three.start(2)
    assert three.nodes[2].wait() == EXIT_REFUSED
    (*_, said) = three.nodes[2].log().splitlines()
    assert "this version reads 1; use a newer headrace" in said
    three.nodes[2].code = None
    three.start(2)
    three.await_ready(2)
    three.await_whole()
    load.await_writes(time.monotonic())
    load.finish()


def test_a_level_is_raised_by_itself_when_all_have_supported_it_for_its_wait(make_cluster: MakeCluster) -> None:
    three = make_cluster(code=old_version(LEVEL_0))
    load = Load(three)
    run_by(three, 1, None)
    three.admin("features.wait", {"wait_s": 2}, node=1)
    run_by(three, 2, None)
    load.write_on_for(5)
    assert level(three) == 0, "node 3 does not support it"
    run_by(three, 3, None)
    until("the level is raised", lambda: level(three) == NEWEST)
    load.await_writes(time.monotonic())
    load.finish()


def test_whoever_is_killed_while_the_level_is_raised_it_is_raised_in_the_end(make_cluster: MakeCluster) -> None:
    """And no older version gets in between."""
    old = old_version(LEVEL_0)
    three = make_cluster(code=old)
    load = Load(three)
    roll(three, load, None)
    three.kill(3)
    three.admin("features.hold", {"off": True})
    asked = three.admin("features.upgrade", {"level": NEWEST, "wait_s": 2})
    assert (asked["level"], asked["raising"]) == (0, NEWEST), "node 3 has not fenced its folder"
    three.kill(*(number for number in three.nodes if three.nodes[number].is_up))
    three.nodes[3].code = old
    three.start(3)
    assert three.nodes[3].wait() == EXIT_REFUSED
    three.nodes[3].code = None
    three.start()
    three.await_ready()
    until("the level is raised", lambda: level(three) == NEWEST)
    load.await_writes(time.monotonic(), within_s=30.0)
    three.await_whole()
    load.finish()
