import copy
import re
import time
from pathlib import Path

import pytest
import yaml

from headrace.store.kubernetes.api import ApiError, ApiSilent
from headrace_operator.engine import Key
from headrace_operator.specs import API, FINALIZER

from ..fake_api import NOW, Object
from ..fake_cluster import IMAGE, NS, World

ROOT = Path(__file__).resolve().parents[3]
KEY = Key("StreamCluster", NS, "c")
SPEC: Object = {"nodes": 3, "storage": {"size": "1Gi"}, "listeners": {"external": {"type": "NodePort"}}}

ONE_REPLICA: Object = {"replication": {"replicas": 1, "minInSync": 1}}
TWO_REPLICAS: Object = {"replication": {"replicas": 2, "minInSync": 1}}


async def started(**spec: object) -> World:
    world = World()
    world.declare("StreamCluster", "c", SPEC | spec)
    await world.run(KEY)
    return world


def pods(world: World) -> list[str]:
    return sorted(pod["metadata"]["name"] for pod in world.api.find("Pod"))


def claims(world: World) -> list[str]:
    return sorted(claim["metadata"]["name"] for claim in world.api.find("PersistentVolumeClaim"))


def images(world: World) -> set[str]:
    return {pod["spec"]["containers"][0]["image"] for pod in world.api.find("Pod")}


def node_ids(world: World) -> list[int]:
    return sorted(node["status"]["nodeId"] for node in world.cluster.nodes())


async def test_a_new_cluster_has_its_objects_and_is_ready() -> None:
    world = await started()
    assert pods(world) == ["c-0", "c-1", "c-2"]
    assert world.condition("StreamCluster", "c")[:2] == ("True", "Ready")
    status = world.api.one("StreamCluster", "c")["status"]
    assert [each["type"] for each in status["conditions"]] == [
        "Ready",
        "Reconciled",
        "Available",
        "Redundant",
        "Sized",
        "Current",
        "Storage",
        "StoreCurrent",
        "FeatureLevel",
        "Secured",
        "Certificates",
    ]
    assert status["bootstrap"] == "c-bootstrap.ns.svc:9092"
    assert status["version"] == "1"
    assert world.api.find("PodDisruptionBudget", "c")


async def test_all_conditions_are_there_at_first_sight() -> None:
    world = World()
    world.cluster.away = True
    world.declare("StreamCluster", "c", SPEC)
    await world.once(KEY)
    assert len(world.api.one("StreamCluster", "c")["status"]["conditions"]) == 11
    assert world.condition("StreamCluster", "c", "Available")[:2] == ("False", "NoAnswer")


async def test_a_cluster_at_rest_is_looked_at_without_a_write() -> None:
    world = await started()
    writes = len(world.api.writes)
    world.start_operator()
    for _ in range(5):
        await world.once(KEY)
    assert world.api.writes[writes:] == []


async def test_nodes_get_zone_and_outside_address() -> None:
    world = await started()
    assert {node["status"]["slot"]: node["spec"].get("advertised") for node in world.cluster.nodes()} == {
        f"c-{index}/0": {"external": f"10.0.0.1:{30000 + 10 * index}"} for index in range(3)
    }
    assert {node["spec"]["zone"] for node in world.cluster.nodes()} == {"z1"}
    world.declare("StreamCluster", "c", {"nodes": 3, "storage": {"size": "1Gi"}})
    await world.run(KEY)
    assert all(not node["spec"].get("advertised") for node in world.cluster.nodes())
    assert not [each for each in world.api.find("Service") if each["metadata"]["name"].endswith("-external")]


async def test_what_was_changed_or_deleted_by_hand_comes_back() -> None:
    world = await started()
    world.api.remove("Service", "c-bootstrap")
    service = copy.deepcopy(world.api.one("Service", "c-nodes"))
    service["spec"]["publishNotReadyAddresses"] = False
    world.api.put(service)
    await world.run(KEY)
    assert world.api.find("Service", "c-bootstrap")
    assert world.api.one("Service", "c-nodes")["spec"]["publishNotReadyAddresses"] is True


async def test_what_outlives_the_cluster_has_no_owner() -> None:
    world = await started()
    owned = {
        f"{each['kind']}/{each['metadata']['name']}"
        for each in world.api.objects.values()
        if each["metadata"].get("ownerReferences")
    }
    assert {"StatefulSet/c", "Service/c-nodes", "ServiceAccount/c-nodes", "PodDisruptionBudget/c"} <= owned
    assert not {each for each in owned if each.startswith(("PersistentVolumeClaim", "Secret", "StorageNode"))}


