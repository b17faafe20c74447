"""What tests replace exists: a patch names its target in a string, which no type checker and no renaming tool reads."""

import ast
import pkgutil
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("nodeimage/tests", "operator/tests", "spark/tests", "bench/tests")
PATCHES = ("setattr(", "delattr(", "patch(", "patch.object(")
MIN_PATCHES = 300


def _imported(tree: ast.Module) -> dict[str, str]:
    """Return the full name of each module, class or function of Headrace that is imported, by its name here.

    Names that a test also uses for something of its own (an argument, a variable) are left out.
    """
    found = {}
    own = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level and node.module.startswith("headrace"):
            found |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
        elif isinstance(node, ast.Import):
            found |= {each.asname: each.name for each in node.names if each.asname and each.name.startswith("headrace")}
        elif isinstance(node, ast.arg):
            own.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.add(node.id)
    return {name: place for name, place in found.items() if name not in own}


def _patches(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Yield line, target as written, and name of each attribute that a patch or a call of setattr replaces."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name | ast.Attribute):
            continue
        match ast.unparse(node.func).rpartition(".")[2], node.args:
            case (("setattr" | "delattr" | "patch"), [ast.Constant(value=str(whole)), *_]) if "." in whole:
                place, _, name = whole.rpartition(".")
                yield node.lineno, place, name
            case (("setattr" | "delattr" | "object"), [target, ast.Constant(value=str(name)), *_]):
                yield node.lineno, ast.unparse(target), name


def test_each_patch_of_a_test_replaces_something_that_exists() -> None:
    """A patch of a renamed method would otherwise be found only when its test runs, which may be the last stage."""
    missing, seen = [], 0
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text()
            if not any(each in text for each in PATCHES):
                continue
            tree = ast.parse(text)
            imported = {"headrace": "headrace", **_imported(tree)}
            for line, written, name in _patches(tree):
                root, dot, rest = written.partition(".")
                if root not in imported:
                    continue  # an object of the test's own, or another library's
                seen += 1
                try:
                    getattr(pkgutil.resolve_name(f"{imported[root]}{dot}{rest}"), name)
                except (AttributeError, ImportError) as error:
                    missing.append(f"{path.relative_to(ROOT)}:{line}: {written}.{name}: {error}")
    assert not missing, "\n".join(missing)
    assert seen >= MIN_PATCHES
