"""kind once a session; a namespace with a cluster of three nodes for each module."""

import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "nodeimage" / "tests" / "cluster")]

import kube  # noqa: E402


@pytest.fixture(scope="session")
def kind() -> None:
    """A cluster of Kubernetes with the charts installed, left running for the next session."""
    kube.set_up()
    kube.build(["node", "operator"])
    kube.install()


@pytest.fixture(scope="module")
def namespace(kind: None) -> Iterator[str]:
    name = f"e2e-{uuid.uuid4().hex[:6]}"
    kube.kubectl("create", "namespace", name)
    yield name
    kube.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture(scope="module")
def three(namespace: str) -> Iterator[kube.Cluster]:
    """Three nodes that are ready."""
    cluster = kube.Cluster("c", namespace)
    cluster.apply()
    cluster.await_ready()
    yield cluster
    cluster.close()
