"""The operator's rights match its calls: no call lacks a right in the chart (FakeApi checks that in every test of a
reconciler), and no right is unused.
"""

from typing import Any

import pytest

from headrace.store.kubernetes.objects import lease_name, store_name
from headrace_operator import main, uninstall
from headrace_operator.builders.cluster import ClusterObjects
from headrace_operator.builders.job import JobObjects
from headrace_operator.builders.job_definition import Placed
from headrace_operator.engine import Key
from headrace_operator.kube import Kube
from headrace_operator.specs import API, Application, ClusterRef, ClusterSpec, JobSpec

from .fake_api import FakeApi
from .fake_cluster import NS, World
from .rights import Right, before_uninstall, in_a_namespace, in_the_cluster, needed, rights_of

REF = {"clusterRef": {"name": "c"}}
JOB = {**REF, "input": {"stream": "/s"}, "application": {"path": "/a.py"}}
SHARED = {"checkpoint": {"claim": "shared"}}


class ClosingApi(FakeApi):
    async def close(self) -> None:
        pass


async def of_a_cluster() -> set[Right]:
    """The calls for a cluster from its creation to its deletion, through all its changes."""
    world = World()
    spec = {"nodes": 3, "storage": {"size": "1Gi"}, "listeners": {"external": {"type": "NodePort"}}}
    key = world.declare("StreamCluster", "c", spec)
    await world.run(key)
    for changed in (
        {"nodes": 4, "storage": {"size": "2Gi"}},
        {"nodes": 2, "storage": {"size": "2Gi"}, "replication": {"replicas": 1, "minInSync": 1}},
        {"nodes": 1, "version": "2", "replication": {"replicas": 1, "minInSync": 1}, "reclaimPolicy": "Delete"},
    ):
        world.declare("StreamCluster", "c", {**changed, "storage": {"size": "2Gi"}})
        await world.run(key)
        for claim in world.api.find("PersistentVolumeClaim"):
            claim["status"] = {"capacity": {"storage": "2Gi"}}
    for pod in world.api.find("Pod"):  # a pod that is not ready, whose cause is looked up
        ready, pod["status"] = pod["status"], {}
        await world.once(key)
        pod["status"] = ready
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": NS}, "data": {}}
    world.api.put(secret)
    kept_by_nodes = ("v1", "ConfigMap", store_name("c")), ("coordination.k8s.io/v1", "Lease", lease_name("c"))
    labels = {"headrace.dev/cluster": "c"}
    for api_version, kind, name in (*kept_by_nodes, (API, "StorageContainer", "c-1")):
        meta = {"name": name, "namespace": NS, "labels": labels}
        world.api.put({"apiVersion": api_version, "kind": kind, "metadata": meta})
    source = {"bootstrap": "north:9092", "stream": "/north", "credentialsSecret": "s"}
    for kind, fields in (
        ("Volume", {"replicas": 1, "minInSync": 1}),
        ("Stream", {"path": "/s", "reclaimPolicy": "Delete"}),
        ("Topic", {"stream": "/s", "reclaimPolicy": "Delete"}),
        ("StreamUser", {"secretName": "first"}),
        ("StreamUser", {"secretName": "second"}),
        ("ReplicationLink", {"source": source, "target": {"stream": "/copy"}}),
    ):
        await world.run(world.declare(kind, "x", {**REF, **fields}))
    for kind, name in (("Topic", "x"), ("Stream", "x"), ("ReplicationLink", "x"), ("StreamCluster", "c")):
        world.api.remove(kind, name)
        await world.run(Key(kind, NS, name))
    assert not world.api.find("StreamCluster")
    for network_policy in (True, False):
        secured = {"nodes": 1, "security": {"enabled": True, "networkPolicy": network_policy}}
        await world.run(world.declare("StreamCluster", "d", secured))
    return world.api.used


