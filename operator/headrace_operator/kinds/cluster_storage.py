"""The claims of a cluster: they grow where the resource asks for more, and never shrink.

A StatefulSet's claim template cannot change, so with claims that have grown it is made anew: deleted without its pods,
then applied again, which takes the pods over.
"""

from headrace.store.kubernetes.api import ApiError
from headrace_operator.builders.cluster import ClusterObjects
from headrace_operator.kinds.cluster_view import SOON_S, Seen
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
            seen.note("Storage", True, "AsAsked", spec.storage.size)
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
        seen.note("Storage", True, "AsAsked", spec.storage.size)
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
