"""The claims of a cluster: they grow if the resource asks for more, and never shrink.

A StatefulSet's claim template cannot change, so after claims have grown the StatefulSet is recreated: deleted without
its pods, then applied again, which adopts the pods. A claim that never had a volume holds nothing: if it differs from
what the resource asks for, it is deleted and recreated.
"""

from collections.abc import Mapping
from typing import Any

from headrace.store.kubernetes.api import ApiError
from headrace_operator.builders.cluster import ClusterObjects
from headrace_operator.builders.names import Manifest
from headrace_operator.kinds.causes import is_never_bound, is_stale, is_unbound
from headrace_operator.kinds.cluster_view import (
    QUIET_S,
    SHOWN,
    SOON_S,
    WORKING_S,
    ObservedCluster,
    claim_ordinal,
)
from headrace_operator.kinds.reporting import Reporter
from headrace_operator.kube import Kube, path
from headrace_operator.specs import ClusterSpec, Storage, quantity


class ClaimStep:
    """Takes the next step towards the requested storage."""

    def __init__(self, *, kube: Kube, reporter: Reporter) -> None:
        self._kube = kube
        self._reporter = reporter

    async def step(self, objects: ClusterObjects, spec: ClusterSpec, seen: ObservedCluster) -> Storage:
        """Return the storage for the StatefulSet's claim template. Raises ApiError, ApiSilent."""
        await self._replace_unbound(objects, spec, seen)
        if seen.stateful_set is None:
            _note_size(objects, spec, seen)
            return spec.storage
        template = seen.stateful_set["spec"]["volumeClaimTemplates"][0]["spec"]
        present = Storage(
            size=str(template["resources"]["requests"]["storage"]),
            class_=template.get("storageClassName") if spec.storage.class_ is not None else None,
        )
        never_bound = all(is_never_bound(claim) for claim in seen.claims)
        if never_bound and template.get("storageClassName") != spec.storage.class_ and seen.claims:
            await self._rebuild(objects, seen)
            _note_size(objects, spec, seen)
            seen.again_s = min(seen.again_s, SOON_S)
            return spec.storage
        if spec.storage.class_ is not None and present.class_ != spec.storage.class_:
            text = (
                f"storage.class cannot change from {template.get('storageClassName')} to {spec.storage.class_}: set it"
                " back, or create a new cluster"
            )
            seen.note("Storage", False, "ClassCannotChange", text)
            return present
        if quantity(spec.storage.size) < quantity(present.size):
            text = f"claims cannot shrink from {present.size} to {spec.storage.size}: ask for {present.size} or more"
            seen.note("Storage", False, "CannotShrink", text)
            return present
        if not await self._grow_claims(objects, spec, seen):
            return present
        _note_size(objects, spec, seen)
        if quantity(spec.storage.size) > quantity(present.size) and not self.rebuilding(seen):
            await self._rebuild(objects, seen)
            await self._reporter.tell(objects, "StorageGrows", f"claims from {present.size} to {spec.storage.size}")
        if self.rebuilding(seen):
            seen.again_s = min(seen.again_s, SOON_S)
        return present if quantity(spec.storage.size) == quantity(present.size) else spec.storage

    def rebuilding(self, seen: ObservedCluster) -> bool:
        """Return whether the StatefulSet is being deleted, to be applied again once it is gone."""
        return seen.stateful_set is not None and bool(seen.stateful_set["metadata"].get("deletionTimestamp"))

    def note_full(self, spec: ClusterSpec, seen: ObservedCluster) -> None:
        """Note which nodes report that their disk is full. Called after all other notes of Storage."""
        full = sorted((node for node in seen.nodes if is_full(node, seen)), key=lambda node: node["status"]["nodeId"])
        if not full:
            return
        named = [f"node {node['status']['nodeId']} ({node['status'].get('slot', '')})" for node in full]
        others = f" and {len(named) - SHOWN} more" if len(named) > SHOWN else ""
        text = (
            f"the disk of {', '.join(named[:SHOWN])}{others} is full: writes wait or are refused. Ask for a larger"
            f" storage.size than {spec.storage.size}, shorten the ttl of streams, or delete topics"
        )
        if former := [each for each in seen.conditions if each.type == "Storage" and each.ok is False]:
            text = f"{text}; {former[0].message}"
        seen.note("Storage", False, "DiskFull", text)
        staying = [node for node in seen.nodes if not (node.get("spec") or {}).get("drain")]
        if seen.status is not None and all(is_full(node, seen) for node in staying):
            seen.note("Available", False, "DiskFull", text)

    async def _rebuild(self, objects: ClusterObjects, seen: ObservedCluster) -> None:
        """Delete the StatefulSet without its pods; it is applied again once it is gone."""
        assert seen.stateful_set is not None
        if self.rebuilding(seen):
            return
        meta = seen.stateful_set["metadata"]
        await self._kube.delete(
            "apps/v1", "StatefulSet", objects.namespace, objects.name, uid=meta.get("uid"), propagation="Orphan"
        )
        meta["deletionTimestamp"] = "now"

    async def _replace_unbound(self, objects: ClusterObjects, spec: ClusterSpec, seen: ObservedCluster) -> None:
        """Delete claims that never had a volume and differ from the resource in class or size: they cannot be changed,
        and hold nothing. The StatefulSet recreates them.
        """
        for claim in seen.claims:
            meta = claim["metadata"]
            cause = seen.claim_causes.get(meta["name"], "")
            if not is_stale(claim, size=spec.storage.size, class_=spec.storage.class_, cause=cause):
                continue
            # Only in the version that was read: once the claim is bound, a pod may write to it.
            is_gone = await self._kube.delete(
                "v1",
                "PersistentVolumeClaim",
                objects.namespace,
                meta["name"],
                uid=meta.get("uid"),
                version=meta.get("resourceVersion"),
            )
            seen.again_s = min(seen.again_s, SOON_S)
            if not is_gone:
                continue
            meta["deletionTimestamp"] = "now"
            seen.claim_causes.pop(meta["name"], None)
            asked = f"{spec.storage.size}, class {spec.storage.class_ or 'by default'}"
            text = f"{meta['name']} never had a volume: it is recreated as the resource asks ({asked})"
            await self._reporter.tell(objects, "ClaimReplaced", text)

    async def _grow_claims(self, objects: ClusterObjects, spec: ClusterSpec, seen: ObservedCluster) -> bool:
        """Grow the claims; return whether all request as much as the resource."""
        for claim in seen.claims:
            meta = claim["metadata"]
            asked = claim["spec"]["resources"]["requests"]["storage"]
            if meta.get("deletionTimestamp") or quantity(asked) >= quantity(spec.storage.size):
                continue
            where = path("v1", "PersistentVolumeClaim", objects.namespace, meta["name"])
            patch = {"spec": {"resources": {"requests": {"storage": spec.storage.size}}}}
            try:
                await self._kube.merge(where, patch)
            except ApiError as error:
                if error.status not in (403, 422):
                    raise
                text = (
                    f"claim {meta['name']} cannot grow from {asked} to {spec.storage.size}: {error}: ask for {asked}"
                    " again, or let its storage class expand volumes"
                )
                seen.note("Storage", False, "CannotGrow", text)
                return False
        return True


