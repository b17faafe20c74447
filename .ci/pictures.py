"""Draws the dashboards under load, for docs/observability.md; takes some three minutes, and needs Java.

    .venv/bin/python .ci/pictures.py

The demo's nodes, producer and consumers run, and one node is killed and restarted; a StreamJob's driver replaces the
demo's own pipeline, so that its dashboard has something to show. In addition a second cluster copies the demo's stream
by a link, and an operator runs against an API server in memory. Prometheus scrapes all of them. Each panel's queries
are sent to Prometheus, and the results are drawn in Grafana's layout.
"""

import contextlib
import json
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "nodeimage" / "tests"), str(ROOT / "operator")]  # kit; and the package `tests`

from drawing import Series, draw  # noqa: E402

from headrace_operator.specs import API  # noqa: E402
from headrace_spark.demo.children import Child, end_all  # noqa: E402
from headrace_spark.demo.cluster import Cluster, run_command  # noqa: E402
from headrace_spark.demo.readings import INSIGHTS_STREAM, SENSORS_STREAM  # noqa: E402
from kit.own_ports import own_port  # noqa: E402
from tests.alerts.prometheus import Prometheus  # noqa: E402
from tests.alerts.running_driver import RunningDriver  # noqa: E402
from tests.alerts.running_operator import RunningOperator  # noqa: E402
from tests.fake_api import ClosingApi  # noqa: E402

BOARDS: Final = ROOT / "charts" / "headrace" / "dashboards"
PICTURES: Final = ROOT / "docs" / "pictures"
RATE: Final = "30s"
"""Replaces $__rate_interval: like in Grafana, the interval contains several scrapes."""
STEP_S: Final = 1.0
CHOSEN: Final[Mapping[str, Mapping[str, str]]] = {
    "cluster": {"job": "plant"},
    "node": {"job": "plant", "node": "2"},
    "streams": {"job": "plant"},
    "links": {"job": "west"},
    "jobs": {"job": "capitals"},
    "operator": {"job": "headrace-operator"},
}
"""The chosen values of each dashboard's variables; all other variables select everything."""
BEFORE_S: Final = 60.0
"""Seconds that the pictures show before a node is killed."""
DOWN_S: Final = 12.0
"""Seconds that the killed node is down."""
AFTER_S: Final = 30.0
"""Seconds that the pictures show after the node's restart."""
DRIVER_S: Final = 400.0


def headrace(*words: str) -> Any:
    """Return a command's JSON output; raises if the command fails."""
    return json.loads(run_command([*words, "--output", "json"]))


def port_of(metrics: str) -> int:
    """Return the port of a metrics address."""
    (port,) = re.findall(r":(\d+)/metrics", metrics)
    return int(port)


@contextlib.contextmanager
def plant(folder: Path) -> Iterator[Cluster]:
    """Run the demo's nodes with its producer and its consumers."""
    cluster = Cluster(folder / "data", print)
    logs = folder / "logs"
    logs.mkdir(parents=True)
    children = []
    try:
        cluster.up()
        for stream in (SENSORS_STREAM, INSIGHTS_STREAM):
            cluster.run("stream", "create", stream, "--ttl", "1h")
        for name, more in (("live", {}), ("state", {"database": folder / "db"}), ("feed", {"ledger": folder / "csv"})):
            children.append(Child(name, name, {"bootstrap": cluster.bootstrap, **more}, logs=logs))
        yield cluster
    finally:
        end_all(children, grace_s=20)
        cluster.stop_all()


@contextlib.contextmanager
def linked(folder: Path, source: str) -> Iterator[int]:
    """Run a cluster of one node with a link to the demo's; yield the port of its metrics."""
    (node,) = headrace("up", "--nodes", "1", "--detach", "--port", str(own_port()), "--data", str(folder))["nodes"]
    try:
        place = f"{source}{SENSORS_STREAM}"
        headrace("link", "create", "--name", "sensors", "--source", place, "--data", str(folder))
        yield port_of(node["metrics"])
    finally:
        run_command(["down", "--data", str(folder)])


@contextlib.contextmanager
def driver(folder: Path, bootstrap: str) -> Iterator[int]:
    """Run a StreamJob's driver over the demo's readings; yield the port of its metrics."""
    started = RunningDriver(
        folder,
        bootstrap,
        inputs={"stream": SENSORS_STREAM, "topic_pattern": "core-.*", "starting_offsets": "latest"},
        output={"stream": INSIGHTS_STREAM, "topic": "capitals"},
        interval="1 second",
    )
    with started.running():
        yield started.port


