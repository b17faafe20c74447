"""The native pieces: there where they were built, and left out where that is asked for."""

import inspect
import os
import subprocess
import sys

import pytest

from headrace.native import Codecs, codecs
from kit.codec_twins import NEEDS_CODECS


@NEEDS_CODECS
def test_what_is_compiled_is_what_the_node_sees_of_it() -> None:
    declared = {name for name, _ in inspect.getmembers(Codecs, inspect.isfunction) if not name.startswith("_")}
    found = {name for name, _ in inspect.getmembers(codecs, inspect.isbuiltin) if name in declared}
    assert declared == found


@pytest.mark.parametrize(("pure", "missing"), [("0", False), ("", False), ("1", True)])
@NEEDS_CODECS
def test_they_are_left_out_where_that_is_asked_for(pure: str, *, missing: bool) -> None:
    code = "from headrace.native import codecs, writer; print(codecs is None and writer is None)"
    environment = {**os.environ, "HEADRACE_PURE": pure}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(missing)


def test_the_sources_of_the_codecs_do_not_run_as_python() -> None:
    """Where nothing is compiled they lie beside it all the same: an import of them is one of nothing."""
    code = (
        "import importlib.util as u; from headrace import native;"
        "spec = u.spec_from_file_location('source', native.__path__[0] + '/_codecs.py');"
        "spec.loader.exec_module(u.module_from_spec(spec))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode
    assert done.stderr.splitlines()[-1] in (
        "ImportError: machine code only",
        "ModuleNotFoundError: No module named 'cython'",
    )
