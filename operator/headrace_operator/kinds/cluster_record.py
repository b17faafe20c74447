"""The cluster's own record: the Secret with its id and its secret, which outlives the resource, as the data do.

It is made for a cluster that has no data yet, and never anew. Its annotations say what the operator has to know of a
cluster of which nothing else may be left: the image that its nodes are to run and who chose it, and what the operator
made of the default volume.
"""

import base64
import secrets
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from headrace.base.levels import Level, format_of
from headrace.store.record_types import SECRET_BYTES
from headrace_operator.builders.cluster import ClusterObjects
from headrace_operator.builders.images import image_of
from headrace_operator.kinds.causes import is_ready
from headrace_operator.kinds.cluster_view import Seen, annotation
from headrace_operator.kube import Kube, path
from headrace_operator.specs import GROUP, ClusterSpec

IMAGE: Final = f"{GROUP}/image"
"""Annotation: the image that the nodes were last to run, also where no StatefulSet is left that says it."""
IMAGE_CHOSEN_BY: Final = f"{GROUP}/image-chosen-by"
"""Annotation: BY_SPEC or BY_DEFAULT. None: an earlier version of the operator did not note it."""
BY_SPEC: Final = "spec"
BY_DEFAULT: Final = "default"

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


def kept_image(seen: Seen) -> str | None:
    """The image that a cluster keeps whose spec names none, whatever the operator's default is by now: the one that it
    got by default. None: it takes the default, as it is new, or as its spec no longer names the image or version that
    it named before.
    """
    noted = annotation(seen.secret, IMAGE) if seen.secret is not None else ""
    match annotation(seen.secret, IMAGE_CHOSEN_BY) if seen.secret is not None else "":
        case "default":
            return noted or None
        case "spec":
            return None
    # Of an earlier version of the operator. A template that no pod ever got to run says nothing.
    running = images_running(seen)
    if running:
        return max(running, key=lambda image: (running.count(image), image))
    return noted or (None if seen.stateful_set is None else image_of(seen.stateful_set))


def images_running(seen: Seen) -> list[str]:
    """Of the pods that are ready, one each."""
    return [str(pod["spec"]["containers"][0]["image"]) for pod in seen.pods if is_ready(pod)]


NODE_PORTS: Final = f"{GROUP}/node-ports"
"""Annotation: JSON, by pod the NodePorts of its Service, one a node. Clients outside know them, so a cluster that is
deleted and applied again gets them back."""


_node_ports: Final = msgspec.json.Decoder(dict[str, list[int]])


def known_node_ports(seen: Seen) -> dict[str, list[int]]:
    """As NODE_PORTS; none where nothing was noted, or it cannot be read."""
    text = annotation(seen.secret, NODE_PORTS) if seen.secret is not None else ""
    try:
        return _node_ports.decode(text or "{}")
    except msgspec.DecodeError:
        return {}


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
        if spec.security.enabled:  # it begins at the level that has users: there is nothing to go back to
            format = format_of(Level.SECURED)
            await self._kube.create(objects.secret({**record, "format_version": format}))
            seen.record_format = format
        return True

    async def fence(self, objects: ClusterObjects, seen: Seen, format: int) -> None:
        """Have pods get the record in a format that older versions refuse, from their next start on. Raises ApiError,
        ApiSilent.
        """
        assert seen.secret is not None
        record = msgspec.json.decode(base64.b64decode(seen.secret["data"]["record"]))
        await self._kube.create(objects.secret({**record, "format_version": format}))
        seen.record_format = format

    async def keep_image(self, objects: ClusterObjects, spec: ClusterSpec, seen: Seen) -> None:
        """Write down what the nodes are to run, and who says so, before any does. Raises ApiError, ApiSilent."""
        chosen_by = BY_DEFAULT if spec.image is None and spec.version is None else BY_SPEC
        await self.note(objects, seen, {IMAGE: objects.image, IMAGE_CHOSEN_BY: chosen_by})

    async def note(self, objects: ClusterObjects, seen: Seen, noted: Mapping[str, str]) -> None:
        """Set annotations. Raises ApiError, ApiSilent."""
        if seen.secret is None or any(annotation(seen.secret, name) != value for name, value in noted.items()):
            where = path("v1", "Secret", objects.namespace, objects.record)
            await self._kube.merge(where, {"metadata": {"annotations": dict(noted)}})
