"""A job's driver as its container runs it, on a real node: from input to output, with kills in between, and how it
ends.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace.local.processes import free_port
from headrace_spark.job.ends import End
from headrace_spark.session import SHORT_LIVED

if TYPE_CHECKING:
    from conftest import Node

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]
COPY = "SELECT key, upper(CAST(value AS STRING)) AS value FROM input"


class Driver:
    """One run of the driver."""

    def __init__(self, folder: Path, definition: Mapping[str, Any], **environment: str) -> None:
        folder.mkdir(exist_ok=True)
        self.port = free_port("127.0.0.1")
        self._log = folder / "log"
        self._last = folder / "last"
        (folder / "job.json").write_text(json.dumps(definition))
        settings = {
            "HEADRACE_JOB": str(folder / "job.json"),
            "HEADRACE_JOB_PORT": str(self.port),
            "HEADRACE_TERMINATION": str(self._last),
        }
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "headrace_spark.job"],
                env={**os.environ, **settings, **environment},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def status(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/status", timeout=5) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=5):
                return True
        except OSError:
            return False

    def kill(self) -> None:
        """Kill it like a container: Python, Java and their workers."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def end(self, timeout_s: float = 400) -> int:
        return self.process.wait(timeout_s)

    def lines(self) -> list[str]:
        """The driver's own output."""
        return [line for line in self._log.read_text().splitlines() if line.startswith("headrace: ")]

    def last(self) -> dict[str, Any]:
        """The driver's termination message."""
        found: dict[str, Any] = json.loads(self._last.read_text())
        return found


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Callable[..., Driver]]:
    made: list[Driver] = []

    def start(definition: Mapping[str, Any], **environment: str) -> Driver:
        made.append(Driver(tmp_path / f"driver-{len(made)}", definition, **environment))
        return made[-1]

    yield start
    for each in made:
        if each.process.poll() is None:
            each.kill()


def job(node: "Node", folder: Path, source: str, target: str, **fields: Any) -> dict[str, Any]:
    """A job that copies in capitals."""
    return {
        "name": f"test.{source}",
        "bootstrap": node.bootstrap,
        "checkpoint": str(folder / "checkpoint"),
        "master": "local[2]",
        "conf": {
            "spark.ui.enabled": "false",
            "spark.local.dir": str(folder / "scratch"),
            "spark.log.level": "ERROR",
            **SHORT_LIVED,
        },
        "inputs": [{"stream": "/default", "topics": [source]}],
        "output": {"stream": "/default", "topic": target},
        "application": {"sql": COPY},
        **fields,
    }


def produce(node: "Node", topic: str, first: int, count: int) -> None:
    node.produce(topic, [{"key": b"%d" % (n % 7), "value": b"n%d" % n} for n in range(first, first + count)])


def copied(node: "Node", topic: str) -> Counter[bytes]:
    return Counter(record.value() for record in node.consume(topic))


def test_sql_goes_on_from_its_checkpoint_after_kill_9_complete_and_without_a_double(
    node: "Node", tmp_path: Path, driver: Callable[..., Driver], eventually: Callable[..., None]
) -> None:
    source, target = node.topic(partitions=2), node.topic(partitions=2)
    definition = job(node, tmp_path, source, target, interval="200 milliseconds")
    definition["inputs"][0]["options"] = {"maxOffsetsPerTrigger": "60"}
    produce(node, source, 0, 900)
    written = 900
    for _ in range(2):
        running = driver(definition)
        seen = copied(node, target).total()
        eventually(lambda seen=seen: copied(node, target).total() >= seen + 60, timeout_s=180)
        running.kill()
        produce(node, source, written, 100)
        written += 100
    assert 0 < copied(node, target).total() < written, "it was to be killed in the middle"

    definition["inputs"][0]["options"] = {"maxOffsetsPerTrigger": "300"}
    running = driver(definition)
    eventually(lambda: running.is_ready() and running.status()["lag_records"] > 0, timeout_s=180)
    eventually(lambda: copied(node, target).total() >= written, timeout_s=180)
    eventually(lambda: running.status()["lag_records"] == 0, timeout_s=30)
    status = running.status()
    assert status["state"] == "Running"
    assert status["lag_s"] == 0
    assert status["queries"] == ["output"]
    assert status["records"] <= written
    assert 0 < status["records_per_s"] < written
    assert 0 < status["batch_s"] < 60
    assert abs(status["last_progress_ms"] / 1000 - time.time()) < 120

    node.produce(source, [{"value": b"later"}])
    eventually(lambda: copied(node, target).total() >= written + 1, timeout_s=60)
    eventually(lambda: running.status()["records"] > status["records"], timeout_s=60)
    running.process.send_signal(signal.SIGTERM)
    assert running.end() == End.STOPPED
    assert copied(node, target) == Counter([*(b"N%d" % n for n in range(written)), b"LATER"])
    assert node.cursors(f"test.{source}", source, 2) == [
        sum(1 for record in node.consume(source) if record.partition() == number) for number in range(2)
    ]


