"""Moves modules of `nodeimage/headrace` by the table in docs/layout.md, once, in a clean tree.

Files move by `git mv`. Imports are rewritten by their syntax, uses of a module by its name with them; dotted names and
paths in strings, comments and docs by their text.
"""

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
SOURCES: Final = ROOT / "nodeimage"
PLAN: Final = ROOT / "docs" / "layout.md"
LEFT_ALONE: Final = ("docs/layout.md", "nodeimage/tests/levels/level")
PACKAGES: Final = {
    "base": "What every package may use: errors, ids, sockets, deadlines, admission. Imports nothing else of Headrace.",
    "security": "Who somebody is, and how that is proved.",
    "kafka_client": "The Kafka client of ours: for links, the command line and Spark.",
    "tables": "Replicated tables in SQLite: a log of commands, its application, snapshots and checksums.",
    "coordination": "Consumer groups: a pure coordinator, the asyncio shell around it, and its take-over.",
    "partitions": "Topics and partitions in memory: look-up, placement, idempotent producers, rolls and reads.",
    "partitions/rolls": "Rolls: a partition goes on in a new partitionlet (DESIGN section 5).",
    "partitions/reads": "Reads of stored records: from this node's disk, and from other nodes.",
    "storage": "The disk: retention, garbage collection of chunks, regrouping, scrub, closing of chunks.",
    "links/source": "What a link asks of its source: another Headrace cluster, or Apache Kafka.",
    "links/pull": "Pulling: the state of a link on one node, fetching and appending.",
    "links/topics": "Topics and committed offsets of a link, kept in line with its source.",
    "links/failover": "Moving the home of topics, and what becomes of records that are not of its history.",
    "links/serving": "What this cluster answers to the links of others.",
    "kafka": "The face to Kafka's clients: connections, dispatch, one module per API or family of APIs.",
}
"""By folder, the docstrings of packages that are new."""
EMPTIED: Final = ("broker/groups", "broker")


def moves() -> dict[str, str]:
    """By the dotted name of a module, the one that it gets."""
    table = PLAN.read_text().split("```")[1]
    pairs = [line.split() for line in table.splitlines() if line and not line.startswith("#")]
    found = {f"headrace.{old}": f"headrace.{new}" for old, new in pairs}
    return {old: new for old, new in found.items() if file_of(old).exists()}


def file_of(module: str) -> Path:
    """Where a module lies."""
    return SOURCES / (module.replace(".", "/") + ".py")


def git(*arguments: str) -> str:
    """What git says."""
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True, cwd=ROOT).stdout


def move(moved: dict[str, str]) -> None:
    """All files to their places; by way of other names, as some places are names of modules today."""
    for old in moved:
        git("mv", str(file_of(old)), f"{file_of(old)}.moving")
    for old, new in moved.items():
        file_of(new).parent.mkdir(parents=True, exist_ok=True)
        git("mv", f"{file_of(old)}.moving", str(file_of(new)))
    for package, says in PACKAGES.items():
        (SOURCES / "headrace" / package / "__init__.py").write_text(f'"""{says}"""\n')
    for package in EMPTIED:
        git("rm", "-q", "-f", str(SOURCES / "headrace" / package / "__init__.py"))


def _path(module: str) -> str:
    return module.removeprefix("headrace.").replace(".", "/") + ".py"


