"""Runs the command line: within this process, or as a separate process, as a shell does."""

import contextvars
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kit.commands_on_node import hr

__all__ = ["hr"]


@dataclass(frozen=True)
class Ran:
    """The result of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)

    @property
    def json_lines(self) -> list[Any]:
        assert self.code == 0, self.err
        return [json.loads(line) for line in self.out.splitlines()]

    def refused(self, *, code: int = 1) -> str:
        """The one line on stderr of a command that failed."""
        lines = self.err.splitlines()
        assert self.code == code, self
        assert len(lines) == 1, self.err
        assert lines[0].startswith("headrace: ")
        return lines[0]


def command_line(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "headrace.cli.main", *arguments]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """This process's environment, with a data folder in which nothing runs, and no cluster named."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    own = {"HEADRACE_DATA": str(tmp_path / "nothing-here"), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    return {**kept, **own, "COLUMNS": "120"}


@pytest.fixture
def headrace(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """`headrace("topic", "list", stdin="...", HEADRACE_DATA="...")`: the console script, within this process.

    Loading it again for each of several hundred commands would cost half a minute; `headrace_process` does load it.
    """
    from headrace.cli.main import exit_code

    def run(*arguments: str, stdin: str = "", **more: str) -> Ran:
        out, err = io.TextIOWrapper(io.BytesIO(), write_through=True), io.StringIO()
        with monkeypatch.context() as patched:
            for name in [name for name in os.environ if name.startswith("HEADRACE_")]:
                patched.delenv(name)
            for name, value in {**environment, **more}.items():
                patched.setenv(name, value)
            patched.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
            patched.setattr(sys, "stdout", out)
            patched.setattr(sys, "stderr", err)
            try:
                code = contextvars.copy_context().run(exit_code, arguments)  # what it sets ends with it
            except SystemExit as end:
                code = int(end.code or 0)
        return Ran(code, out.buffer.getvalue().decode(), err.getvalue())  # type: ignore[attr-defined]

    return run


@pytest.fixture
def headrace_process(environment: dict[str, str]) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Start `headrace ...` and return at once. A process that still runs after the test is killed."""
    begun: list[subprocess.Popen[str]] = []

    def begin(*arguments: str, **more: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            command_line(*arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**environment, **more},
        )
        begun.append(process)
        return process

    yield begin
    for process in begun:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
