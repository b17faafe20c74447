"""Which cluster a resource refers to, and whether it may use it. Pure, over the cache."""

from collections.abc import Mapping
from typing import Any

import msgspec

from headrace_operator.builders.names import bootstrap
from headrace_operator.engine import Body, Cache, Key, key_of
from headrace_operator.kinds.index import Index
from headrace_operator.specs import ClusterRef, ClusterSpec
from headrace_operator.status import Condition, figures_of


class Unresolved(Exception):
    """A resource cannot be applied as things are: for example its cluster is missing or does not allow it, or an older
    resource declares the same. Carries the condition that says why.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.condition = Condition("Reconciled", False, reason, message)


def invalid(error: Exception) -> Condition:
    """Return the condition of a spec that is invalid, though a CRD of another version accepted it."""
    return Condition(
        "Reconciled", False, "Invalid", f"spec cannot be read: {error}: change it, or apply the newest CRDs"
    )


def cluster_key(body: Body, ref: ClusterRef) -> Key:
    """Return the key of the StreamCluster that `ref` names."""
    return Key("StreamCluster", ref.namespace or body["metadata"]["namespace"], ref.name)


def resolve(cache: Cache, body: Body, ref: ClusterRef, *, field: str = "clusterRef") -> tuple[Body, ClusterSpec, str]:
    """Return the cluster that a field of `body` names, its spec, and its bootstrap address. Raises Unresolved."""
    key = cluster_key(body, ref)
    found = cache.get(key)
    if found is None or found["metadata"].get("deletionTimestamp"):
        raise Unresolved(
            "NoCluster",
            f"there is no StreamCluster {key.name} in namespace {key.namespace}: create it, or name another in {field}",
        )
    try:
        spec = msgspec.convert(found["spec"], ClusterSpec)
    except msgspec.ValidationError as error:
        raise Unresolved("ClusterInvalid", f"StreamCluster {key.namespace}/{key.name}: {error}") from error
    own = body["metadata"]["namespace"]
    if own != key.namespace and not _allows(cache, spec, own):
        raise Unresolved(
            "NotAllowed",
            f"StreamCluster {key.namespace}/{key.name} does not allow namespace {own}: add it to its allowedNamespaces",
        )
    return found, spec, bootstrap(key.name, key.namespace)


def _allows(cache: Cache, spec: ClusterSpec, namespace: str) -> bool:
    allowed = spec.allowed_namespaces
    if "*" in allowed.names or namespace in allowed.names:
        return True
    if allowed.selector is None or not allowed.selector.match_labels:
        return False
    found = cache.get(Key("Namespace", "", namespace))
    labels: Mapping[str, Any] = {} if found is None else found["metadata"].get("labels") or {}
    return allowed.selector.match_labels.items() <= labels.items()


def check_oldest(cache: Cache, index: Index, body: Body) -> None:
    """Check that no older resource declares the same: of several, the oldest that its cluster allows is applied. Raises
    Unresolved for the others.
    """
    mine = claim(body)
    for key in index.alike(key_of(body)):
        other = cache.get(key)
        if other is not None and claim(other) < mine and is_allowed(cache, other):
            raise Unresolved(
                "Clash", f"{key.kind} {key.namespace}/{key.name}, which is older, is about the same: delete one of them"
            )


def claim(body: Body) -> tuple[str, bool, str, str]:
    """Return the key by which resources that declare the same are ordered: the least is applied. Times are whole
    seconds; if two resources were created in the same second, the one that already has a status comes first.
    """
    meta = body["metadata"]
    return meta["creationTimestamp"], not figures_of(body.get("status") or {}), meta["namespace"], meta["name"]


def is_allowed(cache: Cache, body: Body) -> bool:
    """Return whether a resource's cluster exists and allows it."""
    ref = body["spec"]["clusterRef"]
    try:
        resolve(cache, body, ClusterRef(name=ref["name"], namespace=ref.get("namespace")))
    except Unresolved:
        return False
    return True
