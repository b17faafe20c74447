"""Lets the tests of this folder share the modules beside them and those of tests/cluster; starts linked clusters."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "cluster")]

from linked import Linked  # noqa: E402


@pytest.fixture
def linked(tmp_path: Path) -> Iterator[Linked]:
    """Starts clusters by name."""
    found = Linked(tmp_path)
    yield found
    found.close()
