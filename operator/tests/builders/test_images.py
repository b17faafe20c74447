"""Which images run, which version that is, and how they are pulled."""

import pytest

from headrace_operator.builders.images import image_of, image_version, node_image, pull_policy
from headrace_operator.specs import ClusterSpec

from .test_cluster import built


def test_the_image_is_what_is_asked_for_else_what_runs_else_the_operators_own() -> None:
    runs = image_of(built({}, image="headrace/node:old").stateful_set())
    default = "registry:5000/headrace/node:new"
    assert node_image(ClusterSpec(), default=default, present=None) == default
    assert node_image(ClusterSpec(), default=default, present=runs) == "headrace/node:old"
    assert node_image(ClusterSpec(version="3"), default=default, present=runs) == "registry:5000/headrace/node:3"
    assert node_image(ClusterSpec(image="mine", version="3"), default=default, present=runs) == "mine"


@pytest.mark.parametrize(
    ("image", "version"),
    [("r:5000/a/b:1.2", "1.2"), ("a/b", "latest"), ("r:5000/b", "latest"), ("a@sha256:ab", "sha256:ab")],
)
def test_the_version_of_an_image(image: str, version: str) -> None:
    assert image_version(image) == version


@pytest.mark.parametrize(
    ("image", "asked", "policy"),
    [
        ("headrace/node", None, "Always"),
        ("registry:5000/headrace/node:latest", None, "Always"),
        ("registry:5000/headrace/node:1.2", None, "IfNotPresent"),
        ("headrace/node@sha256:0123", None, "IfNotPresent"),
        ("headrace/node:latest", "Never", "Never"),
    ],
)
def test_how_an_image_is_pulled_is_said_with_each_image(image: str, asked: str | None, policy: str) -> None:
    assert pull_policy(image, asked) == policy
