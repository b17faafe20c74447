"""Fixtures: kind once per session; a namespace with a cluster of three nodes for each module."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import kube
import pytest

from kit.patience import PATIENCE

HERE = Path(__file__).parent

TEST_S = 900 * min(PATIENCE, 2)
SPARK_IMAGES = {"spark_image", "spark_worker"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests on kind, whose fixtures take long, a time-out for the function only. Run those with Spark last:
    gigabytes of its image are written to the disks of all nodes, and some disks stall after that.
    """
    items.sort(key=lambda item: not SPARK_IMAGES.isdisjoint(getattr(item, "fixturenames", ())))
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_S, func_only=True))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Add the last cluster's state to the report of a failure."""
    report = yield
    if report.when != "teardown" and report.failed and kube.Cluster.last is not None:
        report.sections.append(("The cluster", kube.diagnosis(kube.Cluster.last)))
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    """Print a line for each failure at the very end: they hold the cluster's events, and logs are often truncated."""
    yield
    for failed in terminalreporter.getreports("failed") + terminalreporter.getreports("error"):
        message = getattr(getattr(failed.longrepr, "reprcrash", None), "message", str(failed.longrepr))
        terminalreporter.write_line(f"{failed.nodeid}: {message.strip().splitlines()[0][:500]}")


@pytest.fixture(scope="session")
def kind() -> None:
    """A Kubernetes cluster with the charts installed, left running for the next session."""
    kube.set_up()
    if kube.BUILDS:
        kube.build(["node", "operator"])
    kube.install()
    if kube.BUILDS:  # the tag is the same as that of the running image
        kube.kubectl("rollout", "restart", "deployment/headrace", "-n", kube.SYSTEM)
        kube.kubectl("rollout", "status", "deployment/headrace", "-n", kube.SYSTEM, "--timeout=120s", timeout_s=150)


@pytest.fixture(scope="module")
def namespace(kind: None) -> Iterator[str]:
    name = f"e2e-{uuid.uuid4().hex[:6]}"
    kube.kubectl("create", "namespace", name)
    yield name
    kube.kubectl("delete", "namespace", name, "--wait=false", check=False)


@pytest.fixture(scope="module")
def three(namespace: str) -> Iterator[kube.Cluster]:
    """Three nodes that are ready; a cluster that is applied again has the same NodePorts, so clients find it."""
    cluster = kube.Cluster("c", namespace)
    cluster.apply()
    cluster.await_ready()
    yield cluster
    cluster.close()


@pytest.fixture(scope="session")
def spark_worker(kind: None) -> str:
    """A worker that has the image of StreamJobs: loading it to one worker takes a third of the time."""
    worker = kube.workers()[0]
    if kube.BUILDS:
        kube.build(["spark"], on=[worker])
    return worker


@pytest.fixture(scope="session")
def spark_image(spark_worker: str) -> None:
    """The image of StreamJobs, on every worker."""
    others = [each for each in kube.workers() if each != spark_worker]
    if kube.BUILDS and others:
        kube.load(["spark"], on=others)
