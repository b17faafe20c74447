"""StreamJobs whose drivers and executors are killed: their output is complete, without duplicates."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import kube
import pytest
from confluent_kafka import Producer
from streamjobs import WINDOWED, Aggregates, Feed, Job, Window, values_in, windows_of

from kit.cluster_clients import make_topics

SHARED = "/shared"
"""A folder of the machine that every worker mounts."""
COMPLETE_S = 120.0
GONE_S = 60.0


@pytest.fixture
def streams(three: kube.Cluster, request: pytest.FixtureRequest) -> str:
    """The parent path of a test's streams, `<here>/in` and `<here>/out`, with the topics that it needs."""
    name = request.node.name.removeprefix("test_").replace("_", "-")[:30].strip("-")
    for side in ("in", "out"):
        spec = {"clusterRef": {"name": three.name}, "path": f"/{name}/{side}"}
        kube.apply(kube.resource("Stream", f"{name}-{side}", three.namespace, spec))
    for side in ("in", "out"):
        stream = f"{name}-{side}"
        kube.until("the stream is there", partial(kube.is_ready, "stream", stream, three.namespace))
    make_topics(three, [f"/{name}/{topic}" for topic in ("out:windows", "in:parts", "out:parts")], 1)
    return f"/{name}"


@pytest.fixture
def application(three: kube.Cluster) -> kube.Body:
    """The demo's windowed pipeline."""
    file = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"main.py": WINDOWED}}
    kube.apply({**file, "metadata": {"name": "windowed", "namespace": three.namespace}})
    return {"configMap": {"name": "windowed"}}


@pytest.fixture
def shared(three: kube.Cluster) -> Iterator[str]:
    """A claim that all workers can mount, for the duration of a test."""
    name = f"shared-{three.namespace}"
    size = {"storage": "1Gi"}
    volume: kube.Body = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "capacity": size,
            "storageClassName": "headrace-e2e",
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": SHARED, "type": "Directory"},
        },
    }
    claim: kube.Body = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "shared", "namespace": three.namespace},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "headrace-e2e",
            "volumeName": name,
            "resources": {"requests": size},
        },
    }
    kube.apply(volume, claim)
    yield "shared"
    kube.kubectl("delete", "pvc", "shared", "-n", three.namespace)
    kube.kubectl("delete", "pv", name)


@pytest.fixture
def feed(three: kube.Cluster, streams: str) -> Iterator[Feed]:
    feed = Feed(three.bootstrap, f"{streams}/in")
    feed.start()
    yield feed
    feed.stop()


@pytest.fixture
def new_job(three: kube.Cluster) -> Iterator[Callable[..., Job]]:
    made: list[Job] = []

    def new(name: str, **spec: Any) -> Job:
        made.append(Job(three, name, **spec))
        made[-1].apply()
        return made[-1]

    yield new
    for each in made:
        each.delete()


def windows_in(three: kube.Cluster, streams: str) -> dict[Window, Aggregates]:
    """Return what the pipeline has written; fails if a window occurs twice."""
    found = windows_of(values_in(three, f"{streams}/out:windows"))
    counted = Counter(window for window, _ in found)
    assert [window for window, count in counted.items() if count > 1] == []
    return dict(found)


def check_windows(three: kube.Cluster, streams: str, job: Job, due: dict[Window, Aggregates]) -> None:
    """Check that all windows of `due` exist once with their values, and no others but later ones, which closed them."""

    def missing() -> int:
        return len(due.keys() - windows_in(three, streams).keys())

    kube.until("all windows are there", lambda: not missing(), timeout_s=COMPLETE_S, every_s=2)
    kube.until("the job has no lag", lambda: job.told["lag_records"] == 0, timeout_s=COMPLETE_S, every_s=1)
    newest = max(window.start_ms for window in due)
    assert {window: of for window, of in windows_in(three, streams).items() if window.start_ms <= newest} == due


def windowed(streams: str, application: kube.Body, **spec: Any) -> kube.Body:
    """Return the spec of a job with the demo's pipeline."""
    return {
        "input": {"stream": f"{streams}/in", "topicPattern": "p.*-[0-9]"},
        "output": {"stream": f"{streams}/out", "topic": "windows"},
        "application": application,
        "trigger": {"interval": "2s"},
        **spec,
    }


