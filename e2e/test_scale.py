"""More nodes and fewer: the requested size is reached without copying or loss, and without overriding a refusal."""

import json
import time
from collections.abc import Iterator

import kube
import pytest
from confluent_kafka.admin import AdminClient

from kit.cluster_clients import CALL_S, Load, at

THERE_S = 320.0
"""Seconds for Kubernetes to create volumes and start pods, before the measurement begins."""
CARRY_S = 30.0
DRAINED_S = 400.0
FILLING = 3_000
"""Bytes of a record: enough for a new node to count as lightly loaded."""


@pytest.fixture(scope="module")
def three(namespace: str) -> Iterator[kube.Cluster]:
    """Three nodes that are ready, and rebalance under small loads."""
    floors = {"traffic": "1Mi", "requests": 500}
    cluster = kube.Cluster("c", namespace, balance={"floors": floors})
    cluster.apply()
    cluster.await_ready()
    yield cluster
    cluster.close()


def leaders(load: Load) -> set[int]:
    """Return the ids of the nodes that lead the written topics."""
    told = AdminClient(at(load.cluster.bootstrap)).list_topics(timeout=CALL_S).topics
    return {part.leader for topic in load.topics for part in told[topic].partitions.values()}


def grow(cluster: kube.Cluster, load: Load, nodes: int) -> tuple[set[int], float, float]:
    """Return (ids of the new nodes, seconds until they had registered, seconds from then until they led writes)."""
    before, held = cluster.ids(), {number: set(each["replicas"]) for number, each in cluster.containers().items()}
    missing = nodes - len(before)
    since = time.monotonic()
    cluster.scale(nodes)
    try:
        kube.until("all nodes have registered", lambda: len(cluster.ids() - before) == missing, timeout_s=THERE_S)
    except AssertionError as error:
        raise AssertionError(f"{error}; there were {sorted(before)}; {cluster.standing()}") from error
    there = time.monotonic()
    new = cluster.ids() - before

    def carry() -> bool:
        idle = new - leaders(load)
        assert not idle, f"node {idle} leads nothing that is written to"
        return True

    try:
        kube.until("the new nodes lead what is written to", carry, timeout_s=CARRY_S)
    except AssertionError:
        print(json.dumps(cluster.headrace("balance", "--explain"), indent=1))
        print(json.dumps(cluster.headrace("containers")))
        raise
    load.await_writes(time.monotonic())
    carried = time.monotonic()
    cluster.await_ready()
    copied = {number for number, each in cluster.containers().items() if new & set(each["replicas"])} & held.keys()
    assert not copied, f"container {copied} has been copied to node {new}"
    return new, there - since, carried - there


def shrink(cluster: kube.Cluster, load: Load, nodes: int) -> float:
    """Return the seconds until the last pods, with their claims and nodes, were gone."""
    since = time.monotonic()
    cluster.scale(nodes)

    def gone() -> bool:
        left = len(cluster.pods()), len(cluster.claims()), len(cluster.ids())
        assert left == (nodes, nodes, nodes), f"pods, claims, nodes: {left}; {cluster.condition('Sized')}"
        return True

    kube.until("pods, claims and nodes are gone", gone, timeout_s=DRAINED_S, every_s=1)
    took = time.monotonic() - since
    cluster.await_ready()
    load.await_writes(time.monotonic())
    return took


def test_three_to_five_to_three(three: kube.Cluster) -> None:
    load = Load(three, filling=FILLING)
    began = time.monotonic()
    _, there, carried = grow(three, load, 5)
    drained = shrink(three, load, 3)
    seconds = time.monotonic() - began
    pause = load.longest_pause(began, time.monotonic())
    load.finish()
    three.await_told("ScaledUp", "LoadMoved", "Draining", "ScaledDown", "NodeRemoved", "ClaimDeleted")
    kube.report(
        *("3 three nodes, five, three", seconds),
        nodes_there_s=there,
        they_carry_writes_s=kube.below(carried, CARRY_S),
        five_to_three_s=drained,
        without_a_write_s=pause,
    )


def test_a_pod_that_comes_again_is_another_node_with_another_claim(three: kube.Cluster) -> None:
    load = Load(three, filling=FILLING)
    began = time.monotonic()
    first, _, _ = grow(three, load, 4)
    claims = three.claims()
    shrink(three, load, 3)
    second, _, _ = grow(three, load, 4)
    assert min(second) > max(first)
    again = three.claims()
    assert again["data-c-3"] != claims["data-c-3"]
    assert again["data-c-0"] == claims["data-c-0"]
    shrink(three, load, 3)
    load.finish()
    kube.report("3 four, three, four", time.monotonic() - began, first_id=max(first), second_id=max(second))


def test_a_scale_down_that_would_break_a_volume_is_refused_and_taken_back(three: kube.Cluster) -> None:
    load = Load(three)
    ref = {"clusterRef": {"name": three.name}}
    kube.apply(kube.resource("Volume", "strict", three.namespace, {**ref, "replicas": 3, "minInSync": 3}))
    kube.until("the volume is there", lambda: kube.is_ready("volume", "strict", three.namespace))
    before = three.lives()
    began = time.monotonic()
    three.scale(2)
    kube.until("it is refused", lambda: three.condition("Sized")[1] == "DrainRefused")
    refused = time.monotonic() - began
    assert "strict" in three.condition("Sized")[2]
    assert three.lives() == before
    load.await_writes(time.monotonic())
    three.scale(3)
    kube.until("all is as asked", lambda: three.condition("Sized")[0] == "True")
    assert three.lives() == before
    assert not [each for each in three.storage_nodes() if each.get("spec", {}).get("drain")]
    kube.kubectl("delete", "volume", "strict", "-n", three.namespace)
    three.admin("volume.alter", {"name": "strict", "min_in_sync": 1})
    load.finish()
    kube.report("3 fewer nodes are refused", time.monotonic() - began, refused_s=refused)


@pytest.mark.parametrize("pods", [2, 4])
def test_a_stateful_set_that_is_scaled_by_hand_loses_nothing(three: kube.Cluster, pods: int) -> None:
    load = Load(three)
    ids, lives = three.ids(), three.lives()
    began = time.monotonic()
    kube.kubectl("scale", "statefulset", three.name, "-n", three.namespace, f"--replicas={pods}")

    def as_asked() -> bool:
        (found,) = kube.listed("statefulsets", three.namespace, labels=f"headrace.dev/cluster={three.name}")
        assert found["spec"]["replicas"] == 3, "the StatefulSet is not as it was"
        left = len(three.pods()), len(three.claims())
        assert left == (3, 3), f"pods, claims: {left}"
        assert three.ids() == ids
        return True

    kube.until("there are three pods again", as_asked, timeout_s=DRAINED_S, every_s=1)
    three.await_ready()
    seconds = time.monotonic() - began
    load.await_writes(time.monotonic())
    pause = load.longest_pause(began, time.monotonic())
    load.finish()
    gone = sum(three.lives()[pod] != life for pod, life in lives.items())
    kube.report(f"3 a StatefulSet is scaled to {pods} by hand", seconds, pods_made_anew=gone, without_a_write_s=pause)
