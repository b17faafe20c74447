import json
import os
import pty
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.local.cluster import running_cluster, stop
from headrace.local.folder import ClusterNotRunning
from kit.collector import Collector
from kit.own_ports import own_port
from kit.storage import wait_until

Headrace = Callable[..., Any]
Process = Callable[..., "subprocess.Popen[str]"]

READY_S = 3.0


def command_line(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "headrace.cli.main", *arguments]


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
    with urllib.request.urlopen(node["metrics"], timeout=30) as answer:
        assert b'headrace_ready{node="1"} 1.0' in answer.read()

    assert headrace("status", "--data", str(folder), "-o", "json").json["nodes"][0]["pid"] == node["pid"]
    assert headrace("status", HEADRACE_DATA=str(folder)).code == 0
    assert f"127.0.0.1:{port}" in headrace("up", "--data", str(folder)).refused()
    assert headrace("produce", "words", "-v", "kept", "--data", str(folder)).code == 0

    assert headrace("down", "--data", str(folder), "-o", "json").json["stopped"] == ["node-1"]
    assert "nothing to stop" in headrace("down", "--data", str(folder)).refused()
    again = headrace("up", "--data", str(folder), "-d")
    assert again.out == f"127.0.0.1:{port}\n"
    assert headrace("consume", "words", "--from-beginning", "--data", str(folder)).out == "kept\n"


def test_a_node_that_is_started_says_where_its_metrics_are(headrace: Headrace, folder: Path) -> None:
    at = ("--data", str(folder))
    headrace("up", *at, "--nodes", "2", "--port", "0", "--detach")
    headrace("node", "stop", "2", *at)
    node = headrace("node", "start", "2", *at, "--output", "json").json
    assert node["id"] == 2
    with urllib.request.urlopen(node["metrics"], timeout=30) as answer:
        assert b'headrace_start_time_seconds{node="2"} ' in answer.read()


def test_nodes_send_their_traces_where_it_is_said(headrace: Headrace, folder: Path) -> None:
    at = ("--data", str(folder))
    refused = headrace("up", *at, "--detach", "--tracing-endpoint", "collector:4318").refused()
    assert "the address of a collector is http://HOST:PORT" in refused
    with Collector() as collector:
        headrace("up", *at, "--port", str(own_port()), "--detach", "--tracing-endpoint", collector.endpoint)
        headrace("stream", "create", "/plant", *at)
        wait_until(lambda: collector.named("headrace.admin/stream.create"))
        headrace("down", *at)
        (span,) = collector.named("headrace.admin/stream.create")
    assert span.attributes["headrace.path"] == "/plant"


@pytest.mark.alone
def test_three_nodes_are_ready_within_3_s(headrace_process: Process, folder: Path) -> None:
    """Measures the time from the shell's prompt to the next one; by then a record can be acknowledged."""
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


def test_a_terminal_that_goes_away_leaves_no_node(environment: dict[str, str], folder: Path) -> None:
    """The window is closed: the terminal accepts nothing more, and its processes get SIGHUP."""
    mine, its = pty.openpty()
    up = subprocess.Popen(
        [sys.executable, "-c", IN_TERMINAL, *command_line("up", "--data", str(folder), "--port", str(own_port()))],
        stdin=its,
        stdout=its,
        stderr=its,
        env=environment,
        start_new_session=True,
    )
    os.close(its)
    said = b""
    while b"Ctrl-C stops it" not in said:
        said += os.read(mine, 4096)
    os.close(mine)
    assert up.wait(timeout=60) == 0
    assert running_cluster(folder) is None


IN_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)
"""A shell's job: makes the terminal the session's controlling terminal."""


def test_up_goes_on_when_nobody_reads_its_log(headrace_process: Process, folder: Path) -> None:
    up, _ = begun(headrace_process, folder)
    assert up.stderr is not None
    up.stderr.close()
    cluster = running_cluster(folder)
    assert cluster is not None
    with socket.create_connection(("127.0.0.1", cluster.nodes[0].port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")  # causes a log line
        stranger.settimeout(60)
        stranger.recv(1)
    assert running_cluster(folder) is not None
    up.terminate()
    assert up.wait(timeout=60) == 0
    assert running_cluster(folder) is None


def test_an_up_that_cannot_say_where_its_nodes_are_leaves_none(environment: dict[str, str], folder: Path) -> None:
    with open("/dev/full", "w") as full:
        arguments = ("up", "--detach", "--data", str(folder), "--port", str(own_port()))
        up = subprocess.run(
            command_line(*arguments), stdout=full, stderr=subprocess.PIPE, env=environment, timeout=60, check=False
        )
    assert up.returncode == 1
    assert b"the output cannot be written" in up.stderr
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