def await_windows(three: kube.Cluster, streams: str) -> None:
    """Wait until more windows have been written."""
    topic = f"{streams}/out:windows"
    before = len(values_in(three, topic))
    kube.until("windows are written", lambda: len(values_in(three, topic)) > before, timeout_s=COMPLETE_S, every_s=1)


@pytest.mark.ci_part
def test_a_killed_driver_continues_from_its_checkpoint(
    three: kube.Cluster,
    streams: str,
    application: kube.Body,
    feed: Feed,
    new_job: Callable[..., Job],
    spark_worker: str,
) -> None:
    here = {"nodeSelector": {"kubernetes.io/hostname": spark_worker}}
    with kube.reported("9 StreamJob without executors: the driver is killed, then its pod deleted") as figures:
        began = time.monotonic()
        job = new_job("windowed", **windowed(streams, application, pod=here))
        job.await_state("Running")
        figures["running_s"] = round(time.monotonic() - began, 1)
        await_windows(three, streams)

        driver = job.driver()
        job.kill(driver, "headrace_spark.job")
        figures["driver_killed_back_s"] = job.await_restart(driver)
        await_windows(three, streams)

        driver = job.driver()
        kube.kubectl("delete", "pod", driver["metadata"]["name"], "-n", three.namespace, "--wait=false")
        figures["pod_deleted_back_s"] = job.await_restart(driver)
        await_windows(three, streams)

        pages = f"/api/v1/namespaces/{three.namespace}/services/{job.name}-job-ui:4040/proxy/StreamingQuery/"
        assert "Streaming" in kube.kubectl("get", "--raw", pages)
        due = feed.close()
        check_windows(three, streams, job, due)
        figures["windows"] = len(due)
        status = kube.until("figures are reported", lambda: job.status if job.status.get("records") else None)
        assert {"lagRecords", "lagSeconds", "recordsPerSecond", "batchSeconds"} <= status.keys()
        kube.until("both restarts are reported", lambda: len(job.events("JobRestarted")) >= 2)

        since = time.monotonic()
        job.delete()
        belonging = ("statefulset", "service", "configmap", "serviceaccount")
        kube.until(
            "what was the job's is gone",
            lambda: (
                not [
                    each
                    for kind in belonging
                    for each in kube.listed(kind, three.namespace, labels=f"headrace.dev/job={job.name}")
                ]
            ),
            timeout_s=GONE_S,
        )
        figures["deleted_s"] = round(time.monotonic() - since, 1)
        claim = kube.get("pvc", f"{job.name}-job-checkpoint", three.namespace)
        assert claim is not None, "reclaimPolicy Retain"


