"""Which object of Kubernetes holds which record of the cluster store. Pure.

    node/<id>          StorageNode <cluster>-<id>         status: the record; spec: what the operator wants of the node
    container/<id>     StorageContainer <cluster>-<id>    status: the record
    controller         Lease <cluster>-controller         spec: holder and term; an annotation: how often renewed
    all others         ConfigMap <cluster>-store          data: one entry a record, its key with `/` as `.`

A version is the resourceVersion of the object, so a record that shares its object with others gets a new one when they
change: whoever loses by that reads again. `status` of the two kinds is no subresource: a record is made in one call.

A node's record has `draining`, its zone and the advertised addresses from `spec`, where the operator and `headrace node drain`
write them, and nowhere else. Fields that this version does not know stay as they are.

The cluster's own record, with its secret, is no object of the store's: the operator makes it and mounts it into the
pods, so that nodes need no right to read Secrets.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from headrace.errors import CorruptLog
from headrace.store.protocol import Versioned
from headrace.store.record_types import CONTAINER_PREFIX, LEASE_KEY, NODE_PREFIX, LeaseRecord

GROUP: Final = "headrace.dev"
VERSION: Final = "v1alpha1"
CLUSTER_LABEL: Final = "headrace.dev/cluster"
RENEWAL: Final = "headrace.dev/renewal"
"""Annotation of the lease. It has no clock in it: who looks on sees whether it moves."""

Object = dict[str, Any]


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
        return Place(LEASES, f"{cluster}-controller")
    return Place(CONFIG_MAPS, f"{cluster}-store")


def watched(cluster: str) -> list[tuple[Resource, Mapping[str, str]]]:
    """What a node watches: kinds of objects, and which of them, as parameters of the call."""
    label = {"labelSelector": f"{CLUSTER_LABEL}={cluster}"}
    return [
        (NODES, label),
        (CONTAINERS, label),
        (LEASES, {"fieldSelector": f"metadata.name={cluster}-controller"}),
        (CONFIG_MAPS, {"fieldSelector": f"metadata.name={cluster}-store"}),
    ]


def version(found: Object) -> int:
    """Resource versions of one cluster of etcd are numbers that rise over all objects (KEP-5504)."""
    return int(found["metadata"]["resourceVersion"])


def records(resource: Resource, cluster: str, found: Object) -> list[Versioned]:
    """What stands in an object. Raises CorruptLog where that is no record."""
    try:
        return [
            Versioned(key, msgspec.json.encode(record), version(found))
            for key, record in _records(resource, cluster, found).items()
        ]
    except (KeyError, TypeError, ValueError) as error:
        name = found.get("metadata", {}).get("name", "?")
        raise CorruptLog(f"{resource.kind} {name} holds no record: {error!r}") from error


def _records(resource: Resource, cluster: str, found: Object) -> dict[str, Any]:
    name = str(found["metadata"]["name"])
    number = name.removeprefix(f"{cluster}-")
    match resource.kind:
        case "StorageNode":
            status, spec = found.get("status"), found.get("spec", {})
            if not status:
                return {}
            record = _snake(status) | {"draining": bool(spec.get("drain", False))}
            record |= {name: spec[name] for name in ("advertised", "zone") if spec.get(name)}
            return {f"{NODE_PREFIX}{number}": record}
        case "StorageContainer":
            status = found.get("status")
            if not status:
                return {}
            record = _snake(status)
            record["in_sync"] = [[member["node"], member["format"]] for member in record["in_sync"]]
            return {f"{CONTAINER_PREFIX}{number}": record}
        case "Lease":
            spec = found.get("spec", {})
            holder = str(spec.get("holderIdentity") or "")
            if not holder:
                return {}
            node, _, run = holder.partition("/")
            renewal = found["metadata"].get("annotations", {}).get(RENEWAL, "0")
            return {
                LEASE_KEY: {
                    "node": int(node),
                    "run": run,
                    "term": int(spec.get("leaseTransitions", 0)),
                    "renewal": int(renewal),
                }
            }
        case _:
            data = found.get("data") or {}
            return {entry.replace(".", "/", 1): msgspec.json.decode(value) for entry, value in data.items()}


def fresh(cluster: str, namespace: str, where: Place) -> Object:
    """An object that holds nothing yet."""
    return {
        "apiVersion": where.resource.api_version,
        "kind": where.resource.kind,
        "metadata": {"name": where.name, "namespace": namespace, "labels": {CLUSTER_LABEL: cluster}},
    }


def with_record(found: Object, key: str, value: bytes, *, now: str) -> Object:
    """The object with a record in it, all else as it was. `now`: RFC 3339, for people."""
    changed = dict(found)
    record = msgspec.json.decode(value)
    match found["kind"]:
        case "StorageNode":
            spec = dict(found.get("spec", {}))
            spec["drain"] = record.pop("draining", False)
            record.pop("advertised", None)
            changed["spec"] = spec
            changed["status"] = dict(found.get("status", {})) | _camel(record)
        case "StorageContainer":
            record["in_sync"] = [{"node": node, "format": format} for node, format in record["in_sync"]]
            changed["spec"] = found.get("spec", {})
            changed["status"] = dict(found.get("status", {})) | _camel(record)
        case "Lease":
            lease = msgspec.json.decode(value, type=LeaseRecord)
            changed["metadata"] = dict(found["metadata"])
            changed["metadata"]["annotations"] = found["metadata"].get("annotations", {}) | {
                RENEWAL: str(lease.renewal)
            }
            changed["spec"] = dict(found.get("spec", {})) | {
                "holderIdentity": f"{lease.node}/{lease.run}",
                "leaseTransitions": lease.term,
                "renewTime": now,
            }
        case _:
            changed["data"] = dict(found.get("data") or {}) | {key.replace("/", ".", 1): value.decode()}
    return changed


def without_record(found: Object, key: str) -> Object | None:
    """The object without a record; None: nothing is left, and it goes."""
    if found["kind"] != "ConfigMap":
        return None
    entry = key.replace("/", ".", 1)
    return dict(found) | {"data": {name: value for name, value in (found.get("data") or {}).items() if name != entry}}


def _camel(record: Mapping[str, Any]) -> dict[str, Any]:
    return {_camel_word(name): value for name, value in record.items()}


def _snake(status: Mapping[str, Any]) -> dict[str, Any]:
    return {_snake_word(name): value for name, value in status.items()}


def _camel_word(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def _snake_word(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
