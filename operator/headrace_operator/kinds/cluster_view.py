"""What there is of a StreamCluster: objects, nodes, and what the cluster says of itself. Looks, and decides nothing."""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from headrace.errors import HeadraceError
from headrace.levels import FORMAT
from headrace_operator.admin import Calls
from headrace_operator.builders.names import (
    CLUSTER_LABEL,
    EXTERNAL_PORT,
    Manifest,
    belongs,
    bootstrap,
    record_name,
    selector,
)
from headrace_operator.engine import Key
from headrace_operator.kube import Kube, NameTaken
from headrace_operator.specs import API, ClusterSpec
from headrace_operator.status import Condition

SOON_S: Final = 3.0
WORKING_S: Final = 5.0
QUIET_S: Final = 30.0
_ORDINAL: Final = re.compile(r"-(\d+)(?:/\d+)?$")


@dataclass(slots=True)
class Seen:
    """What there is of a cluster."""

    stateful_set: Manifest | None
    secret: Manifest | None
    """With the cluster's own record."""
    pods: Sequence[Manifest]
    nodes: Sequence[Manifest]
    """StorageNodes that have registered."""
    services: Sequence[Manifest]
    claims: Sequence[Manifest]
    status: Mapping[str, Any] | None
    """As the cluster itself says; None: it does not answer."""
    record_format: int = 1
    """Of the newest Secret with the cluster's own record."""
    level: int | None = None
    """The feature level; None: not known."""
    problem: str = ""
    conditions: list[Condition] = field(default_factory=list)
    again_s: float = QUIET_S

    @property
    def size(self) -> int | None:
        """Of the StatefulSet."""
        return None if self.stateful_set is None else int(self.stateful_set["spec"]["replicas"])

    def note(self, type: str, ok: bool | None, reason: str, message: str = "", *, again_s: float = QUIET_S) -> None:
        """A condition, and when to look again."""
        self.conditions = [each for each in self.conditions if each.type != type]
        self.conditions.append(Condition(type, ok, reason, message))
        self.again_s = min(self.again_s, again_s)

    def shown(self, node: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """A StorageNode as the cluster tells of it."""
        number = node["status"]["nodeId"]
        return next((each for each in (self.status or {}).get("nodes", []) if each["node"] == number), None)

    def has_pod(self, name: str) -> bool:
        """Whether there is such a pod, be it on its way out."""
        return any(pod["metadata"]["name"] == name for pod in self.pods)


async def look(kube: Kube, admin: Calls, key: Key) -> Seen:
    """What there is now. Raises NameTaken where what a cluster rests on is another's; ApiError, ApiSilent."""
    storage = selector(key.name)
    stateful_set = await kube.get("apps/v1", "StatefulSet", key.namespace, key.name)
    if stateful_set is not None and not belongs(stateful_set, key.name):
        raise NameTaken(stateful_set)
    secret = await kube.get("v1", "Secret", key.namespace, record_name(key.name))
    if secret is not None and not is_record(secret, key.name):
        raise NameTaken(secret)
    fenced = await kube.get("v1", "Secret", key.namespace, record_name(key.name, FORMAT))
    if fenced is not None and not is_record(fenced, key.name):
        raise NameTaken(fenced)
    nodes = await kube.list(API, "StorageNode", key.namespace, labels={CLUSTER_LABEL: key.name})
    seen = Seen(
        stateful_set=stateful_set,
        secret=secret,
        pods=await kube.list("v1", "Pod", key.namespace, labels=storage),
        nodes=[node for node in nodes if (node.get("status") or {}).get("nodeId")],
        services=await kube.list("v1", "Service", key.namespace, labels=storage),
        claims=await kube.list("v1", "PersistentVolumeClaim", key.namespace, labels=storage),
        status=None,
        record_format=1 if fenced is None else FORMAT,
    )
    if not seen.pods:
        seen.problem = "it has no pods yet"
        return seen
    try:
        seen.status = await admin.call(bootstrap(key.name, key.namespace), "cluster.status")
    except HeadraceError as error:
        seen.problem = str(error)
    return seen


def is_record(secret: Mapping[str, Any], cluster: str) -> bool:
    """Whether a Secret is the cluster's own; one that was put back from a copy may have lost its labels."""
    return belongs(secret, cluster) or "record" in (secret.get("data") or {})


def ordinal(name: str) -> int:
    """Of a pod, of a claim, or of the pod in a slot (`pod/shard`); -1: none."""
    match = _ORDINAL.search(name)
    return int(match[1]) if match else -1


def node_ordinal(node: Mapping[str, Any]) -> int:
    """Of the pod that a StorageNode is in."""
    return ordinal(str(node["status"].get("slot", "")))


def claim_ordinal(claim: Mapping[str, Any]) -> int:
    """Of the pod that a claim belongs to."""
    return ordinal(str(claim["metadata"]["name"]))


def annotation(found: Mapping[str, Any], name: str) -> str:
    """Of any object; "" for none."""
    return str((found["metadata"].get("annotations") or {}).get(name, ""))


def seconds_since(instant: str) -> float:
    """Since one that Kubernetes writes down, such as when an object was made."""
    return time.time() - datetime.fromisoformat(instant.replace("Z", "+00:00")).timestamp()


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Whether it serves, and stays."""
    if pod["metadata"].get("deletionTimestamp"):
        return False
    conditions = pod.get("status", {}).get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def outside_address(
    spec: ClusterSpec, service: Mapping[str, Any] | None, worker: Mapping[str, Any] | None, shard: int
) -> str:
    """host:port of a node for clients outside; "": not known (yet)."""
    external = spec.listeners.external
    if external is None or service is None:
        return ""
    if external.type == "LoadBalancer":
        given = (service.get("status") or {}).get("loadBalancer", {}).get("ingress", [])
        host = external.host or next((each.get("hostname") or each.get("ip") for each in given), None)
        return f"{_bracketed(host)}:{EXTERNAL_PORT + shard}" if host else ""
    ports = [port.get("nodePort") for port in service["spec"]["ports"]]
    addresses = {each["type"]: each["address"] for each in (worker or {}).get("status", {}).get("addresses", [])}
    host = external.host or addresses.get("ExternalIP") or addresses.get("InternalIP")
    return f"{_bracketed(host)}:{ports[shard]}" if host and shard < len(ports) and ports[shard] else ""


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
