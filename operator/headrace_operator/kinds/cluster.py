"""StreamCluster: its objects, its size, its pods' version, its addresses, and how it is.

Each reconcile looks at what there is and does the next step, so that it can be broken off anywhere:

- objects are applied as the resource asks for them, but pods go one by one: a node of the last pod is drained, then the
  StatefulSet shrinks, then the node is forgotten and its claim deleted;
- pods of an older template are deleted one at a time, when every container has all its replicas in sync;
- what the operator knows of a node and the node does not (its zone, its address outside) goes to StorageNode.spec.

Nothing of it is needed for a failover.
"""

import base64
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import structlog

from headrace.errors import HeadraceError
from headrace.store.record_types import SECRET_BYTES
from headrace_operator.admin import Admin
from headrace_operator.builders.cluster import ClusterObjects
from headrace_operator.builders.names import CLUSTER_LABEL, EXTERNAL_PORT, Manifest, bootstrap, selector
from headrace_operator.engine import Body, Key
from headrace_operator.kinds.reporting import Reporter
from headrace_operator.kube import Kube, path
from headrace_operator.specs import API, FINALIZER, GROUP, PAUSED, ClusterSpec
from headrace_operator.status import Condition

log = structlog.get_logger()

SOON_S: Final = 3.0
WORKING_S: Final = 5.0
QUIET_S: Final = 30.0
DRAINED_BY: Final = f"{GROUP}/drained-by"
"""Annotation of a StorageNode: the operator drains it, to make the cluster smaller."""
_ORDINAL: Final = re.compile(r"-(\d+)(?:/\d+)?$")


@dataclass(slots=True)
class Seen:
    """What there is of a cluster."""

    stateful_set: Manifest | None
    pods: Sequence[Manifest]
    nodes: Sequence[Manifest]
    services: Sequence[Manifest]
    status: Mapping[str, Any] | None
    """As the cluster itself says; None: it does not answer."""
    problem: str = ""
    conditions: list[Condition] = field(default_factory=list)
    again_s: float = QUIET_S

    @property
    def size(self) -> int | None:
        """Of the StatefulSet."""
        return None if self.stateful_set is None else int(self.stateful_set["spec"]["replicas"])

    def note(self, type: str, ok: bool | None, reason: str, message: str = "", *, again_s: float = QUIET_S) -> None:
        """A condition, and when to look again."""
        self.conditions.append(Condition(type, ok, reason, message))
        self.again_s = min(self.again_s, again_s)