async def of_jobs() -> set[Right]:
    """The calls for jobs in each of their forms, and from one form to another."""
    api = ClosingApi()
    operator = main.Operator(api, namespaces=[NS], sweep_s=300, image="i", spark="s")  # type: ignore[arg-type]
    reconcile = operator._reconcilers(operator.engine.cache, image="i", spark="s", sees_workers=True)["StreamJob"]

    def declare(kind: str, name: str, spec: Any) -> None:
        meta = {"name": name, "namespace": NS, **({"uid": f"uid-{name}"} if kind != "StreamJob" else {})}
        before = [each["metadata"] for each in api.find(kind, name)]
        meta |= before[0] if before else {}
        operator.engine.cache.take(api.put({"apiVersion": API, "kind": kind, "metadata": meta, "spec": spec}))

    declare("StreamCluster", "c", {})
    declare("StreamUser", "u", REF)
    for name in ("u", "shared"):
        kind = "Secret" if name == "u" else "PersistentVolumeClaim"
        found = {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": NS}}
        api.put({**found, "spec": {"accessModes": ["ReadWriteMany"]}})
    file = {"name": "file", "namespace": NS}
    api.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": file, "data": {"main.py": "1"}})
    once = {"availableNow": True}
    for fields in (
        {"user": "u", "application": {"configMap": {"name": "file"}}},
        {"trigger": once},
        {"trigger": {**once, "schedule": "@hourly"}},
        {"trigger": {**once, "schedule": "@hourly"}, "suspend": True},
        {**SHARED, "executors": 1},
        {**SHARED, "executors": 1, "engine": "kubeflow"},
        {},
    ):
        declare("StreamJob", "j", {**JOB, **fields})
        for _ in range(3):
            body = operator.engine.cache.get(Key("StreamJob", NS, "j"))
            await reconcile(Key("StreamJob", NS, "j"), body)
    labels = {"headrace.dev/job": "j", "app.kubernetes.io/component": "job-executor", "spark-role": "executor"}
    made = {"name": "e", "namespace": NS, "labels": labels, "creationTimestamp": "t"}
    api.put({"apiVersion": "v1", "kind": "Pod", "metadata": made, "status": {"phase": "Failed"}})
    await reconcile(Key("StreamJob", NS, "j"), operator.engine.cache.get(Key("StreamJob", NS, "j")))
    await operator.close()
    return api.used


async def of_the_end() -> set[Right]:
    """The calls of the hook before the chart is uninstalled."""
    api = FakeApi()
    for kind in uninstall.KINDS:
        meta = {"name": "x", "namespace": NS, "finalizers": ["headrace.dev/delete"]}
        api.put({"apiVersion": API, "kind": kind, "metadata": meta})
    spec = {"selector": {"matchLabels": {"a": "b"}}}
    api.put({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "o", "namespace": NS}, "spec": spec})
    await uninstall.stop_operator(Kube(api), namespace=NS, deployment="o")
    await uninstall.strip(Kube(api), namespaces=[NS])
    return api.used


def of_watches() -> set[Right]:
    """The calls of watches: kopf lists, then watches."""
    watched = [("headrace.dev", plural) for plural in main.OURS]
    watched += [(group, plural) for group, _, plural, _ in main.BELONGING]
    watched += [("", "namespaces"), ("apiextensions.k8s.io", "customresourcedefinitions")]
    return {Right(group, plural, verb) for group, plural in watched for verb in ("list", "watch")}


def granted() -> set[Right]:
    """The rights granted to storage nodes and drivers: Kubernetes lets nobody grant rights that he does not have."""
    body = {"kind": "X", "metadata": {"name": "c", "namespace": NS, "uid": "u"}}
    job = JobSpec(cluster_ref=ClusterRef(name="c"), application=Application(path="/a.py"), executors=1)
    cluster = ClusterObjects(body, ClusterSpec(), image="i").role()
    return rights_of(cluster["rules"] + JobObjects(body, Placed("c", NS, job, "i")).role()["rules"])


async def test_what_is_allowed_is_needed_and_what_is_needed_is_allowed() -> None:
    used = await of_a_cluster() | await of_jobs() | await of_the_end() | of_watches() | granted()
    allowed = in_a_namespace() | in_the_cluster() | before_uninstall()
    assert used - allowed == set()
    assert allowed - used == set()


def test_nothing_that_lies_in_a_namespace_is_allowed_everywhere_by_default() -> None:
    assert {right.resource for right in in_the_cluster()} == {"nodes", "namespaces", "customresourcedefinitions"}
    assert {right.verb for right in in_the_cluster()} <= {"get", "list", "watch"}


@pytest.mark.parametrize(
    ("call", "right"),
    [
        (("GET", "/api/v1/namespaces"), ("", "namespaces", "list")),
        (("GET", "/api/v1/namespaces/n"), ("", "namespaces", "get")),
        (("GET", "/api/v1/namespaces/n/pods"), ("", "pods", "list")),
        (("GET", "/api/v1/pods"), ("", "pods", "list")),
        (("DELETE", "/apis/apps/v1/namespaces/n/statefulsets/c"), ("apps", "statefulsets", "delete")),
        (("PATCH", "/apis/headrace.dev/v1/namespaces/n/topics/t/status"), ("headrace.dev", "topics/status", "patch")),
        (("POST", "/api/v1/namespaces/n/secrets"), ("", "secrets", "create")),
    ],
)  # fmt: skip
def test_a_call_needs_the_right_that_the_api_server_asks_for(call: tuple[str, str], right: Right) -> None:
    assert needed(*call) == [right]


async def test_a_call_that_the_chart_does_not_allow_fails_a_test() -> None:
    with pytest.raises(AssertionError, match="does not allow list secrets"):
        await Kube(FakeApi()).list("v1", "Secret", NS)
    with pytest.raises(AssertionError, match="does not allow delete roles"):
        await Kube(FakeApi()).delete("rbac.authorization.k8s.io/v1", "Role", NS, "r")
