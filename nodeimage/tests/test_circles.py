"""No circles of files, and no looks at what an object has.

A circle is modules that import each other, by whatever way: at the top, in a function, or under TYPE_CHECKING; a
package's `__init__` is one of them.
"""

import ast
import textwrap
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
TREES = ("nodeimage/headrace", "spark/headrace_spark", "operator/headrace_operator")


@cache
def sources() -> dict[str, ast.Module]:
    """All modules, by name."""
    found = {}
    for tree in TREES:
        base = (ROOT / tree).parent
        for path in (ROOT / tree).rglob("*.py"):
            parts = path.relative_to(base).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = ast.parse(path.read_text())
    return found


def imported(module: str, trees: dict[str, ast.Module]) -> set[str]:
    """The modules of ours that one imports, wherever in its file, with the packages that are loaded on the way."""
    found: set[str] = set()
    for node in ast.walk(trees[module]):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            assert not node.level, "imports are absolute"
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            found.update(name if name in trees else node.module for name in names)
    packages = {package for name in found for package in parents(name)} - set(parents(module))
    return (found | packages) & trees.keys() - {module}


def parents(module: str) -> list[str]:
    """The packages that a module is in."""
    parts = module.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The strongly connected components of more than one module, by Tarjan's algorithm."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    on_path: set[str] = set()
    found: list[list[str]] = []

    def visit(module: str) -> None:
        order[module] = lowest[module] = len(order)
        path.append(module)
        on_path.add(module)
        for other in sorted(graph[module]):
            if other not in order:
                visit(other)
                lowest[module] = min(lowest[module], lowest[other])
            elif other in on_path:
                lowest[module] = min(lowest[module], order[other])
        if lowest[module] == order[module]:
            circle = path[path.index(module) :]
            del path[-len(circle) :]
            on_path.difference_update(circle)
            if len(circle) > 1:
                found.append(sorted(circle))

    for module in sorted(graph):
        if module not in order:
            visit(module)
    return found


def test_circles_are_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": set()}) == [["a", "b", "c"]]
    assert circles({"a": {"b"}, "b": set()}) == []


def test_an_import_counts_wherever_it_stands() -> None:
    texts = {
        "p.a": """
            from typing import TYPE_CHECKING
            from p.b import one
            if TYPE_CHECKING:
                from q.c import Two
            def call():
                import q.d
            """,
        **dict.fromkeys(("p", "p.b", "q", "q.c", "q.d"), ""),
    }
    trees = {module: ast.parse(textwrap.dedent(text)) for module, text in texts.items()}
    assert imported("p.a", trees) == {"p.b", "q", "q.c", "q.d"}


def test_no_modules_import_each_other() -> None:
    trees = sources()
    graph = {module: imported(module, trees) for module in trees}
    new = circles(graph)
    told = [f"{module} -> {', '.join(sorted(graph[module] & set(circle)))}" for circle in new for module in circle]
    assert not new, "modules import each other:\n" + "\n".join(told)


def test_no_object_of_ours_is_asked_what_it_has() -> None:
    looks = [module for module, tree in sources().items() if any(map(_asks_itself, ast.walk(tree)))]
    assert not looks, f"hasattr(self, ...) in {looks}: set the attribute in __init__"


def _asks_itself(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Name(id="hasattr"), args=[ast.Name(id="self"), *_]):
            return True
        case _:
            return False
