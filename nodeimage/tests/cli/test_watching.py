import json
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from headrace.base.errors import HeadraceError
from headrace.cli import watching
from headrace.cli.output import print_line
from headrace.cli.watching import captured, folded, frame, watch
from headrace.kafka_client.errors import SourceRefuses
from kit.terminal import in_terminal

from .conftest import command_line


def test_a_frame_is_drawn_over_the_former_one() -> None:
    assert frame("a\nb\n", width=10, height=5) == "\x1b[Ha\x1b[K\r\nb\x1b[K\x1b[J"


def test_a_frame_never_scrolls() -> None:
    drawn = frame("\n".join("abcdef"), width=10, height=4)
    assert drawn == "\x1b[Ha\x1b[K\r\nb\x1b[K\r\nc\x1b[K\r\n... 3 more lines\x1b[K\x1b[J"
    assert "... 5 more lines" in frame("\n".join("abcdef"), width=10, height=2)


def test_a_long_line_goes_on_in_the_next_one() -> None:
    assert folded("abcdefgh", 3) == ["abc", "def", "gh"]
    assert folded("日本語", 4) == ["日本", "語"]
    assert folded("\x1b[1mabcdefgh\x1b[0m", 3) == ["\x1b[1mabcdefgh\x1b[0m"]
    assert folded("", 3) == [""]


def test_what_is_captured_is_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert captured(lambda: print_line("shown")) == "shown\n"
    assert capsys.readouterr().out == ""


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Let `watch` sleep a number of times; the next sleep raises an interrupt."""
    seconds: list[float] = []

    def sleep(for_s: float) -> None:
        seconds.append(for_s)
        if len(seconds) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(watching.time, "sleep", sleep)
    return seconds


def test_without_a_terminal_each_follows_the_former_one(slept: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    numbers = iter(range(9))
    with pytest.raises(KeyboardInterrupt):
        watch(lambda: next(numbers), lambda number: print_line(f"{number}"), interval_s=5)
    assert capsys.readouterr().out == "0\n\n1\n\n2\n\n"
    assert all(4 < each <= 5 for each in slept)


def gatherer(*answers: Any) -> Callable[[], Any]:
    left = list(answers)

    def gather() -> Any:
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return gather


def test_a_cluster_that_is_silent_for_a_while_is_told_and_asked_again(
    slept: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(KeyboardInterrupt):
        watch(gatherer(1, HeadraceError("nobody\x1b answers"), 2), lambda number: print_line(f"{number}"), interval_s=5)
    shown = capsys.readouterr()
    assert shown.out == "1\n\n2\n\n"
    assert "what is shown is older: nobody\\x1b answers" in shown.err


@pytest.mark.parametrize("answers", [(HeadraceError("no"),), (1, SourceRefuses("no"))])
def test_what_cannot_become_better_ends_it(slept: list[float], answers: tuple[Any, ...]) -> None:
    with pytest.raises(HeadraceError, match="no"):
        watch(gatherer(*answers), lambda _: None, interval_s=5)


def test_in_a_terminal_it_is_drawn_in_place_until_ctrl_c(cluster: Any, environment: dict[str, str]) -> None:
    command = command_line("status", "--watch", "--interval", "0.2", "--data", str(cluster.data))
    with in_terminal(command, environment, rows=60, columns=100) as terminal:
        terminal.until(lambda it: it.frames >= 3 and "redundancy" in it.shown)
        assert terminal.written.count("\x1b[2J") == 1
        assert max(map(len, terminal.shown.splitlines())) <= 100
        terminal.resize(8, 100)
        terminal.until(lambda it: "more lines" in it.shown)
        assert len(terminal.shown.splitlines()) == 8
        terminal.type("\x03")
        assert terminal.ended() == 130
    assert terminal.written.endswith("\x1b[?25h")


def test_json_is_a_document_a_line(cluster: Any, environment: dict[str, str]) -> None:
    command = command_line("status", "-w", "--interval", "0.2", "-o", "json", "--data", str(cluster.data))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        documents = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait() == 130
    assert [each["nodes"][0]["state"] for each in documents] == ["up", "up"]
