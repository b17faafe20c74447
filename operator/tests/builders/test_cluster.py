"""The objects of a StreamCluster, as readable snapshot files (HEADRACE_SNAPSHOTS=write writes them)."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from headrace_operator.builders.cluster import ROLLED, ClusterObjects
from headrace_operator.builders.names import bootstrap
from headrace_operator.builders.secured_pods import REQUIRE, Secured
from headrace_operator.specs import ClusterSpec

SNAPSHOTS = Path(__file__).parents[1] / "snapshots"
EXAMPLES = Path(__file__).resolve().parents[3] / "docs/examples"
IMAGE = "headrace/node:0.1.0"


def built(
    spec: dict[str, Any],
    *,
    image: str = IMAGE,
    name: str = "plant",
    node_ports: Mapping[str, Sequence[int]] | None = None,
) -> ClusterObjects:
    meta = {"name": name, "namespace": "factory", "uid": "0c3f"}
    body = {"apiVersion": "headrace.dev/v1alpha1", "kind": "StreamCluster", "metadata": meta, "spec": spec}
    return ClusterObjects(body, msgspec.convert(spec, ClusterSpec), image=image, node_ports=node_ports)


def example(name: str) -> dict[str, Any]:
    bodies = yaml.safe_load_all((EXAMPLES / name).read_text())
    (found,) = [each for each in bodies if each["kind"] == "StreamCluster"]
    return dict(found["spec"])


def by_kind(objects: ClusterObjects, kind: str) -> list[dict[str, Any]]:
    return [each for each in objects.all() if each["kind"] == kind]


def pod(objects: ClusterObjects) -> dict[str, Any]:
    return objects.stateful_set()["spec"]["template"]["spec"]


@pytest.mark.parametrize("name", ["smallest", "quickstart", "streamcluster"])
def test_objects_are_as_in_the_snapshot(name: str) -> None:
    spec = {"nodes": 1} if name == "smallest" else example(f"{name}.yaml")
    objects = built(spec)
    if spec.get("security"):
        objects = objects.with_security(Secured(REQUIRE, from_start=True))
    shown = yaml.safe_dump_all(objects.all(), sort_keys=False, width=120)
    file = SNAPSHOTS / f"{name}.yaml"
    if os.environ.get("HEADRACE_SNAPSHOTS") == "write":
        file.write_text(shown)
    assert file.read_text() == shown, "HEADRACE_SNAPSHOTS=write writes the new one"


def test_the_stateful_set_leaves_order_updates_and_claims_to_the_operator() -> None:
    spec = built({}).stateful_set()["spec"]
    assert spec["podManagementPolicy"] == "Parallel"
    assert spec["updateStrategy"] == {"type": "OnDelete"}
    assert spec["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}
    assert "ownerReferences" not in spec["volumeClaimTemplates"][0]["metadata"]


def test_nodes_find_each_other_before_they_are_ready() -> None:
    services = {each["metadata"]["name"]: each["spec"] for each in by_kind(built({}), "Service")}
    assert services["plant-nodes"]["publishNotReadyAddresses"] is True
    assert services["plant-nodes"]["clusterIP"] == "None"
    assert "publishNotReadyAddresses" not in services["plant-bootstrap"]
    assert bootstrap("plant", "factory") == "plant-bootstrap.factory.svc:9092"


def test_outside_each_pod_has_a_service_with_a_port_for_each_node() -> None:
    external = {"type": "NodePort", "nodePorts": [30001, 30002, 30003]}
    objects = built({"nodes": 2, "shards": 2, "listeners": {"external": external}})
    first, second = objects.external_services()
    assert [port["nodePort"] for port in first["spec"]["ports"]] == [30001, 30002]
    assert [port.get("nodePort") for port in second["spec"]["ports"]] == [30003, None]
    assert first["spec"]["selector"]["statefulset.kubernetes.io/pod-name"] == "plant-0"
    assert first["spec"]["publishNotReadyAddresses"] is True


def test_more_listeners_have_services_outside_where_they_say_so() -> None:
    outside = {"type": "LoadBalancer", "annotations": {"a": "b"}}
    more = [{"name": "people", "port": 9300, "external": outside}, {"name": "tokens", "port": 9310}]
    spec = {"nodes": 2, "shards": 2, "security": {"enabled": True}, "listeners": {"additional": more}}
    services = built(spec).external_services()
    assert [each["metadata"]["name"] for each in services] == ["plant-0-9300-external", "plant-1-9300-external"]
    assert [port["port"] for port in services[1]["spec"]["ports"]] == [9300, 9301]
    assert services[1]["spec"]["selector"]["statefulset.kubernetes.io/pod-name"] == "plant-1"
    assert services[1]["metadata"]["annotations"] == {"a": "b"}
    longest = built(spec, name="p" * 40).external_services()
    assert all(len(each["metadata"]["name"]) <= 63 for each in longest)


def test_a_pods_ports_outside_are_those_that_its_services_had() -> None:
    more = [{"name": "people", "port": 9300, "external": {"type": "NodePort"}}]
    listeners = {"external": {"type": "NodePort"}, "additional": more}
    spec = {"nodes": 1, "security": {"enabled": True}, "listeners": listeners}
    services = built(spec, node_ports={"plant-0": [30001], "plant-0-9300": [30002]}).external_services()
    assert [port["nodePort"] for each in services for port in each["spec"]["ports"]] == [30001, 30002]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"nodes": 1}, False),
        ({"nodes": 1, "shards": 3}, False),
        ({"nodes": 3}, True),
        ({"nodes": 3, "replication": {"replicas": 1, "minInSync": 1}}, False),
    ],
)
def test_a_disruption_budget_only_where_it_protects(spec: dict[str, Any], expected: bool) -> None:
    assert bool(by_kind(built(spec), "PodDisruptionBudget")) is expected


def test_the_pod_has_no_rights_on_its_machine() -> None:
    found = pod(built({}))
    assert found["securityContext"]["runAsNonRoot"] is True
    assert found["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = found["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_probes_and_ports_of_several_shards() -> None:
    (container,) = pod(built({"shards": 2}))["containers"]
    names = [port["name"] for port in container["ports"]]
    assert len(names) == len(set(names))
    assert all(len(name) <= 15 for name in names)
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert container["command"][-2:] == ["--shards", "2"]


def test_what_is_passed_on_reaches_the_pod() -> None:
    objects = built(
        {
            "imagePullSecrets": [{"name": "s"}],
            "pod": {
                "annotations": {"a": "b"},
                "labels": {"l": "m", "headrace.dev/cluster": "not me"},
                "nodeSelector": {"disk": "fast"},
                "tolerations": [{"key": "k"}],
                "affinity": {"nodeAffinity": {}},
                "priorityClassName": "high",
                "topologySpreadConstraints": [],
            },
        }
    )
    template = objects.stateful_set()["spec"]["template"]
    assert template["metadata"]["annotations"]["a"] == "b"
    assert template["metadata"]["labels"]["l"] == "m"
    assert template["metadata"]["labels"]["headrace.dev/cluster"] == "plant"
    found = pod(objects)
    assert found["imagePullSecrets"] == [{"name": "s"}]
    assert found["nodeSelector"] == {"disk": "fast"}
    assert found["tolerations"] == [{"key": "k"}]
    assert found["affinity"] == {"nodeAffinity": {}}
    assert found["priorityClassName"] == "high"
    assert found["topologySpreadConstraints"] == []


@pytest.mark.parametrize(
    "change",
    [
        {"resources": {"limits": {"memory": "2Gi"}}},
        {"settings": {"chunk-bytes": "65536"}},
        {"tracing": {"endpoint": "http://collector:4318"}},
        {"pod": {"annotations": {"a": "b"}}},
        {"shards": 2},
        {"imagePullSecrets": [{"name": "s"}]},
    ],
)
def test_a_change_of_what_pods_are_makes_them_anew(change: dict[str, Any]) -> None:
    assert built(change).rolled() != built({}).rolled()
    assert built({}, image="x").rolled() != built({}).rolled()


def test_nodes_are_told_where_traces_go() -> None:
    command = pod(built({"tracing": {"endpoint": "http://collector:4318"}}))["containers"][0]["command"]
    assert command[-2:] == ["--tracing-endpoint", "http://collector:4318"]
    assert "--tracing-endpoint" not in pod(built({}))["containers"][0]["command"]


@pytest.mark.parametrize(
    "change",
    [{"nodes": 5}, {"balance": {"policy": "paused"}}, {"storage": {"size": "20Gi"}}, {"tracing": {}}],
)
def test_a_change_of_anything_else_does_not(change: dict[str, Any]) -> None:
    assert built(change).rolled() == built({}).rolled()
    assert built({}).stateful_set()["spec"]["template"]["metadata"]["annotations"][ROLLED] == built({}).rolled()


@pytest.mark.parametrize(
    ("resources", "requests", "limits"),
    [
        ({}, {"cpu": "200m", "memory": "512Mi"}, None),
        ({"requests": {"memory": "1Gi"}}, {"cpu": "200m", "memory": "1Gi"}, None),
        ({"limits": {"memory": "128Mi"}}, {"cpu": "200m"}, {"memory": "128Mi"}),  # a request would exceed the limit
        ({"limits": {"cpu": 2, "memory": "1Gi"}}, None, {"cpu": 2, "memory": "1Gi"}),
        ({"requests": {"cpu": 1, "memory": "1Gi"}}, {"cpu": 1, "memory": "1Gi"}, None),
    ],
)
def test_no_pod_goes_without_a_request(
    resources: dict[str, Any], requests: dict[str, Any] | None, limits: dict[str, Any] | None
) -> None:
    """Kubernetes uses a limit as the request if there is none."""
    (container,) = pod(built({"shards": 2, "resources": resources}))["containers"]
    assert container["resources"].get("requests") == requests
    assert container["resources"].get("limits") == limits


def test_a_newer_operator_makes_no_pod_anew() -> None:
    """The digest of a StreamCluster with defaults only, as 0.1.0 computed it."""
    assert built({}, image="i").rolled() == "c38c2b027907e866"


def test_what_a_user_says_of_affinity_stays_beside_a_host_for_each_pod() -> None:
    mine = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}}
    made = pod(built({"pod": {"affinity": mine}}))["affinity"]
    assert made["nodeAffinity"] == mine["nodeAffinity"]
    assert "podAntiAffinity" in made
