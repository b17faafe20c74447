"""Starting nodes: which are ready, which died and how, and which are late."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.local import starting
from headrace.local.folder import NodeProcess
from headrace.local.starting import Child, NodeDied, StartGivenUp, await_ready, log_path, ready_path


def child(folder: Path, name: str = "node-1", *, code: int | None = None, log: str = "", offset: int = 0) -> Child:
    path = log_path(folder, name)
    path.parent.mkdir(exist_ok=True)
    path.write_text(log)
    node = NodeProcess(name=name, port=9092, pid=1, created=0.0)
    process: Any = SimpleNamespace(poll=lambda: code)
    return Child(node=node, process=process, log_path=path, log_offset=offset)


def ready(folder: Path, name: str = "node-1", text: str = '{"id": 7}') -> None:
    ready_path(folder, name).write_text(text)


def looks(monkeypatch: pytest.MonkeyPatch, *then: Callable[[], None]) -> None:
    """Run `then`, one function between each two looks."""
    left = list(then)
    monkeypatch.setattr(starting.time, "sleep", lambda _: left.pop(0)())


def test_all_are_waited_for_and_told_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    ready(tmp_path)
    whole = '{"id": 9, "metrics_port": 41234}'
    looks(monkeypatch, lambda: ready(tmp_path, "node-2", '{"id"'), lambda: ready(tmp_path, "node-2", whole))
    found = await_ready(tmp_path, [child(tmp_path), child(tmp_path, "node-2")], progress=told.append)
    assert {name: (node.node_id, node.metrics_port) for name, node in found.items()} == {
        "node-1": (7, None),
        "node-2": (9, 41234),
    }
    assert [line.partition(" (")[0] for line in told] == ["node-1 is ready", "node-2 is ready"]


def test_a_node_that_ends_before_it_is_ready_is_told_with_its_last_lines(tmp_path: Path) -> None:
    ready(tmp_path)
    died = child(tmp_path, code=1, log="old start\nbegan\nno disk\n", offset=len("old start\n"))
    with pytest.raises(NodeDied, match="node-1 ended with exit code 1: no disk: its log is") as error:
        await_ready(tmp_path, [died], progress=lambda _: None)
    assert error.value.log == ("began", "no disk"), "what an earlier start said is not its word"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (2, "node-1 refused to start: the folder is another cluster's"),
        (-9, "node-1 was ended by SIGKILL: its log is"),
        (3, "node-1 ended with exit code 3: headrace: the folder is another cluster's: its log is"),
    ],
)
def test_how_it_ended_says_what_to_look_at(tmp_path: Path, code: int, said: str) -> None:
    one = child(tmp_path, log="headrace: the folder is another cluster's\n")
    assert str(one.death(code)).startswith(said)


def test_those_that_are_late_are_named(tmp_path: Path) -> None:
    ready(tmp_path)
    children = [child(tmp_path), child(tmp_path, "node-2", log="recovers\n"), child(tmp_path, "node-3")]
    with pytest.raises(NodeDied, match="node-2, node-3 were not ready after 0 s") as late:
        await_ready(tmp_path, children, progress=lambda _: None, timeout_s=0)
    assert (late.value.name, late.value.log) == ("node-2", ("recovers",))


def test_a_start_that_is_to_stop_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(StartGivenUp):
        await_ready(tmp_path, [child(tmp_path)], progress=lambda _: None, stopping=lambda: True)


def test_a_log_that_has_become_long_is_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "LOG_KEPT_BYTES", 10)
    path = tmp_path / "node-1.log"
    assert starting._open_log(path) == 0
    path.write_text("0123456789")
    assert starting._open_log(path) == 10
    path.write_text("0123456789a")
    assert starting._open_log(path) == 0
    assert not path.exists()
    assert path.with_suffix(".log.1").read_text() == "0123456789a"


@pytest.mark.parametrize("has_tls", [False, True])
def test_nodes_speak_tls_to_each_other_where_the_folder_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_tls: bool
) -> None:
    if has_tls:
        (tmp_path / starting.PEER_TLS).mkdir()
    (tmp_path / "logs").mkdir()
    commands: list[list[str]] = []

    def popen(command: list[str], **_: object) -> SimpleNamespace:
        commands.append(command)
        return SimpleNamespace(pid=1)

    monkeypatch.setattr(starting.subprocess, "Popen", popen)
    starting.spawn(tmp_path, "node-1", port=0, options=(), own_options=())
    asked = ["--peer-tls", str(tmp_path / "peer-tls")]
    assert (" ".join(asked) in " ".join(commands[0])) == has_tls
