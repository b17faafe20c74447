"""Volume: creates and alters a volume by the cluster's admin calls."""

from typing import Any

from headrace_operator.engine import Body
from headrace_operator.kinds.kind import Kind, Outcome
from headrace_operator.specs import VolumeSpec, quantity


class Volumes(Kind[VolumeSpec]):
    """Reconciles Volumes. A volume that no resource declares any longer stays in the cluster: containers may use it."""

    name = "Volume"
    spec = VolumeSpec

    async def _make(self, bootstrap: str, body: Body, spec: VolumeSpec) -> Outcome:
        fields: dict[str, Any] = {
            "name": spec.name or body["metadata"]["name"],
            "replicas": spec.replicas,
            "min_in_sync": spec.min_in_sync,
            "spread": spec.spread,
            "zones": spec.zones,
            "labels": spec.node_labels,
            "size_limit": quantity(spec.size_limit) if spec.size_limit else 0,
            "durability": spec.durability,
        }
        shown = await self._admin.call(bootstrap, "volume.list")
        known = next((each for each in shown if each["volume"] == fields["name"]), None)
        if known is None:
            known = await self._admin.call(bootstrap, "volume.create", fields)
        else:
            as_shown = {**fields, "size_limit_bytes": fields["size_limit"] or None}
            if any(known[name] != value for name, value in as_shown.items() if name in known):
                known = await self._admin.call(bootstrap, "volume.alter", fields)
        return Outcome(
            {"containers": known.get("containers"), "bytes": known.get("held_bytes")}, str(known.get("problem") or "")
        )
