"""Objects that are changed or deleted by hand are restored soon."""

import json
import time

import kube
import pytest

from kit.cluster_clients import Load

BACK_S = 30.0
WRITES_BACK_S = 150.0
CHANGED = {
    "a Service that selects others": ("service", "c-bootstrap", {"selector": {"headrace.dev/cluster": "another"}}),
    "a Service that selects nobody": ("service", "c-bootstrap", {"selector": {"made-up": "yes"}}),
    "a Service without its ports": ("service", "c-nodes", {"ports": [{"name": "client-0", "port": 9092}]}),
    "a StatefulSet with another account": (
        "statefulset",
        "c",
        {"template": {"spec": {"serviceAccountName": "default"}}},
    ),
    "a StatefulSet that rolls by itself": ("statefulset", "c", {"updateStrategy": {"type": "RollingUpdate"}}),
    "a PodDisruptionBudget of another sort": ("poddisruptionbudget", "c", {"maxUnavailable": None, "minAvailable": 1}),
    "a PodDisruptionBudget that allows all": ("poddisruptionbudget", "c", {"maxUnavailable": 3}),
}
DELETED = ("service/c-bootstrap", "service/c-nodes", "service/c-1-external", "poddisruptionbudget/c")


def spec_of(kind: str, name: str, namespace: str) -> kube.Body:
    """Return an object's spec without the fields that the server chooses."""
    found = kube.get(kind, name, namespace)
    if found is None:
        return {}
    spec = {key: value for key, value in found["spec"].items() if not key.startswith(("clusterIP", "ipFamil"))}
    for port in spec.get("ports", []):
        port.pop("nodePort", None)
    return spec


def test_what_is_changed_by_hand_comes_back(three: kube.Cluster) -> None:
    load = Load(three)
    lives = three.lives()
    took = {}
    began = time.monotonic()
    for what, (kind, name, change) in CHANGED.items():
        before = spec_of(kind, name, three.namespace)
        since = time.monotonic()
        patch = json.dumps({"spec": change})
        kube.kubectl("patch", kind, name, "-n", three.namespace, "--type=merge", "-p", patch)
        kube.until(
            f"{what} is as it was",
            lambda kind=kind, name=name, before=before: spec_of(kind, name, three.namespace) == before,
            timeout_s=BACK_S,
        )
        took[what] = time.monotonic() - since
    seconds = time.monotonic() - began
    load.await_writes(time.monotonic())
    three.await_ready()
    assert three.lives() == lives
    load.finish()
    kube.report("7 what is changed by hand", seconds, **took)


def test_what_is_deleted_by_hand_comes_back(three: kube.Cluster) -> None:
    load = Load(three)
    lives = three.lives()
    took = {}
    began = time.monotonic()
    for what in DELETED:
        kind, _, name = what.partition("/")
        before = spec_of(kind, name, three.namespace)
        since = time.monotonic()
        kube.kubectl("delete", what, "-n", three.namespace)
        kube.until(
            f"{what} is as it was",
            lambda kind=kind, name=name, before=before: spec_of(kind, name, three.namespace) == before,
            timeout_s=BACK_S,
        )
        took[what] = time.monotonic() - since
    (port,) = (kube.get("service", "c-1-external", three.namespace) or {})["spec"]["ports"]
    kube.until(
        "clients outside get the new port",
        lambda: port["nodePort"] in {node.port for node in three.nodes.values() if node.pod == "c-1"},
        timeout_s=BACK_S,
    )
    seconds = time.monotonic() - began
    load.fresh_writes_go_on(within_s=BACK_S)
    load.await_writes(time.monotonic())
    three.await_ready()
    assert three.lives() == lives
    load.finish()
    kube.report("7 what is deleted by hand", seconds, **took)


@pytest.mark.parametrize("cascade", ["orphan", "background"])
def test_a_stateful_set_that_is_deleted_comes_back_with_its_pods_and_their_data(
    three: kube.Cluster, cascade: str
) -> None:
    load = Load(three)
    kube.forgive_commits(load)
    lives, ids = three.lives(), three.ids()
    since = time.monotonic()
    kube.kubectl("delete", "statefulset", "c", "-n", three.namespace, f"--cascade={cascade}")
    if cascade == "background":
        for pod in lives:
            three.await_other_life(pod, lives)
    kube.until("the StatefulSet is back", lambda: kube.get("statefulset", "c", three.namespace), timeout_s=BACK_S)
    back = time.monotonic() - since
    load.await_writes(time.monotonic(), within_s=WRITES_BACK_S)
    pause = load.longest_pause(since, time.monotonic())
    three.await_ready()
    assert three.ids() == ids
    assert (three.lives() == lives) is (cascade == "orphan")
    load.finish()
    kube.report(
        f"7 a StatefulSet is deleted: {cascade}", time.monotonic() - since, back_s=back, without_a_write_s=pause
    )
