"""Every file of docs/examples can be applied on kind unchanged, and has the result that its first lines describe."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import kube
import pytest
from confluent_kafka import Consumer, Producer

from headrace import __version__
from kit.documents import all_commands, missing_lines

EXAMPLES = kube.ROOT / "docs" / "examples"
SOON_S = 60.0
"""Seconds from `kubectl apply` of the quickstart to the first message consumed."""
IMAGES = ("node", "spark")
SHOWN = "streams,topics,storagenodes,storagecontainers,streamjobs"
"""The kinds of objects that the quickstart results in."""
SHARED_VOLUME = "headrace-job-wide"


class Due(NamedTuple):
    """The expected condition of an example's resource, and its time limit."""

    kind: str
    name: str
    condition: str
    status: str = "True"
    reason: str = ""
    within_s: float = 180.0


EXPECTED: dict[str, list[Due]] = {
    "job-application.yaml": [Due("streamjob", "statistics", "Running", reason="Running")],
    "job-executors.yaml": [Due("streamjob", "wide", "Running", reason="Running")],
    "job-kubeflow.yaml": [Due("streamjob", "by-kubeflow", "Reconciled", "False", "NoSparkOperator")],
    "job-schedule.yaml": [Due("streamjob", "every-five-minutes", "Running", reason="Scheduled")],
    "replicationlink.yaml": [
        Due("replicationlink", "from-quickstart", "Ready"),
        Due("replicationlink", "from-quickstart", "CaughtUp"),
        Due("replicationlink", "from-north", "Ready", "False", "SourceSilent"),
    ],
    "stream.yaml": [Due("stream", "telemetry", "Ready")],
    "streamcluster.yaml": [Due("streamcluster", "plant", "Ready")],
    "streamjob.yaml": [Due("streamjob", "nightly", "Running", reason="Scheduled")],
    "streamuser.yaml": [Due("streamuser", "bob", "Ready")],
    "topic.yaml": [Due("topic", "valves", "Ready")],
    "volume.yaml": [Due("volume", "safe", "Ready")],
    "written-by-nodes/storagecontainer.yaml": [],
    "written-by-nodes/storagenode.yaml": [],
}
"""The expected conditions by example, in the order in which the examples are applied."""
PASSING = ("job-application.yaml", "job-schedule.yaml", "replicationlink.yaml", "streamcluster.yaml", "streamjob.yaml")
"""Examples that are deleted again at once, since a machine may be small."""


@pytest.fixture(scope="module", autouse=True)
def _images(spark_image: None) -> None:
    """Tag the images of this checkout with the release that the examples name."""
    for image in IMAGES:
        if __version__ != kube.TAG:
            kube.tag_on_workers(image, __version__)


@pytest.fixture(scope="module")
def empty(namespace: str) -> Iterator[str]:
    """A namespace without remains of examples that were applied before."""
    _forget_shared()
    yield namespace
    kube.kubectl("delete", "streamjobs,cronjobs", "--all", "-n", namespace, "--wait=false")
    _forget_shared()


def _forget_shared() -> None:
    """Delete the volume of job-executors.yaml, which is bound to a former claim, and the job's checkpoint in its
    folder.
    """
    kube.kubectl("delete", "pv", SHARED_VOLUME, "--ignore-not-found", "--wait=false")
    worker = kube.run("kubectl", "get", "nodes", "-o", "name").splitlines()[-1].partition("/")[2]
    kube.run("docker", "exec", worker, "rm", "-rf", "/shared/wide")


def apply(file: str, namespace: str, *arguments: str) -> None:
    """Apply an example with kubectl."""
    kube.kubectl("apply", "-f", str(EXAMPLES / file), "-n", namespace, *arguments)