class Rewriting:
    """One file after another, as the modules that it names have moved."""

    def __init__(self, moved: dict[str, str]) -> None:
        self._moved = moved
        self._paths = {
            old.removeprefix("headrace.").replace(".", "/") + ".py": new.removeprefix("headrace.").replace(".", "/")
            + ".py"
            for old, new in moved.items()
            if old.count(".") > 1
        }
        listed = "|".join(sorted(map(re.escape, self._paths), key=len, reverse=True))
        self._path = re.compile(rf"(?<![\w/-])((?:nodeimage/)?(?:headrace/)?)({listed})(?!\w)")
        self._dotted = re.compile(r"\bheadrace(?:\.[a-z_0-9]+)+")

    def text(self, text: str) -> str:
        """Anything but Python."""
        return self._path.sub(lambda found: found[1] + self._paths[found[2]], self._dotted.sub(self._renamed, text))

    def python(self, text: str) -> str:
        """A module."""
        return self._strings(self._imports(text))

    def _renamed(self, found: re.Match[str]) -> str:
        parts = found[0].split(".")
        for count in range(len(parts), 1, -1):
            if (head := ".".join(parts[:count])) in self._moved:
                return ".".join([self._moved[head], *parts[count:]])
        return found[0]

    def _imports(self, text: str) -> str:
        lines = text.splitlines(keepends=True)
        called: dict[str, str] = {}
        edits: list[tuple[int, int, str]] = []
        for node in ast.walk(ast.parse(text)):
            if not (isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "headrace"):
                continue
            made = [*self._import(node, called)]
            if made and node.end_lineno is not None:
                comment = re.search(r"#[^\n]*", "".join(lines[node.lineno - 1 : node.end_lineno]))
                tail = f"  {comment[0]}\n" if comment else "\n"
                indent = " " * node.col_offset
                edits.append((node.lineno, node.end_lineno, "\n".join(indent + each for each in made) + tail))
        for first, last, made_of in sorted(edits, reverse=True):
            lines[first - 1 : last] = [made_of]
        return _uses("".join(lines), called)

    def _import(self, node: ast.ImportFrom, called: dict[str, str]) -> Iterator[str]:
        """What stands in its place; nothing where it may stay."""
        module = str(node.module)
        modules = [each for each in node.names if f"{module}.{each.name}" in self._moved]
        names = [each for each in node.names if each not in modules]
        if not modules and module not in self._moved:
            return
        for each in modules:
            package, _, last = self._moved[f"{module}.{each.name}"].rpartition(".")
            yield f"from {package} import {last}" + (f" as {each.asname}" if each.asname else "")
            if not each.asname and last != each.name:
                called[each.name] = last
        if names:
            listed = ", ".join(each.name + (f" as {each.asname}" if each.asname else "") for each in names)
            # A trailing comma has the formatter give each a line of its own where there are many.
            yield f"from {self._moved.get(module, module)} import ({listed}{',' if len(listed) > 80 else ''})"

    def _strings(self, text: str) -> str:
        lines = text.splitlines(keepends=True)
        tokens = [*tokenize.generate_tokens(io.StringIO(text).readline)]
        for token in reversed([each for each in tokens if each.type in (tokenize.STRING, tokenize.COMMENT)]):
            (first, begin), (last, end) = token.start, token.end
            before, after = lines[first - 1][:begin], lines[last - 1][end:]
            lines[first - 1 : last] = [before + self.text(token.string) + after, *[""] * (last - first)]
        return "".join(lines)


def _uses(text: str, called: dict[str, str]) -> str:
    """With modules called by their new names, but for where a function has something else of the old one."""
    tree, lines = ast.parse(text), text.splitlines(keepends=True)
    others: list[tuple[str, int, int]] = []
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            names = {each.arg for each in ast.walk(function.args) if isinstance(each, ast.arg)}
            names |= {
                each.id for each in ast.walk(function) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
            }
            others += [(name, function.lineno, function.end_lineno or 0) for name in names & called.keys()]
    spots = [
        (node.lineno, node.col_offset, node.id)
        for node in ast.walk(tree)
        if isinstance(node, ast.Name)
        and node.id in called
        and isinstance(node.ctx, ast.Load)
        and not any(name == node.id and first <= node.lineno <= last for name, first, last in others)
    ]
    for line, column, name in sorted(spots, reverse=True):
        raw = lines[line - 1].encode()
        lines[line - 1] = (raw[:column] + called[name].encode() + raw[column + len(name) :]).decode()
    return "".join(lines)


def main() -> None:
    """All of it. Raises CalledProcessError."""
    moved = moves()
    move(moved)
    rewriting = Rewriting(moved)
    for name in git("ls-files", "-co", "--exclude-standard").splitlines():
        path = ROOT / name
        if not path.is_file() or name.startswith(LEFT_ALONE) or name == ".ci/move_modules.py":
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        new = rewriting.python(text) if path.suffix == ".py" else rewriting.text(text)
        if new != text:
            path.write_text(new)
    subprocess.run(["ruff", "check", "--quiet", "--fix", "--select", "I", "."], check=False, cwd=ROOT)
    subprocess.run(["ruff", "format", "--quiet", "."], check=False, cwd=ROOT)


if __name__ == "__main__":
    main()