async def test_a_deleted_stateful_set_comes_back_as_large_as_there_are_data() -> None:
    world = await started(nodes=4)
    world.api.remove("StatefulSet", "c")
    world.declare("StreamCluster", "c", SPEC | {"nodes": 3})
    await world.once(KEY)
    assert world.api.one("StatefulSet", "c")["spec"]["replicas"] == 4
    await world.run(KEY)
    assert len(pods(world)) == len(claims(world)) == 3


async def test_a_cluster_that_is_deleted_and_applied_again_has_its_data() -> None:
    world = await started()
    before, secret = node_ids(world), world.api.one("Secret", "c-cluster")["data"]
    world.api.remove("StreamCluster", "c")
    for pod in pods(world):
        world.api.remove("Pod", pod)
    assert not world.api.find("StatefulSet")
    assert len(claims(world)) == 3
    world.declare("StreamCluster", "c", SPEC)
    world.api.one("StreamCluster", "c")["metadata"]["uid"] = "another"
    await world.run(KEY)
    assert node_ids(world) == before
    assert world.api.one("Secret", "c-cluster")["data"] == secret


async def test_a_cluster_that_is_applied_again_stays_at_the_version_that_it_ran() -> None:
    world = await started()
    world.api.remove("StreamCluster", "c")
    for pod in pods(world):
        world.api.remove("Pod", pod)
    world.start_operator(image="registry:5000/headrace/node:2")
    world.declare("StreamCluster", "c", SPEC)
    world.api.one("StreamCluster", "c")["metadata"]["uid"] = "another"
    await world.run(KEY)
    assert images(world) == {IMAGE}
    assert world.api.one("StreamCluster", "c")["status"]["version"] == "1"


async def test_a_lost_secret_is_not_made_anew_over_data() -> None:
    world = await started()
    world.api.remove("Secret", "c-cluster")
    await world.run(KEY)
    assert world.condition("StreamCluster", "c")[:2] == ("False", "SecretLost")
    assert not world.api.find("Secret")


@pytest.mark.parametrize("containers", [0, 1])
async def test_records_that_were_deleted_by_hand_are_a_condition_that_says_what_to_do(
    containers: int,
) -> None:
    world = await started()
    world.cluster.containers, world.cluster.catalog = containers, False
    await world.once(KEY)
    status, reason, message = world.condition("StreamCluster", "c", "Available")
    assert (status, reason) == ("False", "RecordsLost")
    assert "headrace recover-store --pod" in message
    assert world.condition("StreamCluster", "c", "Redundant")[:2] == ("Unknown", "RecordsLost")


async def test_damaged_tables_of_a_node_are_a_condition_that_goes_by_itself() -> None:
    world = await started()
    assert world.condition("StreamCluster", "c", "Redundant")[:2] == ("True", "Whole")
    world.cluster.catalog_damage = {2: "cursors: the row ('g', 1, 0) is not what was written"}
    await world.once(KEY)
    status, reason, message = world.condition("StreamCluster", "c", "Redundant")
    assert (status, reason) == ("False", "CatalogDamaged")
    assert "the catalog's tables of node 2 are damaged" in message
    assert "cursors: the row ('g', 1, 0)" in message
    assert world.condition("StreamCluster", "c", "Available")[:2] == ("True", "Answers")
    world.cluster.catalog_damage = {}
    await world.once(KEY)
    assert world.condition("StreamCluster", "c", "Redundant")[:2] == ("True", "Whole")


async def test_a_store_that_was_set_back_is_a_condition_that_says_what_to_do_and_goes_by_itself() -> None:
    world = await started()
    assert world.condition("StreamCluster", "c", "StoreCurrent")[:2] == ("True", "Whole")
    world.cluster.set_back = {"containers": 1, "such_as": [1], "nodes": [2, 3], "reason": "", "do": ""}
    await world.once(KEY)
    status, reason, message = world.condition("StreamCluster", "c", "StoreCurrent")
    assert (status, reason) == ("False", "SetBack")
    assert "nodes 2, 3 know newer records of 1 containers (1), which are frozen" in message
    assert "`headrace recover-store --pod --yes`" in message
    assert world.condition("StreamCluster", "c", "Available")[:2] == ("False", "SetBack")
    assert world.condition("StreamCluster", "c")[:2] == ("False", "SetBack")
    world.cluster.set_back = None
    await world.once(KEY)
    assert world.condition("StreamCluster", "c", "StoreCurrent")[:2] == ("True", "Whole")
    assert world.condition("StreamCluster", "c")[:2] == ("True", "Ready")


