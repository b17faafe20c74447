"""How soon a StreamCluster's conditions become false, and the cost for the API server; none becomes true too early."""

import asyncio
import time
from collections.abc import Callable

import pytest

from headrace_operator.kinds.cluster_watch import ClusterWatch, mark

from ..fake_api import Object
from ..fake_cluster import FakeCluster, World
from .test_cluster import KEY, SPEC, started

AT_REST = 20
"""Requests of one reconcile of a cluster of three pods at rest."""
UNWELL = 6
"""Additional requests if pods are not ready."""
SET_BACK: Object = {"containers": 1, "such_as": [1], "nodes": [2, 3], "reason": "", "do": ""}
LACKS: Object = {"container": 7, "in_sync": 2, "wanted": 3, "reason": "node 3 does not answer"}


async def until(condition, timeout_s: float = 5) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


def is_ready(world: World) -> bool:
    return world.condition("StreamCluster", "c")[0] == "True"


@pytest.fixture
async def watched():
    """A cluster at rest, with an engine and a watch that polls continuously."""
    world = await started()
    engine = world.engine()
    watch = ClusterWatch(admin=world.cluster, wake=engine.enqueue, every_s=0.01)
    world.saw = watch.saw
    world.watch()
    engine.start()
    watch.start()
    engine.enqueue(KEY)
    await until(lambda: engine.reconciled == 1)
    yield world, engine
    await watch.close()
    await engine.close()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda cluster: cluster.lacking.append(LACKS), "UnderReplicated"),
        (lambda cluster: setattr(cluster, "away", True), "NoAnswer"),
        (lambda cluster: setattr(cluster, "set_back", SET_BACK), "SetBack"),
        (lambda cluster: setattr(cluster, "store_silent_ms", 9000), "NotReached"),
        (lambda cluster: cluster.catalog_damage.update({2: "a row is not what was written"}), "CatalogDamaged"),
    ],
)
async def test_what_happens_inside_of_a_cluster_is_seen_without_an_event_of_kubernetes(
    watched, change: Callable[[FakeCluster], None], reason: str
) -> None:
    world, _ = watched
    assert is_ready(world)
    change(world.cluster)
    await until(lambda: not is_ready(world))
    assert world.condition("StreamCluster", "c")[1] == reason


async def test_a_cluster_at_rest_costs_the_api_server_nothing_in_between(watched) -> None:
    world, engine = watched
    reads, writes, reconciled = world.api.reads, len(world.api.writes), engine.reconciled
    asked = []
    world.cluster.asked = asked.append
    await until(lambda: len(asked) > 20)
    assert (world.api.reads, len(world.api.writes), engine.reconciled) == (reads, writes, reconciled)


async def test_a_look_costs_the_api_server_so_much_and_no_more() -> None:
    world = await started()
    reads = world.api.reads
    await world.once(KEY)
    assert world.api.reads - reads <= AT_REST
    world.api.remove("Pod", "c-2")
    world.api.one("Pod", "c-1")["status"] = {"phase": "Pending"}
    reads = world.api.reads
    await world.once(KEY)
    assert world.api.reads - reads <= AT_REST + UNWELL


def test_what_changes_all_the_time_is_no_news() -> None:
    status: Object = {
        "controller": 1,
        "redundancy": {"whole": True, "containers": 4, "lacking": 0, "below_minimum": 0, "behind_bytes": 0},
        "nodes": [{"node": 1, "state": "up", "disk_used_bytes": 1}],
    }
    busier = {**status, "nodes": [{"node": 1, "state": "up", "disk_used_bytes": 2}]}
    assert mark(status) == mark(busier)
    assert mark(status) != mark({**status, "nodes": [{"node": 1, "state": "up, full"}]})
    away: Object = {**status, "store": {"node": 1, "silent_ms": 9000}}
    assert mark(away) == mark({**status, "store": {"node": 1, "silent_ms": 12_000}})
    assert mark(away) != mark(status) == mark({**status, "store": {"node": 2, "silent_ms": 0}, "set_back": None})
    assert mark(status) == mark({**status, "nodes": [{"node": 1, "state": "up", "catalog_damage": ""}]})


