"""An operator that may read only one namespace: the chart's `namespaces`, without `clusterRights`."""

import uuid
from collections.abc import Iterator

import kube
import pytest

from kit.cluster_clients import Load

BACK_S = 30.0
LEFT_ALONE_S = 15.0


@pytest.fixture
def elsewhere(kind: None) -> Iterator[str]:
    """Another namespace."""
    name = f"e2e-{uuid.uuid4().hex[:6]}"
    kube.kubectl("create", "namespace", name)
    yield name
    kube.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def bounded(namespace: str) -> Iterator[None]:
    """The operator, with rights in one namespace only."""
    before = kube.operator_pod()
    try:
        kube.install(namespaces=f"{{{namespace}}}", clusterRights="false")
        kube.until("the other operator runs", lambda: kube.operator_pod() != before)
        yield
    finally:
        kube.install()


def a_workers_address() -> str:
    """Return the address of NodePorts; an operator that may not read workers needs it in the resource."""
    worker = kube.get("node", kube.workers()[0])
    assert worker is not None
    return next(each["address"] for each in worker["status"]["addresses"] if each["type"] == "InternalIP")


def test_rights_in_one_namespace_are_enough_for_it(namespace: str, bounded: None, elsewhere: str) -> None:
    with kube.reported("craft: an operator with rights in one namespace"):
        assert not kube.kubectl("get", "clusterrole", f"headrace-{kube.SYSTEM}", "--ignore-not-found")
        external = {"type": "NodePort", "host": a_workers_address()}
        cluster = kube.Cluster("c", namespace, listeners={"external": external})
        unseen = kube.Cluster("c", elsewhere, nodes=1)
        for each in (cluster, unseen):
            each.apply()
        cluster.await_ready()
        ref = {"clusterRef": {"name": "c"}}
        kube.apply(
            kube.resource("Volume", "plain", namespace, {**ref, "replicas": 2, "minInSync": 1}),
            kube.resource("Stream", "s", namespace, {**ref, "path": "/s", "reclaimPolicy": "Delete"}),
            kube.resource("Topic", "t", namespace, {**ref, "stream": "/s"}),
            kube.resource("StreamUser", "u", namespace, ref),
        )
        for of, name in (("volume", "plain"), ("stream", "s"), ("topic", "t"), ("streamuser", "u")):
            kube.until(f"{of} {name} is ready", lambda of=of, name=name: kube.is_ready(of, name, namespace))
        load = Load(cluster)
        kube.kubectl("delete", "service", "c-bootstrap", "-n", namespace)
        kube.until(
            "it notices what is deleted", lambda: kube.get("service", "c-bootstrap", namespace), timeout_s=BACK_S
        )
        kube.kubectl("delete", "stream", "s", "-n", namespace)
        assert "/s" not in {each["path"] for each in cluster.headrace("stream", "list")}
        load.write_on_for(LEFT_ALONE_S)
        load.finish()
        assert not (unseen.body.get("status") or {}).get("conditions")
        log = kube.kubectl("logs", kube.operator_pod(), "-n", kube.SYSTEM).lower()
        assert [line for line in log.splitlines() if "forbidden" in line] == []
