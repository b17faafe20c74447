"""How many replicas a cluster's data have: what its volume `default` asks for, and what its volumes ask for at most.

The default volume is as a Volume resource says, which is that one's matter; else as `replication` says; else it has 3
replicas, or as many as there are nodes if that is less. Then it rises as the cluster grows. It never falls by itself,
and what somebody else has made of it stays: it is raised only from what it was when it was last as the resource asks,
which is noted in the cluster's own record.
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
from headrace_operator.kinds.cluster_record import DEFAULT_VOLUME, Recording, known_default_volume
from headrace_operator.kinds.cluster_view import SOON_S, Seen
from headrace_operator.kinds.references import cluster_key, is_allowed
from headrace_operator.kinds.reporting import Reporter
from headrace_operator.specs import ClusterSpec, VolumeSpec

log = structlog.get_logger()


class Replicating:
    """Takes the next step."""

    def __init__(self, *, admin: Calls, cache: Cache, recording: Recording, reporter: Reporter) -> None:
        self._admin = admin
        self._cache = cache
        self._recording = recording
        self._reporter = reporter

    async def step(self, objects: ClusterObjects, spec: ClusterSpec, seen: Seen) -> None:
        """Have the default volume be as it should. Raises HeadraceError."""
        volumes = (seen.status or {}).get("volumes", [])
        present = next((each for each in volumes if each["volume"] == "default"), None)
        if present is None or self._has_own_default_volume(objects):
            return
        asked = {"replicas": spec.replicas, "min_in_sync": spec.min_in_sync}
        if any(present[name] != value for name, value in asked.items()):
            if spec.replication.replicas is not None:
                await self._alter(objects, asked)
            elif not _may_rise(spec, seen, present) or not await self._raised(objects, asked):
                return
            text = f"the default volume is to have {spec.replicas} replicas from now on: containers follow"
            seen.note("Redundant", False, "UnderReplicated", text, again_s=SOON_S)
        noted = _pair(asked)
        if known_default_volume(seen) != noted:
            await self._recording.note(objects, seen, {DEFAULT_VOLUME: noted})

    async def _raised(self, objects: ClusterObjects, asked: dict[str, int]) -> bool:
        """Nobody has asked for it in so many words, so where it cannot be, nothing is wrong."""
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

    def _has_own_default_volume(self, objects: ClusterObjects) -> bool:
        mine = Key("StreamCluster", objects.namespace, objects.name)
        for body in self._cache.all("Volume"):
            try:
                volume = msgspec.convert(body["spec"], VolumeSpec)
            except msgspec.ValidationError:
                continue  # it says so itself
            named = (volume.name or body["metadata"]["name"]) == "default"
            if named and cluster_key(body, volume.cluster_ref) == mine and is_allowed(self._cache, body):
                return True
        return False


def most_replicas(spec: ClusterSpec, seen: Seen) -> int:
    """Of any volume, as the cluster says; as the resource asks, where it says nothing yet."""
    return max((int(each["replicas"]) for each in (seen.status or {}).get("volumes", [])), default=spec.replicas)


def _may_rise(spec: ClusterSpec, seen: Seen, present: Mapping[str, Any]) -> bool:
    """Whether the default volume is as it was when the cluster was smaller, and there are pods for more replicas."""
    pods = {
        str(node["status"].get("slot", "")).partition("/")[0]
        for node in seen.nodes
        if str((seen.shown(node) or {}).get("state")).startswith("up")
    }
    return present["replicas"] < spec.replicas <= len(pods) and _pair(present) == known_default_volume(seen)


def _pair(volume: Mapping[str, Any]) -> str:
    return f"{volume['replicas']}/{volume['min_in_sync']}"
