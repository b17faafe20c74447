"""What Kubernetes refuses, what pods and claims wait for, and full disks: reported in conditions and events.

Messages are those of Kubernetes 1.34.
"""

from typing import Any

import pytest

from headrace.store.kubernetes.api import ApiError
from headrace_operator.kinds.causes import why_hopeless, why_missing, why_not_ready, why_unbound

from ..fake_api import Object
from ..fake_cluster import NS, World
from .test_cluster import KEY, SPEC, claims, pods, started

QUOTA = (
    'create Pod c-2 in StatefulSet c failed error: pods "c-2" is forbidden: exceeded quota: compute, requested:'
    " requests.memory=1Gi, used: requests.memory=2Gi, limited: requests.memory=2Gi"
)
LIMITS = (
    'create Pod c-2 in StatefulSet c failed error: pods "c-2" is forbidden: maximum memory usage per Container is 1Gi,'
    " but limit is 2Gi"
)
CLAIM_QUOTA = (
    'create Claim data-c-2 for Pod c-2 in StatefulSet c failed error: persistentvolumeclaims "data-c-2" is forbidden:'
    " exceeded quota: storage, requested: requests.storage=10Gi, used: requests.storage=20Gi, limited:"
    " requests.storage=20Gi"
)
NO_CLASS = 'storageclass.storage.k8s.io "fats" not found'
NO_IMAGE = {
    "reason": "ErrImagePull",
    "message": 'failed to pull and unpack image "docker.io/headrace/node:9.9.9": failed to resolve reference'
    ' "docker.io/headrace/node:9.9.9": docker.io/headrace/node:9.9.9: not found',
}
NO_PLACE = (
    "0/3 nodes are available: 3 Insufficient memory. preemption: 0/3 nodes are available: 3 No preemption victims found"
    " for incoming pod."
)
OOM: Object = {
    "name": "node",
    "restartCount": 4,
    "state": {
        "waiting": {
            "reason": "CrashLoopBackOff",
            "message": "back-off 1m20s restarting failed container=node pod=c-2_ns(0f)",
        }
    },
    "lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137, "startedAt": "", "finishedAt": ""}},
}


def told(
    world: World, kind: str, name: str, reason: str, message: str, *, at: str = "2026-01-01T00:00:10Z", **more: Any
) -> None:
    """Post an event like a controller of Kubernetes."""
    number = len(world.api.find("Event"))
    world.api.put(
        {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{name}.{number}", "namespace": NS},
            "involvedObject": {"kind": kind, "name": name, "namespace": NS},
            "reason": reason,
            "message": message,
            "type": "Warning",
            "lastTimestamp": at,
            **more,
        }
    )


def warnings(world: World) -> list[str]:
    """Return the reasons of the operator's own warnings."""
    return [
        each["reason"]
        for each in world.api.find("Event")
        if each["type"] == "Warning" and each["involvedObject"]["kind"] == "StreamCluster"
    ]


@pytest.mark.parametrize("said", [QUOTA, LIMITS])
async def test_a_pod_that_the_api_server_refuses_says_why(said: str) -> None:
    world = await started()
    world.api.remove("Pod", "c-2")
    told(world, "StatefulSet", "c", "SuccessfulCreate", "create Pod c-2 in StatefulSet c successful", type="Normal")
    told(world, "StatefulSet", "c", "FailedCreate", said, at="2026-01-01T00:00:20Z")
    for _ in range(3):
        await world.once(KEY)
    ready = world.condition("StreamCluster", "c")
    assert ready[:2] == ("False", "PodsCannotRun")
    assert said in ready[2]
    assert said in world.condition("StreamCluster", "c", "Sized")[2]
    assert warnings(world) == ["PodsCannotRun"], "once"
    world.cluster.converge()
    await world.run(KEY)
    assert world.condition("StreamCluster", "c")[0] == "True"


async def test_a_cluster_that_gets_no_pod_at_all_says_why() -> None:
    world = World()
    world.cluster.away = True
    world.declare("StreamCluster", "c", SPEC)
    await world.once(KEY)
    for index in range(3):
        told(world, "StatefulSet", "c", "FailedCreate", QUOTA.replace("c-2", f"c-{index}"))
    await world.once(KEY)
    available = world.condition("StreamCluster", "c", "Available")
    assert available[:2] == ("False", "PodsCannotRun")
    assert "c-0 and 2 more" in available[2]
    assert "exceeded quota: compute" in available[2]


@pytest.mark.parametrize("kind", ["secrets", "services", "statefulsets", "serviceaccounts"])
async def test_an_object_that_a_quota_refuses_is_named(kind: str) -> None:
    world = World()
    said = f'{kind} "c" is forbidden: exceeded quota: few, requested: count/{kind}=1, used: count/{kind}=5'
    world.api.refuse = lambda method, path: ApiError(403, said) if method != "GET" and f"/{kind}" in path else None
    world.declare("StreamCluster", "c", SPEC)
    for _ in range(3):
        await world.once(KEY)
    ready = world.condition("StreamCluster", "c")
    assert ready[:2] == ("False", "Refused")
    assert said in ready[2]
    assert warnings(world) == ["Refused"]
    world.api.refuse = lambda _method, _path: None
    await world.run(KEY)
    assert world.condition("StreamCluster", "c")[0] == "True"


