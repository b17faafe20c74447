"""The observed state of a StreamCluster: its objects, its nodes, and its own status. Reads only, decides nothing."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from headrace.base.errors import HeadraceError
from headrace.base.levels import FORMAT
from headrace_operator.admin import Calls, Unreachable
from headrace_operator.builders.listeners import Port
from headrace_operator.builders.names import (
    CLIENT_PORT,
    CLUSTER_LABEL,
    Manifest,
    belongs,
    bootstrap,
    record_name,
    selector,
)
from headrace_operator.engine import Key
from headrace_operator.kinds.causes import (
    is_ready,
    is_unbound,
    why_hopeless,
    why_missing,
    why_not_ready,
    why_unbound,
)
from headrace_operator.kube import Kube, NameTaken
from headrace_operator.specs import API
from headrace_operator.status import Condition

SOON_S: Final = 3.0
WORKING_S: Final = 5.0
STUCK_S: Final = 10.0
"""Seconds until the next look at a fault that a person has to fix; changes of pods trigger a look anyway."""
QUIET_S: Final = 30.0
ANSWER_S: Final = 5.0
"""Seconds that a node has to answer: it waits for the other nodes for a second at most."""
ASKED: Final = 5
"""The maximum number of pods that are called directly if their Service does not answer."""
SHOWN: Final = 3
"""The maximum number of pods and claims that a message names, and whose events are requested."""
_ORDINAL: Final = re.compile(r"-(\d+)(?:/\d+)?$")


@dataclass(slots=True)
class ObservedCluster:
    """The observed state of a cluster."""

    stateful_set: Manifest | None
    secret: Manifest | None
    """The Secret with the cluster record."""
    pods: Sequence[Manifest]
    nodes: Sequence[Manifest]
    """StorageNodes that have registered."""
    services: Sequence[Manifest]
    claims: Sequence[Manifest]
    status: Mapping[str, Any] | None
    """The cluster's own report; None if it does not answer."""
    record_format: int = 1
    """The format of the newest Secret with the cluster record."""
    level: int | None = None
    """The feature level; None if it is not known."""
    problem: str = ""
    stuck: dict[str, str] = field(default_factory=dict)
    """Why pods are missing or not ready, by name, for those that need a change to get ready."""
    coming: dict[str, str] = field(default_factory=dict)
    """Why the other pods are missing or not ready, by name; "" if unknown."""
    claim_causes: dict[str, str] = field(default_factory=dict)
    """Why claims have no volume, by name."""
    conditions: list[Condition] = field(default_factory=list)
    again_s: float = QUIET_S

    @property
    def size(self) -> int | None:
        """The StatefulSet's number of replicas; None if there is no StatefulSet."""
        return None if self.stateful_set is None else int(self.stateful_set["spec"]["replicas"])

    def advertised(self, listener: str) -> list[str]:
        """Return the known addresses of nodes for clients outside, at a listener."""
        told = [((node.get("spec") or {}).get("advertised") or {}).get(listener) for node in self.nodes]
        return sorted(address for address in told if address)

    def note(self, type: str, ok: bool | None, reason: str, message: str = "", *, again_s: float = QUIET_S) -> None:
        """Set a condition, and look again after `again_s` seconds at the latest."""
        self.conditions = [each for each in self.conditions if each.type != type]
        self.conditions.append(Condition(type, ok, reason, message))
        self.again_s = min(self.again_s, again_s)

    def shown(self, node: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return a StorageNode's entry in the cluster's status; None if it has none."""
        number = node["status"]["nodeId"]
        return next((each for each in (self.status or {}).get("nodes", []) if each["node"] == number), None)

    def told_of_stuck(self) -> str:
        """Return the first stuck pod and why; "" if there is none."""
        if not self.stuck:
            return ""
        (name, why), *others = sorted(self.stuck.items())
        return f"{name}{f' and {len(others)} more' if others else ''}: {why}"

    def told_of_away(self) -> str:
        """Return the pods that are missing or not ready, the stuck ones first; "" if there are none."""
        told = [f"{name} ({why})" if why else name for name, why in (*self.stuck.items(), *self.coming.items())]
        return f"{', '.join(told[:SHOWN])}{f' and {len(told) - SHOWN} more' if len(told) > SHOWN else ''}"

    def note_away(self, type: str, size: int) -> bool:
        """Return whether pods are missing or not ready, and if so, note it in the condition."""
        away = len(self.stuck) + len(self.coming)
        if not away:
            return False
        text = f"{size - away} of {size} pods are ready; not {self.told_of_away()}"
        reason, again_s = ("PodsCannotRun", QUIET_S) if self.stuck else ("Starting", WORKING_S)
        self.note(type, False, reason, text, again_s=again_s)
        return True

    def has_pod(self, name: str) -> bool:
        """Return whether a pod exists, even if it is being deleted."""
        return any(pod["metadata"]["name"] == name for pod in self.pods)


async def _nothing(_seen: ObservedCluster) -> None:
    """The default of `prepare` in `look`: do nothing."""


async def look(
    kube: Kube, admin: Calls, key: Key, *, prepare: Callable[[ObservedCluster], Awaitable[None]] = _nothing
) -> ObservedCluster:
    """Return the present state. `prepare` is called with the state from Kubernetes, before the cluster is called.
    Raises NameTaken if the StatefulSet or the record's Secret is not the cluster's own; ApiError, ApiSilent.
    """
    storage = selector(key.name)
    stateful_set = await kube.get("apps/v1", "StatefulSet", key.namespace, key.name)
    if stateful_set is not None and not belongs(stateful_set, key.name):
        raise NameTaken(stateful_set)
    secret = await kube.get("v1", "Secret", key.namespace, record_name(key.name))
    if secret is not None and not is_record(secret, key.name):
        raise NameTaken(secret)
    record_format = 1
    # Secrets of formats in between were created by versions that knew no newer one.
    for format in range(FORMAT, 1, -1):
        fenced = await kube.get("v1", "Secret", key.namespace, record_name(key.name, format))
        if fenced is not None and not is_record(fenced, key.name):
            raise NameTaken(fenced)
        if fenced is not None:
            record_format = format
            break
    nodes = await kube.list(API, "StorageNode", key.namespace, labels={CLUSTER_LABEL: key.name})
    seen = ObservedCluster(
        stateful_set=stateful_set,
        secret=secret,
        pods=await kube.list("v1", "Pod", key.namespace, labels=storage),
        nodes=[node for node in nodes if (node.get("status") or {}).get("nodeId")],
        services=await kube.list("v1", "Service", key.namespace, labels=storage),
        claims=await kube.list("v1", "PersistentVolumeClaim", key.namespace, labels=storage),
        status=None,
        record_format=record_format,
    )
    await prepare(seen)
    if not seen.pods:
        seen.problem = "it has no pods yet"
        return seen
    try:
        seen.status = await _ask(admin, key, seen.pods)
    except HeadraceError as error:
        seen.problem = str(error)
    return seen


async def _ask(admin: Calls, key: Key, pods: Sequence[Manifest]) -> Mapping[str, Any]:
    """Return the cluster's status from any node: its Service may still name a node that has just gone silent. Raises
    the HeadraceError of the call to the Service.
    """

    async def ask(address: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = await admin.call(address, "cluster.status", patience_s=ANSWER_S)
        return found

    try:
        return await ask(bootstrap(key.name, key.namespace))
    except Unreachable as error:
        where = [f"{pod['metadata']['name']}.{key.name}-nodes.{key.namespace}.svc:{CLIENT_PORT}" for pod in pods]
        asked = [asyncio.ensure_future(ask(address)) for address in where[:ASKED]]
        try:
            for answer in asyncio.as_completed(asked):
                try:
                    return await answer
                except HeadraceError:
                    continue
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        raise error


async def find_causes(kube: Kube, key: Key, seen: ObservedCluster, size: int) -> None:
    """Find out why pods and claims of a cluster of `size` pods are not as they should be. Requests events only of
    faulty objects, and only of a few. Raises ApiError, ApiSilent.
    """
    pods = {pod["metadata"]["name"]: pod for pod in seen.pods}
    claims = {claim["metadata"]["name"]: claim for claim in seen.claims}
    wanted = [f"{key.name}-{index}" for index in range(size)]
    away = [name for name in wanted if name not in pods or not is_ready(pods[name])]
    unclaimed = [f"data-{name}" for name in wanted if f"data-{name}" not in claims]
    of_set: Sequence[Manifest] = []
    if seen.stateful_set is not None and (unclaimed or any(name not in pods for name in away)):
        of_set = await kube.events_of("StatefulSet", key.namespace, key.name)
    for name in unclaimed:
        if why := why_missing(name, of_set):
            seen.claim_causes[name] = why
    pending = [name for name in (f"data-{each}" for each in wanted) if name in claims and is_unbound(claims[name])]
    for name in pending[:SHOWN]:
        events = await kube.events_of("PersistentVolumeClaim", key.namespace, name)
        if why := why_unbound(claims[name], events):
            seen.claim_causes[name] = why
    asked = 0
    for name in away:
        if name not in pods:
            why, is_stuck = why_missing(name, of_set), bool(why_missing(name, of_set))
        else:
            why = why_hopeless(pods[name])
            is_stuck = bool(why)
            if not is_stuck and asked < SHOWN:
                asked += 1
                why = why_not_ready(pods[name], await kube.events_of("Pod", key.namespace, name))
        if of_claim := seen.claim_causes.get(f"data-{name}"):
            why, is_stuck = "; ".join(filter(None, (why, f"claim data-{name}: {of_claim}"))), True
        (seen.stuck if is_stuck else seen.coming)[name] = why


def is_record(secret: Mapping[str, Any], cluster: str) -> bool:
    """Return whether a Secret is the cluster's own; a restored copy may have lost its labels."""
    return belongs(secret, cluster) or "record" in (secret.get("data") or {})


def ordinal(name: str) -> int:
    """Return the ordinal of a pod, of a claim, or of the pod in a slot (`pod/shard`); -1 if there is none."""
    match = _ORDINAL.search(name)
    return int(match[1]) if match else -1


def node_ordinal(node: Mapping[str, Any]) -> int:
    """Return the ordinal of a StorageNode's pod."""
    return ordinal(str(node["status"].get("slot", "")))


def claim_ordinal(claim: Mapping[str, Any]) -> int:
    """Return the ordinal of a claim's pod."""
    return ordinal(str(claim["metadata"]["name"]))


def annotation(found: Mapping[str, Any], name: str) -> str:
    """Return an object's annotation; "" if it is missing."""
    return str((found["metadata"].get("annotations") or {}).get(name, ""))


def seconds_since(instant: str) -> float:
    """Return the seconds since a time in Kubernetes' format, such as an object's creation."""
    return time.time() - datetime.fromisoformat(instant.replace("Z", "+00:00")).timestamp()


def outside_address(port: Port, service: Mapping[str, Any] | None, worker: Mapping[str, Any] | None, shard: int) -> str:
    """Return host:port of a node for clients outside of a listener; "" if it is not known yet."""
    external = port.outside
    if external is None or service is None:
        return ""
    if external.type == "LoadBalancer":
        given = (service.get("status") or {}).get("loadBalancer", {}).get("ingress", [])
        host = external.host or next((each.get("hostname") or each.get("ip") for each in given), None)
        return f"{_bracketed(host)}:{port.first + shard}" if host else ""
    ports = [each.get("nodePort") for each in service["spec"]["ports"]]
    addresses = {each["type"]: each["address"] for each in (worker or {}).get("status", {}).get("addresses", [])}
    host = external.host or addresses.get("ExternalIP") or addresses.get("InternalIP")
    return f"{_bracketed(host)}:{ports[shard]}" if host and shard < len(ports) and ports[shard] else ""


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
