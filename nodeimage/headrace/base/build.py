"""Whether this process runs the node's hot layers as machine code, or everything as Python.

If these layers are compiled (.ci/build_native.py), this module is too, so the type of its own file gives the answer.
"""

from typing import Final

COMPILED: Final = "compiled"
PURE: Final = "pure"


def build() -> str:
    """The kind of this build: `compiled` or `pure`."""
    return PURE if __file__.endswith(".py") else COMPILED
