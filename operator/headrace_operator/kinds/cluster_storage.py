"""The claims of a cluster: they grow where the resource asks for more, and never shrink.

A StatefulSet's claim template cannot change, so with claims that have grown it is made anew: deleted without its pods,
then applied again, which takes the pods over.
"""

from collections.abc import Mapping
from typing import Any

from headrace.store.kubernetes.api import ApiError
from headrace_operator.builders.cluster import ClusterObjects
from headrace_operator.builders.names import Manifest
from headrace_operator.kinds.cluster_view import SOON_S, WORKING_S, Seen, claim_ordinal
from headrace_operator.kinds.reporting import Reporter
from headrace_operator.kube import Kube, path
from headrace_operator.specs import ClusterSpec, Storage, quantity


class Storing:
    """Takes the next step."""

    def __init__(self, *, kube: Kube, reporter: Reporter) -> None:
        self._kube = kube
        self._reporter = reporter

    async def settle(self, objects: ClusterObjects, spec: ClusterSpec, seen: Seen) -> Storage:
        """The storage that the StatefulSet is to ask for now. Raises ApiError, ApiSilent."""
        if seen.stateful_set is None:
            _note_size(spec, seen)
            return spec.storage
        template = seen.stateful_set["spec"]["volumeClaimTemplates"][0]["spec"]
        present = Storage(
            size=str(template["resources"]["requests"]["storage"]),
            class_=template.get("storageClassName") if spec.storage.class_ is not None else None,
        )
        if spec.storage.class_ is not None and present.class_ != spec.storage.class_:
            text = (
                f"storage.class cannot change from {template.get('storageClassName')} to {spec.storage.class_}: set it"
                " back, or make a new cluster"
            )
            seen.note("Storage", False, "ClassCannotChange", text)
            return present
        if quantity(spec.storage.size) < quantity(present.size):
            text = f"claims cannot shrink from {present.size} to {spec.storage.size}: ask for {present.size} or more"
            seen.note("Storage", False, "CannotShrink", text)
            return present
        if not await self._grow_claims(objects, spec, seen):
            return present
        _note_size(spec, seen)
        if quantity(spec.storage.size) > quantity(present.size) and not self.rebuilding(seen):
            meta = seen.stateful_set["metadata"]
            await self._kube.delete(
                "apps/v1", "StatefulSet", objects.namespace, objects.name, uid=meta.get("uid"), propagation="Orphan"
            )
            await self._reporter.tell(objects, "StorageGrows", f"claims from {present.size} to {spec.storage.size}")
            meta["deletionTimestamp"] = "now"
        if self.rebuilding(seen):
            seen.again_s = min(seen.again_s, SOON_S)
        return present if quantity(spec.storage.size) == quantity(present.size) else spec.storage

    def rebuilding(self, seen: Seen) -> bool:
        """Whether the StatefulSet is on its way out, and is applied again when it has gone."""
        return seen.stateful_set is not None and bool(seen.stateful_set["metadata"].get("deletionTimestamp"))

    async def _grow_claims(self, objects: ClusterObjects, spec: ClusterSpec, seen: Seen) -> bool:
        """Whether all of them ask for as much as the resource."""
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
                    " again, or let its storage class grow claims"
                )
                seen.note("Storage", False, "CannotGrow", text)
                return False
        return True


def _note_size(spec: ClusterSpec, seen: Seen) -> None:
    """By what the claims have, which comes after what they ask for. One that is bound to no volume yet has nothing, and
    one that no pod uses may never have more.
    """
    used = [claim for claim in seen.claims if seen.size is None or claim_ordinal(claim) < seen.size]
    small = [
        claim
        for claim in used
        if "storage" in _capacity(claim) and quantity(_capacity(claim)["storage"]) < quantity(spec.storage.size)
    ]
    if not small:
        seen.note("Storage", True, "AsAsked", spec.storage.size)
        return
    first = small[0]
    others = f", and {len(small) - 1} more are too small" if len(small) > 1 else ""
    told = "".join(f"; {each['type']}: {each.get('message', '')}" for each in first["status"].get("conditions") or [])
    text = f"claim {first['metadata']['name']} has {_capacity(first)['storage']} of {spec.storage.size}{others}{told}"
    seen.note("Storage", False, "Growing", text, again_s=WORKING_S)


def _capacity(claim: Manifest) -> Mapping[str, Any]:
    return (claim.get("status") or {}).get("capacity") or {}
