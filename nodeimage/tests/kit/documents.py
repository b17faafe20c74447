"""The code blocks of README, CONTRIBUTING and docs: the commands that a reader types, and the output shown."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[3]
DOCUMENTS: Final = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
SHELLS: Final = ("sh", "console", "")
"""Languages of blocks with commands. A block without a language has commands if it looks like it."""
PROGRAMS: Final = (".venv/bin/", "make ", "py-spy ", "PYTHONPATH=")
"""Beginnings of lines that are commands without a prompt, in blocks without a language."""
OPERATORS: Final = ("|", "||", "&&", ";")

_FENCE: Final = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_COMMENT: Final = re.compile(r"\s\s+#.*$|^#.*$")


@dataclass(frozen=True, slots=True)
class Command:
    """A line that a reader types, without its comment, and the lines that are shown below it."""

    line: str
    shown: Sequence[str] = ()

    @property
    def parts(self) -> list[list[str]]:
        """The words of each program that the line starts."""
        lexer = shlex.shlex(self.line, posix=True, punctuation_chars="|&;")
        lexer.whitespace_split = True
        lexer.commenters = ""
        parts: list[list[str]] = [[]]
        for word in lexer:
            if word in OPERATORS:
                parts.append([])
            else:
                parts[-1].append(word)
        return [part for part in parts if part]


@dataclass(frozen=True, slots=True)
class Block:
    """A block of a document."""

    document: str
    """Its path from the root."""
    language: str
    text: str

    @property
    def commands(self) -> list[Command]:
        """The commands typed in the block; none if its language is not a shell's."""
        return list(_commands(self.text, self.language)) if self.language in SHELLS else []


@cache
def blocks(document: Path) -> tuple[Block, ...]:
    """All blocks of a document, in order."""
    name = str(document.relative_to(ROOT))
    return tuple(Block(name, match[1], match[2]) for match in _FENCE.finditer(document.read_text()))


def all_commands() -> Iterator[tuple[str, Command]]:
    """Every command of every document, with the document's path."""
    for document in DOCUMENTS:
        for block in blocks(document):
            for command in block.commands:
                yield block.document, command


def _commands(text: str, language: str) -> Iterator[Command]:
    lines = text.splitlines()
    if any(line.startswith("$ ") for line in lines):
        yield from _typed(lines)
    elif language or any(line.startswith(PROGRAMS) for line in lines):
        waiting = ""
        for line in lines:
            waiting += _COMMENT.sub("", line)
            if not _continues(waiting):
                if waiting.strip():
                    yield Command(waiting.strip())
                waiting = ""
            waiting = waiting.removesuffix("\\")


def _typed(lines: Sequence[str]) -> Iterator[Command]:
    """The commands of a session: each follows `$ `, and its output is below it."""
    typed, shown = "", list[str]()
    for line in lines:
        if line.startswith("$ ") or _continues(typed):
            if not _continues(typed):
                if typed:
                    yield Command(typed, tuple(shown))
                typed, shown = "", []
            typed = (typed.removesuffix("\\") + _COMMENT.sub("", line.removeprefix("$ ")).strip() + " ").rstrip(" ")
            typed += " " if _continues(typed) and not typed.endswith("\\") else ""
        elif typed:
            shown.append(line)
    if typed:
        yield Command(typed, tuple(shown))


def _continues(line: str) -> bool:
    return line.rstrip().endswith(("|", "\\", "&&"))


# --- the shape of what is printed


UNITS: Final = frozenset({"B", "KiB", "MiB", "GiB", "s", "ms", "-"})


def shape(line: str) -> str:
    """The words of a line; all numbers, times and sizes are treated alike."""
    words: list[str] = []
    for word in line.replace(",", " ").split():
        plain = "#" if any(letter.isdigit() for letter in word) or word in UNITS else word
        if plain != "#" or words[-1:] != ["#"]:
            words.append(plain)
    return " ".join(words)


def missing_lines(shown: Sequence[str], printed: Sequence[str]) -> list[str]:
    """The lines of `shown` without a similar line in `printed`; rows of a table are compared by their number of
    columns.

    `...` stands for any lines. A table begins with a line without numbers that both have.
    """
    shapes = {shape(line) for line in printed}
    widths = {len(_cells(line)) for line in printed}
    missing, in_table = [], False
    for line in shown:
        if not line.strip() or line.strip() == "...":
            in_table = False
        elif line.startswith("{"):
            if not any(_is_alike(json.loads(line), json.loads(each)) for each in printed if each.startswith("{")):
                missing.append(line)
        elif shape(line) in shapes:
            in_table = in_table or "#" not in shape(line)
        elif not (in_table and len(_cells(line)) in widths):
            missing.append(line)
    return missing


def _cells(line: str) -> list[str]:
    return re.split(r"\s{2,}", line.strip())


def _is_alike(shown: Any, printed: Any) -> bool:
    """Whether two JSON values have the same fields; the printed one may have more."""
    match shown, printed:
        case dict(), dict():
            return all(name in printed and _is_alike(value, printed[name]) for name, value in shown.items())
        case list(), list():
            return not shown or (bool(printed) and all(_is_alike(each, printed[0]) for each in shown))
        case _:
            return type(shown) is type(printed)


def sections(document: str, titles: Sequence[str]) -> Mapping[str, Sequence[Block]]:
    """The blocks below each of these headings, up to the next heading of any level."""
    text = (ROOT / document).read_text()
    found: dict[str, Sequence[Block]] = {}
    for title in titles:
        (body,) = re.findall(rf"^#+ {re.escape(title)}$(.*?)(?=^#{{2,}} |\Z)", text, re.MULTILINE | re.DOTALL)
        found[title] = [Block(document, match[1], match[2]) for match in _FENCE.finditer(body)]
    return found
