"""The tables of `kubectl headrace status`, from resources as Kubernetes has them. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from headrace_operator.builders.names import CLUSTER_LABEL, selector
from headrace_operator.plugin.kubectl import Manifest

Row = dict[str, Any]

READY: Final = "Ready"


def clusters(resources: Sequence[Manifest]) -> list[Row]:
    """Return a row for each StreamCluster."""
    return [
        {
            "namespace": each["metadata"].get("namespace"),
            "cluster": each["metadata"]["name"],
            "ready": condition(each, READY).get("status", "Unknown"),
            "nodes": f"{status.get('readyNodes', 0)}/{(each.get('spec') or {}).get('nodes', '?')}",
            "version": status.get("version"),
            "under_replicated": status.get("underReplicatedContainers"),
            "bootstrap": status.get("bootstrap"),
            "reason": condition(each, READY).get("message"),
        }
        for each in resources
        for status in [each.get("status") or {}]
    ]


def conditions(resources: Sequence[Manifest]) -> list[Row]:
    """Return a row for each condition of each resource; those that are not True come first."""
    rows = [
        {
            "of": f"{each['kind'].lower()}/{each['metadata']['name']}",
            "condition": found["type"],
            "status": found["status"],
            "reason": found.get("reason"),
            "since": found.get("lastTransitionTime"),
            "message": found.get("message"),
        }
        for each in resources
        for found in (each.get("status") or {}).get("conditions") or []
    ]
    return sorted(rows, key=lambda row: row["status"] == "True")


def nodes(resources: Sequence[Manifest], pods: Sequence[Manifest]) -> list[Row]:
    """Return a row for each StorageNode, with its pod's state; then a row for each pod without a node yet."""
    by_name = {each["metadata"]["name"]: each for each in pods}
    rows: list[Row] = []
    seen: set[str] = set()
    for each in sorted(resources, key=lambda node: (cluster_of(node), number_of(node) or 0)):
        status, spec = each.get("status") or {}, each.get("spec") or {}
        name = pod_of(each)
        seen.add(name)
        rows.append(
            {
                "cluster": cluster_of(each),
                "node": number_of(each),
                "pod": name,
                **_of_pod(by_name.get(name)),
                "zone": status.get("zone") or spec.get("zone"),
                "marks": ", ".join(
                    word
                    for word, is_so in (
                        ("draining", spec.get("drain")),
                        ("stopping", status.get("stopping")),
                        ("full", status.get("full")),
                        ("cluster deleted", spec.get("clusterDeleted")),
                    )
                    if is_so
                ),
            }
        )
    return rows + [
        {"cluster": cluster_of(pod), "node": None, "pod": name, **_of_pod(pod), "zone": None, "marks": ""}
        for name, pod in sorted(by_name.items())
        if name not in seen and pod in storage_pods(pods, cluster_of(pod))
    ]


def storage_pods(pods: Sequence[Manifest], cluster: str) -> list[Manifest]:
    """Return the pods of a cluster's nodes."""
    wanted = selector(cluster)
    return [each for each in pods if wanted.items() <= (each["metadata"].get("labels") or {}).items()]


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Return whether Kubernetes reports a pod as ready."""
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def links(resources: Sequence[Manifest]) -> list[Row]:
    """Return a row for each ReplicationLink."""
    return [
        {
            "namespace": each["metadata"].get("namespace"),
            "link": each["metadata"]["name"],
            "cluster": ((each.get("spec") or {}).get("clusterRef") or {}).get("name"),
            "ready": condition(each, READY).get("status", "Unknown"),
            "state": status.get("state"),
            "lag_records": status.get("lagRecords"),
            "lag_seconds": status.get("lagSeconds"),
        }
        for each in resources
        for status in [each.get("status") or {}]
    ]


def cluster_of(found: Mapping[str, Any]) -> str:
    """Return the name of the cluster that an object belongs to; "" if it names none."""
    return str((found["metadata"].get("labels") or {}).get(CLUSTER_LABEL, ""))


def number_of(node: Mapping[str, Any]) -> int | None:
    """Return a StorageNode's id."""
    number = (node.get("status") or {}).get("nodeId")
    return int(number) if number is not None else None


def pod_of(node: Mapping[str, Any]) -> str:
    """Return the name of a StorageNode's pod, from its slot `pod/shard`."""
    return str((node.get("status") or {}).get("slot") or "").partition("/")[0]


def condition(resource: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Return a condition of a resource; {} if it has none yet."""
    found = (resource.get("status") or {}).get("conditions") or []
    return next((each for each in found if each["type"] == kind), {})


def _of_pod(pod: Mapping[str, Any] | None) -> Row:
    if pod is None:
        return {"state": "no pod", "restarts": None, "worker": None}
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    return {
        "state": "ready" if is_ready(pod) else _why_not(pod),
        "restarts": sum(int(each.get("restartCount", 0)) for each in statuses),
        "worker": (pod.get("spec") or {}).get("nodeName"),
    }


def _why_not(pod: Mapping[str, Any]) -> str:
    """Return why a pod is not ready, in Kubernetes' words."""
    if pod["metadata"].get("deletionTimestamp"):
        return "Terminating"
    for each in (pod.get("status") or {}).get("containerStatuses") or []:
        for state in (each.get("state") or {}).values():
            if isinstance(state, Mapping) and state.get("reason"):
                return str(state["reason"])
    return str((pod.get("status") or {}).get("phase") or "Unknown")
