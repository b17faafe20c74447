"""StreamJobs for tests; and readings like the demo's, with the results that the windowed pipeline must produce."""

import itertools
import json
import threading
import time
from collections import defaultdict
from datetime import datetime
from typing import Any, NamedTuple

import kube
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kit.cluster_clients import read_back
from kit.cluster_history import Where

DEVICES = ("press-1", "press-2", "pump-1")
SENSORS = ("pressure", "temperature")
TICK_S = 0.1
WINDOW_MS = 2_000
"""Equal to headrace_spark.demo.pipeline.WINDOW_MS; that module is imported by the application only."""
FAR_AHEAD_MS = 60_000
FLUSH_S = 30.0
DRIVER = "job-driver"
EXECUTOR = "job-executor"
PROGRESS_PORT = 4041
WINDOWED = """\
from headrace_spark.demo.pipeline import WATERMARK_MS, WINDOW_MS, readings_of
from headrace_spark.job import current
from headrace_spark.pipelines import as_records, windowed_statistics
from pyspark.sql import functions as f

job = current()
statistics = windowed_statistics(
    readings_of(job.input()), window=f"{WINDOW_MS} milliseconds", watermark=f"{WATERMARK_MS} milliseconds"
)
job.write(as_records(statistics, key=f.concat_ws("/", "device", "sensor")))
"""
"""The demo's pipeline, as a StreamJob's application."""


class Window(NamedTuple):
    """A sensor's window, by its start."""

    device: str
    sensor: str
    start_ms: int


class Aggregates(NamedTuple):
    """Aggregates of a window's readings."""

    readings: int
    lowest: float
    highest: float
    total: float