@pytest.mark.usefixtures("spark_image")
def test_killed_executors_and_drivers_leave_no_gap(
    three: kube.Cluster, streams: str, application: kube.Body, shared: str, feed: Feed, new_job: Callable[..., Job]
) -> None:
    with kube.reported("9 StreamJob with two executors on two workers: executor and driver are killed") as figures:
        name = f"wide-{three.namespace}"  # names the checkpoint's folder, in a volume that outlives the test
        apart = {
            "labelSelector": {
                "matchLabels": {"headrace.dev/job": name, "app.kubernetes.io/component": "job-executor"},
            },
            "topologyKey": "kubernetes.io/hostname",
        }
        spec = windowed(
            streams,
            application,
            executors=2,
            checkpoint={"claim": shared},
            pod={"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}}},
        )
        began = time.monotonic()
        job = new_job(name, **spec)
        job.await_state("Running")
        kube.until("two executors run", lambda: len(job.executors()) == 2, timeout_s=COMPLETE_S)
        figures["running_s"] = round(time.monotonic() - began, 1)
        assert len({pod["spec"]["nodeName"] for pod in job.executors()}) == 2
        await_windows(three, streams)

        victim = job.executors()[0]
        since = time.monotonic()
        job.kill(victim, "KubernetesExecutorBackend")
        _await_executors_without(job, [victim])
        figures["executor_killed_back_s"] = round(time.monotonic() - since, 1)
        await_windows(three, streams)

        driver, former = job.driver(), job.executors()
        since = time.monotonic()
        job.kill(driver, "headrace_spark.job")
        figures["driver_killed_back_s"] = job.await_restart(driver)
        _await_executors_without(job, former)
        figures["driver_killed_executors_back_s"] = round(time.monotonic() - since, 1)
        await_windows(three, streams)
        kube.until("two executors are shown", lambda: job.status.get("executors") == 2, every_s=1)

        due = feed.close()
        check_windows(three, streams, job, due)
        figures["windows"] = len(due)


def _await_executors_without(job: Job, former: list[kube.Body]) -> None:
    """Wait until there are two executors again, none of them a former one."""
    gone = {pod["metadata"]["uid"] for pod in former}

    def two() -> bool:
        present = {pod["metadata"]["uid"] for pod in job.executors()}
        return len(present) == 2 and not present & gone

    kube.until("two executors run again", two, timeout_s=COMPLETE_S)


@pytest.mark.usefixtures("spark_image")
def test_a_schedule_reads_what_has_come_since_the_last_run(
    three: kube.Cluster, streams: str, new_job: Callable[..., Job]
) -> None:
    with kube.reported("9 StreamJob: availableNow on a schedule") as figures:
        to = f"{streams}/out:parts"
        produce(three, f"{streams}/in:parts", 0, 500)
        began = time.monotonic()
        job = new_job(
            "each-minute",
            input={"stream": f"{streams}/in", "topics": ["parts"]},
            output={"stream": f"{streams}/out", "topic": "parts"},
            application={"sql": "SELECT key, value FROM input"},
            trigger={"availableNow": True, "schedule": "* * * * *", "timeZone": "Etc/UTC"},
        )
        job.await_state("Scheduled")
        for count in (500, 1000):
            if count > 500:
                produce(three, f"{streams}/in:parts", 500, 1000)
            kube.until(f"{count} records are copied", partial(_holds, three, to, count), timeout_s=240, every_s=2)
            job.await_state("Scheduled")
        figures["two_runs_s"] = round(time.monotonic() - began, 1)
        assert sorted(map(int, values_in(three, to))) == list(range(1000))
        assert job.status["lastScheduled"]
        kube.until("it shows no lag", lambda: job.status.get("lagRecords") == 0, every_s=1)
        job.apply(suspend=True)
        job.await_state("Suspended")
        assert [each["spec"]["suspend"] for each in kube.listed("cronjobs", three.namespace)] == [True]


@pytest.mark.usefixtures("spark_image")
def test_executors_come_with_a_backlog_and_go_with_it(
    three: kube.Cluster, streams: str, shared: str, new_job: Callable[..., Job]
) -> None:
    with kube.reported("9 StreamJob: autoscale from one to two executors and back") as figures:
        backlog = 2_000
        produce(three, f"{streams}/in:parts", 0, backlog)
        began = time.monotonic()
        job = new_job(
            f"scaled-{three.namespace}",
            input={"stream": f"{streams}/in", "topics": ["parts"], "options": {"maxOffsetsPerTrigger": "50"}},
            output={"stream": f"{streams}/out", "topic": "parts"},
            application={"sql": "SELECT key, value FROM input"},
            trigger={"interval": "2s"},
            autoscale={"min": 1, "max": 2, "lagSeconds": 10, "upAfterSeconds": 5, "downAfterSeconds": 20},
            checkpoint={"claim": shared},
        )
        job.await_state("Running")
        kube.until("a second executor runs", lambda: len(job.executors()) == 2, timeout_s=COMPLETE_S, every_s=1)
        figures["second_executor_after_s"] = round(time.monotonic() - began, 1)
        kube.until("the backlog is gone", lambda: job.told["lag_records"] == 0, timeout_s=300, every_s=1)
        since = time.monotonic()
        kube.until("one executor is left", lambda: len(job.executors()) == 1, timeout_s=COMPLETE_S, every_s=1)
        figures["one_executor_after_calm_s"] = round(time.monotonic() - since, 1)
        kube.until("one executor is shown", lambda: job.status.get("executorsWanted") == 1, every_s=1)
        assert sorted(map(int, values_in(three, f"{streams}/out:parts"))) == list(range(backlog))
        scaled = job.events("JobScaled")
        assert any("1 to 2" in each for each in scaled), scaled
        assert any("2 to 1" in each for each in scaled), scaled


def _holds(cluster: kube.Cluster, topic: str, count: int) -> bool:
    return len(values_in(cluster, topic)) >= count


def produce(cluster: kube.Cluster, topic: str, first: int, end: int) -> None:
    """Produce records whose values are these numbers."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "log_level": 0})
    for number in range(first, end):
        producer.produce(topic, str(number), key=str(number % 7))
    assert producer.flush(30) == 0