async def test_a_former_refusal_is_not_told_again() -> None:
    world = await started()
    world.api.remove("Pod", "c-2")
    told(world, "StatefulSet", "c", "FailedCreate", QUOTA)
    told(
        world,
        "StatefulSet",
        "c",
        "SuccessfulDelete",
        "delete Pod c-2 in StatefulSet c successful",
        type="Normal",
        at="2026-01-01T01:00:00Z",
    )
    await world.once(KEY)
    assert world.condition("StreamCluster", "c", "Sized")[:2] == ("False", "Starting")


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"containerStatuses": [{"state": {"waiting": NO_IMAGE}}]}, "docker.io/headrace/node:9.9.9: not found"),
        ({"containerStatuses": [OOM]}, "OOMKilled (exit code 137), after 4 restarts: it needs more memory"),
        (
            {
                "conditions": [
                    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": NO_PLACE}
                ]
            },
            "3 Insufficient memory",
        ),
    ],
)
async def test_one_pod_in_a_roll_says_why_it_does_not_come(status: Object, expected: str) -> None:
    world = await started()
    world.declare("StreamCluster", "c", SPEC | {"version": "9.9.9"})
    await world.once(KEY)
    world.cluster.converge()
    world.api.one("Pod", "c-2")["status"] = status
    world.cluster.lacking = [{"container": 7, "in_sync": 2, "wanted": 3, "reason": "node 3 does not answer"}]
    await world.once(KEY)
    for type in ("Ready", "Current", "Sized"):
        said = world.condition("StreamCluster", "c", type)
        assert said[:2] == ("False", "PodsCannotRun"), type
        assert "c-2" in said[2]
        assert expected in said[2]
    assert pods(world) == ["c-0", "c-1", "c-2"]
    assert warnings(world) == ["PodsCannotRun"]


async def test_a_claim_of_a_class_that_is_not_there_says_so_and_gives_way_to_another() -> None:
    world = World()
    world.cluster.away = True
    world.declare("StreamCluster", "c", SPEC | {"storage": {"size": "1Gi", "class": "fats"}})
    await world.once(KEY)
    world.cluster.converge()
    for claim in world.api.find("PersistentVolumeClaim"):
        claim["status"] = {"phase": "Pending"}
        told(world, "PersistentVolumeClaim", claim["metadata"]["name"], "ProvisioningFailed", NO_CLASS)
    for pod in world.api.find("Pod"):
        pod["status"] = {"phase": "Pending"}
    await world.once(KEY)
    said = world.condition("StreamCluster", "c", "Storage")
    assert said[:2] == ("False", "ClaimWaits")
    assert NO_CLASS in said[2]
    assert NO_CLASS in world.condition("StreamCluster", "c")[2]
    assert "ClaimWaits" in warnings(world)
    world.api.remove("StreamCluster", "c")
    for pod in pods(world):
        world.api.remove("Pod", pod)
    assert len(claims(world)) == 3, "they stay"
    world.cluster.away = False
    world.declare("StreamCluster", "c", SPEC | {"storage": {"size": "1Gi", "class": "fast"}})
    await world.run(KEY)
    assert {each["spec"]["storageClassName"] for each in world.api.find("PersistentVolumeClaim")} == {"fast"}
    assert world.condition("StreamCluster", "c", "Storage")[0] == "True"
    assert "ClaimReplaced" in world.events()


@pytest.mark.parametrize("bound", [{"volumeName": "pv-1"}, {}])
async def test_a_claim_that_had_a_volume_never_goes_for_its_class(bound: Object) -> None:
    world = await started(storage={"size": "1Gi", "class": "fast"})
    for claim in world.api.find("PersistentVolumeClaim"):
        claim["status"] = {"phase": "Lost" if bound else "Pending"}
        claim["spec"] |= bound
        if not bound:
            claim["metadata"]["annotations"] = {"pv.kubernetes.io/bind-completed": "yes"}
    before = [each["metadata"]["uid"] for each in world.api.find("PersistentVolumeClaim")]
    world.declare("StreamCluster", "c", SPEC | {"storage": {"size": "1Gi", "class": "other"}})
    await world.once(KEY)
    assert [each["metadata"]["uid"] for each in world.api.find("PersistentVolumeClaim")] == before


async def test_a_claim_that_is_bound_meanwhile_stays() -> None:
    world = await started(storage={"size": "1Gi", "class": "fast"})
    for claim in world.api.find("PersistentVolumeClaim"):
        claim["status"] = {"phase": "Pending"}
    before = claims(world)

    def bind(method: str, path: str) -> None:
        if method == "DELETE" and "persistentvolumeclaims" in path:
            world.api._bump(world.api.objects[path])

    world.api.refuse = bind
    world.declare("StreamCluster", "c", SPEC | {"storage": {"size": "1Gi", "class": "other"}})
    await world.once(KEY)
    assert claims(world) == before


