"""A node reports whether it is compiled."""

import os
import subprocess
import sys

import headrace.wire.batch
from headrace.base.build import build


def asked(**environment: str) -> str:
    """The build that another process reports."""
    command = [sys.executable, "-c", "from headrace.base.build import build; print(build())"]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_it_is_compiled_where_its_hot_layers_are() -> None:
    is_source = str(headrace.wire.batch.__file__).endswith(".py")
    assert build() == ("pure" if is_source else "compiled")


def test_another_process_runs_as_this_one() -> None:
    assert asked() == build()


def test_it_can_be_told_to_run_from_its_sources() -> None:
    assert asked(HEADRACE_PURE="1") == "pure"
    assert asked(HEADRACE_PURE="0") == build()
