"""The scripts of .ci as modules, for tests of their decisions."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from unittest import mock

FOLDER = Path(__file__).resolve().parents[3] / ".ci"


def gate_script(name: str) -> ModuleType:
    """`.ci/<name>.py`, freshly loaded; it can import its neighbours."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up their module by its name
    try:
        with mock.patch.object(sys, "path", [str(FOLDER), *sys.path]):
            spec.loader.exec_module(module)
    finally:
        del sys.modules[name]
    return module