class Feed(threading.Thread):
    """Writes readings at a steady pace, until it is closed, and computes the windows that must result.

    Each tick waits for the last one's acknowledgements, so no reading is late by the pipeline's watermark.
    """

    def __init__(self, bootstrap: str, stream: str) -> None:
        super().__init__(name="feed", daemon=True)
        self._stream = stream
        self._stopping = threading.Event()
        self._values: dict[Window, list[float]] = defaultdict(list)
        self._faults: list[str] = []
        self._sequence = itertools.count()
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        wanted = [NewTopic(self._topic(device), 2) for device in DEVICES]
        for future in admin.create_topics(wanted, operation_timeout=30).values():
            future.result(60)

    def run(self) -> None:
        while not self._stopping.wait(TICK_S):
            self._write(time.time_ns() // 1_000_000)

    def stop(self) -> None:
        """Stop writing."""
        self._stopping.set()
        self.join()

    def close(self) -> dict[Window, Aggregates]:
        """Return the complete windows, after writing readings far ahead, which close these windows for the pipeline."""
        self.stop()
        due = {where: Aggregates(len(of), min(of), max(of), sum(of)) for where, of in self._values.items()}
        self._write(time.time_ns() // 1_000_000 + FAR_AHEAD_MS)
        assert not self._faults, self._faults[:5]
        return due

    def _write(self, at_ms: int) -> None:
        for device, sensor in itertools.product(DEVICES, SENSORS):
            number = next(self._sequence)
            value = number % 400 / 4  # sums of these are exact
            reading = {"time": at_ms, "sensor": sensor, "value": value, "sequence": number}
            self._values[Window(device, sensor, at_ms - at_ms % WINDOW_MS)].append(value)
            self._producer.produce(
                self._topic(device), json.dumps(reading), key=sensor, timestamp=at_ms, on_delivery=self._delivered
            )
        if self._producer.flush(FLUSH_S):
            self._faults.append(f"no answer within {FLUSH_S:.0f} s")

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._faults.append(str(error))

    def _topic(self, device: str) -> str:
        return f"{self._stream}:{device}"


def windows_of(values: list[bytes]) -> list[tuple[Window, Aggregates]]:
    """Return the windows that the pipeline wrote."""
    found = []
    for row in map(json.loads, values):
        start_ms = round(datetime.fromisoformat(row["start"]).timestamp() * 1000)
        figures = Aggregates(row["count"], row["min"], row["max"], round(row["mean"] * row["count"], 6))
        found.append((Window(row["device"], row["sensor"], start_ms), figures))
    return found


def values_in(cluster: kube.Cluster, topic: str, partitions: int = 1) -> list[bytes]:
    """Return all values in a topic."""
    logs = read_back(cluster, [Where(topic, number) for number in range(partitions)])
    return [value for log in logs.values() for _, value in log]


class Job:
    """A StreamJob."""

    def __init__(self, cluster: kube.Cluster, name: str, **spec: Any) -> None:
        self.cluster = cluster
        self.name = name
        self.namespace = cluster.namespace
        self.spec: kube.Body = {
            "clusterRef": {"name": cluster.name},
            "driver": {"cpu": "200m", "memory": "768Mi"},
            "executor": {"cpu": "200m", "memory": "512Mi"},
            **spec,
        }

    def apply(self, **changes: Any) -> None:
        """Apply the StreamJob with changes."""
        self.spec |= changes
        kube.apply(kube.resource("StreamJob", self.name, self.namespace, self.spec))

    def delete(self) -> None:
        """Delete the StreamJob with all its objects."""
        kube.kubectl("delete", "streamjob", self.name, "-n", self.namespace, "--ignore-not-found")
        kube.until("the job's pods are gone", lambda: not self.pods(), timeout_s=90)

    @property
    def status(self) -> kube.Body:
        """The status that the operator writes."""
        return (kube.get("streamjob", self.name, self.namespace) or {}).get("status") or {}

    @property
    def told(self) -> kube.Body:
        """What the driver reports now; the resource's own figures are up to a minute old."""
        pod = self.driver()["metadata"]["name"]
        return dict(json.loads(kube.kubectl("get", "--raw", _pod_path(self.namespace, pod, PROGRESS_PORT, "status"))))

    def await_state(self, *states: str, timeout_s: float = 240) -> None:
        """Wait until the job is in one of these states."""

        def reached() -> bool:
            status = self.status
            if status.get("state") in states:
                return True
            raise AssertionError(json.dumps(status)[:1500])

        kube.until(f"StreamJob {self.name} is {' or '.join(states)}", reached, timeout_s=timeout_s, every_s=1)

    def await_restart(self, before: kube.Body, timeout_s: float = 240) -> float:
        """Wait until the driver has been restarted and its queries run; return the seconds that it took."""
        began = time.monotonic()

        def back() -> bool:
            pod = self.driver()
            anew = _uid(pod) != _uid(before) or _restarts(pod) > _restarts(before)
            return anew and kube.is_up(pod)

        kube.until("the driver runs again", back, timeout_s=timeout_s, every_s=1)
        return round(time.monotonic() - began, 1)

    def pods(self, component: str = "") -> list[kube.Body]:
        """Return the job's pods; with a component, those of it that have not ended."""
        labels = f"headrace.dev/job={self.name}" + (f",app.kubernetes.io/component={component}" if component else "")
        found = kube.listed("pods", self.namespace, labels=labels)
        return [pod for pod in found if not component or pod["status"].get("phase") not in ("Succeeded", "Failed")]

    def driver(self) -> kube.Body:
        """Return the driver's pod."""
        return kube.until("there is a driver", lambda: self.pods(DRIVER))[0]

    def executors(self) -> list[kube.Body]:
        """Return the running executors, oldest first."""
        running = [pod for pod in self.pods(EXECUTOR) if pod["status"].get("phase") == "Running"]
        return sorted(running, key=lambda pod: pod["metadata"]["creationTimestamp"])

    def kill(self, pod: kube.Body, program: str) -> None:
        """Kill a program in a pod (kill -9)."""
        name = pod["metadata"]["name"]
        kube.kubectl("exec", name, "-n", self.namespace, "--", "pkill", "-9", "-f", program, check=False)

    def events(self, reason: str) -> list[str]:
        """Return the messages of events with this reason."""
        found = kube.listed("events", self.namespace)
        mine = [each for each in found if (each.get("regarding") or each["involvedObject"])["name"] == self.name]
        return [each["message"] for each in mine if each["reason"] == reason]


def _pod_path(namespace: str, pod: str, port: int, path: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods/{pod}:{port}/proxy/{path}"


def _uid(pod: kube.Body) -> str:
    return str(pod["metadata"]["uid"])


def _restarts(pod: kube.Body) -> int:
    return sum(int(each["restartCount"]) for each in pod["status"].get("containerStatuses", []))
