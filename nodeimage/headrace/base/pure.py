"""Runs a compiled Headrace from its Python sources, which lie beside the machine code, if HEADRACE_PURE=1 is set.

This shows whether a fault is caused by compilation, and gives profilers Python frames.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader
from types import ModuleType
from typing import Final

PACKAGE: Final = "headrace."


class Sources(MetaPathFinder):
    """Finds modules of this package as sources only."""

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
    """Makes Python load modules of this package from their sources from now on."""
    sys.meta_path.insert(0, Sources())
