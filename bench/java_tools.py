"""Runs Kafka's own performance programs (org.apache.kafka.tools) and parses their output."""

import json
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from bench import jars

SUMMARY = re.compile(
    r"(?P<sent>\d+) (?P<steady>steady state )?records sent, (?P<rate>[\d.]+) records/sec \((?P<mb>[\d.]+) MB/sec\), "
    r"(?P<mean>[\d.]+) ms avg latency, (?P<max>[\d.]+) ms max latency, (?P<p50>\d+) ms 50th, (?P<p95>\d+) ms 95th, "
    r"(?P<p99>\d+) ms 99th"
)
MIB = 1 << 20


class ToolFailed(RuntimeError):
    """A program ended with an error, or its output could not be parsed."""


def _run(main: str, *arguments: str, limit_s: float) -> str:
    command = [shutil.which("java") or "java", "-Xmx512m", "-cp", jars.kafka_classpath()]
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
    run = subprocess.run(
        [*command, quiet, f"org.apache.kafka.tools.{main}", *arguments],
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )
    if run.returncode != 0:
        raise ToolFailed(f"{main} ended with {run.returncode}: {(run.stderr + run.stdout)[-2000:]}")
    return run.stdout + run.stderr


def spread_over(bootstrap: str, *, topic: str, brokers: Iterable[int], limit_s: float) -> None:
    """Make Kafka move a topic's partitions so that these brokers share them: by kafka-reassign-partitions, with the
    tool's own proposal, and then kafka-leader-election. Returns when both are complete. Raises ToolFailed,
    TimeoutError.
    """
    tool = ("reassign.ReassignPartitionsCommand", "--bootstrap-server", bootstrap)
    deadline = time.monotonic() + limit_s
    with tempfile.TemporaryDirectory() as folder:
        topics, plan = Path(folder) / "topics.json", Path(folder) / "plan.json"
        topics.write_text(json.dumps({"version": 1, "topics": [{"topic": topic}]}))
        ids = ",".join(map(str, brokers))
        proposal = ("--generate", "--topics-to-move-json-file", str(topics), "--broker-list", ids)
        told = _run(*tool, *proposal, limit_s=limit_s)
        plan.write_text(told.split("Proposed partition reassignment configuration")[-1].strip())
        _run(*tool, "--execute", "--reassignment-json-file", str(plan), limit_s=limit_s)
        while "still in progress" in _run(*tool, "--verify", "--reassignment-json-file", str(plan), limit_s=limit_s):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{topic} was not moved within {limit_s:.0f} s")
    _run(
        "LeaderElectionCommand",
        *("--bootstrap-server", bootstrap, "--election-type", "preferred", "--all-topic-partitions"),
        limit_s=limit_s,
    )


def read_producer_summary(text: str) -> dict[str, float]:
    """Parse the last summary of ProducerPerformance: of the steady state if there was a warm-up. Raises ToolFailed."""
    found = list(SUMMARY.finditer(text))
    if not found:
        raise ToolFailed(f"ProducerPerformance printed no summary: {text[-1000:]}")
    last = found[-1]
    return {
        "records": float(last["sent"]),
        "seconds": float(last["sent"]) / float(last["rate"]),
        "per_s": float(last["rate"]),
        "mb_per_s": float(last["mb"]) * MIB / 1e6,
        "mean_ms": float(last["mean"]),
        "p50_ms": float(last["p50"]),
        "p99_ms": float(last["p99"]),
    }


def read_consumer_line(text: str) -> dict[str, float]:
    """Parse ConsumerPerformance's output line. Records a second are those of the fetching (without joining the group),
    from the column fetch.nMsg.sec. Raises ToolFailed.
    """
    for line in text.splitlines():
        columns = [column.strip() for column in line.split(",")]
        if len(columns) == 10 and columns[0][:4].isdigit():
            megabytes, records, rebalance_ms, fetch_ms = (float(columns[at]) for at in (2, 4, 6, 7))
            return {
                "records": records,
                "seconds": fetch_ms / 1e3,
                "per_s": float(columns[9]),
                "mb_per_s": megabytes * MIB / fetch_ms * 1e3 / 1e6,
                "join_s": rebalance_ms / 1e3,
                "per_s_with_join": float(columns[5]),
            }
    raise ToolFailed(f"ConsumerPerformance printed no figures: {text[-1000:]}")


def produce(
    bootstrap: str,
    *,
    topic: str,
    records: int,
    size: int,
    warm_up: int,
    limit_s: float,
    properties: Path | None = None,
) -> dict[str, float]:
    """Run ProducerPerformance with acks=all, as fast as it can; return the results for the records after `warm_up`.
    `properties`: a file with the client's connection settings.
    """
    extra = ["--warmup-records", str(warm_up)] if warm_up else []
    if properties is not None:
        extra += ["--command-config", str(properties)]
    text = _run(
        "ProducerPerformance",
        *("--bootstrap-server", bootstrap, "--topic", topic, "--num-records", str(records + warm_up)),
        *("--record-size", str(size), "--throughput", "-1", "--command-property", "acks=all"),
        *extra,
        limit_s=limit_s,
    )
    return read_producer_summary(text)


def consume(
    bootstrap: str, *, topic: str, records: int, limit_s: float, properties: Path | None = None
) -> dict[str, float]:
    """Run ConsumerPerformance over the whole topic, with defaults except for `properties`, as in `produce`. Raises
    ToolFailed if fewer records arrived.
    """
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "consumer.properties"
        connect = "" if properties is None else properties.read_text()
        config.write_text(f"auto.offset.reset=earliest\n{connect}")
        text = _run(
            "ConsumerPerformance",
            *("--bootstrap-server", bootstrap, "--topic", topic, "--num-records", str(records)),
            *("--command-config", str(config), "--timeout", "30000"),
            limit_s=limit_s,
        )
    figures = read_consumer_line(text)
    if figures["records"] < records:
        raise ToolFailed(f"ConsumerPerformance read {figures['records']:.0f} of {records} records")
    return figures
