"""A short fuzz of every target. Ten minutes: `python nodeimage/tests/fuzz/fuzz.py`."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("atheris", reason="atheris has no wheel for this Python")

SECONDS = 20
"""Of fuzzing, for all targets together; instrumenting the code takes some more, on a busy machine minutes."""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_short_fuzz_finds_no_fault(tmp_path: Path) -> None:
    script = Path(__file__).parent / "fuzz.py"
    run = subprocess.run(
        [sys.executable, str(script), "--seconds", str(SECONDS)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    found = {path.name: path.read_bytes().hex() for path in tmp_path.glob("*-*")}
    assert run.returncode == 0, f"{run.stderr[-4000:]}\ninputs: {found}"
    assert run.stderr.count("stat::number_of_executed_units") == 4, run.stderr[-4000:]
