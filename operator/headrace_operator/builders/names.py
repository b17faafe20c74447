"""Names, labels and ports of the objects of a cluster. Pure."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from headrace.store.kubernetes.objects import CLUSTER_LABEL
from headrace.store.kubernetes.pod_ports import ADMIN_PORT, CLIENT_PORT, EXTERNAL_PORT, PEER_PORT
from headrace_operator.specs import API, GROUP

__all__ = ["ADMIN_PORT", "CLIENT_PORT", "CLUSTER_LABEL", "EXTERNAL_PORT", "PEER_PORT"]

SECURE_PORT: Final = 9192
"""Port of the second listener for clients inside, on shard 0."""
OPERATOR_PORT: Final = 8092
"""Port of the operator's own listener, on shard 0: TLS and a password that the operator generates, whatever clients
use.
"""
OPERATOR_USER: Final = "headrace-operator"
"""The user as which the operator authenticates at nodes."""
POD_LABEL: Final = "statefulset.kubernetes.io/pod-name"
COMPONENT_LABEL: Final = "app.kubernetes.io/component"
JOB_LABEL: Final = f"{GROUP}/job"
FIELD_MANAGER: Final = "headrace-operator"

Manifest = dict[str, Any]


class ObjectName(StrEnum):
    """Suffixes of the names of objects of which each cluster has one."""

    PEER_SECRETS = "peer-secrets"
    """Secret by which nodes authenticate to each other, in place of the record's secrets. Users create it."""
    BOOTSTRAP_SERVICE = "bootstrap"
    """Service at which clients inside Kubernetes bootstrap."""
    NODES_SERVICE = "nodes"
    """Headless Service that gives pods their names."""
    LISTENERS = "listeners"
    """ConfigMap with the nodes' listeners."""
    CLUSTER_CA = "cluster-ca"
    """Secret with the authority of the nodes' certificates."""
    CLIENTS_CA = "clients-ca"
    """Secret with the authority of the users' certificates."""
    CA = "ca"
    """Secret with the certificates that clients trust."""
    SERVER = "server"
    """Secret with the certificate that nodes show clients."""
    PEERS = "peers"
    """Secret with the certificate that nodes show each other."""
    OPERATOR = "operator"
    """Secret with the operator's credentials at the nodes."""

    def of(self, cluster: str) -> str:
        """Return the object's name."""
        return f"{cluster}-{self}"


def labels(cluster: str, component: str = "storage") -> dict[str, str]:
    """Return the labels of every object that is created for a cluster (kubernetes.io's recommended labels)."""
    return {
        CLUSTER_LABEL: cluster,
        "app.kubernetes.io/name": "headrace",
        "app.kubernetes.io/instance": cluster,
        COMPONENT_LABEL: component,
        "app.kubernetes.io/managed-by": FIELD_MANAGER,
    }


def selector(cluster: str, component: str = "storage") -> dict[str, str]:
    """Return the labels that select the pods of a cluster."""
    return {CLUSTER_LABEL: cluster, COMPONENT_LABEL: component}


def owner(resource: Manifest) -> Manifest:
    """Return the ownerReference for objects that are deleted with a resource."""
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
    """Return the metadata of an object that is created for a cluster; without an owner it outlives its resource."""
    made: Manifest = {"name": name, "namespace": namespace, "labels": labels(cluster, component)}
    if owned_by is not None:
        made["ownerReferences"] = [owner(owned_by)]
    return made


def belongs(found: Mapping[str, Any], cluster: str) -> bool:
    """Return whether an object is a cluster's own: created by its StreamCluster, or by a former one of that name.
    Objects without owner are recognized by their labels; objects that nodes write have the cluster's label only.
    """
    meta = found["metadata"]
    if owners := meta.get("ownerReferences"):
        return any((each["kind"], each["name"]) == ("StreamCluster", cluster) for each in owners)
    given = meta.get("labels") or {}
    return given.get(CLUSTER_LABEL) == cluster and given.get(COMPONENT_LABEL, "storage") == "storage"


def record_name(cluster: str, format: int = 1) -> str:
    """Return the name of the Secret with the cluster record, in the format of the cluster's feature level: each format
    has its own Secret, as these Secrets never change.
    """
    return f"{cluster}-cluster" if format == 1 else f"{cluster}-cluster-{format}"


def bootstrap(cluster: str, namespace: str) -> str:
    """Return the bootstrap address for clients inside Kubernetes."""
    return f"{ObjectName.BOOTSTRAP_SERVICE.of(cluster)}.{namespace}.svc:{CLIENT_PORT}"