class Clusters:
    """Reconciles StreamClusters."""

    def __init__(self, *, kube: Kube, admin: Admin, reporter: Reporter, image: str) -> None:
        """`image`: of the storage nodes, where a resource names none."""
        self._kube = kube
        self._admin = admin
        self._reporter = reporter
        self._image = image
        self._told: dict[str, int] = {}
        """Up to when a cluster's own events were passed on, in ms, by uid."""

    async def reconcile(self, key: Key, body: Body | None) -> float | None:
        """See engine.Reconcile."""
        if body is None:
            return None
        spec = msgspec.convert(body["spec"], ClusterSpec)
        if body["metadata"].get("deletionTimestamp"):
            await self._end(key, body, spec)
            return None
        if body["metadata"].get("annotations", {}).get(PAUSED) == "true":
            await self._reporter.report(body, [Condition("Reconciled", False, "Paused", f"{PAUSED} is set")], {})
            return None
        await self._keep_finalizer(body, wanted=spec.reclaim_policy == "Delete")
        resource = dict(body)
        objects = ClusterObjects(resource, spec, image=self._image)
        seen = await self._look(key, spec)
        if not await self._cluster_record(objects, spec, seen):
            await self._reporter.report(body, seen.conditions, self._figures(objects, spec, seen))
            return QUIET_S
        size = await self._resize(objects, spec, seen)
        await self._apply(objects, spec, seen, size)
        await self._forget_lost(objects, seen, size)
        await self._place_nodes(objects, spec, seen)
        await self._roll(objects, seen)
        await self._balance(objects, spec, seen)
        self._availability(seen)
        await self._pass_on_events(objects, body)
        await self._reporter.report(body, seen.conditions, self._figures(objects, spec, seen))
        return seen.again_s

    # --- looking

    async def _look(self, key: Key, spec: ClusterSpec) -> Seen:
        labels = selector(key.name)
        seen = Seen(
            stateful_set=await self._kube.get("apps/v1", "StatefulSet", key.namespace, key.name),
            pods=await self._kube.list("v1", "Pod", key.namespace, labels=labels),
            nodes=await self._kube.list(API, "StorageNode", key.namespace, labels={CLUSTER_LABEL: key.name}),
            services=await self._kube.list("v1", "Service", key.namespace, labels={CLUSTER_LABEL: key.name}),
            status=None,
        )
        try:
            seen.status = await self._admin.call(bootstrap(key.name, key.namespace), "cluster.status")
        except HeadraceError as error:
            seen.problem = str(error)
        return seen

    # --- the cluster's own record

    async def _cluster_record(self, objects: ClusterObjects, spec: ClusterSpec, seen: Seen) -> bool:
        """Whether there is one; it is made for a cluster that has no nodes yet, and never anew."""
        found = await self._kube.get("v1", "Secret", objects.namespace, f"{objects.name}-cluster")
        if found is not None:
            return True
        if seen.nodes:
            seen.note(
                "Reconciled",
                False,
                "SecretLost",
                f"Secret {objects.name}-cluster is gone, but the cluster has data: put it back from a copy. Its cluster"
                " id stands in the folder of each node",
            )
            return False
        cluster_id = base64.urlsafe_b64encode(secrets.token_bytes(16)).rstrip(b"=").decode()
        record: dict[str, Any] = {
            "cluster_id": cluster_id,
            "random_bits": 1 + secrets.randbelow(2**23 - 1),
            "secret": secrets.token_hex(SECRET_BYTES),
            "first_nodes": spec.nodes * spec.shards,
            "replicas": spec.replicas,
            "min_in_sync": spec.min_in_sync,
        }
        await self._kube.create(objects.secret(record))
        return True

    # --- size

    async def _resize(self, objects: ClusterObjects, spec: ClusterSpec, seen: Seen) -> int:
        """How many pods there are to be now: fewer than before only when the last one is empty."""
        size = seen.size
        if size is None or spec.nodes >= size:
            await self._take_back_drains(objects, seen)
            if size is not None and spec.nodes > size:
                await self._reporter.tell(objects, "ScaledUp", f"from {size} to {spec.nodes} pods")
            seen.note("Sized", True, "AsAsked")
            return spec.nodes
        leaving = [node for node in seen.nodes if _ordinal(node) == size - 1]
        left = []
        for node in leaving:
            number = node["status"]["nodeId"]
            shown = _shown(seen, number)
            if shown is not None and shown["state"].startswith("drained"):
                continue
            left.append(number)
            if not node.get("spec", {}).get("drain", False):
                try:
                    await self._admin.call(self._bootstrap(objects), "node.drain", {"node": number})
                except HeadraceError as error:
                    seen.note("Sized", False, "DrainRefused", f"pod {objects.name}-{size - 1} stays: {error}")
                    return size
                where = path(API, "StorageNode", objects.namespace, node["metadata"]["name"])
                await self._kube.merge(where, {"metadata": {"annotations": {DRAINED_BY: "operator"}}})
                await self._reporter.tell(objects, "Draining", f"node {number} of pod {objects.name}-{size - 1}")
        if left:
            names = ", ".join(map(str, left))
            seen.note("Sized", False, "Draining", f"node {names} is being emptied, before its pod goes", again_s=SOON_S)
            return size
        await self._reporter.tell(objects, "ScaledDown", f"pod {objects.name}-{size - 1} is empty and goes")
        seen.note("Sized", False, "Shrinking", f"{size - 1} pods now, {spec.nodes} asked for", again_s=SOON_S)
        return size - 1

    async def _take_back_drains(self, objects: ClusterObjects, seen: Seen) -> None:
        """The cluster is to be smaller no more."""
        for node in seen.nodes:
            meta = node["metadata"]
            if meta.get("annotations", {}).get(DRAINED_BY) != "operator" or not node.get("spec", {}).get("drain"):
                continue
            if (seen.size or 0) <= _ordinal(node):
                continue  # its pod has gone
            await self._admin.call(
                self._bootstrap(objects), "node.drain", {"node": node["status"]["nodeId"], "cancel": True}
            )
            where = path(API, "StorageNode", objects.namespace, meta["name"])
            await self._kube.merge(where, {"metadata": {"annotations": {DRAINED_BY: None}}})

    async def _forget_lost(self, objects: ClusterObjects, seen: Seen, size: int) -> None:
        """Nodes whose pod has gone for good: forgotten, with their claims; and those that another one replaced."""
        pods = {pod["metadata"]["name"] for pod in seen.pods}
        newest: dict[str, int] = {}
        for node in seen.nodes:
            status = node["status"]
            newest[status.get("slot", "")] = max(newest.get(status.get("slot", ""), 0), status["nodeId"])
        for node in seen.nodes:
            status, slot = node["status"], node["status"].get("slot", "")
            pod = slot.partition("/")[0]
            replaced = bool(slot) and status["nodeId"] != newest[slot]
            left = _ordinal(node) >= size and pod not in pods and node.get("spec", {}).get("drain", False)
            shown = _shown(seen, status["nodeId"])
            if not (replaced or left) or shown is None or shown["replicas"]:
                continue
            try:
                await self._admin.call(self._bootstrap(objects), "node.remove", {"node": status["nodeId"]})
            except HeadraceError as error:
                log.info("a node is not forgotten yet", node=status["nodeId"], reason=str(error))
                continue
            await self._reporter.tell(objects, "NodeRemoved", f"node {status['nodeId']} of {slot} is forgotten")
            seen.again_s = min(seen.again_s, SOON_S)
        remaining = {_ordinal(node) for node in seen.nodes if _shown(seen, node["status"]["nodeId"]) is not None}
        if seen.status is None:
            return
        for claim in await self._kube.list("v1", "PersistentVolumeClaim", objects.namespace, labels=selector(objects.name)):
            name = claim["metadata"]["name"]
            ordinal = int(match[1]) if (match := _ORDINAL.search(name)) else -1
            if ordinal >= size and ordinal not in remaining and f"{objects.name}-{ordinal}" not in pods:
                await self._kube.delete("v1", "PersistentVolumeClaim", objects.namespace, name)
                await self._reporter.tell(objects, "ClaimDeleted", f"{name}, of a node that was drained")

    # --- objects

    async def _apply(self, objects: ClusterObjects, spec: ClusterSpec, seen: Seen, size: int) -> None:
        wanted = ClusterObjects(objects.resource, msgspec.structs.replace(spec, nodes=size), image=self._image)
        for manifest in wanted.all():
            if manifest["kind"] == "StatefulSet" and await self._grown(objects, spec, seen):
                await self._kube.delete(
                    "apps/v1", "StatefulSet", objects.namespace, objects.name, propagation="Orphan"
                )
                seen.again_s = SOON_S
            applied = await self._kube.apply(manifest)
            if manifest["kind"] == "StatefulSet":
                seen.stateful_set = applied
        kept = {each["metadata"]["name"] for each in wanted.external_services()}
        for service in seen.services:
            name = service["metadata"]["name"]
            if name.endswith("-external") and name not in kept:
                await self._kube.delete("v1", "Service", objects.namespace, name)
        seen.note("Reconciled", True, "Applied")

    async def _grown(self, objects: ClusterObjects, spec: ClusterSpec, seen: Seen) -> bool:
        """Whether the claims were made larger: the StatefulSet's own template cannot change, so it is made anew."""
        if seen.stateful_set is None:
            return False
        template = seen.stateful_set["spec"]["volumeClaimTemplates"][0]["spec"]
        if template["resources"]["requests"]["storage"] == spec.storage.size:
            return False
        labels = selector(objects.name)
        for claim in await self._kube.list("v1", "PersistentVolumeClaim", objects.namespace, labels=labels):
            where = path("v1", "PersistentVolumeClaim", objects.namespace, claim["metadata"]["name"])
            await self._kube.merge(where, {"spec": {"resources": {"requests": {"storage": spec.storage.size}}}})
        await self._reporter.tell(objects, "StorageGrows", f"claims to {spec.storage.size}")
        return True

    # --- what nodes do not know themselves

    async def _place_nodes(self, objects: ClusterObjects, spec: ClusterSpec, seen: Seen) -> None:
        workers: dict[str, Manifest | None] = {}
        pods = {pod["metadata"]["name"]: pod for pod in seen.pods}
        services = {service["metadata"]["name"]: service for service in seen.services}
        for node in seen.nodes:
            pod_name, _, shard = str(node["status"].get("slot", "")).partition("/")
            pod = pods.get(pod_name)
            if pod is None or not pod["spec"].get("nodeName"):
                continue
            worker_name = pod["spec"]["nodeName"]
            if worker_name not in workers:
                workers[worker_name] = await self._kube.get("v1", "Node", None, worker_name)
            worker = workers[worker_name]
            wanted: dict[str, Any] = {}
            zone = (worker or {}).get("metadata", {}).get("labels", {}).get(spec.zones.topology_key)
            if zone:
                wanted["zone"] = zone
            external = _external(spec, services.get(f"{pod_name}-external"), worker, int(shard or 0))
            if external:
                wanted["advertised"] = {"external": external}
            present = {key: node.get("spec", {}).get(key) for key in wanted}
            if wanted and present != wanted:
                where = path(API, "StorageNode", objects.namespace, node["metadata"]["name"])
                await self._kube.merge(where, {"spec": wanted})
                node.setdefault("spec", {}).update(wanted)

    # --- rolling

    async def _roll(self, objects: ClusterObjects, seen: Seen) -> None:
        """Have one pod of an older template made anew, if nothing is missed meanwhile."""
        newest = (seen.stateful_set or {}).get("status", {}).get("updateRevision")
        older = [pod for pod in seen.pods if newest and pod["metadata"]["labels"].get("controller-revision-hash") != newest]
        if not older:
            seen.note("Current", True, "AllCurrent")
            return
        names = ", ".join(sorted(pod["metadata"]["name"] for pod in older))
        broken = [pod for pod in older if not _is_ready(pod)]
        waits = self._why_not_roll(seen, broken)
        if waits:
            seen.note("Current", False, "Rolling", f"{names} to be made anew; waits: {waits}", again_s=WORKING_S)
            return
        chosen = max(broken or older, key=lambda pod: _pod_ordinal(pod["metadata"]["name"]))
        meta = chosen["metadata"]
        await self._reporter.tell(objects, "PodRolled", f"{meta['name']} is made anew, by a change of its template")
        await self._kube.delete("v1", "Pod", objects.namespace, meta["name"], uid=meta["uid"])
        seen.note("Current", False, "Rolling", f"{names} to be made anew", again_s=SOON_S)

    def _why_not_roll(self, seen: Seen, broken: Sequence[Manifest]) -> str:
        if broken:
            return ""  # they serve nobody, and may never without the change
        away = [pod["metadata"]["name"] for pod in seen.pods if not _is_ready(pod)]
        if away or len(seen.pods) < (seen.size or 0):
            return f"{', '.join(away) or 'a pod'} is not ready"
        if seen.status is None:
            return f"the cluster does not answer: {seen.problem}"
        if not seen.status["redundancy"]["whole"]:
            return f"{seen.status['redundancy']['lacking']} containers have too few replicas in sync"
        return ""

    # --- the rest

    async def _balance(self, objects: ClusterObjects, spec: ClusterSpec, seen: Seen) -> None:
        if seen.status is None:
            return
        shown = await self._admin.call(self._bootstrap(objects), "balance", {})
        wanted = spec.balance.policy == "paused"
        if shown["paused"] != wanted:
            await self._admin.call(self._bootstrap(objects), "balance", {"pause": wanted, "resume": not wanted})

    def _availability(self, seen: Seen) -> None:
        if seen.status is None:
            seen.note("Available", False, "NoAnswer", seen.problem, again_s=SOON_S)
            return
        seen.note("Available", True, "Answers")
        redundancy = seen.status["redundancy"]
        if redundancy["whole"]:
            seen.note("Redundant", True, "Whole")
        else:
            text = f"{redundancy['lacking']} of {redundancy['containers']} containers have too few replicas in sync"
            seen.note("Redundant", False, "UnderReplicated", text, again_s=WORKING_S)

    async def _pass_on_events(self, objects: ClusterObjects, body: Body) -> None:
        uid = body["metadata"]["uid"]
        try:
            events = await self._admin.call(self._bootstrap(objects), "cluster.events", {"events": 50})
        except HeadraceError:
            return
        newest = max((event["at_ms"] for event in events), default=0)
        since = self._told.get(uid)
        self._told[uid] = max(newest, since or 0)
        for event in events:
            if since is not None and event["at_ms"] > since:
                what = f"container {event['container']}: " if event["container"] else ""
                await self._reporter.tell(objects, str(event["kind"]).title().replace("_", ""), f"{what}{event['reason']}")

    def _figures(self, objects: ClusterObjects, spec: ClusterSpec, seen: Seen) -> dict[str, Any]:
        status = seen.status or {}
        redundancy = status.get("redundancy", {})
        up = [node for node in status.get("nodes", []) if str(node["state"]).startswith("up")]
        outside = [
            address for node in seen.nodes if (address := node.get("spec", {}).get("advertised", {}).get("external"))
        ]
        return {
            "nodes": len(seen.pods),
            "readyNodes": len(up),
            "selector": ",".join(f"{key}={value}" for key, value in selector(objects.name).items()),
            "underReplicatedContainers": redundancy.get("lacking"),
            "leaderlessContainers": redundancy.get("below_minimum"),
            "controller": None if status.get("controller") is None else f"node {status['controller']}",
            "balance": spec.balance.policy,
            "bootstrap": self._bootstrap(objects),
            "externalBootstrap": ",".join(sorted(outside)[:3]) or None,
            "clusterId": status.get("cluster"),
        }

    @staticmethod
    def _bootstrap(objects: ClusterObjects) -> str:
        return bootstrap(objects.name, objects.namespace)

    # --- the end

    async def _keep_finalizer(self, body: Body, *, wanted: bool) -> None:
        meta = body["metadata"]
        present = list(meta.get("finalizers", []))
        if wanted == (FINALIZER in present):
            return
        after = [*present, FINALIZER] if wanted else [each for each in present if each != FINALIZER]
        where = path(API, "StreamCluster", meta["namespace"], meta["name"])
        await self._kube.merge(where, {"metadata": {"finalizers": after, "resourceVersion": meta["resourceVersion"]}})

    async def _end(self, key: Key, body: Body, spec: ClusterSpec) -> None:
        """With `Delete` all of it goes; else its owned objects go by themselves, and the data stay."""
        if FINALIZER not in body["metadata"].get("finalizers", []):
            return
        labels = {CLUSTER_LABEL: key.name}
        await self._kube.delete("apps/v1", "StatefulSet", key.namespace, key.name)
        for api_version, kind in ((API, "StorageNode"), (API, "StorageContainer"), ("v1", "PersistentVolumeClaim")):
            for each in await self._kube.list(api_version, kind, key.namespace, labels=labels):
                await self._kube.delete(api_version, kind, key.namespace, each["metadata"]["name"])
        await self._kube.delete("v1", "ConfigMap", key.namespace, f"{key.name}-store")
        await self._kube.delete("coordination.k8s.io/v1", "Lease", key.namespace, f"{key.name}-controller")
        await self._kube.delete("v1", "Secret", key.namespace, f"{key.name}-cluster")
        await self._keep_finalizer(body, wanted=False)