async def test_a_claim_that_the_api_server_refuses_says_why() -> None:
    world = await started()
    world.api.remove("Pod", "c-2")
    world.api.remove("PersistentVolumeClaim", "data-c-2")
    told(world, "StatefulSet", "c", "FailedCreate", CLAIM_QUOTA)
    await world.once(KEY)
    said = world.condition("StreamCluster", "c", "Storage")
    assert said[:2] == ("False", "ClaimWaits")
    assert "exceeded quota: storage" in said[2]


async def test_a_claim_without_a_volume_is_no_storage() -> None:
    world = World()
    world.declare("StreamCluster", "c", SPEC)
    await world.once(KEY)
    assert world.condition("StreamCluster", "c", "Storage")[:2] == ("False", "Binding")


async def test_an_operator_without_the_right_to_see_events_goes_on() -> None:
    world = await started()
    world.api.remove("Pod", "c-2")
    world.api.refuse = lambda method, path: ApiError(403, "no") if (method, path[-7:]) == ("GET", "/events") else None
    await world.once(KEY)
    assert world.condition("StreamCluster", "c", "Sized")[:2] == ("False", "Starting")


# --- full disks


def fill(world: World, *pods: str) -> None:
    """Report full disks like nodes in their StorageNodes."""
    for node in world.cluster.nodes():
        node["status"]["full"] = node["status"]["slot"].partition("/")[0] in pods


async def test_a_full_disk_is_a_condition_and_a_warning_that_say_what_to_do() -> None:
    world = await started()
    fill(world, "c-1")
    for _ in range(3):
        await world.once(KEY)
    said = world.condition("StreamCluster", "c", "Storage")
    assert said[:2] == ("False", "DiskFull")
    assert "node 2 (c-1/0)" in said[2]
    assert "storage.size" in said[2]
    assert world.condition("StreamCluster", "c")[:2] == ("False", "DiskFull")
    assert world.condition("StreamCluster", "c", "Available")[0] == "True", "others take the writes"
    assert warnings(world) == ["DiskFull"]
    fill(world)
    await world.once(KEY)
    assert world.condition("StreamCluster", "c")[0] == "True"
    fill(world, "c-1")
    await world.once(KEY)
    assert warnings(world) == ["DiskFull", "DiskFull"], "it is another time"


async def test_a_cluster_whose_disks_are_all_full_is_not_available() -> None:
    world = await started()
    fill(world, "c-0", "c-1", "c-2")
    await world.once(KEY)
    assert world.condition("StreamCluster", "c", "Available")[:2] == ("False", "DiskFull")


async def test_a_full_disk_does_not_hide_why_it_does_not_grow() -> None:
    world = await started()
    world.declare("StreamCluster", "c", SPEC | {"storage": {"size": "512Mi"}})
    fill(world, "c-0")
    await world.once(KEY)
    said = world.condition("StreamCluster", "c", "Storage")
    assert said[1] == "DiskFull"
    assert "claims cannot shrink" in said[2]


# --- of single pods and claims


def test_a_pod_says_what_it_waits_for() -> None:
    pod: Object = {"metadata": {"name": "c-0", "uid": "u"}, "status": {"phase": "Pending"}}
    mount = 'MountVolume.SetUp failed for volume "user" : secret "alice" not found'
    event = {"metadata": {"name": "e"}, "type": "Warning", "reason": "FailedMount", "message": mount}
    assert why_not_ready(pod, [{**event, "involvedObject": {"uid": "u"}}]) == f"FailedMount: {mount}"
    assert why_not_ready(pod, [{**event, "involvedObject": {"uid": "a former one"}}]) == ""
    assert why_hopeless(pod) == ""
    evicted = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: ephemeral-storage."}
    assert "ephemeral-storage" in why_hopeless({**pod, "status": evicted})


def test_a_pod_is_not_taken_for_another_of_a_longer_name() -> None:
    event = {"metadata": {"name": "e"}, "type": "Warning", "message": QUOTA}
    assert why_missing("c-2", [event])
    assert not why_missing("c", [{**event, "message": QUOTA.replace("StatefulSet c", "StatefulSet d")}])
    assert not why_missing("c-20", [event])


def test_a_claim_that_waits_for_its_pod_is_not_wrong() -> None:
    claim: Object = {"metadata": {"name": "data-c-0"}, "spec": {}, "status": {"phase": "Pending"}}
    waits = {
        "metadata": {"name": "e"},
        "type": "Normal",
        "reason": "WaitForFirstConsumer",
        "message": "waiting for first consumer to be created before binding",
    }
    assert why_unbound(claim, [waits]) == ""
    none = "no persistent volumes available for this claim and no storage class is set"
    assert none in why_unbound(claim, [{**waits, "reason": "FailedBinding", "message": none}])