def is_full(node: Manifest, seen: ObservedCluster) -> bool:
    """Return whether a node reports a full disk, in its StorageNode or in the cluster's status."""
    state = str((seen.shown(node) or {}).get("state", ""))
    return state == "up, full" or (bool(node["status"].get("full")) and not state.startswith("down"))


def _note_size(objects: ClusterObjects, spec: ClusterSpec, seen: ObservedCluster) -> None:
    """Note the condition of the claims by their actual capacity, which follows their request. Claims that no pod uses
    are ignored, as they may never grow.
    """
    size = spec.nodes if seen.size is None else seen.size
    used = {claim["metadata"]["name"]: claim for claim in seen.claims if claim_ordinal(claim) < size}
    unbound = [
        name
        for name in (f"data-{objects.name}-{index}" for index in range(size))
        if name not in used or is_unbound(used[name]) or used[name]["metadata"].get("deletionTimestamp")
    ]
    if unbound:
        told = [f"{name} ({seen.claim_causes[name]})" for name in unbound if name in seen.claim_causes]
        named = ", ".join((told or unbound)[:SHOWN])
        text = f"{len(unbound)} of {size} claims have no volume: {named}"
        again_s = QUIET_S if told else WORKING_S
        seen.note("Storage", False, "ClaimWaits" if told else "Binding", text, again_s=again_s)
        return
    small = [
        claim
        for claim in used.values()
        if "storage" in _capacity(claim) and quantity(_capacity(claim)["storage"]) < quantity(spec.storage.size)
    ]
    if not small:
        seen.note("Storage", True, "AsAsked", spec.storage.size)
        return
    first = small[0]
    others = f", and {len(small) - 1} more are too small" if len(small) > 1 else ""
    says = "".join(f"; {each['type']}: {each.get('message', '')}" for each in first["status"].get("conditions") or [])
    text = f"claim {first['metadata']['name']} has {_capacity(first)['storage']} of {spec.storage.size}{others}{says}"
    seen.note("Storage", False, "Growing", text, again_s=WORKING_S)


def _capacity(claim: Manifest) -> Mapping[str, Any]:
    return (claim.get("status") or {}).get("capacity") or {}
