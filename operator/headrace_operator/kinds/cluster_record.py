"""The cluster record: the Secret with the cluster's id and secret, which outlives the resource, as the data do.

It is created for a cluster without data, and never recreated. Its annotations hold what the operator needs to know
about a cluster of which nothing else may be left: the image of its nodes and who chose it, and the state of the default
volume.
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
from headrace_operator.kinds.cluster_view import ObservedCluster, annotation
from headrace_operator.kube import Kube, path
from headrace_operator.specs import GROUP, ClusterSpec

IMAGE: Final = f"{GROUP}/image"
"""Annotation: the image last chosen for the nodes, kept even if no StatefulSet is left that names it."""
IMAGE_CHOSEN_BY: Final = f"{GROUP}/image-chosen-by"
"""Annotation: BY_SPEC or BY_DEFAULT; missing if an earlier version of the operator did not note it."""
BY_SPEC: Final = "spec"
BY_DEFAULT: Final = "default"

DEFAULT_VOLUME: Final = f"{GROUP}/default-volume"
"""Annotation: the `replicas/minimum in sync` that the volume `default` had when it last matched the resource; missing
if they are those of the record.
"""


def known_default_volume(seen: ObservedCluster) -> str:
    """Return the value of DEFAULT_VOLUME, or else that of the record; "" if there is no record."""
    if seen.secret is None:
        return ""
    record = msgspec.json.decode(base64.b64decode(seen.secret["data"]["record"]))
    return annotation(seen.secret, DEFAULT_VOLUME) or f"{record.get('replicas')}/{record.get('min_in_sync')}"


def kept_image(seen: ObservedCluster) -> str | None:
    """Return the image that a cluster whose spec names none keeps, whatever the operator's default is now: the one that
    it got by default. None if it takes the operator's default: it is new, or its spec no longer names an image or
    version.
    """
    noted = annotation(seen.secret, IMAGE) if seen.secret is not None else ""
    match annotation(seen.secret, IMAGE_CHOSEN_BY) if seen.secret is not None else "":
        case "default":
            return noted or None
        case "spec":
            return None
    # An earlier version of the operator noted no chooser. Ready pods decide: the template may hold an image that no pod
    # ever ran.
    running = images_running(seen)
    if running:
        return max(running, key=lambda image: (running.count(image), image))
    return noted or (None if seen.stateful_set is None else image_of(seen.stateful_set))


def images_running(seen: ObservedCluster) -> list[str]:
    """Return the image of each ready pod."""
    return [str(pod["spec"]["containers"][0]["image"]) for pod in seen.pods if is_ready(pod)]


NODE_PORTS: Final = f"{GROUP}/node-ports"
"""Annotation: JSON with the NodePorts of each pod's Service, one per node. Clients outside know them, so a cluster that
is deleted and applied again gets them back.
"""


_node_ports: Final = msgspec.json.Decoder(dict[str, list[int]])


def known_node_ports(seen: ObservedCluster) -> dict[str, list[int]]:
    """Return the value of NODE_PORTS; {} if it is missing or cannot be parsed."""
    text = annotation(seen.secret, NODE_PORTS) if seen.secret is not None else ""
    try:
        return _node_ports.decode(text or "{}")
    except msgspec.DecodeError:
        return {}


class ClusterRecords:
    """Creates the cluster record and notes facts at it."""

    def __init__(self, *, kube: Kube) -> None:
        self._kube = kube

    async def ensure(self, objects: ClusterObjects, spec: ClusterSpec, seen: ObservedCluster) -> bool:
        """Return whether a record exists, after creating it for a cluster without data. Raises ApiError, ApiSilent."""
        if seen.secret is not None:
            return True
        if seen.nodes or seen.claims:
            text = (
                f"Secret {objects.record} is gone, but there are {len(seen.nodes)} storage nodes and"
                f" {len(seen.claims)} claims of this cluster: restore it from a backup (the cluster id is in"
                " each node's data folder), or delete StorageNodes, StorageContainers and claims, with all data in"
                " them, to start over"
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
        if spec.security.enabled:  # a new cluster starts at the level that has users
            format = format_of(Level.SECURED)
            await self._kube.create(objects.secret({**record, "format_version": format}))
            seen.record_format = format
        return True

    async def fence(self, objects: ClusterObjects, seen: ObservedCluster, format: int) -> None:
        """Make pods mount the record in a format that older versions refuse, from their next start on. Raises ApiError,
        ApiSilent.
        """
        assert seen.secret is not None
        record = msgspec.json.decode(base64.b64decode(seen.secret["data"]["record"]))
        await self._kube.create(objects.secret({**record, "format_version": format}))
        seen.record_format = format

    async def keep_image(self, objects: ClusterObjects, spec: ClusterSpec, seen: ObservedCluster) -> None:
        """Note the nodes' image and who chose it, before any node runs it. Raises ApiError, ApiSilent."""
        chosen_by = BY_DEFAULT if spec.image is None and spec.version is None else BY_SPEC
        await self.note(objects, seen, {IMAGE: objects.image, IMAGE_CHOSEN_BY: chosen_by})

    async def note(self, objects: ClusterObjects, seen: ObservedCluster, noted: Mapping[str, str]) -> None:
        """Set annotations of the record. Raises ApiError, ApiSilent."""
        if seen.secret is None or any(annotation(seen.secret, name) != value for name, value in noted.items()):
            where = path("v1", "Secret", objects.namespace, objects.record)
            await self._kube.merge(where, {"metadata": {"annotations": dict(noted)}})
