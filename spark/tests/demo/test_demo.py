"""The whole demo as a user runs it: once to its end, once interrupted."""

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.spark, pytest.mark.timeout(420)]

CHECKS = (
    "Producer",
    "Topics",
    "Live",
    "SQLite",
    "Spark in",
    "Parquet",
    "Topic out",
    "Cursors",
    "Anomaly",
    "Failover",
    "Stopped",
)


def processes_of(folder: Path) -> list[str]:
    """Return the command lines of processes that work in a folder."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        line = " ".join(process.info["cmdline"] or ())
        if str(folder) in line and process.info["status"] != psutil.STATUS_ZOMBIE and process.pid != os.getpid():
            found.append(line)
    return found


def start(folder: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "headrace_spark.demo", "--quick", "--folder", str(folder)],
        cwd=folder.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def test_the_story_ends_well_and_leaves_its_results_and_no_process(tmp_path: Path) -> None:
    folder = tmp_path / ".demo"
    with start(folder) as demo:
        said, _ = demo.communicate()
    assert demo.returncode == 0, said
    verdict = [line for line in said.splitlines() if "✓" in line or "✗" in line]
    assert [one for one in CHECKS if any("✓ " + one in line for line in verdict)] == list(CHECKS), said
    assert "✗" not in said
    assert "Nothing was lost, nothing doubled." in said
    assert said.splitlines()[-1].strip() == (
        "Metrics: .demo/results/metrics.txt; `headrace up --data .demo/data --output json` starts the nodes again, and "
        "prints where each serves its own."
    )
    (told,) = re.findall(r"serve their metrics at (.*)\.$", said, re.MULTILINE)
    assert len(re.findall(r"http://127\.0\.0\.1:\d+/metrics", told)) == 3
    for told in (
        "gets most of the writes",
        "kill -9",
        "after the kill",
        "headrace node start",
        "Redundancy is restored",
    ):
        assert told in said

    results = folder / "results"
    assert (results / "anomalies.png").read_bytes().startswith(b"\x89PNG")
    assert len(json.loads((results / "checks.json").read_text())) == len(CHECKS)
    metrics = (results / "metrics.txt").read_text()
    assert len(re.findall(r"^headrace_ready\{.*\} 1\.0$", metrics, re.MULTILINE)) == 3
    assert "headrace_group_lag_records" in metrics
    assert list((results / "windows.parquet").glob("batch=*/*.parquet"))
    database = sqlite3.connect(results / "state.sqlite")
    (sensors,) = database.execute("SELECT count(*) FROM sensors").fetchone()
    database.close()
    assert sensors > 100
    assert processes_of(folder) == []


def test_ctrl_c_stops_everything(tmp_path: Path) -> None:
    folder = tmp_path / ".demo"
    with start(folder) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "SQLite" in line and "acknowledged" in line:  # all parts run
                break
        demo.send_signal(signal.SIGINT)
        rest = demo.stdout.read()
    assert demo.returncode == 130, rest
    deadline = time.monotonic() + 10  # the operating system takes a moment to reap them
    while (left := processes_of(folder)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []
