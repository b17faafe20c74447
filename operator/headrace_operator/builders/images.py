"""Which images run, and how they get to their workers. Pure."""

from collections.abc import Mapping
from typing import Any

from headrace_operator.specs import ClusterSpec


def pull_policy(image: str, asked: str | None) -> str:
    """What is asked for, or what Kubernetes takes for a new object. Left to it, it would keep what it took for the
    image before: "Always", where that was the latest."""
    if asked is not None:
        return asked
    return "Always" if image_version(image) == "latest" else "IfNotPresent"


def node_image(spec: ClusterSpec, *, default: str, present: str | None) -> str:
    """What the nodes are to run: what is asked for; else the default that they got once (`present`), so that a newer
    operator changes nothing by itself; else the operator's default.
    """
    if spec.image is not None:
        return spec.image
    if spec.version is not None:
        return f"{_repository(default)}:{spec.version}"
    return default if present is None else present


def image_of(stateful_set: Mapping[str, Any]) -> str:
    """What its pods run."""
    return str(stateful_set["spec"]["template"]["spec"]["containers"][0]["image"])


def image_version(image: str) -> str:
    """Its tag or digest."""
    return image.removeprefix(_repository(image)).lstrip(":@") or "latest"


def _repository(image: str) -> str:
    """An image without tag and digest; a registry's port is neither."""
    named = image.partition("@")[0]
    host, slash, last = named.rpartition("/")
    return f"{host}{slash}{last.partition(':')[0]}"
