"""A node is loaded by whoever makes one, and by nobody else."""

import subprocess
import sys

import pytest

import headrace.node
from headrace.node.node import Node
from headrace.node.options import Options


@pytest.mark.parametrize("module", ["headrace.local.cluster", "headrace_operator.builders.settings"])
def test_who_runs_nodes_loads_none(module: str) -> None:
    program = f"import sys, {module}; print('headrace.node.node' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "False\n"


def test_a_package_has_what_it_names_and_nothing_else() -> None:
    assert (headrace.node.Node, headrace.node.Options) == (Node, Options)
    with pytest.raises(AttributeError, match="has no attribute 'Other'"):
        headrace.node.Other  # noqa: B018