async def test_a_newer_operator_restarts_no_pod_by_itself() -> None:
    world = await started()
    before = {pod["metadata"]["uid"] for pod in world.api.find("Pod")}
    world.start_operator(image="registry:5000/headrace/node:2")
    await world.run(KEY)
    assert {pod["metadata"]["uid"] for pod in world.api.find("Pod")} == before
    assert world.condition("StreamCluster", "c", "Current")[0] == "True"
    world.declare("StreamCluster", "c", SPEC | {"version": "2"})
    await world.run(KEY)
    assert images(world) == {"registry:5000/headrace/node:2"}


async def test_a_cluster_whose_pods_cannot_run_says_why() -> None:
    world = await started()
    world.cluster.away = True
    waiting = {"reason": "ErrImagePull", "message": "no such image: x:1"}
    for name in ("c-0", "c-2"):
        world.api.one("Pod", name)["status"] = {"containerStatuses": [{"state": {"waiting": waiting}}]}
    await world.once(KEY)
    said = world.condition("StreamCluster", "c", "Available")
    assert said == ("False", "PodsCannotRun", "c-0 and 1 more: ErrImagePull: no such image: x:1")
    assert world.condition("StreamCluster", "c")[2] == said[2], "and so in what kubectl get shows"


async def test_a_paused_cluster_is_left_alone() -> None:
    world = await started()
    world.declare("StreamCluster", "c", SPEC | {"nodes": 5}, annotations={"headrace.dev/paused": "true"})
    await world.run(KEY)
    assert len(pods(world)) == 3
    assert world.condition("StreamCluster", "c")[:2] == ("False", "Paused")


async def test_balance_and_the_default_volume_are_told_to_the_cluster() -> None:
    world = await started()
    balance = {"policy": "paused", "overMeanPercent": 150, "movesPerMinute": 2, "floors": {"traffic": "1Mi"}}
    spec = {"balance": balance, "replication": {"replicas": 2, "minInSync": 1}}
    world.declare("StreamCluster", "c", SPEC | spec)
    await world.run(KEY)
    assert world.cluster.balancing == {
        "paused": True,
        "over_mean": 1.5,
        "moves_per_minute": 2,
        "traffic_floor": 2**20,
        "requests_floor": 2_000,
        "disk_floor": 8 * 2**30,
    }
    assert world.cluster.volumes["default"]["replicas"] == 2


@pytest.mark.parametrize(
    ("namespace", "spec", "replicas"),
    [
        (NS, {"name": "default", "replicas": 3}, 3),
        (NS, {"name": "default", "replicas": "many"}, 2),  # by CRDs of another version
        ("elsewhere", {"name": "default", "replicas": 3}, 2),  # not for this cluster
    ],
)
async def test_only_a_volume_that_holds_says_what_the_default_one_is(
    namespace: str, spec: Object, replicas: int
) -> None:
    world = await started()
    meta = {"name": "v", "namespace": namespace}
    ref = {"clusterRef": {"name": "c", "namespace": NS}}
    world.cluster.volumes["default"]["replicas"] = 3
    world.api.put({"apiVersion": API, "kind": "Volume", "metadata": meta, "spec": {**ref, **spec}})
    world.watch()
    world.declare("StreamCluster", "c", SPEC | {"replication": {"replicas": 2, "minInSync": 1}})
    await world.run(KEY)
    assert world.condition("StreamCluster", "c")[0] == "True"
    assert world.cluster.volumes["default"]["replicas"] == replicas


async def test_one_replica_has_no_disruption_budget() -> None:
    world = await started()
    world.declare("StreamCluster", "c", SPEC | {"replication": {"replicas": 1, "minInSync": 1}})
    await world.run(KEY)
    assert not world.api.find("PodDisruptionBudget")


async def test_a_spec_that_the_api_server_refuses_is_a_condition() -> None:
    world = World()
    world.declare("StreamCluster", "c", SPEC)

    def refuse(method: str, path: str) -> ApiError | None:
        return (
            ApiError(422, "affinity: Invalid value") if method == "PATCH" and path.endswith("statefulsets/c") else None
        )

    world.api.refuse = refuse
    await world.once(KEY)
    state, reason, message = world.condition("StreamCluster", "c")
    assert (state, reason) == ("False", "Refused")
    assert "affinity" in message


async def test_a_spec_that_cannot_be_read_is_a_condition() -> None:
    world = World()
    world.declare("StreamCluster", "c", {"nodes": "many"})
    assert await world.once(KEY) is None
    assert world.condition("StreamCluster", "c")[:2] == ("False", "Invalid")


