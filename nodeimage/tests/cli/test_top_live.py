import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest

from headrace.cli.top_live import Sampler
from headrace.cli.top_rates import StreamContent
from kit.terminal import in_terminal

from .conftest import command_line


def test_it_draws_hears_keys_and_ends_with_q(cluster: Any, environment: dict[str, str]) -> None:
    command = command_line("top", "--interval", "0.2", "--data", str(cluster.data))
    with in_terminal(command, environment, rows=30, columns=160) as terminal:
        terminal.until(lambda it: it.shown.startswith("cluster ") and it.frames >= 5)
        terminal.until(lambda it: "req/s" in it.shown and "controller, catalog" in it.shown)
        assert len(terminal.shown.splitlines()) == 30
        terminal.type("s")
        terminal.until(lambda it: "nodev" in it.shown)
        terminal.type("\x1b[A")  # arrow up, which has no meaning here
        terminal.resize(12, 60)
        terminal.until(lambda it: [len(line) <= 60 for line in it.shown.splitlines()] == [True] * 12)
        terminal.type("q")
        assert terminal.ended() == 0
    assert terminal.written.startswith("\x1b[?1049h")
    assert terminal.written.endswith("\x1b[?25h\x1b[?1049l")


def test_ctrl_c_leaves_the_terminal_in_order(cluster: Any, environment: dict[str, str]) -> None:
    command = command_line("top", "--interval", "0.2", "--data", str(cluster.data))
    with in_terminal(command, environment) as terminal:
        terminal.until(lambda it: it.frames >= 2)
        terminal.type("\x03")
        assert terminal.ended() == 130
    assert terminal.written.endswith("\x1b[?25h\x1b[?1049l")


def test_a_cluster_that_went_away_is_told_of_and_comes_back(new_cluster: Any, environment: dict[str, str]) -> None:
    cluster = new_cluster()
    with in_terminal(command_line("top", "--interval", "0.2", "-b", cluster.bootstrap), environment) as terminal:
        terminal.until(lambda it: "redundancy whole" in it.shown)
        cluster.stop()
        terminal.until(lambda it: "no answer at" in it.shown)
        cluster.start()
        terminal.until(lambda it: "redundancy whole" in it.shown)
        terminal.type("q")
        assert terminal.ended() == 0


def test_without_a_terminal_it_comes_again_and_again(
    cluster: Any, headrace_process: Callable[..., "subprocess.Popen[str]"]
) -> None:
    process = headrace_process("top", "--interval", "0.2", "-b", cluster.bootstrap)
    assert process.stdout is not None
    heads = 0
    while heads < 2:
        line = process.stdout.readline()
        assert line, process.communicate()
        heads += line.startswith("controller ")
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert process.returncode == 130


class Told:
    """A cluster whose answers come from a list."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths
        self.asked: list[str] = []
        self.slow_s = 0.0

    def admin(self, method: str, params: Any = None) -> Any:
        match method:
            case "cluster.status":
                return {"nodes": [{"node": 1, "address": "a:1", "state": "up"}, {"node": 2, "state": "down"}]}
            case "stream.list":
                return [{"path": path} for path in self.paths]
        self.asked.append(params["path"])
        time.sleep(self.slow_s)
        known = params["path"] != "/new"
        return {"messages": 3 if known else None, "bytes": 30 if known else None}

    def each(self, addresses: list[str], method: str, params: Any = None) -> list[Any]:
        return [None for _ in addresses]

    def groups(self) -> None:
        return None


def test_nodes_that_are_silent_and_streams_that_are_not_counted_yet_are_left_out() -> None:
    told = Told(["/a", "/new"])
    sample = Sampler(told).sample()  # type: ignore[arg-type]
    assert (sample.nodes, sample.groups, list(sample.events)) == ({}, None, [])
    assert sample.streams == {"/a": StreamContent(3, 30)}
    told.paths = ["/b"]
    assert list(Sampler(told).sample().streams) == ["/b"]  # type: ignore[arg-type]


def test_streams_take_turns_where_there_is_no_time_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.cli.top_live.STREAMS_S", 0.0)
    monkeypatch.setattr("headrace.cli.top_live.CONTENT_S", 0.0)
    told = Told(["/a", "/b", "/c"])
    sampler = Sampler(told)  # type: ignore[arg-type]
    for _ in range(4):
        sampler.sample()
    assert told.asked == ["/a", "/b", "/c", "/a"]


def test_content_that_is_known_is_not_asked_for_each_time() -> None:
    told = Told(["/a", "/new"])
    sampler = Sampler(told)  # type: ignore[arg-type]
    for _ in range(3):
        sampler.sample()
    assert told.asked == ["/a", "/new", "/new", "/new"]
    told.paths = ["/a", "/b"]
    sampler.sample()
    assert told.asked[4:] == ["/b"]
