"""Sets the number of replicas of a cluster's volume `default`, and finds the highest number of any of its volumes.

The default volume is set by a Volume resource, which is then responsible for it; else by `replication`; else it has 3
replicas, or as many as there are nodes if that is less, and gets more as the cluster grows. The number is never lowered
automatically, and other people's changes are left alone: it is raised only if the volume still has the values that it
had when it last matched the resource. These values are noted at the cluster record.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
import structlog

from headrace.base.errors import KafkaError
from headrace_operator.admin import Calls
from headrace_operator.builders.cluster import ClusterObjects
from headrace_operator.builders.names import bootstrap
from headrace_operator.engine import Cache, Key
from headrace_operator.kinds.cluster_record import DEFAULT_VOLUME, ClusterRecords, known_default_volume
from headrace_operator.kinds.cluster_view import SOON_S, ObservedCluster
from headrace_operator.kinds.references import cluster_key, is_allowed
from headrace_operator.kinds.reporting import Reporter
from headrace_operator.specs import ClusterSpec, VolumeSpec

log = structlog.get_logger()


class DefaultVolume:
    """Takes the next step towards the requested default volume."""

    def __init__(self, *, admin: Calls, cache: Cache, cluster_records: ClusterRecords, reporter: Reporter) -> None:
        self._admin = admin
        self._cache = cache
        self._cluster_records = cluster_records
        self._reporter = reporter

    async def step(self, objects: ClusterObjects, spec: ClusterSpec, seen: ObservedCluster) -> None:
        """Set the default volume as the resource asks. Raises HeadraceError."""
        volumes = (seen.status or {}).get("volumes", [])
        present = next((each for each in volumes if each["volume"] == "default"), None)
        if present is None or self._is_set_by_a_volume_resource(objects):
            return
        asked = {"replicas": spec.replicas, "min_in_sync": spec.min_in_sync}
        if any(present[name] != value for name, value in asked.items()):
            if spec.replication.replicas is not None:
                await self._alter(objects, asked)
            elif not _may_rise(spec, seen, present) or not await self._raised(objects, asked):
                return
            text = f"the default volume asks for {spec.replicas} replicas from now on; its containers are getting them"
            seen.note("Redundant", False, "UnderReplicated", text, again_s=SOON_S)
        noted = _pair(asked)
        if known_default_volume(seen) != noted:
            await self._cluster_records.note(objects, seen, {DEFAULT_VOLUME: noted})

    async def _raised(self, objects: ClusterObjects, asked: dict[str, int]) -> bool:
        """Raise the default volume; return whether that was possible. A refusal is no fault, as nobody asked for it
        explicitly.
        """
        try:
            await self._alter(objects, asked)
        except KafkaError as error:
            log.info("the default volume stays as it is", of=f"{objects.namespace}/{objects.name}", reason=str(error))
            return False
        text = f"the default volume: {asked['replicas']} replicas, at least {asked['min_in_sync']} in sync"
        await self._reporter.tell(objects, "ReplicasRaised", text)
        return True

    async def _alter(self, objects: ClusterObjects, asked: dict[str, int]) -> None:
        where = bootstrap(objects.name, objects.namespace)
        await self._admin.call(where, "volume.alter", {"name": "default", **asked})

    def _is_set_by_a_volume_resource(self, objects: ClusterObjects) -> bool:
        mine = Key("StreamCluster", objects.namespace, objects.name)
        for body in self._cache.all("Volume"):
            try:
                volume = msgspec.convert(body["spec"], VolumeSpec)
            except msgspec.ValidationError:
                continue  # reported in that Volume's own conditions
            named = (volume.name or body["metadata"]["name"]) == "default"
            if named and cluster_key(body, volume.cluster_ref) == mine and is_allowed(self._cache, body):
                return True
        return False


def most_replicas(spec: ClusterSpec, seen: ObservedCluster) -> int:
    """Return the most replicas of any volume in the cluster's status; the requested number before the cluster reports
    one.
    """
    return max((int(each["replicas"]) for each in (seen.status or {}).get("volumes", [])), default=spec.replicas)


def _may_rise(spec: ClusterSpec, seen: ObservedCluster, present: Mapping[str, Any]) -> bool:
    """Return whether the default volume has fewer than `spec.replicas` and still the values noted at the cluster
    record, and enough nodes on different pods are up for `spec.replicas`.
    """
    pods = {
        str(node["status"].get("slot", "")).partition("/")[0]
        for node in seen.nodes
        if str((seen.shown(node) or {}).get("state")).startswith("up")
    }
    return present["replicas"] < spec.replicas <= len(pods) and _pair(present) == known_default_volume(seen)


def _pair(volume: Mapping[str, Any]) -> str:
    return f"{volume['replicas']}/{volume['min_in_sync']}"