async def test_without_the_right_to_look_at_workers_all_else_goes_on() -> None:
    world = World()
    world.api.refuse = lambda method, path: ApiError(403, "no") if path.startswith("/api/v1/nodes") else None
    world.declare("StreamCluster", "c", SPEC)
    await world.run(KEY)
    assert world.condition("StreamCluster", "c")[0] == "True"


async def test_an_operator_that_is_not_to_look_at_workers_does_not_ask() -> None:
    world = World()
    world.start_operator(sees_workers=False)
    asked: list[str] = []

    def refuse(_method: str, path: str) -> ApiError | None:
        asked.append(path)
        return ApiError(403, "no") if path.startswith("/api/v1/nodes") else None

    world.api.refuse = refuse
    world.declare("StreamCluster", "c", SPEC)
    await world.run(KEY)
    assert world.condition("StreamCluster", "c")[0] == "True"
    assert [path for path in asked if path.startswith("/api/v1/nodes")] == []


# --- deletion


async def test_retain_has_no_finalizer() -> None:
    world = await started()
    assert not world.api.one("StreamCluster", "c")["metadata"].get("finalizers")


async def test_delete_takes_everything_with_it() -> None:
    world = await started(reclaimPolicy="Delete")
    assert world.api.one("StreamCluster", "c")["metadata"]["finalizers"] == [FINALIZER]
    world.api.remove("StreamCluster", "c")
    for _ in range(3):
        await world.once(KEY)
        for pod in pods(world):
            world.api.remove("Pod", pod)
    left = {each["kind"] for each in world.api.objects.values()}
    assert left <= {"Node", "Event"}


async def test_the_end_waits_for_pods_only_so_long() -> None:
    world = await started(reclaimPolicy="Delete")
    world.api.remove("StreamCluster", "c")
    world.api.one("StreamCluster", "c")["metadata"]["deletionTimestamp"] = NOW
    await world.once(KEY)
    assert not world.api.find("StreamCluster")


# --- interruptions


def shape(world: World) -> dict[str, Object]:
    """Return the resulting objects without what differs from run to run."""
    found = {}
    for path, each in world.api.objects.items():
        if each["kind"] in ("Event", "Secret"):
            continue
        if each["kind"] == "StreamCluster":  # figures are written within a minute
            each = each | {"status": {"conditions": each["status"]["conditions"]}}
        text = re.sub(
            r"'(uid|resourceVersion|generation|observedGeneration|lastTransitionTime)': [^,}]*", "", repr(each)
        )
        found[path] = re.sub(r"uid-\d+", "", text)
    return found


async def a_life(world: World, fail_at: int) -> bool:
    """Start, shrink, change, grow, with the response to one write lost. Returns whether there was such a write."""
    left = fail_at
    for spec in (
        {},
        {"nodes": 2},
        {"nodes": 2, "image": "x:2"},
        {"nodes": 3, "storage": {"size": "2Gi"}, "image": "x:2"},
    ):
        world.declare("StreamCluster", "c", SPEC | TWO_REPLICAS | spec)
        begun = len(world.api.writes)
        world.api.fail_after = left if left > 0 else None
        try:
            await world.run(KEY)
        except ApiSilent:
            world.start_operator()
            await world.run(KEY)
        left -= len(world.api.writes) - begun
        if world.api.fail_after is None and left > 0:
            left = 0
    return world.api.fail_after is None


@pytest.mark.parametrize("part", range(4))
async def test_a_crash_after_any_write_comes_to_the_same(part: int) -> None:
    whole = World()
    await a_life(whole, 0)
    expected = shape(whole)
    for fail_at in range(1 + part, len(whole.api.writes) + 1, 4):
        world = World()
        await a_life(world, fail_at)
        assert shape(world) == expected, f"after write {fail_at}: {whole.api.writes[fail_at - 1]}"


@pytest.mark.parametrize("status", [404, 409])
async def test_a_call_that_is_refused_once_comes_to_the_same(status: int) -> None:
    """With objects that vanish between calls, and conflicts."""
    whole = World()
    await a_life(whole, 0)
    expected = shape(whole)
    patches = sum(write.startswith("PATCH") for write in whole.api.writes)
    for refused in range(0, patches, 2):
        world, seen = World(), [0]

        def refuse(method: str, path: str, seen: list[int] = seen, refused: int = refused) -> ApiError | None:
            if method != "PATCH":
                return None
            seen[0] += 1
            return ApiError(status, "injected") if seen[0] == refused + 1 else None

        world.api.refuse = refuse
        for spec in (
            {},
            {"nodes": 2},
            {"nodes": 2, "image": "x:2"},
            {"nodes": 3, "storage": {"size": "2Gi"}, "image": "x:2"},
        ):
            world.declare("StreamCluster", "c", SPEC | TWO_REPLICAS | spec)
            for _ in range(2):
                try:
                    await world.run(KEY)
                except ApiError:
                    continue
                break
        await world.run(KEY)
        assert shape(world) == expected


