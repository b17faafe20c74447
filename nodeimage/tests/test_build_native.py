"""What is compiled: modules that there are, none of which has a file's descriptor in hand."""

import ast
import re
from pathlib import Path
from types import ModuleType

import pytest

from kit.gate_scripts import gate_script

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return gate_script("build_native")


def test_each_module_that_is_compiled_is_there_and_holds_no_descriptor(script: ModuleType) -> None:
    """Compiled code lets go of a local as soon as it has used it for the last time: a file of which only the descriptor
    is used from then on would be closed."""
    for module in script.compiled_modules():
        tree = ast.parse((ROOT / module).read_text())
        used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        assert not used & {"fd", "fileno", "opened"}, module


def test_no_class_that_is_compiled_derives_from_what_is_not(script: ModuleType) -> None:
    """Its fields would lie where those of the other class do, so that an exception with fields of its own corrupts
    memory; and weak references to it would outlive it."""
    known = {"Enum", "IntEnum", "NamedTuple", "Protocol"}
    trees = [ast.parse((ROOT / module).read_text()) for module in script.compiled_modules()]
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    known |= {each.name for each in classes}
    derived = {each.name: {ast.unparse(base).rpartition(".")[2] for base in each.bases} for each in classes}
    assert {name: bases - known for name, bases in derived.items() if bases - known} == {}


def test_no_test_replaces_a_constant_that_compiled_code_has_taken_in(script: ModuleType) -> None:
    """One that is Final, or is imported from a compiled module where it is."""
    final: dict[str, set[str]] = {}
    for module in script.compiled_modules():
        tree = ast.parse((ROOT / module).read_text())
        named = {
            node.target.id
            for node in tree.body
            if isinstance(node, ast.AnnAssign)
            and isinstance(node.target, ast.Name)
            and ast.unparse(node.annotation).startswith("Final")
        }
        taken = {name.name for node in tree.body if isinstance(node, ast.ImportFrom) for name in node.names}
        final[module.stem] = named | {name for name in taken if name.isupper()}
    replaced = re.compile(r'setattr\(\s*(?:(\w+), "|"headrace\.[\w.]*?(\w+)\.)(_?[A-Z][A-Z_0-9]+)"')
    found = set()
    for test in (ROOT / "nodeimage" / "tests").rglob("test_*.py"):
        text = test.read_text()
        called = {alias: name for name, alias in re.findall(r"import (\w+) as (\w+)", text)}
        for at, path, name in replaced.findall(text):
            place = called.get(at, at) or path
            if name in final.get(place, ()):
                found.add((test.name, place, name))
    assert found == set()


def test_no_coroutine_that_is_compiled_waits_while_it_handles_an_exception(script: ModuleType) -> None:
    """Compiled, it has no exception state of its own: all other tasks would see the exception, some for ever. At the
    end of an `async with` there is such a wait, unless what it leaves never waits in `__aexit__`."""
    at_once = {"asyncio.timeout", "self._unpacking"}
    waits = (ast.Await, ast.AsyncFor, ast.AsyncWith, ast.Yield, ast.YieldFrom)
    found = set()
    for module in script.compiled_modules():
        for node in ast.walk(ast.parse((ROOT / module).read_text())):
            if isinstance(node, ast.Try):
                handling = [*node.handlers, *node.finalbody]
                found |= {
                    (module.stem, each.lineno) for each in handling for at in ast.walk(each) if isinstance(at, waits)
                }
            elif isinstance(node, ast.AsyncWith):
                entered = {ast.unparse(item.context_expr).partition("(")[0] for item in node.items}
                found |= {(module.stem, node.lineno) for _ in entered - at_once}
    assert found == set()


def test_no_tuple_that_tests_may_replace_has_a_fixed_length(script: ModuleType) -> None:
    """Its inferred type has: in compiled code, each use of one of another length raises TypeError."""
    found = {
        (module.stem, target.id)
        for module in script.compiled_modules()
        for node in ast.walk(ast.parse((ROOT / module).read_text()))
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id.isupper()
    }
    assert found == set()


@pytest.mark.parametrize(("asked", "wanted"), [(None, False), ("", False), ("0", False), ("1", True)])
def test_nothing_is_compiled_unless_that_is_asked_for(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, asked: str | None, *, wanted: bool
) -> None:
    monkeypatch.delenv("HEADRACE_COMPILE", raising=False)
    if asked is not None:
        monkeypatch.setenv("HEADRACE_COMPILE", asked)
    assert script.is_wanted() == wanted


@pytest.mark.parametrize("named", ["cc -pthread", "no-such-compiler"])
def test_where_there_is_no_compiler_it_can_be_left_out(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, named: str
) -> None:
    (tmp_path / "cc").touch(0o755)
    (tmp_path / "Python.h").touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HEADRACE_COMPILE", "auto")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(script.sysconfig, "get_config_var", lambda _name: named)
    monkeypatch.setattr(script.sysconfig, "get_path", lambda _name: str(tmp_path))
    assert script.is_wanted()
    (tmp_path / "cc").unlink()
    assert not script.is_wanted()
