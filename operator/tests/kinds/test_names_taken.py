"""Others' objects with the names of a cluster's objects are left unchanged; those of a former cluster are adopted."""

import copy

import pytest

from headrace_operator.specs import API

from ..fake_api import NOW, Object
from ..fake_cluster import NS, World
from .test_cluster import KEY, SPEC, claims, pods, started

POD: Object = {"metadata": {"labels": {"app": "kafka"}}, "spec": {"containers": [{"name": "k", "image": "kafka:4"}]}}
RUNS: Object = {"replicas": 0, "serviceName": "c", "selector": {"matchLabels": {"app": "kafka"}}, "template": POD}
CLAIM: Object = {"metadata": {"name": "data", "labels": {}}, "spec": {"resources": {"requests": {"storage": "512Mi"}}}}
KAFKA: Object = {"apiVersion": "kafka.example/v1", "kind": "Kafka", "name": "c", "uid": "k", "controller": True}
OF_A_JOB: Object = {"apiVersion": API, "kind": "StreamJob", "name": "a", "uid": "j", "controller": True}


def other(api_version: str, kind: str, name: str, meta: Object | None = None, **fields: object) -> Object:
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {"name": name, "namespace": NS, **(meta or {})},
        **copy.deepcopy(fields),
    }


@pytest.mark.parametrize(
    "theirs",
    [
        other("apps/v1", "StatefulSet", "c", spec=RUNS),
        other("apps/v1", "StatefulSet", "c", spec=RUNS | {"volumeClaimTemplates": [CLAIM]}),
        # the job `a` of a cluster `a-job` has an object of that name
        other(
            "apps/v1",
            "StatefulSet",
            "c",
            {"ownerReferences": [OF_A_JOB], "labels": {"headrace.dev/cluster": "c"}},
            spec=RUNS,
        ),
        other("v1", "Secret", "c-cluster", data={"password": "eA=="}),
        other("v1", "ServiceAccount", "c-nodes"),
        other("rbac.authorization.k8s.io/v1", "Role", "c-nodes", rules=[]),
        other("v1", "Service", "c-bootstrap", {"ownerReferences": [KAFKA]}, spec={"selector": {"app": "k"}}),
        other("v1", "ConfigMap", "c-clients", data={"mine": "x"}),
        other("policy/v1", "PodDisruptionBudget", "c", spec={"minAvailable": 1}),
    ],
    ids=lambda each: f"{each['kind']}-{len(str(each))}",
)
async def test_a_name_that_is_taken_is_a_condition_until_it_is_free(theirs: Object) -> None:
    world = World()
    kind, name = theirs["kind"], theirs["metadata"]["name"]
    before = copy.deepcopy(world.api.put(theirs))
    world.declare("StreamCluster", "c", SPEC)
    for _ in range(3):
        await world.once(KEY)
    assert world.api.one(kind, name) == before
    assert world.condition("StreamCluster", "c")[:2] == ("False", "NameTaken")
    assert f"{kind} {name} is somebody else's" in world.condition("StreamCluster", "c", "Reconciled")[2]
    assert world.api.find("StatefulSet") == ([before] if kind == "StatefulSet" else []), "no pod runs meanwhile"
    world.api.remove(kind, name)
    await world.run(KEY)
    assert world.condition("StreamCluster", "c")[0] == "True"


async def test_the_end_leaves_what_is_anothers() -> None:
    world = World()
    theirs = [
        other("apps/v1", "StatefulSet", "c", spec=RUNS),
        other("v1", "Secret", "c-cluster", data={"password": "eA=="}),
        other("v1", "ConfigMap", "c-store", data={"mine": "x"}),
        other("coordination.k8s.io/v1", "Lease", "c-controller", spec={}),
    ]
    for each in theirs:
        world.api.put(each)
    world.declare("StreamCluster", "c", SPEC | {"reclaimPolicy": "Delete"})
    await world.once(KEY)
    world.api.remove("StreamCluster", "c")
    world.api.one("StreamCluster", "c")["metadata"]["deletionTimestamp"] = NOW
    await world.once(KEY)
    assert not world.api.find("StreamCluster")
    assert all(world.api.find(each["kind"], each["metadata"]["name"]) for each in theirs)


async def test_what_was_orphaned_with_its_pods_is_taken_on() -> None:
    world = await started()
    before = {pod["metadata"]["uid"] for pod in world.api.find("Pod")}
    meta = world.api.one("StreamCluster", "c")["metadata"]
    for each in world.api.objects.values():  # kubectl delete --cascade=orphan
        if each["metadata"].get("ownerReferences"):
            each["metadata"]["ownerReferences"] = []
    meta["uid"] = "another"
    world.start_operator()
    await world.run(KEY)
    assert {pod["metadata"]["uid"] for pod in world.api.find("Pod")} == before
    assert world.api.one("StatefulSet", "c")["metadata"]["ownerReferences"][0]["uid"] == "another"
    assert world.condition("StreamCluster", "c")[0] == "True"


async def test_what_still_has_its_former_owner_is_taken_on() -> None:
    """Kubernetes may collect it after the same cluster is applied again."""
    world = await started()
    world.api.one("StreamCluster", "c")["metadata"]["uid"] = "another"
    world.start_operator()
    await world.run(KEY)
    assert world.condition("StreamCluster", "c")[0] == "True"
    assert len(pods(world)) == len(claims(world)) == 3


async def test_a_record_that_was_put_back_without_its_labels_is_the_clusters_own() -> None:
    world = await started()
    secret = world.api.one("Secret", "c-cluster")
    world.api.remove("Secret", "c-cluster")
    world.api.put(other("v1", "Secret", "c-cluster", data=secret["data"]))
    await world.run(KEY)
    assert world.condition("StreamCluster", "c")[0] == "True"
