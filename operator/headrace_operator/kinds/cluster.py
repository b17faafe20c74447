"""StreamCluster: its objects, its size, its pods' version, its addresses, and its conditions.

Each reconcile looks at what exists and takes the next step, so that it can be interrupted anywhere:

- objects are applied as the resource asks for them, but pods are added, removed and restarted one by one
  (`cluster_size`, `rolling_restart`);
- claims grow, and never shrink (`cluster_storage`);
- facts about a node that only the operator knows (its zone, its address outside) are written to StorageNode.spec;
- settings that a running cluster can change (balance, its default volume) are set by admin calls.

A failover needs none of this.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, cast

import msgspec
import structlog

from headrace.base.errors import HeadraceError, KafkaError
from headrace.base.levels import FORMAT
from headrace.store.kubernetes.api import ApiError, ApiSilent
from headrace.store.kubernetes.objects import lease_name, store_name
from headrace_operator.admin import Calls
from headrace_operator.builders import listeners, settings
from headrace_operator.builders.cluster import ClusterObjects
from headrace_operator.builders.digest import digest
from headrace_operator.builders.images import image_version, node_image
from headrace_operator.builders.names import CLUSTER_LABEL, Manifest, belongs, bootstrap, record_name, selector
from headrace_operator.builders.secured_pods import Secured
from headrace_operator.engine import Body, Cache, Key
from headrace_operator.kinds import cluster_security
from headrace_operator.kinds.cluster_access import AccessStep
from headrace_operator.kinds.cluster_deletion import Left
from headrace_operator.kinds.cluster_level import LEVEL, FeatureLevelStep
from headrace_operator.kinds.cluster_outside import ExternalServices
from headrace_operator.kinds.cluster_record import ClusterRecords, images_running, kept_image, known_node_ports
from headrace_operator.kinds.cluster_security import HAS_IT, SecurityStep, Withheld, kept_secrets
from headrace_operator.kinds.cluster_size import Scaler
from headrace_operator.kinds.cluster_storage import ClaimStep
from headrace_operator.kinds.cluster_view import (
    ANSWER_S,
    QUIET_S,
    SOON_S,
    STUCK_S,
    WORKING_S,
    ObservedCluster,
    find_causes,
    is_record,
    look,
    outside_address,
    seconds_since,
)
from headrace_operator.kinds.cluster_volumes import DefaultVolume, most_replicas
from headrace_operator.kinds.finalizers import keep_finalizer
from headrace_operator.kinds.references import invalid
from headrace_operator.kinds.reporting import Reporter
from headrace_operator.kinds.rolling_restart import RollingRestart
from headrace_operator.kube import REFUSALS, Kube, NameTaken, path
from headrace_operator.pod_http import Pods
from headrace_operator.routes import Routes
from headrace_operator.specs import API, FINALIZER, PAUSED, Balance, ClusterSpec, quantity
from headrace_operator.status import Condition

log = structlog.get_logger()

STORE: Final = "StoreCurrent"
"""The condition that the cluster store is not an old copy of itself, as after a restore of etcd."""
TYPES: Final = (
    *("Reconciled", "Available", "Redundant", "Sized", "Current", "Storage", STORE, LEVEL),
    *cluster_security.TYPES,
)
ASIDE: Final = (LEVEL, *cluster_security.ASIDE)
COUNTS: Final = (
    *("nodes", "readyNodes", "underReplicatedContainers", "leaderlessContainers"),
    *("controller", "version", "externalBootstrap", "externalBootstraps"),
)
"""Status fields that are written as soon as they change."""
PODS_END_S: Final = 30.0
"""Seconds that a cluster's deletion waits for its pods to end, before it deletes the objects that they still write."""
EVENTS: Final = 200
"""The maximum number of events that are requested from a node: as many as it keeps."""
TOLD_S: Final = 3000.0
"""Age in seconds above which events are not passed on: Kubernetes forgets events after an hour, so they would be
reported again.
"""
SEEN_BY_ALL: Final = frozenset({"lost", "whole"})
"""Kinds of events about redundancy, which every node records itself: only the controller's are passed on."""


