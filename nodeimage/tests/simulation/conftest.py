"""Lets the tests import the package that they lie in."""

import sys
from pathlib import Path

_TESTS = str(Path(__file__).parents[1])
if _TESTS not in sys.path:
    sys.path.append(_TESTS)
