"""No new circles of files, and no new looks at what an object has.

A circle is modules that import each other, by whatever way: at the top, in a function, or under TYPE_CHECKING; a
package's `__init__` is one of them. The circles that are left are named below; the list may only shrink.
"""

import ast
import textwrap
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
TREES = ("nodeimage/headrace", "spark/headrace_spark", "operator/headrace_operator")

CIRCLES = [
    {f"headrace.{module}" for module in names.split()}
    for names in (
        "coordination.group coordination.views",
        "container.follower container.local_replica",
        """
        admin.admin_api admin.cluster admin.feature_levels admin.group_lag admin.node_status
        admin.stream_metrics admin.volumes kafka.cluster kafka.configs kafka.create_topics kafka.dispatch
        kafka.fetch kafka.groups kafka.init_producer_id kafka.list_offsets kafka.metadata kafka.node_configs
        kafka.produce kafka.reassignments kafka.security kafka.topics kafka.transactions
        links.serving.change_feed links.serving.homes links.serving.params links.serving.source_apis
        links.serving.topics partitions.admin_params partitions.auto_create partitions.duplicate_check
        partitions.home_check partitions.lookups partitions.partition_states partitions.partition_tail
        partitions.partitions partitions.reads.fetch_planner partitions.reads.remote_reads
        partitions.recovered_homes partitions.rolls.opening partitions.rolls.rolls partitions.rolls.steps
        partitions.stream_policies partitions.topics partitions.unclean_recovery storage.chunk_closing
        storage.chunk_gc storage.chunk_inventory storage.container_closing storage.expiry
        storage.maintenance storage.producer_retention storage.regroup storage.scrub storage.volume_limits
        """,
    )
]
"""Modules that still import each other. A circle may lose modules, or fall apart; none may gain one."""

LOOKS = {"headrace.node.node": 4, "headrace.links.links": 1}
"""Modules that still ask `hasattr(self, ...)`, and how often. A part has its attributes from its constructor."""


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


def test_no_new_circle_of_modules_arises() -> None:
    trees = sources()
    graph = {module: imported(module, trees) for module in trees}
    new = [circle for circle in circles(graph) if not any(set(circle) <= known for known in CIRCLES)]
    told = [f"{module} -> {', '.join(sorted(graph[module] & set(circle)))}" for circle in new for module in circle]
    assert not new, "modules import each other:\n" + "\n".join(told)


def test_no_new_look_at_what_an_object_of_ours_has() -> None:
    looks = {
        module: count
        for module, tree in sources().items()
        if (count := sum(map(_asks_itself, ast.walk(tree)))) > LOOKS.get(module, 0)
    }
    assert not looks, f"hasattr(self, ...) in {looks}: set the attribute in __init__"


def _asks_itself(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Name(id="hasattr"), args=[ast.Name(id="self"), *_]):
            return True
        case _:
            return False
