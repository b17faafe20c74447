"""Kafka's Java clients (java_clients.py) for tests, connected to the shared node.

With HEADRACE_JAVA_PEER=host:port the same tests run against that broker, for example a real Kafka, which shows whether
a failure is Headrace's or the test's; what only Headrace has is then skipped.
"""

import os
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.java_clients import RELEASES, JavaClients, program

HERE = Path(__file__).resolve().parent
PEER = os.environ.get("HEADRACE_JAVA_PEER")


@pytest.fixture(scope="session", params=RELEASES)
def java(request: pytest.FixtureRequest) -> Iterator[JavaClients]:
    """The Java clients of one release, connected to the shared node (or to the peer)."""
    folder = program(request.param)
    bootstrap = PEER or request.getfixturevalue("cluster").bootstrap
    clients = JavaClients(request.param, bootstrap, folder)
    yield clients
    clients.end()


@pytest.fixture
def unique() -> str:
    """A name that no other test uses."""
    return f"java-{uuid.uuid4().hex[:10]}"


@pytest.fixture
def until() -> Callable[..., Any]:
    """`until(probe, what)` returns the first truthy value of `probe()`; fails with `what` after 40 s."""

    def wait(probe: Callable[[], Any], what: str, *, seconds: float = 40.0) -> Any:
        deadline = time.monotonic() + seconds
        while not (found := probe()):
            assert time.monotonic() < deadline, f"never: {what}"
            time.sleep(0.02)
        return found

    return wait


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in Path(item.path).parents:
            item.add_marker(pytest.mark.java)
            release = getattr(item, "callspec", None) and item.callspec.params.get("java")
            item.add_marker(pytest.mark.xdist_group(f"java {release}"))  # the JVM of one release is started once
            if PEER and item.get_closest_marker("headrace_only"):
                item.add_marker(pytest.mark.skip("the peer is not Headrace"))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "headrace_only: of what another broker does not have")
