"""Marks of tests: few need the machine to themselves, and each of these says what it measures."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("nodeimage/tests", "operator/tests", "spark/tests", "bench/tests")
MOST_ALONE = 15


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
    assert 0 < len(list(marked("alone"))) <= MOST_ALONE


@pytest.mark.parametrize(("test", "code"), [pytest.param(*each, id=each[0]) for each in marked("alone")])
def test_a_test_that_needs_the_machine_to_itself_says_what_it_measures(test: str, code: ast.FunctionDef) -> None:
    told = ast.get_docstring(code) or ""
    assert told.startswith("Measures "), f"{test} does not begin with 'Measures ...'"
