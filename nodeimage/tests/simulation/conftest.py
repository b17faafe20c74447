"""Lets the tests import the package that they lie in, and marks them: they compute, and wait for nothing."""

import sys
from pathlib import Path

import pytest

_FOLDER = Path(__file__).parent
_TESTS = str(_FOLDER.parent)
if _TESTS not in sys.path:
    sys.path.append(_TESTS)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all of this folder's tests `simulator`."""
    for item in items:
        if _FOLDER in item.path.parents:
            item.add_marker(pytest.mark.simulator)
