"""What tests replace exists: a patch names its target in a string, which no type checker and no renaming tool reads."""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("nodeimage/tests", "operator/tests", "spark/tests", "bench/tests")
MIN_PATCHES = 300


def _imported(tree: ast.Module) -> dict[str, str]:
    """Return what each imported name of Headrace stands for: `module` or `module:name`."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level and node.module.startswith("headrace"):
            found |= {each.asname or each.name: f"{node.module}:{each.name}" for each in node.names}
        elif isinstance(node, ast.Import):
            found |= {each.asname: each.name for each in node.names if each.asname and each.name.startswith("headrace")}
    return found


def _resolved(place: str) -> Any:
    module, _, name = place.partition(":")
    found = importlib.import_module(module)
    if not name:
        return found
    return getattr(found, name) if hasattr(found, name) else importlib.import_module(f"{module}.{name}")


def _rebound(tree: ast.Module) -> set[str]:
    """Names that a test also uses for something of its own (an argument, a variable)."""
    return {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)} | {
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


def _patches(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Yield line, target (dotted, as written) and name of each attribute that a patch or a call of setattr replaces."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name | ast.Attribute):
            continue
        called = ast.unparse(node.func).rpartition(".")[2]
        texts = [each.value for each in node.args[:2] if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        if (
            called in ("setattr", "patch", "delattr")
            and len(texts) >= 1
            and texts[0] == getattr(node.args[0], "value", "")
        ):
            if texts[0].startswith("headrace."):
                place, _, name = texts[0].rpartition(".")
                yield node.lineno, place, name
        elif called in ("setattr", "object", "delattr") and len(node.args) >= 2 and texts:
            yield node.lineno, ast.unparse(node.args[0]), texts[0]


def _target(written: str, imported: dict[str, str]) -> Any:
    """Return the object that `written` names, or None if it is an object of the test's own."""
    if written.startswith("headrace."):
        place = written
        rest: list[str] = []
        while place:
            try:
                found = importlib.import_module(place)
                break
            except ModuleNotFoundError:
                place, _, last = place.rpartition(".")
                rest.insert(0, last)
    else:
        root, *rest = written.split(".")
        if root not in imported:
            return None
        found = _resolved(imported[root])
    for each in rest:
        found = getattr(found, each)
    return found


def test_each_patch_of_a_test_replaces_something_that_exists() -> None:
    """A patch of a renamed method would otherwise be found only when its test runs, which may be the last stage."""
    missing, seen = [], 0
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text()
            if not any(each in text for each in ("setattr(", "delattr(", "patch(", "patch.object(")):
                continue
            tree = ast.parse(text)
            rebound = _rebound(tree)
            imported = {name: place for name, place in _imported(tree).items() if name not in rebound}
            for line, written, name in _patches(tree):
                try:
                    target = _target(written, imported)
                except AttributeError as error:
                    missing.append(f"{path.relative_to(ROOT)}:{line}: {error}")
                    continue
                if target is None:
                    continue
                seen += 1
                if not hasattr(target, name):
                    missing.append(f"{path.relative_to(ROOT)}:{line}: {written} has no {name}")
    assert not missing, "\n".join(missing)
    assert seen >= MIN_PATCHES
