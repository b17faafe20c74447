"""Additions to pods that users ask for: volumes, sidecars, the user that the pods run as. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from headrace_operator.builders.names import Manifest
from headrace_operator.specs import PassedOn

USER: Final = 10001
"""The images' user id; files on claims belong to it."""


def security_context(asked: Mapping[str, Any] | None) -> Manifest:
    """Return a pod's security context. If the user sets one, even an empty one, no user and group are added: the image
    and the namespace decide as whom the pod runs.
    """
    own = {"runAsUser": USER, "runAsGroup": USER, "fsGroup": USER} if asked is None else {}
    never_root = {"runAsNonRoot": True, **own, "fsGroupChangePolicy": "OnRootMismatch"}
    return {**never_root, "seccompProfile": {"type": "RuntimeDefault"}, **(asked or {})}


def add(pod: PassedOn, spec: Manifest) -> None:
    """Add the user's extras to the spec of a pod whose first container is Headrace's; existing entries stay."""
    container = spec["containers"][0]
    if pod.volumes:
        spec["volumes"] = [*spec["volumes"], *pod.volumes]
    if pod.volume_mounts:
        container["volumeMounts"] = [*container["volumeMounts"], *pod.volume_mounts]
    if pod.init_containers:
        spec["initContainers"] = [*spec.get("initContainers", []), *pod.init_containers]
