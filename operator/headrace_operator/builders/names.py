"""Names, labels and ports of what belongs to a cluster. Pure."""

from typing import Any, Final

from headrace.node.pod import ADMIN_PORT, CLIENT_PORT, EXTERNAL_PORT, PEER_PORT
from headrace.store.kubernetes.objects import CLUSTER_LABEL
from headrace_operator.specs import API, GROUP

__all__ = ["ADMIN_PORT", "CLIENT_PORT", "CLUSTER_LABEL", "EXTERNAL_PORT", "PEER_PORT"]

POD_LABEL: Final = "statefulset.kubernetes.io/pod-name"
JOB_LABEL: Final = f"{GROUP}/job"
FIELD_MANAGER: Final = "headrace-operator"

Manifest = dict[str, Any]


def labels(cluster: str, component: str = "storage") -> dict[str, str]:
    """Of everything that is made for a cluster (kubernetes.io's recommended labels)."""
    return {
        CLUSTER_LABEL: cluster,
        "app.kubernetes.io/name": "headrace",
        "app.kubernetes.io/instance": cluster,
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/managed-by": FIELD_MANAGER,
    }


def selector(cluster: str, component: str = "storage") -> dict[str, str]:
    """Finds the pods of a cluster."""
    return {CLUSTER_LABEL: cluster, "app.kubernetes.io/component": component}


def owner(resource: Manifest) -> Manifest:
    """The ownerReference of what goes with a resource."""
    return {
        "apiVersion": resource.get("apiVersion", API),
        "kind": resource["kind"],
        "name": resource["metadata"]["name"],
        "uid": resource["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": False,
    }


def metadata(
    name: str, namespace: str, cluster: str, *, owned_by: Manifest | None, component: str = "storage"
) -> Manifest:
    """Of an object that is made for a cluster; one that is owned by nobody outlives its resource."""
    made: Manifest = {"name": name, "namespace": namespace, "labels": labels(cluster, component)}
    if owned_by is not None:
        made["ownerReferences"] = [owner(owned_by)]
    return made


def record_name(cluster: str) -> str:
    """Of the Secret with a cluster's own record."""
    return f"{cluster}-cluster"


def bootstrap(cluster: str, namespace: str) -> str:
    """Where clients inside of Kubernetes begin."""
    return f"{cluster}-bootstrap.{namespace}.svc:{CLIENT_PORT}"