def test_available_now_reads_what_there_is_and_ends_with_0(
    node: "Node", tmp_path: Path, driver: Callable[..., Driver]
) -> None:
    source, target = node.topic(partitions=2), node.topic()
    definition = job(node, tmp_path, source, target, available_now=True)
    produce(node, source, 0, 100)
    first = driver(definition)
    assert first.end() == End.DONE, first.lines()
    assert first.lines() == []
    said = {"end": "done", "failure": "", "state": "Done", "records": 100, "lag_records": 0, "lag_s": 0}
    assert said.items() <= first.last().items()
    produce(node, source, 100, 50)
    second = driver(definition)
    assert second.end() == End.DONE, second.lines()
    assert second.last()["records"] == 50
    assert copied(node, target) == Counter(b"N%d" % n for n in range(150))


def test_a_query_whose_python_comes_too_late_for_spark_is_started_again(
    node: "Node", tmp_path: Path, driver: Callable[..., Driver]
) -> None:
    late, was_late = tmp_path / "python", tmp_path / "was-late"
    planner = "*python_streaming_source_runner*"
    late.write_text(
        "#!/bin/sh\n"
        f'case "$*" in {planner}) [ -e {was_late} ] || {{ touch {was_late}; sleep 12; }};; esac\n'
        f'exec {sys.executable} "$@"\n'
    )
    late.chmod(0o755)
    source, target = node.topic(), node.topic()
    produce(node, source, 0, 20)
    running = driver(job(node, tmp_path, source, target, available_now=True), PYSPARK_PYTHON=str(late))
    assert running.end() == End.DONE, running.lines()
    assert was_late.exists()
    assert running.last()["records"] == 20
    assert copied(node, target) == Counter(b"N%d" % n for n in range(20))


def test_an_application_gets_its_job_and_its_parameters(
    node: "Node", tmp_path: Path, driver: Callable[..., Driver]
) -> None:
    source, target = node.topic(), node.topic()
    produce(node, source, 0, 20)
    application = tmp_path / "main.py"
    application.write_text(
        "import sys\n"
        "from headrace_spark.job import current\n"
        "from neighbour import SIGN\n"
        "job = current()\n"
        "rows = job.input().selectExpr('key', f\"concat('{SIGN}', CAST(value AS STRING)) AS value\")\n"
        "assert sys.argv[1:] == ['--sign', job.parameters['sign']], sys.argv\n"
        "job.write(rows).awaitTermination()\n"
    )
    (tmp_path / "neighbour.py").write_text("SIGN = '!'\n")
    fields = {"application": {"path": str(application)}, "parameters": {"sign": "!"}, "available_now": True}
    running = driver(job(node, tmp_path, source, target, **fields))
    assert running.end() == End.DONE, running.lines()
    assert copied(node, target) == Counter(b"!n%d" % n for n in range(20))


def test_an_application_from_a_url_that_fails_is_told_in_one_line(
    node: "Node", tmp_path: Path, driver: Callable[..., Driver]
) -> None:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"raise ValueError('no sensors today')\n")

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    application = {"url": f"http://127.0.0.1:{server.server_port}/main.py"}
    running = driver(job(node, tmp_path, node.topic(), node.topic(), application=application))
    assert running.end() == End.FAILED
    assert running.lines() == ["headrace: no sensors today"]
    server.shutdown()