@pytest.fixture(scope="module")
def quickstart(empty: str) -> kube.Cluster:
    """The applied quickstart; reports how soon it was usable."""
    with kube.reported("1 from apply of the quickstart to the first message consumed") as figures:
        began = time.monotonic()
        apply("quickstart.yaml", empty)
        cluster = kube.Cluster("quickstart", empty)
        kube.until("the topic is ready", lambda: kube.is_ready("topic", "pumps", empty), every_s=0.3)
        figures["topic_ready_s"] = round(time.monotonic() - began, 1)
        consumed = consumed_from(cluster, "/factory:pumps", produce=b"hello")
        assert consumed == b"hello"
        figures["first_message_s"] = kube.below(time.monotonic() - began, SOON_S)
        cluster.await_ready()
        figures["cluster_ready_s"] = round(time.monotonic() - began, 1)
        assert consumed_from(cluster, "/factory:capitals", timeout_s=180) == b"HELLO"
        figures["first_message_through_the_job_s"] = round(time.monotonic() - began, 1)
    return cluster


def consumed_from(
    cluster: kube.Cluster, topic: str, *, produce: bytes | None = None, timeout_s: float = 60
) -> bytes | None:
    """Return the first message of a topic, by a stock client outside, with alice's Secret; first write `produce`."""
    more = {"bootstrap.servers": cluster.bootstrap}
    at = kube.client_of("alice", cluster.namespace, **more)
    if produce is not None:
        producer = Producer({**at, "acks": "all"})
        producer.produce(topic, produce)
        assert producer.flush(timeout_s) == 0
    consumer = Consumer({**at, "group.id": "first", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    try:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            for message in consumer.consume(1, 0.2):
                if message.error() is None:
                    return message.value()
        return None
    finally:
        consumer.close()


def test_the_quickstart_works_within_a_minute(quickstart: kube.Cluster) -> None:
    for kind, name in (("stream", "factory"), ("topic", "pumps"), ("streamuser", "alice"), ("streamjob", "capitals")):
        kube.until(f"{kind} {name} is ready", _ready(kind, name, quickstart.namespace), timeout_s=120)
    shown = kube.kubectl("get", SHOWN, "-n", quickstart.namespace)
    for due in ("stream.headrace.dev/factory", "topic.headrace.dev/pumps", "streamjob.headrace.dev/capitals"):
        assert due in shown
    assert "storagenode.headrace.dev/quickstart-1" in shown
    assert "storagecontainer.headrace.dev/quickstart-1" in shown
    (documented,) = (each.shown for _, each in all_commands() if each.line == "kubectl get headrace" and each.shown)
    assert missing_lines(documented, kube.kubectl("get", "headrace", "-n", quickstart.namespace).splitlines()) == []


def _ready(kind: str, name: str, namespace: str) -> Callable[[], bool]:
    return lambda: kube.is_ready(kind, name, namespace)


def test_each_example_has_its_expectation() -> None:
    files = {str(Path(file).relative_to(EXAMPLES)) for file in EXAMPLES.rglob("*.yaml")}
    assert files == {*EXPECTED, "quickstart.yaml"}


@pytest.mark.parametrize("file", EXPECTED)
def test_an_example_applies_as_it_is(quickstart: kube.Cluster, file: str) -> None:
    namespace = quickstart.namespace
    with kube.reported("1 the examples apply as they are"):
        if file.startswith("written-by-nodes/"):  # only nodes write these: a dry run checks them against the API server
            apply(file, namespace, "--dry-run=server")
            return
        apply(file, namespace)
        for due in EXPECTED[file]:
            kube.until(f"{due}", _came_to(due, namespace), timeout_s=due.within_s, every_s=1)
        if file == "job-executors.yaml":  # the next example uses its claim too
            kube.kubectl("delete", "streamjob", "wide", "-n", namespace)
        if file in PASSING:
            kube.kubectl("delete", "-f", str(EXAMPLES / file), "-n", namespace)


def _came_to(due: Due, namespace: str) -> Callable[[], bool]:
    def came() -> bool:
        body = kube.get(due.kind, due.name, namespace)
        status, reason, message = kube.condition(body, due.condition)
        if status == due.status and (not due.reason or reason == due.reason):
            return True
        raise AssertionError(f"{due.condition} is {status} {reason} {message}")

    return came
