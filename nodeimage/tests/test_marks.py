"""Marks of tests: each test is of one stage of `make test`; few need the machine to themselves, and say what for."""

import ast
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.gate_scripts import gate_script

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("nodeimage/tests", "operator/tests", "spark/tests", "bench/tests")
MAX_ALONE = 15


def marked(name: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Tests with a mark of their own or of their module's `pytestmark`: their ids, and their code."""
    mark = f"pytest.mark.{name}"
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("test_*.py")):
            if mark not in (text := path.read_text()):
                continue
            tree = ast.parse(text)
            is_whole = any(
                isinstance(node, ast.Assign)
                and "pytestmark" in ast.unparse(node.targets[0])
                and mark in ast.unparse(node)
                for node in tree.body
            )
            for node in ast.walk(tree):
                if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or not node.name.startswith("test_"):
                    continue
                if is_whole or any(ast.unparse(each).startswith(mark) for each in node.decorator_list):
                    yield f"{path.relative_to(ROOT)}::{node.name}", node


def test_few_tests_need_the_machine_to_themselves() -> None:
    assert 0 < len(list(marked("alone"))) <= MAX_ALONE


@pytest.mark.parametrize(("test", "code"), [pytest.param(*each, id=each[0]) for each in marked("alone")])
def test_a_test_that_needs_the_machine_to_itself_says_what_it_measures(test: str, code: ast.FunctionDef) -> None:
    told = ast.get_docstring(code) or ""
    assert told.startswith("Measures "), f"{test} does not begin with 'Measures ...'"


def test_each_test_is_of_one_stage() -> None:
    """Whatever marks it has; the simulator's tests have no other."""
    commands = [list(stage.command) for step in gate_script("stages").PLAN for lane in step for stage in lane]
    chosen = [
        each[-each[::-1].index("-m")] for each in commands if "pytest" in map(os.path.basename, each) and "-m" in each
    ]
    assert len(chosen) == 5
    marks = ("slow", "alone", "spark", "java")
    for has in (*itertools.product((False, True), repeat=len(marks)), ()):
        known = {**dict.fromkeys(marks, False), **dict(zip(marks, has, strict=False)), "simulator": not has}
        assert sum(eval(expression, {}, known) for expression in chosen) == 1, known


@pytest.mark.parametrize(
    ("path", "tests"),
    [
        ("spark/job.py", ["spark/tests"]),
        ("spark/headrace_spark/job/__main__.py", ["spark/tests/job"]),
        ("spark/headrace_spark/offsets.py", ["spark/tests"]),
        ("bench/pairs.py", ["bench/tests"]),
        ("nodeimage/headrace/cli/cells.py", ["nodeimage/tests/cli"]),
        ("nodeimage/tests/cli/test_cells.py", ["nodeimage/tests/cli/test_cells.py"]),
    ],
)
def test_every_changed_file_of_python_has_tests_to_run(path: str, tests: list[str]) -> None:
    assert gate_script("check").tests_of(path) == tests
