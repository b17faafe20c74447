"""Names, labels and ports of what belongs to a cluster. Pure."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from headrace.store.kubernetes.objects import CLUSTER_LABEL
from headrace.store.kubernetes.pod_ports import ADMIN_PORT, CLIENT_PORT, EXTERNAL_PORT, PEER_PORT
from headrace_operator.specs import API, GROUP

__all__ = ["ADMIN_PORT", "CLIENT_PORT", "CLUSTER_LABEL", "EXTERNAL_PORT", "PEER_PORT"]

SECURE_PORT: Final = 9192
"""Of a second listener for clients inside, of shard 0."""
OPERATOR_PORT: Final = 8092
"""Of the operator's own listener, of shard 0: TLS and a password that the operator has made, whatever clients have."""
OPERATOR_USER: Final = "headrace-operator"
"""Whom nodes know the operator as."""
POD_LABEL: Final = "statefulset.kubernetes.io/pod-name"
COMPONENT_LABEL: Final = "app.kubernetes.io/component"
JOB_LABEL: Final = f"{GROUP}/job"
FIELD_MANAGER: Final = "headrace-operator"

Manifest = dict[str, Any]


class ObjectName(StrEnum):
    """What an object is for that each cluster has one of: what its name ends with."""

    PEER_SECRETS = "peer-secrets"
    """Secret by which nodes know each other, in place of the record's secrets. People make it."""
    BOOTSTRAP_SERVICE = "bootstrap"
    """Service where clients inside begin."""
    NODES_SERVICE = "nodes"
    """Headless Service that gives pods their names."""
    LISTENERS = "listeners"
    """ConfigMap with the nodes' listeners."""
    CLUSTER_CA = "cluster-ca"
    """Secret with the authority of the nodes' certificates."""
    CLIENTS_CA = "clients-ca"
    """Secret with the authority of the users' certificates."""
    CA = "ca"
    """Secret with what clients trust."""
    SERVER = "server"
    """Secret with what nodes show clients."""
    PEERS = "peers"
    """Secret with what nodes show each other."""
    OPERATOR = "operator"
    """Secret with what the operator proves to nodes."""

    def of(self, cluster: str) -> str:
        """The object's name."""
        return f"{cluster}-{self}"


def labels(cluster: str, component: str = "storage") -> dict[str, str]:
    """Of everything that is made for a cluster (kubernetes.io's recommended labels)."""
    return {
        CLUSTER_LABEL: cluster,
        "app.kubernetes.io/name": "headrace",
        "app.kubernetes.io/instance": cluster,
        COMPONENT_LABEL: component,
        "app.kubernetes.io/managed-by": FIELD_MANAGER,
    }


def selector(cluster: str, component: str = "storage") -> dict[str, str]:
    """Finds the pods of a cluster."""
    return {CLUSTER_LABEL: cluster, COMPONENT_LABEL: component}


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


def belongs(found: Mapping[str, Any], cluster: str) -> bool:
    """Whether an object is a cluster's own: its StreamCluster made it, or a former one of that name. What has no owner
    is known by its labels; nodes label what they write with the cluster alone.
    """
    meta = found["metadata"]
    if owners := meta.get("ownerReferences"):
        return any((each["kind"], each["name"]) == ("StreamCluster", cluster) for each in owners)
    given = meta.get("labels") or {}
    return given.get(CLUSTER_LABEL) == cluster and given.get(COMPONENT_LABEL, "storage") == "storage"


def record_name(cluster: str, format: int = 1) -> str:
    """Of the Secret with a cluster's own record, in the format that its feature level asks for: no Secret of these is
    ever changed."""
    return f"{cluster}-cluster" if format == 1 else f"{cluster}-cluster-{format}"


def bootstrap(cluster: str, namespace: str) -> str:
    """Where clients inside of Kubernetes begin."""
    return f"{ObjectName.BOOTSTRAP_SERVICE.of(cluster)}.{namespace}.svc:{CLIENT_PORT}"
