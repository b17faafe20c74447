"""Starts linked clusters."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.linked_clusters import Linked


@pytest.fixture
def linked(tmp_path: Path) -> Iterator[Linked]:
    """Starts clusters by name."""
    found = Linked(tmp_path)
    yield found
    found.close()
