"""The cluster's own record: the Secret with its id and its secret, which outlives the resource, as the data do.

It is made for a cluster that has no data yet, and never anew. Its annotations say what the operator has to know of a
cluster of which nothing else may be left: the image that its nodes run, and what it made of the default volume.
"""

import base64
import secrets
from typing import Any, Final

import msgspec

from headrace.store.record_types import SECRET_BYTES
from headrace_operator.builders.cluster import ClusterObjects
from headrace_operator.builders.images import image_of
from headrace_operator.kinds.cluster_view import Seen, annotation
from headrace_operator.kube import Kube, path
from headrace_operator.specs import GROUP, ClusterSpec

IMAGE: Final = f"{GROUP}/image"
"""Annotation: what the nodes run, for a cluster whose StatefulSet is gone."""


DEFAULT_VOLUME: Final = f"{GROUP}/default-volume"
"""Annotation: `replicas/minimum in sync` of the volume `default` when it was last as the resource asks; none where that
is as the record says.
"""


def known_default_volume(seen: Seen) -> str:
    """As DEFAULT_VOLUME; "": not known."""
    if seen.secret is None:
        return ""
    record = msgspec.json.decode(base64.b64decode(seen.secret["data"]["record"]))
    return annotation(seen.secret, DEFAULT_VOLUME) or f"{record.get('replicas')}/{record.get('min_in_sync')}"


def present_image(seen: Seen) -> str | None:
    """What the nodes run; None: no node has run yet."""
    if seen.stateful_set is not None:
        return image_of(seen.stateful_set)
    return (annotation(seen.secret, IMAGE) or None) if seen.secret is not None else None


class Recording:
    """Makes it, and writes down there what is to be known later."""

    def __init__(self, *, kube: Kube) -> None:
        self._kube = kube

    async def ensure(self, objects: ClusterObjects, spec: ClusterSpec, seen: Seen) -> bool:
        """Whether there is one, made now for a cluster that has no data yet. Raises ApiError, ApiSilent."""
        if seen.secret is not None:
            return True
        if seen.nodes or seen.claims:
            text = (
                f"Secret {objects.record} is gone, but there are {len(seen.nodes)} storage nodes and"
                f" {len(seen.claims)} claims of this cluster: put it back from a copy (its cluster id stands in the"
                " folder of each node), or delete StorageNodes, StorageContainers and claims, with all data in them,"
                " to begin anew"
            )
            seen.note("Reconciled", False, "SecretLost", text)
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

    async def fence(self, objects: ClusterObjects, seen: Seen, format: int) -> None:
        """Have pods get the record in a format that older versions refuse, from their next start on. Raises ApiError,
        ApiSilent.
        """
        assert seen.secret is not None
        record = msgspec.json.decode(base64.b64decode(seen.secret["data"]["record"]))
        await self._kube.create(objects.secret({**record, "format_version": format}))
        seen.record_format = format

    async def keep_image(self, objects: ClusterObjects, seen: Seen) -> None:
        """Write down what the StatefulSet runs: it may be gone at the next look. Raises ApiError, ApiSilent."""
        if seen.stateful_set is not None:
            await self.note(objects, seen, IMAGE, image_of(seen.stateful_set))

    async def note(self, objects: ClusterObjects, seen: Seen, name: str, value: str) -> None:
        """Set an annotation. Raises ApiError, ApiSilent."""
        if seen.secret is None or annotation(seen.secret, name) != value:
            where = path("v1", "Secret", objects.namespace, objects.record)
            await self._kube.merge(where, {"metadata": {"annotations": {name: value}}})