def _ordinal(node: Mapping[str, Any]) -> int:
    """Of the pod that a StorageNode is in."""
    return _pod_ordinal(str(node["status"].get("slot", "")))


def _pod_ordinal(slot: str) -> int:
    match = _ORDINAL.search(slot)
    return int(match[1]) if match else -1


def _shown(seen: Seen, number: int) -> Mapping[str, Any] | None:
    """A node as the cluster tells of it."""
    nodes = (seen.status or {}).get("nodes", [])
    return next((each for each in nodes if each["node"] == number), None)


def _is_ready(pod: Mapping[str, Any]) -> bool:
    if pod["metadata"].get("deletionTimestamp"):
        return False
    conditions = pod.get("status", {}).get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _external(
    spec: ClusterSpec, service: Mapping[str, Any] | None, worker: Mapping[str, Any] | None, shard: int
) -> str:
    """host:port of a node for clients outside; "": not known (yet)."""
    external = spec.listeners.external
    if external is None or service is None:
        return ""
    if external.type == "LoadBalancer":
        given = service.get("status", {}).get("loadBalancer", {}).get("ingress", [])
        host = external.host or next((each.get("hostname") or each.get("ip") for each in given), None)
        return f"{host}:{EXTERNAL_PORT + shard}" if host else ""
    ports = [port.get("nodePort") for port in service["spec"]["ports"]]
    addresses = {each["type"]: each["address"] for each in (worker or {}).get("status", {}).get("addresses", [])}
    host = external.host or addresses.get("ExternalIP") or addresses.get("InternalIP")
    return f"{host}:{ports[shard]}" if host and shard < len(ports) and ports[shard] else ""


