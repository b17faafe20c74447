"""The alerts about the operator and StreamJobs, in a Prometheus that scrapes an operator and a driver.

Both run as in their pods; the operator has an API server in memory, the driver a real node.
"""

import itertools
import shutil
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace.store.kubernetes.api import ApiError
from headrace_operator.specs import API
from kit.cluster_clients import make_topics
from kit.cluster_nodes import Cluster, MakeCluster
from kit.linked_clusters import fill

from ..fake_api import ClosingApi
from .conftest import MakePrometheus
from .promtool import promtool
from .running_driver import RunningDriver
from .running_operator import RunningOperator

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(promtool() is None, reason="needs prometheus: .ci/tools gets it"),
]
needs_java = pytest.mark.skipif(shutil.which("java") is None, reason="needs Java: .ci/java gets it")


def declared(name: str) -> dict[str, Any]:
    """A Topic of a cluster that does not exist."""
    spec = {"clusterRef": {"name": "nowhere"}, "stream": "/default", "partitions": 1}
    return {"apiVersion": API, "kind": "Topic", "metadata": {"name": name, "namespace": "factory"}, "spec": spec}


def test_an_operator(make_prometheus: MakePrometheus) -> None:
    prometheus, api = make_prometheus(60), ClosingApi()
    api.put(declared("first"))
    operator = RunningOperator(api)
    prometheus.scrape("headrace-operator", operator.port)
    prometheus.await_firing("HeadraceResourceNotReady")
    prometheus.await_cleared("HeadraceOperatorAbsent")

    partitions = itertools.count(2)

    def change() -> None:
        known = api.one("Topic", "first")
        api.put({**known, "spec": {**known["spec"], "partitions": next(partitions)}})
        time.sleep(1)  # found by a sweep or two

    prometheus.await_firing("HeadraceWatchesMiss", step=change)

    api.refuse = lambda method, _path: ApiError(500, "the disk is full") if method != "GET" else None
    api.put(declared("last"))
    prometheus.await_firing("HeadraceReconcilesFail")
    api.refuse = lambda _method, _path: None
    for each in api.find("Topic"):
        api.remove("Topic", each["metadata"]["name"])
    prometheus.await_cleared("HeadraceReconcilesFail", "HeadraceResourceNotReady", "HeadraceWatchesMiss")

    operator.close()
    prometheus.scrape("headrace-operator")
    prometheus.await_firing("HeadraceOperatorAbsent")
    operator = RunningOperator(api)
    prometheus.scrape("headrace-operator", operator.port)
    prometheus.await_cleared("HeadraceOperatorAbsent")
    operator.close()


def driver_of(folder: Path, cluster: Cluster, *, stream: str) -> RunningDriver:
    """A driver that soon gives up starting if its input does not exist."""
    return RunningDriver(
        folder,
        cluster.bootstrap,
        inputs={"stream": stream, "topics": ["readings"]},
        output={"stream": "/default", "topic": "capitals"},
        environment={"HEADRACE_JOB_WAIT_S": "3"},
    )


@needs_java
def test_a_job_that_stands_still(tmp_path: Path, make_cluster: MakeCluster, make_prometheus: MakePrometheus) -> None:
    cluster, prometheus = make_cluster(count=1), make_prometheus(60)
    make_topics(cluster, ["readings", "capitals"], 1)
    fill(cluster, "readings", partitions=1)
    driver = driver_of(tmp_path / "job", cluster, stream="/default")
    with driver.running() as process:
        prometheus.scrape("capitals", driver.port)
        prometheus.until(
            "the job is at the end of its input",
            lambda: prometheus.query("headrace_job_batches_total > 0 and on () headrace_job_lag_records == 0"),
            within_s=180,
        )
        (java,) = [each for each in psutil.Process(process.pid).children(recursive=True) if each.name() == "java"]
        java.suspend()
        fill(cluster, "readings", partitions=1)
        prometheus.await_firing("HeadraceJobLag", "HeadraceJobStuck")
        java.resume()
        prometheus.await_cleared("HeadraceJobLag", "HeadraceJobStuck")


def test_a_job_that_fails_again_and_again(
    tmp_path: Path, make_cluster: MakeCluster, make_prometheus: MakePrometheus
) -> None:
    cluster, prometheus = make_cluster(count=1), make_prometheus(10)
    driver = driver_of(tmp_path / "job", cluster, stream="/nowhere")
    prometheus.scrape("capitals", driver.port)

    def fail() -> None:
        with driver.running() as process:
            process.wait(120)
            assert process.returncode != 0

    prometheus.await_firing("HeadraceJobRestarts", within_s=300, step=fail)
    prometheus.await_cleared("HeadraceJobRestarts", within_s=300)
