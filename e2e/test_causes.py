"""What Kubernetes refuses or a node lacks is reported in conditions and events, and conditions become true only when
they hold.
"""

import time
from collections.abc import Callable

import kube
import pytest

from kit.patience import PATIENCE

BEHAVIOUR = "11 causes"
TOLD_S = 90.0
ONE: kube.Body = {"nodes": 1, "replication": {"replicas": 1, "minInSync": 1}}
SMALL_CHUNKS = {"chunk-bytes": str(16 << 20), "disk-reserve": str(16 << 20)}


def told(cluster: kube.Cluster, type: str, reason: str, *words: str) -> Callable[[], str]:
    """Return a function that returns a condition's message, once it is False for that reason and has these words."""

    def found() -> str:
        status, why, message = cluster.condition(type)
        assert (status, why) == ("False", reason), (type, status, why, message)
        assert all(word in message for word in words), message
        return message

    return found


def gone(cluster: kube.Cluster) -> None:
    """Delete the cluster's resource; its data stay."""
    kube.kubectl("delete", "streamcluster", cluster.name, "-n", cluster.namespace)
    kube.until("its pods are gone", lambda: not cluster.pods())


def default_class() -> str:
    """Return the storage class of claims that name none."""
    mark = "storageclass.kubernetes.io/is-default-class"
    found = kube.listed("storageclasses")
    return next(
        str(each["metadata"]["name"])
        for each in found
        if (each["metadata"].get("annotations") or {}).get(mark) == "true"
    )


def test_a_quota_that_allows_no_pod_is_named(namespace: str) -> None:
    quota: kube.Body = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "memory", "namespace": namespace},
        "spec": {"hard": {"requests.memory": "1Mi"}},
    }
    cluster = kube.Cluster("quota", namespace, **ONE, resources={"requests": {"memory": "256Mi"}})
    with kube.reported(f"{BEHAVIOUR}: a quota") as figures:
        kube.apply(quota)
        cluster.apply()
        message = told(cluster, "Ready", "PodsCannotRun", "exceeded quota: memory")
        figures["said"] = str(kube.until("the quota is named", message, timeout_s=TOLD_S))[:160]
        cluster.await_told("PodsCannotRun")
        kube.kubectl("delete", "resourcequota", "memory", "-n", namespace)
        gone(cluster)


def test_a_storage_class_that_is_not_there_is_named_and_another_one_takes_its_place(namespace: str) -> None:
    cluster = kube.Cluster("classless", namespace, **ONE, storage={"size": "1Gi", "class": "fats"})
    with kube.reported(f"{BEHAVIOUR}: a wrong storage class") as figures:
        cluster.apply()
        message = told(cluster, "Storage", "ClaimWaits", "fats")
        figures["said"] = str(kube.until("the class is named", message, timeout_s=TOLD_S))[:160]
        gone(cluster)
        assert cluster.claims(), "they stay"
        cluster.apply(storage={"size": "1Gi", "class": default_class()})
        cluster.await_ready()
        gone(cluster)


def test_a_full_disk_is_reported_with_what_to_do(namespace: str) -> None:
    """The node's quota has room for less than two chunks from the start."""
    cluster = kube.Cluster("full", namespace, **ONE, settings={**SMALL_CHUNKS, "disk-quota": str(40 << 20)})
    with kube.reported(f"{BEHAVIOUR}: a full disk") as figures:
        cluster.apply()
        message = told(cluster, "Storage", "DiskFull", "storage.size")
        figures["said"] = str(kube.until("the full disk is reported", message, timeout_s=240))[:160]
        assert cluster.condition("Ready")[0] == "False"
        cluster.await_told("DiskFull")
        gone(cluster)


def test_a_setting_that_does_not_exist_recreates_no_pod(three: kube.Cluster) -> None:
    with kube.reported(f"{BEHAVIOUR}: a setting that does not exist"):
        lives, settings = three.lives(), three.spec["settings"]
        three.apply(settings={**settings, "chunk-byte": "1"})
        kube.until("it is named", told(three, "Ready", "WrongSettings", "chunk-byte"), timeout_s=TOLD_S)
        three.apply(settings=settings)
        three.await_ready()
        assert three.lives() == lives


def test_a_version_that_is_set_and_removed_again_leaves_nothing_behind(three: kube.Cluster) -> None:
    with kube.reported(f"{BEHAVIOUR}: a bad version, removed again") as figures:
        lives, version = three.lives(), three.body["status"]["version"]
        three.apply(version="no-such-version")
        last = f"{three.name}-2"
        message = told(three, "Ready", "PodsCannotRun", last, "no-such-version")
        figures["said"] = str(kube.until("its image is named", message, timeout_s=TOLD_S))[:160]
        assert three.body["status"]["version"] == version
        del three.spec["version"]
        three.apply()
        three.await_ready()
        assert three.body["status"]["version"] == version
        assert {pod: life for pod, life in three.lives().items() if pod != last} == {
            pod: life for pod, life in lives.items() if pod != last
        }


def test_fewer_pods_than_replicas_are_refused_before_anything_goes(three: kube.Cluster) -> None:
    with kube.reported(f"{BEHAVIOUR}: fewer pods than replicas"):
        ids = three.ids()
        three.scale(2)
        kube.until("it is refused", told(three, "Sized", "DrainRefused", "asks for 3 replicas"), timeout_s=TOLD_S)
        three.await_told("DrainRefused")
        assert three.ids() == ids
        assert not [each for each in three.storage_nodes() if (each.get("spec") or {}).get("drain")]
        three.scale(3)
        three.await_ready()


def test_a_wait_for_more_pods_ends_when_they_are_ready(three: kube.Cluster) -> None:
    with kube.reported(f"{BEHAVIOUR}: kubectl wait after kubectl scale") as figures:
        began = time.monotonic()
        three.scale(4)
        kube.kubectl(
            *("wait", "streamcluster", three.name, "-n", three.namespace, "--for=condition=Sized"),
            f"--timeout={int(240 * PATIENCE)}s",
            timeout_s=260 * PATIENCE,
        )
        figures["sized_s"] = round(time.monotonic() - began, 1)
        assert sum(kube.is_up(pod) for pod in three.pods()) == 4
        assert len(three.ids()) == 4
        three.scale(3)
        three.await_ready()


@pytest.mark.parametrize("how", ["by hand", "with the cluster"])
def test_ports_of_clients_outside_outlive_what_is_deleted(three: kube.Cluster, how: str) -> None:
    with kube.reported(f"{BEHAVIOUR}: NodePorts, deleted {how}"):
        before = {node.pod: node.port for node in three.nodes.values()}
        assert len(before) == 3
        if how == "by hand":
            kube.kubectl("delete", "service", f"{three.name}-1-external", "-n", three.namespace)
        else:
            gone(three)
            kube.until(
                "its Services are gone",
                lambda: not kube.get("service", f"{three.name}-1-external", three.namespace),
            )
            three.apply()
        three.await_ready()
        kube.until(
            "ports are as they were",
            lambda: {node.pod: node.port for node in three.nodes.values()} == before,
            timeout_s=TOLD_S,
        )