def happened(at_s: float, kind: str = "primary", reason: str = "node 2 is silent", container: int | None = 7) -> Object:
    return {"at_ms": int(at_s * 1000), "kind": kind, "container": container, "reason": reason}


async def test_what_nodes_tell_of_is_passed_on_once_also_by_the_next_operator() -> None:
    world = await started()
    now = time.time()
    seen = happened(now)
    world.cluster.happened = {
        "c-0:9092": [
            happened(now - 5000, reason="long ago"),
            seen,
            happened(now, "whole", "redundancy is whole", None),
        ],
        "c-1:9092": [happened(now, "whole", "redundancy is whole", None), happened(now - 1, "roll", "to node 3")],
    }
    await world.once(KEY)
    passed_on = [each["message"] for each in world.api.find("Event") if "ReasonOf" not in each["reason"]]
    assert sorted(text for text in passed_on if "node" in text or "whole" in text) == [
        "container 7: node 2 is silent",
        "container 7: to node 3",
        "redundancy is whole",
    ]
    assert {"PrimaryMoved", "LoadMoved", "RedundancyChanged"} <= set(world.events())
    world.start_operator()
    world.cluster.happened["c-0:9092"].append({**seen, "at_ms": seen["at_ms"] + 1})
    await world.once(KEY)
    await world.once(KEY)
    assert [each["message"] for each in world.api.find("Event")].count("container 7: node 2 is silent") == 2


async def test_an_event_that_could_not_be_posted_is_posted_later() -> None:
    world = await started()
    world.cluster.happened = {"c-0:9092": [happened(time.time())]}
    world.api.refuse = lambda _method, path: ApiError(500, "no") if path.endswith("/events") else None
    await world.once(KEY)
    assert "PrimaryMoved" not in world.events()
    world.api.refuse = lambda _method, _path: None
    await world.once(KEY)
    assert world.events().count("PrimaryMoved") == 1


async def test_what_a_node_knows_is_passed_on_before_its_pod_is_made_anew() -> None:
    world = await started()
    world.cluster.happened = {"c-2:9092": [happened(time.time())]}
    world.declare("StreamCluster", "c", SPEC | {"resources": {"limits": {"memory": "1Gi"}}})
    await world.once(KEY)
    assert [reason for reason in world.events() if reason in ("PrimaryMoved", "PodRolled")] == [
        "PrimaryMoved",
        "PodRolled",
    ]


async def test_a_cluster_that_was_changed_to_retain_as_it_was_deleted_keeps_its_data() -> None:
    world = await started(reclaimPolicy="Delete")
    world.declare("StreamCluster", "c", SPEC | {"reclaimPolicy": "Retain"})
    world.api.remove("StreamCluster", "c")
    await world.once(KEY)
    assert claims(world) == ["data-c-0", "data-c-1", "data-c-2"]
    assert world.api.find("StorageNode")
    assert not world.api.find("StreamCluster")


async def test_a_paused_cluster_has_its_finalizer_and_goes_with_its_data_when_it_is_deleted() -> None:
    world = World()
    world.declare("StreamCluster", "c", SPEC | {"reclaimPolicy": "Delete"}, annotations={"headrace.dev/paused": "true"})
    await world.once(KEY)
    assert world.api.one("StreamCluster", "c")["metadata"]["finalizers"] == [FINALIZER]
    world.declare("StreamCluster", "c", SPEC, annotations={"headrace.dev/paused": "true"})
    await world.once(KEY)
    assert not world.api.one("StreamCluster", "c")["metadata"]["finalizers"]


async def test_a_version_by_digest_fits_in_the_status() -> None:
    digest = "sha256:" + "a" * 64
    world = await started(image=f"registry:5000/headrace/node:{'1' * 128}@{digest}")
    crd = (ROOT / "crds/streamclusters.yaml").read_text()
    schema = yaml.safe_load(crd)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    version = world.api.one("StreamCluster", "c")["status"]["version"]
    assert version.endswith(digest)
    assert len(version) <= schema["properties"]["version"]["maxLength"]