@contextlib.contextmanager
def operator() -> Iterator[int]:
    """Run an operator with resources of a cluster whose pods nobody starts; yield the port of its metrics."""
    api = ClosingApi()
    ref = {"clusterRef": {"name": "plant"}}

    def put(kind: str, name: str, **spec: object) -> None:
        api.put({"apiVersion": API, "kind": kind, "metadata": {"name": name, "namespace": "factory"}, "spec": spec})

    put("StreamCluster", "plant", nodes=3, storage={"size": "10Gi"}, replication={"replicas": 3})
    put("Stream", "sensors", path="/factory/sensors", **ref)
    running = RunningOperator(api, sweep_s=5)
    ended = threading.Event()

    def apply() -> None:
        for number in range(100):
            if ended.wait(4):
                return
            put("Topic", f"line-{number}", stream="/factory/sensors", partitions=3, **ref)

    thread = threading.Thread(target=apply)
    thread.start()
    try:
        yield running.port
    finally:
        ended.set()
        thread.join()
        running.close()


def asked(expression: str, chosen: Mapping[str, str]) -> str:
    """Return a panel's expression in the form that Grafana sends."""
    expression = expression.replace("$__rate_interval", RATE)
    return re.sub(r"\$(\w+)", lambda found: chosen.get(found[1], ".*"), expression)


def series_of(
    prometheus: Prometheus, panel: Mapping[str, Any], chosen: Mapping[str, str], begin_s: float, end_s: float
) -> Sequence[Series]:
    """Return the series that a panel shows."""
    found = []
    for target in panel["targets"]:
        answer = prometheus.query_range(asked(target["expr"], chosen), begin_s=begin_s, end_s=end_s, step_s=STEP_S)
        for each in answer:
            labels = each["metric"]
            name = re.sub(r"\{\{(\w+)\}\}", lambda at, labels=labels: labels.get(at[1], ""), target["legendFormat"])
            points = [(float(at), float(value)) for at, value in each["values"] if value != "NaN"]
            if points:
                found.append(Series(name, [at for at, _ in points], [value for _, value in points]))
    return found


def busiest(cluster: Cluster) -> int:
    """Return the node that leads the most containers."""
    led = [each["primary"] for each in cluster.ask("containers")]
    return int(max(led, key=led.count))


def main() -> None:
    """Draw all dashboards."""
    with tempfile.TemporaryDirectory(prefix="headrace-pictures-") as name, contextlib.ExitStack() as closing:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        folder = Path(name)
        prometheus = Prometheus(folder / "prometheus", faster=1)
        closing.callback(prometheus.close)
        cluster = closing.enter_context(plant(folder / "plant"))
        nodes = dict(cluster.metrics)
        prometheus.scrape("plant", *map(port_of, nodes.values()))
        prometheus.scrape("capitals", closing.enter_context(driver(folder / "job", cluster.bootstrap)))
        with contextlib.suppress(AssertionError):  # may take minutes on a busy machine; then the picture shows less
            prometheus.until(
                "the driver has done a batch",
                lambda: prometheus.query("headrace_job_batches_total > 2"),
                within_s=DRIVER_S,
            )
        prometheus.scrape("west", closing.enter_context(linked(folder / "west", cluster.bootstrap)))
        prometheus.scrape("headrace-operator", closing.enter_context(operator()))
        begin_s = time.time()
        time.sleep(BEFORE_S)
        node = busiest(cluster)
        cluster.kill(node)
        time.sleep(DOWN_S)
        cluster.start(node)
        prometheus.scrape("plant", *map(port_of, (nodes | cluster.metrics).values()))
        time.sleep(AFTER_S)
        end_s = time.time()
        for board, chosen in CHOSEN.items():
            draw(
                PICTURES / f"dashboard-{board}.png",
                json.loads((BOARDS / f"{board}.json").read_text()),
                series=lambda panel, chosen=chosen: series_of(prometheus, panel, chosen, begin_s, end_s),
                begin_s=begin_s,
                end_s=end_s,
            )


if __name__ == "__main__":
    main()
