"""Marks the tests of this folder, which only compute and never wait."""

from pathlib import Path

import pytest

_FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all of this folder's tests `simulator`."""
    for item in items:
        if _FOLDER in item.path.parents:
            item.add_marker(pytest.mark.simulator)
