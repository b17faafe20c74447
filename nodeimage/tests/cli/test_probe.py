import json
import signal
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.local.cluster import stop
from headrace.local.folder import ClusterNotRunning
from kit.own_ports import own_port

Headrace = Callable[..., Any]


def test_a_round_has_a_line_for_each_node(hr: Headrace) -> None:
    assert hr("probe").out.startswith("node 1  acknowledged after ")
    told = hr("probe", "-n", "2", "--interval", "0.01", "-o", "json").json_lines
    assert [each["nodes"][0]["error"] for each in told] == [None, None]
    assert told[0]["nodes"][0]["roundtrip_ms"] > 0


def test_several_rounds_end_with_a_summary(hr: Headrace) -> None:
    shown = hr("probe", "-n", "2", "--interval", "0.01").out
    assert "round trip p50 ms" in shown
    assert shown.splitlines()[-1].split()[:3] == ["1", "2", "0"]


def test_nobody_there_is_one_line(headrace: Headrace) -> None:
    assert "cannot be reached" in headrace("probe", "-b", f"127.0.0.1:{own_port()}", "--timeout", "2").refused()


def test_it_serves_metrics_until_ctrl_c(cluster: Any, headrace_process: Callable[..., "subprocess.Popen[str]"]) -> None:
    process = headrace_process("probe", "--interval", "0.05", "--metrics-port", "0", "-b", cluster.bootstrap)
    assert process.stderr is not None
    assert process.stdout is not None
    url = process.stderr.readline().removeprefix("metrics: ").strip()
    assert process.stdout.readline().startswith("node 1  acknowledged")
    with urllib.request.urlopen(url, timeout=30) as answer:
        assert 'headrace_probe_roundtrip_seconds_count{node="1"}' in answer.read().decode()
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate()
    assert process.returncode == 0
    assert "round trip p50 ms" in out


def test_an_interrupt_before_all_rounds_is_no_success(
    cluster: Any, headrace_process: Callable[..., "subprocess.Popen[str]"]
) -> None:
    process = headrace_process("probe", "-n", "9999", "--interval", "0.05", "-o", "json", "-b", cluster.bootstrap)
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["nodes"]
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 130


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "cluster"
    try:
        stop(tmp_path / "cluster")
    except ClusterNotRunning:
        pass


def test_where_it_is_secure_somebody_may_probe_who_may_produce_and_consume(
    headrace: Headrace, folder: Path, tmp_path: Path
) -> None:
    at = ("--data", str(folder))
    assert headrace("up", *at, "--port", str(own_port()), "--secure", "-d").code == 0
    password = tmp_path / "password"
    password.write_text("a long one of hers\n")
    password.chmod(0o600)
    assert headrace("user", "create", "watcher", "--password-file", str(password), *at).code == 0
    watcher = ("--user", "watcher", "--password-file", str(password))
    assert "headrace access" in headrace("probe", *watcher, *at).refused()
    assert headrace("probe", *at).code == 0  # as administrator, which creates the stream
    assert headrace("probe", *watcher, *at).code == 1
    mine = "u:watcher"
    assert headrace("access", "set", "/system/probe", "--produce", mine, "--consume", mine, *at).code == 0
    assert headrace("probe", *watcher, *at).out.startswith("node 1  acknowledged after ")
    told = headrace("stream", "create", "/system/mine", *at)
    assert "are the cluster's" in told.refused()

    # only administrators may look
    shown = headrace("top", "--once", "--interval", "0.2", "-o", "json", *at).json
    assert shown["nodes"][0]["connections"] >= 1
    for command in (("top", "--once"), ("status", "--watch")):
        assert "lacks admin on the cluster" in headrace(*command, *watcher, *at).refused()
    assert headrace("access", "set", "cluster", "--admin", f"{mine} | u:admin", *at).code == 0
    assert headrace("top", "--once", "--interval", "0.2", "-o", "json", *watcher, *at).json["nodes"] != []
