"""Runs a compiled Headrace from its sources, which lie beside the machine code: HEADRACE_PURE=1 asks for it.

It tells whether a fault is one of compilation, and gives profilers frames of Python.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader
from types import ModuleType
from typing import Final

PACKAGE: Final = "headrace."


class Sources(MetaPathFinder):
    """Finds modules of this package by their sources alone."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        """See MetaPathFinder."""
        if not fullname.startswith(PACKAGE):
            return None
        for folder in path or ():
            found = FileFinder(folder, (SourceFileLoader, SOURCE_SUFFIXES)).find_spec(fullname)
            if found is not None:
                return found
        return None


def run_sources() -> None:
    """From now on modules of this package are loaded from their sources."""
    sys.meta_path.insert(0, Sources())
