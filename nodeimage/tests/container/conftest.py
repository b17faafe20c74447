"""Lets the tests of replication share `several.py`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
