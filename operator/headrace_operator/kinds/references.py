"""Which cluster a resource refers to, and whether it may. Pure, over the cache."""

from collections.abc import Mapping
from typing import Any

import msgspec

from headrace_operator.builders.names import bootstrap
from headrace_operator.engine import Body, Cache, Key
from headrace_operator.specs import ClusterRef, ClusterSpec
from headrace_operator.status import Condition


class Unresolved(Exception):
    """The resource's cluster is not there, or not for it; or an older resource says the same. Carries the condition."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.condition = Condition("Reconciled", False, reason, message)


def cluster_key(body: Body, ref: ClusterRef) -> Key:
    """The StreamCluster that is meant."""
    return Key("StreamCluster", ref.namespace or body["metadata"]["namespace"], ref.name)


def resolve(cache: Cache, body: Body, ref: ClusterRef) -> tuple[Body, ClusterSpec, str]:
    """The cluster, what it asks for, and where its clients begin. Raises Unresolved."""
    key = cluster_key(body, ref)
    found = cache.get(key)
    if found is None or found["metadata"].get("deletionTimestamp"):
        raise Unresolved("NoCluster", f"there is no StreamCluster {key.name} in namespace {key.namespace}")
    spec = msgspec.convert(found["spec"], ClusterSpec)
    own = body["metadata"]["namespace"]
    if own != key.namespace and not _allows(cache, spec, own):
        raise Unresolved(
            "NotAllowed",
            f"StreamCluster {key.namespace}/{key.name} does not allow namespace {own}: see its allowedNamespaces",
        )
    return found, spec, bootstrap(key.name, key.namespace)


def _allows(cache: Cache, spec: ClusterSpec, namespace: str) -> bool:
    allowed = spec.allowed_namespaces
    if "*" in allowed.names or namespace in allowed.names:
        return True
    if allowed.selector is None or not allowed.selector.match_labels:
        return False
    found = cache.get(Key("Namespace", "", namespace))
    labels: Mapping[str, Any] = {} if found is None else found["metadata"].get("labels", {})
    return allowed.selector.match_labels.items() <= labels.items()


def check_oldest(cache: Cache, body: Body, identity: tuple[object, ...], identities: Mapping[Key, tuple[object, ...]]) -> None:
    """Of several resources that say the same thing the oldest holds. Raises Unresolved for the others."""
    meta = body["metadata"]
    mine = (meta["creationTimestamp"], meta["namespace"], meta["name"])
    for key, each in identities.items():
        other = cache.get(key)
        if each != identity or other is None or other["metadata"]["uid"] == meta["uid"]:
            continue
        theirs = (other["metadata"]["creationTimestamp"], key.namespace, key.name)
        if theirs < mine:
            raise Unresolved("Clash", f"{key.kind} {key.namespace}/{key.name}, which is older, is about the same")
