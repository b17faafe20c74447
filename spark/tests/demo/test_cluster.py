"""The embedded cluster by its commands: its addresses, its ports, and the error of a failed command."""

import io
import json
import socket
from pathlib import Path

import pytest

from headrace_spark.demo import cluster as module
from headrace_spark.demo.cluster import HOST, PORTS, Cluster, CommandFailed, free_ports, run_command


def cluster() -> Cluster:
    return Cluster(Path("/demo/data"), show=lambda line: None, ports={1: 20_001, 2: 20_002})


def test_clients_are_given_all_addresses() -> None:
    assert cluster().bootstrap == f"{HOST}:20001,{HOST}:20002"
    assert cluster().addresses == {1: (HOST, 20_001), 2: (HOST, 20_002)}


def test_ports_are_free_and_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(module.random, "sample", lambda ports, count: [port - 1, port, 20_500])
        free = {20_500, 20_501, 20_502}
        is_free = module._is_free
        monkeypatch.setattr(module, "_is_free", lambda each: each in free or (each == port and is_free(each)))
        assert free_ports(3) == 20_500
        monkeypatch.setattr(module.random, "sample", lambda ports, count: [port])
        with pytest.raises(OSError, match="no 3 free ports"):
            free_ports(3)
    assert PORTS.stop <= 32_768, "outgoing connections take theirs from there on"


def test_a_command_is_shown_as_a_user_would_type_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    shown: list[str] = []
    ran: list[list[str]] = []
    monkeypatch.setattr(module, "run_command", lambda command: ran.append(list(command)) or '{"port": 7, "pid": 8}')
    own = Cluster(tmp_path / "data", show=shown.append)
    own.start(2)
    assert shown == ["headrace node start 2 --data data"]
    assert ran == [["node", "start", "2", "--output", "json", "--data", str(tmp_path / "data")]]
    assert (own.ports, own.pids) == ({2: 7}, {2: 8})


def test_metrics_are_asked_of_the_nodes_that_run(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [{"id": n, "port": n, "pid": 10 + n, "metrics": f"http://{HOST}:{n}/metrics"} for n in (2, 1)]
    answers = iter([json.dumps({"nodes": nodes}), json.dumps({"port": 1, "pid": 9, "metrics": "http://new/metrics"})])
    monkeypatch.setattr(module, "run_command", lambda command: next(answers))
    monkeypatch.setattr(module.os, "kill", lambda pid, number: None)
    monkeypatch.setattr(module.urllib.request, "urlopen", lambda address, timeout: io.BytesIO(address.encode()))
    own = Cluster(Path("/demo/data"), show=lambda line: None)
    own.up()
    own.kill(1)
    assert own.last_metrics() == f"# node 2, http://{HOST}:2/metrics\nhttp://{HOST}:2/metrics"
    own.start(1)
    assert [line for line in own.last_metrics().splitlines() if line.startswith("#")] == [
        "# node 1, http://new/metrics",
        f"# node 2, http://{HOST}:2/metrics",
    ]


def test_a_command_that_fails_says_its_own_last_line(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="headrace up"):
        run_command(["status", "--data", str(tmp_path / "none")])
