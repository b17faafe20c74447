"""How many pods a cluster has: it moves from the present to the requested number, one pod at a time, without losing
data.

Down, unless a volume could no longer have its replicas: the nodes of the last pod are drained; its claim is marked as
drained; the StatefulSet shrinks; when the pod is gone the nodes are forgotten; then the claim is deleted. Up: a claim
that is marked as drained is deleted first, as its nodes are forgotten and their folders would be refused.

1. A claim is deleted only if it is marked, and it is marked only when the cluster itself has said that all nodes in it,
   one for each shard, are drained and hold nothing. Missing StorageNodes prove nothing: a pod that is still starting,
   as after somebody has scaled the StatefulSet, is waited for, and drained once it has registered.
2. Each step is decided from what exists, so the sequence can be interrupted after any write.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import structlog

from headrace.base.errors import HeadraceError
from headrace_operator.admin import Calls
from headrace_operator.builders.cluster import ClusterObjects
from headrace_operator.builders.names import Manifest, bootstrap
from headrace_operator.kinds.causes import is_ready
from headrace_operator.kinds.cluster_view import (
    SHOWN,
    SOON_S,
    WORKING_S,
    ObservedCluster,
    annotation,
    claim_ordinal,
    node_ordinal,
    ordinal,
    seconds_since,
)
from headrace_operator.kinds.reporting import Reporter
from headrace_operator.kinds.rolling_restart import is_hopeless
from headrace_operator.kube import Kube, path
from headrace_operator.specs import API, GROUP, ClusterSpec

log = structlog.get_logger()

DRAINED_BY: Final = f"{GROUP}/drained-by"
"""Annotation of a StorageNode: the operator drains it, to make the cluster smaller."""
DRAINED: Final = f"{GROUP}/drained"
"""Annotation of a claim: the ids of its nodes, all drained. Its data are no longer needed."""

FEWER_REPLICAS: Final = f"{GROUP}/fewer-replicas"
"""Annotation of a StreamCluster: the number of nodes for which the user accepts volumes with fewer replicas than they
ask for. It must equal the requested number of nodes, so that it does not permit a later change.
"""

REGISTERS_S: Final = 60.0
"""Seconds after its creation at which a pod that has not registered its nodes is no longer waited for."""


class Scaler:
    """Takes the next step towards the requested number of pods."""

    def __init__(self, *, kube: Kube, admin: Calls, reporter: Reporter) -> None:
        self._kube = kube
        self._admin = admin
        self._reporter = reporter

    async def next_size(self, objects: ClusterObjects, spec: ClusterSpec, seen: ObservedCluster) -> int:
        """Return how many pods there are to be now. Raises ApiError, ApiSilent."""
        present = seen.size
        if present is None:
            present, wanted = 0, max(spec.nodes, _held(seen))
        else:
            wanted = spec.nodes
        if wanted < present:
            return await self._down(objects, spec, seen, present)
        await self._take_back_drains(objects, seen, below=wanted)
        size = await self._up(objects, seen, present, wanted)
        if size < wanted:
            text = f"pod {objects.name}-{size} waits until the claim of its predecessor is gone"
            seen.note("Sized", False, "ClaimGoes", text, again_s=SOON_S)
        elif wanted > spec.nodes:
            text = f"{wanted} pods have data and are started first; then {wanted - spec.nodes} of them are drained"
            seen.note("Sized", False, "TooMany", text, again_s=SOON_S)
        else:
            seen.note("Sized", True, "AsAsked", f"{wanted} pods")  # see `check`
        if seen.size is not None and size > seen.size:
            await self._reporter.tell(objects, "ScaledUp", f"from {seen.size} to {size} pods")
        return size

    def check(self, objects: ClusterObjects, spec: ClusterSpec, seen: ObservedCluster, size: int) -> None:
        """Withdraw the condition Sized while pods are missing, or removed ones still exist."""
        if size != spec.nodes or not any(each.type == "Sized" and each.ok for each in seen.conditions):
            return
        going = [pod["metadata"]["name"] for pod in seen.pods if ordinal(pod["metadata"]["name"]) >= size]
        going += [
            f"claim {claim['metadata']['name']}"
            for claim in seen.claims
            if claim_ordinal(claim) >= size and annotation(claim, DRAINED)
        ]
        if seen.note_away("Sized", size):
            return
        registered = {node["status"].get("slot") for node in seen.nodes}
        slots = [f"{objects.name}-{index}/{shard}" for index in range(size) for shard in range(spec.shards)]
        if going:
            seen.note("Sized", False, "Shrinking", f"{', '.join(going[:SHOWN])} is being deleted", again_s=SOON_S)
        elif missing := [slot for slot in slots if slot not in registered]:
            text = f"{', '.join(missing[:SHOWN])} has not registered yet"
            seen.note("Sized", False, "Starting", text, again_s=WORKING_S)

    # --- up

    async def _up(self, objects: ClusterObjects, seen: ObservedCluster, present: int, wanted: int) -> int:
        """Return the size to which the cluster can grow now."""
        size = wanted
        for claim in seen.claims:
            index = claim_ordinal(claim)
            if not present <= index < wanted or not annotation(claim, DRAINED):
                continue
            if any(node_ordinal(node) == index for node in seen.nodes):
                await self._annotate_claim(objects, claim, None)
            else:
                meta = claim["metadata"]
                await self._kube.delete(
                    "v1", "PersistentVolumeClaim", objects.namespace, meta["name"], uid=meta.get("uid")
                )
                size = min(size, index)
        return max(size, present)

    async def _take_back_drains(self, objects: ClusterObjects, seen: ObservedCluster, *, below: int) -> None:
        """Cancel drains of nodes that are to stay."""
        for node in seen.nodes:
            if annotation(node, DRAINED_BY) != "operator" or node_ordinal(node) >= below:
                continue
            if node.get("spec", {}).get("drain"):
                number = node["status"]["nodeId"]
                try:
                    await self._ask(objects, "node.drain", {"node": number, "cancel": True})
                except HeadraceError as error:
                    log.info("a drain is not cancelled yet", node=number, reason=str(error))
                    seen.again_s = min(seen.again_s, WORKING_S)
                    continue
            await self._mark_node(objects, node, None)
        for claim in seen.claims:
            if claim_ordinal(claim) < min(below, seen.size or 0) and annotation(claim, DRAINED):
                await self._annotate_claim(objects, claim, None)

    # --- down

    async def _down(self, objects: ClusterObjects, spec: ClusterSpec, seen: ObservedCluster, present: int) -> int:
        last = f"{objects.name}-{present - 1}"
        if seen.status is None:
            text = f"pod {last} stays until the cluster answers: {seen.problem}"
            seen.note("Sized", False, "NoAnswer", text, again_s=WORKING_S)
            return present
        leaving = [node for node in seen.nodes if node_ordinal(node) == present - 1]
        unknown = _unknown_shards(leaving, last, spec.shards)
        if unknown and _is_coming(seen, last):
            text = f"pod {last} is still coming: it is drained once it has registered"
            seen.note("Sized", False, "Shrinking", text, again_s=SOON_S)
            return present
        left = [node for node in leaving if not _is_drained(seen, node)]
        if not all((node.get("spec") or {}).get("drain") for node in left) and (
            few := why_too_few(objects.resource, spec, seen)
        ):
            seen.note("Sized", False, "DrainRefused", f"pod {last} stays: {few}")
            return present
        for node in left:
            refused = await self._drain(objects, node, last)
            if refused:
                text = f"pod {last} stays: {refused}"
                seen.note("Sized", False, "DrainRefused", text)
                return present
        if left:
            names = ", ".join(str(node["status"]["nodeId"]) for node in left)
            text = f"node {names} is being drained before pod {last} is removed"
            seen.note("Sized", False, "Draining", text, again_s=SOON_S)
            return present
        claim = next((each for each in seen.claims if claim_ordinal(each) == present - 1), None)
        if not unknown and claim is not None and not annotation(claim, DRAINED):
            await self._annotate_claim(objects, claim, ",".join(str(node["status"]["nodeId"]) for node in leaving))
        what = (
            f"is removed; its claim stays, as no node is known of {', '.join(unknown)}"
            if unknown
            else "is drained and removed"
        )
        await self._reporter.tell(objects, "ScaledDown", f"pod {last} {what}")
        seen.note("Sized", False, "Shrinking", f"{present - 1} pods now, {spec.nodes} asked for", again_s=SOON_S)
        return present - 1

    async def _drain(self, objects: ClusterObjects, node: Manifest, pod: str) -> str:
        """Start to drain a node; return why that is refused, or "" if it is under way."""
        if node.get("spec", {}).get("drain"):
            return ""
        number = node["status"]["nodeId"]
        await self._mark_node(objects, node, "operator")  # mark first: an unmarked drain would never be cancelled
        try:
            await self._ask(objects, "node.drain", {"node": number})
        except HeadraceError as error:
            return str(error)
        await self._reporter.tell(objects, "Draining", f"node {number} of pod {pod}, which will be removed")
        return ""

    # --- nodes and claims of removed pods

    async def forget(self, objects: ClusterObjects, seen: ObservedCluster, size: int) -> None:
        """Forget nodes whose pod is gone, or which another node replaced; then delete drained claims."""
        if seen.status is None:
            return
        newest: dict[str, int] = {}
        for node in seen.nodes:
            slot = str(node["status"].get("slot", ""))
            newest[slot] = max(newest.get(slot, 0), node["status"]["nodeId"])
        for node in seen.nodes:
            slot = str(node["status"].get("slot", ""))
            shown = seen.shown(node)
            if not slot or shown is None or shown["replicas"]:
                continue
            replaced = node["status"]["nodeId"] != newest[slot]
            gone = node_ordinal(node) >= size and not seen.has_pod(slot.partition("/")[0])
            if replaced or (gone and _is_drained(seen, node)):
                await self._remove(objects, seen, node["status"]["nodeId"], slot)
        for claim in seen.claims:
            await self._delete_drained(objects, seen, claim, size)

    async def _remove(self, objects: ClusterObjects, seen: ObservedCluster, number: int, slot: str) -> None:
        seen.again_s = min(seen.again_s, SOON_S)
        try:
            await self._ask(objects, "node.remove", {"node": number})
        except HeadraceError as error:
            log.info("a node is not removed yet", node=number, reason=str(error))
            return
        await self._reporter.tell(objects, "NodeRemoved", f"node {number} of {slot} was removed")

    async def _delete_drained(self, objects: ClusterObjects, seen: ObservedCluster, claim: Manifest, size: int) -> None:
        index, meta = claim_ordinal(claim), claim["metadata"]
        if index < size or not annotation(claim, DRAINED) or meta.get("deletionTimestamp"):
            return
        if seen.has_pod(f"{objects.name}-{index}") or any(node_ordinal(node) == index for node in seen.nodes):
            seen.again_s = min(seen.again_s, SOON_S)
            return
        await self._kube.delete("v1", "PersistentVolumeClaim", objects.namespace, meta["name"], uid=meta.get("uid"))
        text = f"{meta['name']}, of node {annotation(claim, DRAINED)}, which was drained"
        await self._reporter.tell(objects, "ClaimDeleted", text)

    # --- calls

    async def _ask(self, objects: ClusterObjects, method: str, params: dict[str, Any]) -> Any:
        return await self._admin.call(bootstrap(objects.name, objects.namespace), method, params)

    async def _mark_node(self, objects: ClusterObjects, node: Manifest, value: str | None) -> None:
        if annotation(node, DRAINED_BY) != (value or ""):
            where = path(API, "StorageNode", objects.namespace, node["metadata"]["name"])
            await self._kube.merge(where, {"metadata": {"annotations": {DRAINED_BY: value}}})

    async def _annotate_claim(self, objects: ClusterObjects, claim: Manifest, value: str | None) -> None:
        where = path("v1", "PersistentVolumeClaim", objects.namespace, claim["metadata"]["name"])
        await self._kube.merge(where, {"metadata": {"annotations": {DRAINED: value}}})


def why_too_few(resource: Manifest, spec: ClusterSpec, seen: ObservedCluster) -> str:
    """Return which volumes could not have their replicas on the remaining nodes; "" if all can, or the user has
    confirmed.
    """
    if annotation(resource, FEWER_REPLICAS) == str(spec.nodes):
        return ""
    taking = [node for node in seen.nodes if _takes_replicas(seen, node)]
    staying = [node for node in taking if node_ordinal(node) < spec.nodes]
    lacking = []
    for volume in (seen.status or {}).get("volumes", []):
        room = _places(volume, seen, staying)
        if room >= int(volume["replicas"]) or room == _places(volume, seen, taking):
            continue
        where = "hosts" if volume.get("spread") == "required" else "pods"
        lacking.append(
            f"volume {volume['volume']!r} asks for {volume['replicas']} replicas, and there are {where} for {room}"
        )
    if not lacking:
        return ""
    more = f", and {len(lacking) - SHOWN} more" if len(lacking) > SHOWN else ""
    return (
        f"with {spec.nodes} nodes {'; '.join(lacking[:SHOWN])}{more}: ask for more nodes, or for fewer replicas first"
        f' (spec.replication, or the Volume), or confirm it by the annotation {FEWER_REPLICAS}: "{spec.nodes}"'
    )


def _takes_replicas(seen: ObservedCluster, node: Manifest) -> bool:
    """Return whether a node is up, and is not being drained by anybody but the operator."""
    shown = seen.shown(node)
    state = str((shown or {}).get("state", "down"))
    return not state.startswith(("down", "drain")) or annotation(node, DRAINED_BY) == "operator"


def _places(volume: Mapping[str, Any], seen: ObservedCluster, nodes: Sequence[Manifest]) -> int:
    """Return for how many replicas of a container these nodes have room: one per pod, or one per host if the volume
    says so.
    """
    found = set()
    for node in nodes:
        shown = seen.shown(node) or {}
        zones, labels = volume.get("zones") or (), volume.get("labels") or {}
        if (zones and shown.get("zone") not in zones) or not labels.items() <= (shown.get("labels") or {}).items():
            continue
        pod = str(node["status"].get("slot", "")).partition("/")[0]
        found.add(str(shown.get("host") or pod) if volume.get("spread") == "required" else pod)
    return len(found)


def _held(seen: ObservedCluster) -> int:
    """Return the number of pods up to the last one that may have data, by nodes and by claims not marked as drained."""
    ordinals: Sequence[int] = [
        *(node_ordinal(node) for node in seen.nodes),
        *(claim_ordinal(claim) for claim in seen.claims if not annotation(claim, DRAINED)),
    ]
    return 1 + max(ordinals, default=-1)


def _unknown_shards(nodes: Sequence[Manifest], pod: str, shards: int) -> list[str]:
    """Return the slots of a pod without a registered node: whether they hold data is unknown."""
    known = {node["status"]["slot"] for node in nodes}
    return [slot for slot in (f"{pod}/{shard}" for shard in range(shards)) if slot not in known]


def _is_coming(seen: ObservedCluster, name: str) -> bool:
    """Return whether the last pod may still register nodes: it is about to be created, or was just created."""
    pod = next((each for each in seen.pods if each["metadata"]["name"] == name), None)
    if pod is None:
        found = seen.stateful_set or {"metadata": {}}
        known = (found.get("status") or {}).get("observedGeneration")
        return known is not None and known < found["metadata"]["generation"]
    made = pod["metadata"].get("creationTimestamp")
    return not is_ready(pod) and not is_hopeless(pod) and made is not None and seconds_since(made) < REGISTERS_S


def _is_drained(seen: ObservedCluster, node: Manifest) -> bool:
    """Return whether the cluster itself reports that a node is drained and holds no replicas."""
    shown = seen.shown(node)
    return shown is not None and str(shown["state"]).startswith("drained") and not shown["replicas"]
