"""Runs the command line as a process of its own, as a shell does."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass(frozen=True)
class Ran:
    """What a command left behind."""

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
    """This process's, with a data folder in which nothing runs, and no cluster named."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    return {**kept, "HEADRACE_DATA": str(tmp_path / "nothing-here"), "COLUMNS": "120"}


@pytest.fixture
def headrace(environment: dict[str, str]) -> Callable[..., Ran]:
    """`headrace("topic", "list", stdin="...")`."""

    def run(*arguments: str, stdin: str = "", **more: str) -> Ran:
        done = subprocess.run(
            command_line(*arguments),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=100,
            env={**environment, **more},
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return Ran(done.returncode, done.stdout, done.stderr)

    return run
