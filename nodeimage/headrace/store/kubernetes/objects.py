"""Which object of Kubernetes holds which record of the cluster store. Pure.

    node/<id>          StorageNode <cluster>-<id>         status: the record; spec: the operator's settings of the node
    container/<id>     StorageContainer <cluster>-<id>    status: the record
    controller         Lease <cluster>-controller         spec: holder and term; an annotation: number of renewals
    all others         ConfigMap <cluster>-store          data: one entry a record, its key with `/` as `.`

A version is the resourceVersion of the object, so a record that shares its object with others gets a new version when
they change: a writer that loses because of that reads again. `status` of the two kinds is not a subresource, so a
record is created in one call.

A node's record takes `draining` and the advertised addresses only from `spec`, where the operator and `headrace node
drain` write them; its zone too, if `spec` has one. Fields that this version does not know stay unchanged. A write
always changes its object, if only by an annotation: an API server gives no new version to a write that changes nothing,
so such a write could not keep an older one from being stored later (store.protocol).

The cluster's own record, with its secret, is not in any of these objects: the operator creates it and mounts it into
the pods, so that nodes need no right to read Secrets.
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
"""Annotation that is changed if a write changes nothing else."""
RENEWAL: Final = "headrace.dev/renewal"
"""Annotation of the lease with the number of renewals. It contains no clock: observers see whether it changes."""

Object = dict[str, Any]

_leases = msgspec.json.Decoder(LeaseRecord)


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object that contains records."""

    kind: str
    plural: str
    api_version: str

    def path(self, namespace: str) -> str:
        """Return the path of the collection."""
        root = "/api" if "/" not in self.api_version else "/apis"
        return f"{root}/{self.api_version}/namespaces/{namespace}/{self.plural}"


NODES: Final = Resource("StorageNode", "storagenodes", f"{GROUP}/{VERSION}")
CONTAINERS: Final = Resource("StorageContainer", "storagecontainers", f"{GROUP}/{VERSION}")
LEASES: Final = Resource("Lease", "leases", "coordination.k8s.io/v1")
CONFIG_MAPS: Final = Resource("ConfigMap", "configmaps", "v1")


@dataclass(frozen=True, slots=True)
class Place:
    """The object that contains a record."""

    resource: Resource
    name: str


def place(cluster: str, key: str) -> Place:
    """Return the object of a key."""
    if key.startswith(NODE_PREFIX):
        return Place(NODES, f"{cluster}-{key.removeprefix(NODE_PREFIX)}")
    if key.startswith(CONTAINER_PREFIX):
        return Place(CONTAINERS, f"{cluster}-{key.removeprefix(CONTAINER_PREFIX)}")
    if key == LEASE_KEY:
        return Place(LEASES, lease_name(cluster))
    return Place(CONFIG_MAPS, store_name(cluster))


def lease_name(cluster: str) -> str:
    """Return the name of the Lease."""
    return f"{cluster}-controller"


def store_name(cluster: str) -> str:
    """Return the name of the ConfigMap."""
    return f"{cluster}-store"


def watched(cluster: str) -> list[tuple[Resource, Mapping[str, str]]]:
    """Return what a node watches: kinds of objects, each with the parameters that select the cluster's."""
    label = {"labelSelector": f"{CLUSTER_LABEL}={cluster}"}
    return [
        (NODES, label),
        (CONTAINERS, label),
        (LEASES, {"fieldSelector": f"metadata.name={lease_name(cluster)}"}),
        (CONFIG_MAPS, {"fieldSelector": f"metadata.name={store_name(cluster)}"}),
    ]


def may_hold(resource: Resource, prefix: str) -> bool:
    """Return whether objects of a kind may contain records under a prefix."""
    for own, key in ((NODES, NODE_PREFIX), (CONTAINERS, CONTAINER_PREFIX), (LEASES, LEASE_KEY)):
        if resource == own:
            return key.startswith(prefix) or prefix.startswith(key)
    return not prefix.startswith((NODE_PREFIX, CONTAINER_PREFIX))


def version(found: Object) -> int:
    """Return an object's resource version: within one etcd cluster, a number that increases over all objects
    (KEP-5504)."""
    return int(found["metadata"]["resourceVersion"])


def records(resource: Resource, cluster: str, found: Object) -> list[Versioned]:
    """Return the records in an object. Raises CorruptLog if its content is not valid."""
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
    """Return an object without records."""
    return {
        "apiVersion": where.resource.api_version,
        "kind": where.resource.kind,
        "metadata": {"name": where.name, "namespace": namespace, "labels": {CLUSTER_LABEL: cluster}},
    }


def with_record(found: Object, key: str, value: bytes, *, now: str) -> Object:
    """Return the object with a record put into it, otherwise unchanged. `now`: RFC 3339, for people."""
    spec, status = dict(found.get("spec") or {}), found.get("status") or {}
    match found["kind"]:
        case NODES.kind:
            record = msgspec.json.decode(value)
            spec["drain"] = record.pop("draining", False)
            record.pop("advertised", None)
            changed = {**found, "spec": spec, "status": status | _camel(record)}
        case CONTAINERS.kind:
            record = msgspec.json.decode(value)
            record["in_sync_nodes"] = [node for node, _ in record["in_sync"]]  # for a printer column
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
    """Return the object without a record; None if nothing is left, so that the object is to be removed."""
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