def test_bad_sql_is_one_line_and_says_that_trying_again_changes_nothing(
    node: "Node", tmp_path: Path, driver: Callable[..., Driver]
) -> None:
    definition = job(node, tmp_path, node.topic(), node.topic(), application={"sql": "SELECT nothing FROM input"})
    running = driver(definition)
    assert running.end() == End.WRONG
    (line,) = running.lines()
    assert line.startswith("headrace: [UNRESOLVED_COLUMN.WITH_SUGGESTION]")
    assert "`nothing`" in line
    assert running.last()["end"] == "wrong"


def test_a_query_that_fails_is_one_line_and_may_be_tried_again(
    node: "Node", tmp_path: Path, driver: Callable[..., Driver]
) -> None:
    source, target = node.topic(), node.topic()
    node.produce(source, [{"value": b"0"}])
    sql = "SELECT key, CAST(1 / CAST(CAST(value AS STRING) AS INT) AS STRING) AS value FROM input"
    running = driver(job(node, tmp_path, source, target, application={"sql": sql}, available_now=True))
    assert running.end() == End.FAILED
    (line,) = running.lines()
    assert "[DIVIDE_BY_ZERO]" in line
    assert "Traceback" not in line


@pytest.mark.parametrize(
    ("change", "end", "said"),
    [
        ({"inputs": [{"stream": "/default", "topics": ["absent", "gone"]}]}, End.ABSENT,
         "stream /default has no topic absent, gone: make it"),
        ({"inputs": [{"stream": "/no/where", "topics": ["t"]}]}, End.ABSENT, "has no stream /no/where: make it"),
        ({"output": {"stream": "/no/where", "topic": "t"}}, End.ABSENT, "has no stream /no/where: make it"),
        ({"inputs": [{"stream": "/default", "topic_pattern": "("}]}, End.WRONG, "topicPattern is not a regular expr"),
        ({"bootstrap": "127.0.0.1:1"}, End.ABSENT, "the cluster at 127.0.0.1:1 does not answer"),
        ({"application": {"path": "/no/such.py"}}, End.WRONG, "there is no application file /no/such.py"),
        ({"application": {"url": "http://127.0.0.1:1/a.py"}}, End.ABSENT, "the application cannot be fetched from"),
    ],
)  # fmt: skip
def test_what_is_not_there_is_one_line_before_java_is_started(
    node: "Node", tmp_path: Path, driver: Callable[..., Driver], change: dict[str, Any], end: End, said: str
) -> None:
    definition = job(node, tmp_path, node.topic(), node.topic()) | change
    running = driver(definition, JAVA_HOME="/none", HEADRACE_JOB_WAIT_S="2")
    assert running.end(60) == end, running.lines()
    (line,) = running.lines()
    assert said in line
    assert running.last()["failure"] == line.removeprefix("headrace: ")


def test_a_topic_that_comes_late_is_waited_for(
    node: "Node", tmp_path: Path, driver: Callable[..., Driver], eventually: Callable[..., None]
) -> None:
    late, target = f"late-{time.time_ns()}", node.topic()
    running = driver(job(node, tmp_path, late, target, available_now=True), HEADRACE_JOB_WAIT_S="120")

    def is_up() -> bool:
        try:
            return running.status()["state"] == "Starting"
        except OSError:
            return False

    eventually(is_up, timeout_s=60)
    assert not running.is_ready()
    node.topic(name=late)
    produce(node, late, 0, 5)
    assert running.end() == End.DONE, running.lines()
    assert copied(node, target).total() in (0, 5)  # the job may have looked before the records arrived


def test_a_driver_that_is_stopped_before_it_began_is_not_done(
    node: "Node", tmp_path: Path, driver: Callable[..., Driver], eventually: Callable[..., None]
) -> None:
    running = driver(job(node, tmp_path, "never", "never"), HEADRACE_JOB_WAIT_S="600")

    def waits() -> bool:
        try:
            return running.status()["state"] == "Starting"
        except OSError:
            return False

    eventually(waits, timeout_s=60)
    running.process.send_signal(signal.SIGTERM)
    assert running.end(30) == End.STOPPED
