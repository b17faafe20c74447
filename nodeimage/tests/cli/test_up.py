import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from own_ports import own_port

from headrace.local.cluster import running_cluster, stop
from headrace.local.folder import ClusterNotRunning

Headrace = Callable[..., Any]
Process = Callable[..., "subprocess.Popen[str]"]

READY_S = 3.0


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "cluster"
    try:
        stop(tmp_path / "cluster")
    except ClusterNotRunning:
        pass


def test_up_detached_answers_until_down(headrace: Headrace, folder: Path) -> None:
    port = own_port()
    ran = headrace("up", "--data", str(folder), "--port", str(port), "--detach", "--output", "json")
    ready = ran.json
    assert ready["bootstrap"] == f"127.0.0.1:{port}"
    assert ready["data"] == str(folder)
    (node,) = ready["nodes"]
    assert node["port"] == port
    assert "headrace down --data" in ran.err

    assert headrace("status", "--data", str(folder), "-o", "json").json["nodes"][0]["pid"] == node["pid"]
    assert headrace("status", HEADRACE_DATA=str(folder)).code == 0
    assert f"127.0.0.1:{port}" in headrace("up", "--data", str(folder)).refused()
    assert headrace("produce", "words", "-v", "kept", "--data", str(folder)).code == 0

    assert headrace("down", "--data", str(folder), "-o", "json").json["stopped"] == ["node-1"]
    assert "nothing to stop" in headrace("down", "--data", str(folder)).refused()
    again = headrace("up", "--data", str(folder), "-d")
    assert again.out == f"127.0.0.1:{port}\n"
    assert headrace("consume", "words", "--from-beginning", "--data", str(folder)).out == "kept\n"


@pytest.mark.alone
def test_three_nodes_are_ready_within_3_s(headrace_process: Process, folder: Path) -> None:
    """Measures the time from the shell's prompt to the next one. A record is acknowledged then."""
    began = time.monotonic()
    up = headrace_process("up", "--nodes", "3", "--data", str(folder), "--port", "0", "--detach", "--output", "json")
    out, err = up.communicate(timeout=60)
    took = time.monotonic() - began
    assert up.returncode == 0, err
    ready = json.loads(out)
    assert len(ready["nodes"]) == 3
    produced = headrace_process("produce", "words", "-v", "first", "--data", str(folder))
    assert produced.wait(timeout=60) == 0
    print(f"ready after {took:.2f} s, a record acknowledged after {time.monotonic() - began:.2f} s")
    assert took < READY_S, err


def begun(headrace_process: Process, folder: Path) -> tuple["subprocess.Popen[str]", int]:
    """`headrace up` in the foreground, ready; its node's process id."""
    up = headrace_process("up", "--data", str(folder), "--port", str(own_port()), "--output", "json")
    assert up.stdout is not None
    return up, json.loads(up.stdout.readline())["nodes"][0]["pid"]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_up_in_the_foreground_shows_the_log_and_stops_its_node(
    headrace_process: Process, folder: Path, how: signal.Signals
) -> None:
    up, _ = begun(headrace_process, folder)
    up.send_signal(how)
    assert up.wait(timeout=60) == 0
    assert up.stderr is not None
    said = up.stderr.read()
    assert "event=ready" in said
    assert said.splitlines()[-1] == "stopped"
    assert running_cluster(folder) is None


def test_down_ends_an_up_in_the_foreground(headrace: Headrace, headrace_process: Process, folder: Path) -> None:
    up, _ = begun(headrace_process, folder)
    assert headrace("down", "--data", str(folder)).code == 0
    assert up.wait(timeout=60) == 0


def test_a_node_that_dies_ends_up_with_its_last_lines(headrace_process: Process, folder: Path) -> None:
    up, pid = begun(headrace_process, folder)
    os.kill(pid, signal.SIGKILL)
    assert up.wait(timeout=60) == 1
    assert up.stderr is not None
    said = up.stderr.read()
    assert "event=ready" in said
    assert "node-1 was ended by SIGKILL" in said.splitlines()[-1]


def test_a_node_that_was_killed_starts_again_with_what_was_acknowledged(
    headrace: Headrace, new_cluster: Callable[..., Any]
) -> None:
    cluster = new_cluster()
    topic = cluster.topic()
    assert headrace("produce", topic, "-b", cluster.bootstrap, stdin="1\n2\n").code == 0
    cluster.kill()
    cluster.start()
    assert headrace("consume", topic, "--from-beginning", "-b", cluster.bootstrap).out == "1\n2\n"


def test_a_data_folder_that_is_no_folder_is_refused(headrace: Headrace, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "--data" in headrace("up", "--data", str(tmp_path / "file")).refused()
