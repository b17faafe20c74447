"""Which object of Kubernetes holds which record of the cluster store. Pure.

    node/<id>          StorageNode <cluster>-<id>         status: the record; spec: what the operator wants of the node
    container/<id>     StorageContainer <cluster>-<id>    status: the record
    controller         Lease <cluster>-controller         spec: holder and term; an annotation: how often renewed
    all others         ConfigMap <cluster>-store          data: one entry a record, its key with `/` as `.`

A version is the resourceVersion of the object, so a record that shares its object with others gets a new one when they
change: whoever loses by that reads again. `status` of the two kinds is no subresource: a record is made in one call.

A node's record has `draining` and the advertised addresses from `spec`, where the operator and `headrace node drain`
write them, and nowhere else; its zone too, where `spec` has one. Fields that this version does not know stay as they
are. A write changes its object always, if only by an annotation: one that changes nothing gets no new version from an
API server, and so would not keep an older one from landing later (store.protocol).

The cluster's own record, with its secret, is no object of the store's: the operator makes it and mounts it into the
pods, so that nodes need no right to read Secrets.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import msgspec

from headrace.base.errors import CorruptLog
from headrace.base.ids import NodeId
from headrace.store.protocol import Versioned
from headrace.store.record_types import CONTAINER_PREFIX, LEASE_KEY, NODE_PREFIX, LeaseRecord

GROUP: Final = "headrace.dev"
VERSION: Final = "v1alpha1"
CLUSTER_LABEL: Final = "headrace.dev/cluster"
TOUCHED: Final = "headrace.dev/touched"
"""Annotation that differs where nothing else does."""
RENEWAL: Final = "headrace.dev/renewal"
"""Annotation of the lease. It has no clock in it: who looks on sees whether it moves."""

Object = dict[str, Any]

_leases = msgspec.json.Decoder(LeaseRecord)


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind of object that records stand in."""

    kind: str
    plural: str
    api_version: str

    def path(self, namespace: str) -> str:
        """Of the collection."""
        root = "/api" if "/" not in self.api_version else "/apis"
        return f"{root}/{self.api_version}/namespaces/{namespace}/{self.plural}"


NODES: Final = Resource("StorageNode", "storagenodes", f"{GROUP}/{VERSION}")
CONTAINERS: Final = Resource("StorageContainer", "storagecontainers", f"{GROUP}/{VERSION}")
LEASES: Final = Resource("Lease", "leases", "coordination.k8s.io/v1")
CONFIG_MAPS: Final = Resource("ConfigMap", "configmaps", "v1")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record stands."""

    resource: Resource
    name: str


def place(cluster: str, key: str) -> Place:
    """The object of a key."""
    if key.startswith(NODE_PREFIX):
        return Place(NODES, f"{cluster}-{key.removeprefix(NODE_PREFIX)}")
    if key.startswith(CONTAINER_PREFIX):
        return Place(CONTAINERS, f"{cluster}-{key.removeprefix(CONTAINER_PREFIX)}")
    if key == LEASE_KEY:
        return Place(LEASES, lease_name(cluster))
    return Place(CONFIG_MAPS, store_name(cluster))


def lease_name(cluster: str) -> str:
    """Of the Lease."""
    return f"{cluster}-controller"


def store_name(cluster: str) -> str:
    """Of the ConfigMap."""
    return f"{cluster}-store"


def watched(cluster: str) -> list[tuple[Resource, Mapping[str, str]]]:
    """What a node watches: kinds of objects, and which of them, as parameters of the call."""
    label = {"labelSelector": f"{CLUSTER_LABEL}={cluster}"}
    return [
        (NODES, label),
        (CONTAINERS, label),
        (LEASES, {"fieldSelector": f"metadata.name={lease_name(cluster)}"}),
        (CONFIG_MAPS, {"fieldSelector": f"metadata.name={store_name(cluster)}"}),
    ]


def may_hold(resource: Resource, prefix: str) -> bool:
    """Whether records under a prefix may stand in objects of a kind."""
    for own, key in ((NODES, NODE_PREFIX), (CONTAINERS, CONTAINER_PREFIX), (LEASES, LEASE_KEY)):
        if resource == own:
            return key.startswith(prefix) or prefix.startswith(key)
    return not prefix.startswith((NODE_PREFIX, CONTAINER_PREFIX))


def version(found: Object) -> int:
    """Resource versions of one cluster of etcd are numbers that rise over all objects (KEP-5504)."""
    return int(found["metadata"]["resourceVersion"])


def records(resource: Resource, cluster: str, found: Object) -> list[Versioned]:
    """What stands in an object. Raises CorruptLog where that is no record."""
    try:
        return [Versioned(key, value, version(found)) for key, value in _records(resource, cluster, found).items()]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        name = found.get("metadata", {}).get("name", "?")
        raise CorruptLog(f"{resource.kind} {name} holds no record: {error!r}") from error


def _records(resource: Resource, cluster: str, found: Object) -> dict[str, bytes]:
    if resource == CONFIG_MAPS:
        return {entry.replace(".", "/", 1): value.encode() for entry, value in (found.get("data") or {}).items()}
    number = str(found["metadata"]["name"]).removeprefix(f"{cluster}-")
    status, spec = found.get("status") or {}, found.get("spec") or {}
    if resource == NODES and status:
        record = _snake(status) | {"draining": bool(spec.get("drain", False))}
        record |= {name: spec[name] for name in ("advertised", "zone") if spec.get(name)}
        return {f"{NODE_PREFIX}{number}": msgspec.json.encode(record)}
    if resource == CONTAINERS and status:
        record = _snake(status)
        record.pop("in_sync_nodes", None)
        record["in_sync"] = [[member["node"], member["format"]] for member in record["in_sync"]]
        return {f"{CONTAINER_PREFIX}{number}": msgspec.json.encode(record)}
    if resource == LEASES and spec.get("holderIdentity"):
        node, _, run = str(spec["holderIdentity"]).partition("/")
        renewal = (found["metadata"].get("annotations") or {}).get(RENEWAL, "0")
        lease = LeaseRecord(NodeId(int(node)), UUID(run), int(spec.get("leaseTransitions") or 0), int(renewal))
        return {LEASE_KEY: msgspec.json.encode(lease)}
    return {}


def fresh(cluster: str, namespace: str, where: Place) -> Object:
    """An object that holds nothing yet."""
    return {
        "apiVersion": where.resource.api_version,
        "kind": where.resource.kind,
        "metadata": {"name": where.name, "namespace": namespace, "labels": {CLUSTER_LABEL: cluster}},
    }


def with_record(found: Object, key: str, value: bytes, *, now: str) -> Object:
    """The object with a record in it, all else as it was. `now`: RFC 3339, for people."""
    spec, status = dict(found.get("spec") or {}), found.get("status") or {}
    match found["kind"]:
        case NODES.kind:
            record = msgspec.json.decode(value)
            spec["drain"] = record.pop("draining", False)
            record.pop("advertised", None)
            changed = {**found, "spec": spec, "status": status | _camel(record)}
        case CONTAINERS.kind:
            record = msgspec.json.decode(value)
            record["in_sync_nodes"] = [node for node, _ in record["in_sync"]]  # for people: a column shows no fields
            record["in_sync"] = [{"node": node, "format": format} for node, format in record["in_sync"]]
            changed = {**found, "spec": spec, "status": status | _camel(record)}
        case LEASES.kind:
            lease = _leases.decode(value)
            spec |= {
                "holderIdentity": f"{lease.node}/{lease.run}",
                "leaseTransitions": lease.term,
                "renewTime": now,
            }
            changed = _annotated({**found, "spec": spec}, RENEWAL, str(lease.renewal))
        case _:
            changed = {**found, "data": (found.get("data") or {}) | {key.replace("/", ".", 1): value.decode()}}
    return _annotated(changed, TOUCHED, now) if changed == found else changed


def without_record(found: Object, key: str) -> Object | None:
    """The object without a record; None: nothing is left, and it goes."""
    if found["kind"] != CONFIG_MAPS.kind:
        return None
    entry = key.replace("/", ".", 1)
    return {**found, "data": {name: value for name, value in (found.get("data") or {}).items() if name != entry}}


def _annotated(found: Object, name: str, value: str) -> Object:
    meta = found["metadata"]
    return {**found, "metadata": {**meta, "annotations": {**(meta.get("annotations") or {}), name: value}}}


def _camel(record: Mapping[str, Any]) -> dict[str, Any]:
    return {_camel_word(name): value for name, value in record.items()}


def _snake(status: Mapping[str, Any]) -> dict[str, Any]:
    return {_snake_word(name): value for name, value in status.items()}


def _camel_word(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def _snake_word(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