class Clusters:
    """Reconciles StreamClusters."""

    def __init__(
        self,
        *,
        kube: Kube,
        admin: Calls,
        pods: Pods,
        reporter: Reporter,
        cache: Cache,
        image: str,
        routes: Routes | None = None,
        sees_workers: bool = True,
        wake: Callable[[Key], None] = lambda _key: None,
        saw: Callable[[Key, Mapping[str, Any] | None], None] = lambda _key, _status: None,
    ) -> None:
        """`image`: of the storage nodes, if neither a resource nor a running cluster names one. `routes`: how `admin`
        reaches clusters. `sees_workers`: whether this operator may read workers, for zones and for addresses outside.
        `wake`: called with a cluster that answers again. `saw`: called with each status that a cluster reports; None if
        it does not answer or is not reconciled.
        """
        self._wake = wake
        self._saw = saw
        self._sees_workers = sees_workers
        self._kube = kube
        self._admin = admin
        self._reporter = reporter
        self._cache = cache
        self._image = image
        self._left = Left(kube=kube)
        self._cluster_records = ClusterRecords(kube=kube)
        self._external_services = ExternalServices(kube=kube, cluster_records=self._cluster_records, reporter=reporter)
        self._default_volume = DefaultVolume(
            admin=admin, cache=cache, cluster_records=self._cluster_records, reporter=reporter
        )
        self._feature_level = FeatureLevelStep(admin=admin, cluster_records=self._cluster_records)
        self._routes = Routes() if routes is None else routes
        self._security = SecurityStep(kube=kube, admin=admin, routes=self._routes, reporter=reporter)
        self._access = AccessStep(kube=kube, admin=admin, routes=self._routes, reporter=reporter)
        self._scaler = Scaler(kube=kube, admin=admin, reporter=reporter)
        self._restart = RollingRestart(kube=kube, pods=pods, reporter=reporter)
        self._claims = ClaimStep(kube=kube, reporter=reporter)
        self._passed_on: dict[str, set[str]] = {}
        """Digests of the events that were passed on and that nodes still report, by the cluster's uid."""

    async def reconcile(self, key: Key, body: Body | None) -> float | None:
        """See engine.Reconcile."""
        self._saw(key, None)
        if body is None:
            self._routes.forget(key.namespace, key.name)
            await self._left.mark(key)
            return None
        if body["metadata"].get("deletionTimestamp"):
            return await self._end(key, body)
        try:
            spec = msgspec.convert(body["spec"], ClusterSpec)
        except msgspec.ValidationError as error:
            if not self._routes.is_known(key.namespace, key.name):
                self._routes.close(key.namespace, key.name, f"the spec of StreamCluster {key.name} cannot be read")
            await self._reporter.report(body, [invalid(error)], {}, types=TYPES)
            return None
        await keep_finalizer(self._kube, self._cache, body, wanted=spec.reclaim_policy == "Delete")
        if (body["metadata"].get("annotations") or {}).get(PAUSED) == "true":
            pods = await self._kube.list("v1", "Pod", key.namespace, labels=selector(key.name))
            await self._security.find_way(key, spec, pods)  # resources in the cluster are still reconciled
            paused = Condition("Reconciled", False, "Paused", f"annotation {PAUSED} is set: remove it to continue")
            await self._reporter.report(body, [paused], {}, types=TYPES)
            return None
        try:
            seen = await look(
                self._kube,
                self._admin,
                key,
                prepare=lambda found: self._security.find_way(key, spec, found.pods),
            )
        except NameTaken as error:
            await self._reporter.report(body, [_name_taken(error)], {}, types=TYPES)
            return QUIET_S
        image = node_image(spec, default=self._image, present=kept_image(seen))
        objects = ClusterObjects(dict(body), spec, image=image, record_format=seen.record_format)
        try:
            if await self._cluster_records.ensure(objects, spec, seen):
                await self._pass_on_events(objects, seen, body)  # a node's events are lost with its pod
                await self._advance(objects, spec, seen)
        except ApiError as error:
            if error.status not in REFUSALS:
                raise
            seen.note("Reconciled", False, "Refused", f"{error}: change what it names")
            self._availability(spec, seen)
            seen.again_s = max(seen.again_s, STUCK_S)
        figures = self._figures(objects, spec, seen)
        await self._reporter.report(body, seen.conditions, figures, types=TYPES, aside=ASIDE, counts=COUNTS)
        self._saw(key, seen.status)
        if seen.status is not None and not is_available(body):
            self._wake(key)
        return seen.again_s

    async def _advance(self, objects: ClusterObjects, spec: ClusterSpec, seen: ObservedCluster) -> None:
        if wrong := settings.fault(spec.settings) or settings.tracing_fault(spec.tracing.endpoint):
            seen.note("Reconciled", False, "WrongSettings", f"{wrong}: change it; nothing else is done until then")
            self._availability(spec, seen)
            seen.again_s = max(seen.again_s, STUCK_S)
            return
        if spec.security.enabled and (wrong := listeners.fault(spec)):
            seen.note("Reconciled", False, "WrongListeners", f"{wrong}: change it; nothing else is done until then")
            self._availability(spec, seen)
            seen.again_s = max(seen.again_s, STUCK_S)
            return
        await self._cluster_records.keep_image(objects, spec, seen)
        try:
            secured = await self._security.step(objects, spec, seen)
        except NameTaken as error:
            seen.conditions.append(_name_taken(error))
            self._availability(spec, seen)
            return
        except Withheld:
            self._availability(spec, seen)
            return
        if secured is not None:
            await self._cluster_records.note(objects, seen, {HAS_IT: "true"})
        objects = objects.with_security(secured)
        size = await self._scaler.next_size(objects, spec, seen)
        await find_causes(self._kube, Key("StreamCluster", objects.namespace, objects.name), seen, size)
        self._scaler.check(objects, spec, seen, size)
        try:
            await self._apply(objects, spec, seen, size, secured)
        except NameTaken as error:
            seen.conditions.append(_name_taken(error))
            self._availability(spec, seen)
            return
        await self._scaler.forget(objects, seen, size)
        await self._left.take_back(objects.namespace, seen)
        await self._place_nodes(objects, spec, seen)
        await self._restart.step(objects, seen, size)
        self._availability(spec, seen)
        await self._apply_settings(objects, spec, seen)

    # --- objects

    async def _apply(
        self, objects: ClusterObjects, spec: ClusterSpec, seen: ObservedCluster, size: int, secured: Secured | None
    ) -> None:
        storage = await self._claims.step(objects, spec, seen)
        sized = msgspec.structs.replace(spec, nodes=size, storage=storage)
        wanted = ClusterObjects(
            objects.resource,
            sized,
            image=objects.image,
            replicas=most_replicas(spec, seen),
            record_format=seen.record_format,
            node_ports=known_node_ports(seen),
            secured=secured,
        )
        is_ours = partial(belongs, cluster=objects.name)
        await self._external_services.apply(wanted, spec, seen, is_ours)
        for manifest in wanted.all():
            if manifest["kind"] == "Service" and manifest["metadata"]["name"].endswith(listeners.OUTSIDE):
                continue
            if manifest["kind"] != "StatefulSet":
                await self._kube.apply(manifest, is_ours=is_ours)
            elif not self._claims.rebuilding(seen):
                seen.stateful_set = await self._kube.apply(manifest, is_ours=is_ours)
        if not wanted.has_disruption_budget and seen.status is not None:
            await self._delete_own("policy/v1", "PodDisruptionBudget", objects.namespace, objects.name, of=objects.name)
        if secured is not None and not spec.security.network_policy:
            await self._delete_own(
                "networking.k8s.io/v1", "NetworkPolicy", objects.namespace, objects.name, of=objects.name
            )
        seen.note("Reconciled", True, "Applied")

    async def _delete_own(self, api_version: str, kind: str, namespace: str, name: str, *, of: str) -> None:
        """Delete an object of the cluster `of`; an object of that name that belongs to another stays."""
        found = await self._kube.get(api_version, kind, namespace, name)
        if found is not None and (is_record(found, of) if kind == "Secret" else belongs(found, of)):
            await self._kube.delete(api_version, kind, namespace, name, uid=found["metadata"]["uid"])

    # --- facts that nodes do not know themselves

    async def _place_nodes(self, objects: ClusterObjects, spec: ClusterSpec, seen: ObservedCluster) -> None:
        workers: dict[str, Manifest | None] = {}
        pods = {pod["metadata"]["name"]: pod for pod in seen.pods}
        services = {service["metadata"]["name"]: service for service in seen.services}
        for node in seen.nodes:
            pod_name, _, shard = str(node["status"].get("slot", "")).partition("/")
            worker_name = pods.get(pod_name, {}).get("spec", {}).get("nodeName")
            if not worker_name:
                continue
            if worker_name not in workers:
                workers[worker_name] = await self._worker(worker_name)
            worker = workers[worker_name]
            wanted: dict[str, Any] = {}
            zone = ((worker or {}).get("metadata", {}).get("labels") or {}).get(spec.zones.topology_key)
            if zone:
                wanted["zone"] = zone
            present = node.get("spec") or {}
            told = present.get("advertised") or {}
            outside = {
                port.name: outside_address(port, services.get(port.outside_service(pod_name)), worker, int(shard or 0))
                for port in listeners.exposed(spec)
            }
            gone = dict.fromkeys(name for name in told if name not in outside)
            if advertised := gone | {name: address for name, address in outside.items() if address}:
                wanted["advertised"] = advertised
            if not all(outside.values()):
                seen.again_s = min(seen.again_s, WORKING_S)
            known = {"zone": present.get("zone"), "advertised": {name: told.get(name) for name in advertised}}
            if any(known[name] != value for name, value in wanted.items()):
                where = path(API, "StorageNode", objects.namespace, node["metadata"]["name"])
                await self._kube.merge(where, {"spec": wanted})
                node["spec"] = {**present, **wanted}

    async def _worker(self, name: str) -> Manifest | None:
        """Return a worker; None if it is gone, or if this operator may not read workers."""
        if not self._sees_workers:
            return None
        try:
            return await self._kube.get("v1", "Node", None, name)
        except ApiError as error:
            log.info("a worker cannot be read: its zone and address are not known", worker=name, error=str(error))
            return None

    # --- settings of the running cluster

    async def _apply_settings(self, objects: ClusterObjects, spec: ClusterSpec, seen: ObservedCluster) -> None:
        if seen.status is None:
            return
        where = bootstrap(objects.name, objects.namespace)
        try:
            shown = await self._admin.call(where, "balance", {}, patience_s=ANSWER_S)
            wanted = balance_policy(spec.balance)
            if any(shown.get(name, value) != value for name, value in wanted.items()):
                await self._admin.call(where, "balance", wanted)
            await self._default_volume.step(objects, spec, seen)
            await self._feature_level.step(objects, spec, seen)
            await self._access.step(objects, spec, seen)
        except (ApiError, ApiSilent):
            raise  # errors of the API server, not of the cluster
        except KafkaError as error:
            seen.note("Reconciled", False, "Refused", str(error))
        except HeadraceError as error:
            seen.note("Available", False, "NoAnswer", str(error), again_s=WORKING_S)

    # --- conditions and status

    def _availability(self, spec: ClusterSpec, seen: ObservedCluster) -> None:
        self._answers(seen)
        self._claims.note_full(spec, seen)

    def _answers(self, seen: ObservedCluster) -> None:
        if seen.status is None:
            if stuck := seen.told_of_stuck():
                seen.note("Available", False, "PodsCannotRun", stuck, again_s=STUCK_S)
            else:
                seen.note("Available", False, "NoAnswer", seen.problem, again_s=SOON_S)
            seen.note("Redundant", None, "NoAnswer", "the cluster does not answer")
            seen.note(STORE, None, "NoAnswer", "the cluster does not answer")
            return
        self._store_state(seen)
        redundancy = seen.status["redundancy"]
        # A cluster that answers has had a StorageContainer, at least the catalog's. Older nodes do not report
        # `catalog`.
        if not redundancy["containers"] or not redundancy.get("catalog", True):
            text = "the cluster's StorageContainers are gone: `headrace recover-store --pod` in one of its pods"
            seen.note("Available", False, "RecordsLost", f"{text} brings them back", again_s=WORKING_S)
            seen.note("Redundant", None, "RecordsLost", text)
            return
        if set_back := seen.status.get("set_back"):
            text = f"{set_back['containers']} of {redundancy['containers']} containers are frozen"
            seen.note("Available", False, "SetBack", f"{text}: see {STORE}", again_s=WORKING_S)
        elif redundancy["below_minimum"]:
            few, all_of_them = redundancy["below_minimum"], redundancy["containers"]
            text = f"{few} of {all_of_them} containers take no writes: see `headrace status`"
            seen.note("Available", False, "Waiting", text, again_s=WORKING_S)
        else:
            seen.note("Available", True, "Answers")
        damaged = [node for node in seen.status["nodes"] if node.get("catalog_damage")]
        if damaged:
            text = (
                f"the catalog's tables of node {', '.join(str(node['node']) for node in damaged)} are damaged, and are "
                f"rebuilt from another node's: {damaged[0]['catalog_damage']}"
            )
            seen.note("Redundant", False, "CatalogDamaged", text, again_s=WORKING_S)
            return
        if redundancy["whole"]:
            seen.note("Redundant", True, "Whole")
            return
        reasons = sorted({str(each["reason"]) for each in seen.status["lacking"]})
        text = f"{redundancy['lacking']} of {redundancy['containers']} containers have too few replicas in sync"
        seen.note("Redundant", False, "UnderReplicated", f"{text}: {'; '.join(reasons[:3])}", again_s=WORKING_S)

    @staticmethod
    def _store_state(seen: ObservedCluster) -> None:
        told = (seen.status or {}).get("set_back")
        store = (seen.status or {}).get("store") or {}
        if not told and store.get("silent_ms"):
            text = (
                f"node {store['node']} has not reached the API server for {store['silent_ms'] / 1000:.0f} s: until it "
                "does, nothing fails over, and a container that an in-sync replica leaves accepts no writes"
            )
            seen.note(STORE, False, "NotReached", text, again_s=WORKING_S)
            return
        if not told:
            seen.note(STORE, True, "Whole")
            return
        nodes, such_as = (", ".join(map(str, told[name])) for name in ("nodes", "such_as"))
        text = (
            f"the cluster store was set back to an old copy, as by a restore of etcd: nodes {nodes} know newer records "
            f"of {told['containers']} containers ({such_as}), which are frozen. Once all pods run: "
            "`headrace recover-store --pod --yes` in one of them"
        )
        seen.note(STORE, False, "SetBack", text, again_s=WORKING_S)

    async def _pass_on_events(self, objects: ClusterObjects, seen: ObservedCluster, body: Body) -> None:
        """Pass each event on once, also across restarts of the operator. Events that every node records are taken from
        the controller only.
        """
        number = (seen.status or {}).get("controller")
        nodes = [node for node in (seen.status or {}).get("nodes", []) if str(node["state"]).startswith("up")]
        answers = await asyncio.gather(*(self._events_of(objects, str(node["address"])) for node in nodes))
        since_ms = (time.time() - TOLD_S) * 1000
        told = self._passed_on.get(body["metadata"]["uid"], set())
        marks = set()
        for node, events in zip(nodes, answers, strict=True):
            for event in events:
                if event["at_ms"] < since_ms or (event["kind"] in SEEN_BY_ALL and node["node"] != number):
                    continue
                mark = digest([node["node"], event])
                what = f"container {event['container']}: " if event["container"] else ""
                text = f"{what}{event['reason']}"
                reason, is_wrong = event_reason(event["kind"]), is_warning(event["kind"], event["reason"])
                if mark in told or await self._reporter.tell(objects, reason, text, warning=is_wrong, mark=mark):
                    marks.add(mark)
        self._passed_on[body["metadata"]["uid"]] = marks

    async def _events_of(self, objects: ClusterObjects, address: str) -> Sequence[Mapping[str, Any]]:
        try:
            return cast(
                Sequence[Mapping[str, Any]],
                await self._admin.call(address, "cluster.events", {"events": EVENTS}, patience_s=ANSWER_S),
            )
        except HeadraceError as error:
            log.info("a node's events are not known", of=f"{objects.namespace}/{objects.name}", error=str(error))
            return []

    def _figures(self, objects: ClusterObjects, spec: ClusterSpec, seen: ObservedCluster) -> dict[str, Any]:
        status: Mapping[str, Any] = seen.status or {}
        redundancy = status.get("redundancy", {})
        up = [node for node in status.get("nodes", []) if str(node["state"]).startswith("up")]
        outside = {port.name: ",".join(seen.advertised(port.name)[:3]) for port in listeners.exposed(spec)}
        return {
            "nodes": len(seen.pods),
            "readyNodes": len(up),
            "selector": ",".join(f"{key}={value}" for key, value in selector(objects.name).items()),
            "underReplicatedContainers": redundancy.get("lacking"),
            "leaderlessContainers": redundancy.get("below_minimum"),
            "controller": None if status.get("controller") is None else f"node {status['controller']}",
            "balance": spec.balance.policy,
            "bootstrap": bootstrap(objects.name, objects.namespace),
            "externalBootstrap": outside.pop(listeners.EXTERNAL, ""),
            "externalBootstraps": outside,
            "clusterId": status.get("cluster"),
            "version": _versions(seen),
            "featureLevel": seen.level,
        }

    # --- deletion

    async def _end(self, key: Key, body: Body) -> float | None:
        """Delete everything with `Delete`; otherwise Kubernetes deletes the owned objects, and the data stay."""
        if FINALIZER not in (body["metadata"].get("finalizers") or []):
            self._reporter.forget(body["metadata"]["uid"])
            return None
        if (body.get("spec") or {}).get("reclaimPolicy") != "Delete":  # changed just before the deletion
            await keep_finalizer(self._kube, self._cache, body, wanted=False)
            self._reporter.forget(body["metadata"]["uid"])
            return None
        await self._delete_own("apps/v1", "StatefulSet", key.namespace, key.name, of=key.name)
        pods = await self._kube.list("v1", "Pod", key.namespace, labels=selector(key.name))
        if pods and seconds_since(body["metadata"]["deletionTimestamp"]) < PODS_END_S:
            return SOON_S
        for api_version, kind in ((API, "StorageNode"), (API, "StorageContainer"), ("v1", "PersistentVolumeClaim")):
            labels = selector(key.name) if kind == "PersistentVolumeClaim" else {CLUSTER_LABEL: key.name}
            for each in await self._kube.list(api_version, kind, key.namespace, labels=labels):
                await self._kube.delete(api_version, kind, key.namespace, each["metadata"]["name"])
        await self._delete_own("v1", "ConfigMap", key.namespace, store_name(key.name), of=key.name)
        await self._delete_own("coordination.k8s.io/v1", "Lease", key.namespace, lease_name(key.name), of=key.name)
        for format in range(1, FORMAT + 1):
            await self._delete_own("v1", "Secret", key.namespace, record_name(key.name, format), of=key.name)
        for name in kept_secrets(key.name):
            await self._delete_own("v1", "Secret", key.namespace, name, of=key.name)
        await keep_finalizer(self._kube, self._cache, body, wanted=False)
        self._reporter.forget(body["metadata"]["uid"])
        return None


