"""Images: which one runs, and how workers pull it. Pure."""

from collections.abc import Mapping
from typing import Any

from headrace_operator.specs import ClusterSpec


def pull_policy(image: str, asked: str | None) -> str:
    """Return the requested policy, or the one that Kubernetes chooses for a new object. If the field were left out,
    Kubernetes would keep the policy chosen for a former image: "Always" if that was the latest.
    """
    if asked is not None:
        return asked
    return "Always" if image_version(image) == "latest" else "IfNotPresent"


def node_image(spec: ClusterSpec, *, default: str, present: str | None) -> str:
    """Return the image for the nodes: the requested one; else the default that the cluster got at first (`present`), so
    that a newer operator changes nothing by itself; else the operator's default.
    """
    if spec.image is not None:
        return spec.image
    if spec.version is not None:
        return f"{_repository(default)}:{spec.version}"
    return default if present is None else present


def image_of(stateful_set: Mapping[str, Any]) -> str:
    """Return the image of a StatefulSet's pods."""
    return str(stateful_set["spec"]["template"]["spec"]["containers"][0]["image"])


def image_version(image: str) -> str:
    """Return an image's tag or digest; "latest" if it has neither."""
    return image.removeprefix(_repository(image)).lstrip(":@") or "latest"


def _repository(image: str) -> str:
    """Return an image without tag and digest. A colon before a registry's port starts no tag."""
    named = image.partition("@")[0]
    host, slash, last = named.rpartition("/")
    return f"{host}{slash}{last.partition(':')[0]}"
