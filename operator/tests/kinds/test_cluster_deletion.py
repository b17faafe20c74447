"""What a deleted StreamCluster has left is marked, until the cluster is created again."""

import re
from pathlib import Path

from headrace.store.kubernetes.api import ApiError
from headrace.store.kubernetes.objects import lease_name, store_name

from ..fake_api import Object
from ..fake_cluster import NS, World
from .test_cluster import KEY, SPEC, started

DOCS = (Path(__file__).resolve().parents[3] / "docs" / "kubernetes.md").read_text()


def marks(world: World) -> list[object]:
    return [node["spec"].get("clusterDeleted") for node in world.cluster.nodes()]


async def test_storage_nodes_of_a_deleted_cluster_are_shown_as_such_until_it_comes_again() -> None:
    world = await started()
    assert marks(world) == [None] * 3
    world.api.remove("StreamCluster", "c")
    await world.run(KEY)
    assert marks(world) == [True] * 3
    writes = len(world.api.writes)
    await world.once(KEY)
    assert len(world.api.writes) == writes
    world.declare("StreamCluster", "c", SPEC)
    await world.run(KEY)
    assert marks(world) == [None] * 3
    assert world.condition("StreamCluster", "c")[:2] == ("True", "Ready")


async def test_an_operator_that_was_away_at_the_end_of_a_cluster_marks_its_nodes_too() -> None:
    """It sees the StorageNodes when it starts, and reconciles the cluster that they name."""
    world = await started()
    world.api.remove("StreamCluster", "c")
    world.start_operator()
    await world.once(KEY)
    assert marks(world) == [True] * 3


async def test_nodes_of_a_cluster_that_was_not_heard_of_yet_are_not_marked() -> None:
    world = await started()
    await world.reconcilers["StreamCluster"](KEY, None)
    assert marks(world) == [None] * 3


async def test_a_namespace_that_has_gone_holds_nothing_up() -> None:
    world = await started()
    world.api.remove("StreamCluster", "c")
    world.api.refuse = lambda _method, _path: ApiError(403, "forbidden")
    assert await world.once(KEY) is None


async def test_what_the_docs_delete_is_all_that_is_left() -> None:
    world = await started()
    kept_by_nodes = ("v1", "ConfigMap", store_name("c")), ("coordination.k8s.io/v1", "Lease", lease_name("c"))
    for api_version, kind, name in kept_by_nodes:
        world.api.put({"apiVersion": api_version, "kind": kind, "metadata": {"name": name, "namespace": NS}})
    world.api.remove("StreamCluster", "c")
    world.cluster.converge()
    told = DOCS.partition("**What a deleted cluster leaves**")[2].partition("**Removing a worker node**")[0]
    lines = re.findall(r"(?m)^\$ kubectl delete (.*)$", told.replace("NAME", "c"))
    assert len(lines) == 3
    for line in lines:
        what, _, selector = line.partition(" --selector ")
        for each in list(world.api.objects.values()):
            if is_selected(each, what, selector) if selector else is_named(each, what):
                world.api.remove(each["kind"], each["metadata"]["name"])
    left = {each["kind"] for each in world.api.objects.values()}
    assert left <= {"Node", "Event", "Pod"}


KINDS = {
    "configmap": "ConfigMap",
    "lease": "Lease",
    "pvc": "PersistentVolumeClaim",
    "secret": "Secret",
    "storagecontainers": "StorageContainer",
    "storagenodes": "StorageNode",
}


def is_selected(found: Object, kinds: str, selector: str) -> bool:
    labels = (found["metadata"].get("labels") or {}).items()
    wanted = dict(pair.split("=") for pair in selector.split(","))
    return found["kind"] in {KINDS[kind] for kind in kinds.split(",")} and wanted.items() <= labels


def is_named(found: Object, objects: str) -> bool:
    at = found["kind"], found["metadata"]["name"]
    return at in {(KINDS[kind], name) for kind, name in (each.split("/") for each in objects.split())}