async def test_a_service_that_leads_to_a_silent_node_does_not_make_the_cluster_one() -> None:
    world = await started()
    world.cluster.silent = {"c-bootstrap.ns.svc:9092", "c-0.c-nodes.ns.svc:9092"}
    await world.once(KEY)
    assert world.watched[KEY] is not None


# --- not true too early


async def test_a_cluster_is_not_sized_before_its_pods_are_there() -> None:
    world = await started()
    world.declare("StreamCluster", "c", SPEC | {"nodes": 5})
    await world.once(KEY)
    assert world.api.one("StatefulSet", "c")["spec"]["replicas"] == 5
    await world.once(KEY)
    for type in ("Sized", "Current", "Storage"):
        assert world.condition("StreamCluster", "c", type)[0] == "False", type
    generation = world.api.one("StreamCluster", "c")["metadata"]["generation"]
    shown = world.api.one("StreamCluster", "c")["status"]
    assert {each["observedGeneration"] for each in shown["conditions"]} == {generation}
    world.cluster.converge()
    world.api.one("Pod", "c-4")["status"] = {}
    await world.once(KEY)
    assert world.condition("StreamCluster", "c", "Sized")[:2] == ("False", "Starting")
    await world.once(KEY)
    world.api.one("Pod", "c-4")["status"] = {"conditions": [{"type": "Ready", "status": "True"}]}
    (node,) = [each for each in world.cluster.nodes() if each["status"]["slot"] == "c-4/0"]
    world.api.remove("StorageNode", node["metadata"]["name"])
    await world.once(KEY)
    assert "c-4/0 has not registered yet" in world.condition("StreamCluster", "c", "Sized")[2]
    world.api.put(node)
    await world.once(KEY)
    assert world.condition("StreamCluster", "c", "Sized")[0] == "True"


async def test_a_cluster_is_not_sized_before_what_is_too_many_has_gone() -> None:
    world = await started(nodes=4)
    world.declare("StreamCluster", "c", SPEC | {"nodes": 3})
    for _ in range(10):
        await world.once(KEY)
        if world.api.one("StatefulSet", "c")["spec"]["replicas"] == 3:
            break
    await world.once(KEY)
    assert world.condition("StreamCluster", "c", "Sized")[:2] == ("False", "Shrinking")
    await world.run(KEY)
    assert world.condition("StreamCluster", "c", "Sized")[0] == "True"


async def test_a_new_cluster_has_no_condition_that_is_true_of_pods_that_it_has_not() -> None:
    world = World()
    world.cluster.away = True
    world.declare("StreamCluster", "c", SPEC)
    for _ in range(2):
        await world.once(KEY)
        for type in ("Ready", "Available", "Redundant", "Sized", "Current", "Storage"):
            assert world.condition("StreamCluster", "c", type)[0] != "True", type


async def test_the_last_pod_of_a_roll_is_not_current_before_it_is_ready() -> None:
    world = await started(nodes=1, replication={"replicas": 1, "minInSync": 1})
    world.declare("StreamCluster", "c", SPEC | {"nodes": 1, "version": "2"})
    await world.once(KEY)
    world.cluster.converge()
    world.api.one("Pod", "c-0")["status"] = {}
    await world.once(KEY)
    assert world.condition("StreamCluster", "c", "Current")[0] == "False"


async def test_more_replicas_are_not_there_as_soon_as_they_are_asked_for() -> None:
    world = await started()
    world.cluster.volumes["default"] |= {"replicas": 1, "min_in_sync": 1}
    world.declare("StreamCluster", "c", SPEC | {"replication": {"replicas": 3, "minInSync": 2}})
    await world.once(KEY)
    assert world.condition("StreamCluster", "c", "Redundant")[:2] == ("False", "UnderReplicated")
    await world.once(KEY)
    assert world.condition("StreamCluster", "c", "Redundant")[0] == "True"


async def test_counts_are_written_at_once() -> None:
    world = await started()
    world.api.remove("Pod", "c-2")
    await world.once(KEY)
    status = world.api.one("StreamCluster", "c")["status"]
    assert (status["nodes"], status["readyNodes"]) == (2, 2)
    world.cluster.placed = {1: {"state": "down"}}
    await world.once(KEY)
    assert world.api.one("StreamCluster", "c")["status"]["readyNodes"] == 1
