"""Whether this process runs the node's hot layers as machine code, or all of it as Python.

This module is compiled with those layers, where they are compiled at all (.ci/build_native.py): so its own file tells.
"""

from typing import Final

COMPILED: Final = "compiled"
PURE: Final = "pure"


def build() -> str:
    """`compiled` or `pure`."""
    return PURE if __file__.endswith(".py") else COMPILED
