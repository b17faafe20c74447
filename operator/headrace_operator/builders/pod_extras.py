"""What users ask of pods beyond what Headrace needs of them: volumes, sidecars, whom they run as. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from headrace_operator.builders.names import Manifest
from headrace_operator.specs import PassedOn

USER: Final = 10001
"""Of the images; what claims hold belongs to it."""


def security_context(asked: Mapping[str, Any] | None) -> Manifest:
    """Of a pod. Where the user says anything of it, even nothing, no user and group are named: the image and the
    namespace say whom it runs as.
    """
    own = {"runAsUser": USER, "runAsGroup": USER, "fsGroup": USER} if asked is None else {}
    never_root = {"runAsNonRoot": True, **own, "fsGroupChangePolicy": "OnRootMismatch"}
    return {**never_root, "seccompProfile": {"type": "RuntimeDefault"}, **(asked or {})}


def add(pod: PassedOn, spec: Manifest) -> None:
    """To the spec of a pod, whose first container is Headrace's; what that has stays."""
    container = spec["containers"][0]
    if pod.volumes:
        spec["volumes"] = [*spec["volumes"], *pod.volumes]
    if pod.volume_mounts:
        container["volumeMounts"] = [*container["volumeMounts"], *pod.volume_mounts]
    if pod.init_containers:
        spec["initContainers"] = [*spec.get("initContainers", []), *pod.init_containers]