def _versions(seen: ObservedCluster) -> str | None:
    """Return the version of the ready pods, or several during a rolling restart; None if no pod is ready."""
    return ", ".join(sorted({image_version(image) for image in images_running(seen)})) or None


def _name_taken(error: NameTaken) -> Condition:
    return Condition("Reconciled", False, "NameTaken", f"{error}: delete it, or give this cluster another name")


def event_reason(kind: str) -> str:
    """Return the reason of a Kubernetes event for an event of the cluster's controller (headrace.control.events)."""
    match kind:
        case "primary":
            return "PrimaryMoved"
        case "replicas":
            return "ReplicasChanged"
        case "roll":
            return "LoadMoved"
        case "container":
            return "ContainerChanged"
        case "frozen":
            return "StoreSetBack"
        case "thawed":
            return "StoreRecovered"
        case "damaged":
            return "CatalogDamaged"
        case "repaired":
            return "CatalogRepaired"
        case "tracing":
            return "TracingFailed"
        case "wait":
            return "ContainerWaits"
        case "node":
            return "NodeChanged"
        case "office":
            return "ControllerChanged"
        case "level":
            return "FeatureLevelChanged"
        case "lost" | "whole":
            return "RedundancyChanged"
        case _:
            return "ClusterEvent"


def is_warning(kind: str, reason: str) -> bool:
    """Return whether an event of the cluster's controller reports a fault."""
    match kind:
        case "wait" | "lost" | "damaged" | "tracing":
            return True
        case "node":
            return not reason.endswith("answers again")
        case "clock":
            return not reason.endswith("is right again")
        case _:
            return False


def balance_policy(asked: Balance) -> dict[str, Any]:
    """Return the parameters of the admin call `balance`."""
    return {
        "paused": asked.policy == "paused",
        "over_mean": asked.over_mean_percent / 100,
        "moves_per_minute": asked.moves_per_minute,
        "traffic_floor": quantity(asked.floors.traffic),
        "requests_floor": asked.floors.requests,
        "disk_floor": quantity(asked.floors.disk),
    }


def is_available(body: Body) -> bool:
    """Return whether a cluster's status says that it answers."""
    conditions = (body.get("status") or {}).get("conditions", [])
    return any(each["type"] == "Available" and each["status"] == "True" for each in conditions)
