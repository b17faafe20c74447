"""The differences of an older version, of feature level 0, simulated in nodes that run this one.

The older version publishes no range of levels, drops fields that it does not know from records that it writes, raises
no level as controller, and refuses a cluster or a folder of format 2.
"""

from typing import Any

import msgspec

from headrace.base.errors import FolderRefused
from headrace.store.protocol import ClusterStore
from headrace.store.records import CLUSTER_KEY, NODE_PREFIX, ClusterRecord


def refuse_as_old(store: ClusterStore, fenced: int) -> None:
    """Raise FolderRefused where an older version would."""
    found = store.get(CLUSTER_KEY)
    if found is not None and msgspec.json.decode(found.value, type=ClusterRecord).format_version > 1:
        raise FolderRefused("the cluster has format 2, this version reads 1; use a newer headrace")
    if fenced:
        raise FolderRefused("the folder has format 2; this version reads 1 at most: use a newer headrace")


def as_old(key: str, value: bytes, present: bytes | None, *, keeps: bool) -> bytes:
    """A record as an older version writes it after it has read `present`. `keeps`: fields that it does not know stay in
    the store, as on Kubernetes.
    """
    if not key.startswith(NODE_PREFIX):
        return value
    fields: dict[str, Any] = msgspec.json.decode(value)
    fields.pop("supports", None)
    if keeps and present is not None and "supports" in (before := msgspec.json.decode(present)):
        fields["supports"] = before["supports"]
    return msgspec.json.encode(fields)
