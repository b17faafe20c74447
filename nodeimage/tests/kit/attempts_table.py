"""The table of attempts in docs/security.md: what somebody without the right attempts, the result, and the test that
attempts it.

Attempts with a table of their own (kafka/test_attempts.py), and those by the admin API (admin/test_attempts.py), are
all shown; from other tests, only those that kit/attempts.py names.
"""

import ast
import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from headrace.base.errors import Code
from kit.attempts import (
    ADMIN,
    ADMIN_GOT,
    BOMB,
    GROUPS,
    IDS,
    LINKS,
    METADATA,
    NAMES,
    ORDER,
    OTHERS,
    PLAINLY,
    REPLICA,
    TRANSACTIONS,
    WAITING,
    WORDS,
    Row,
)

TESTS: Final = Path(__file__).parents[1]
HEADING: Final = "## Table of attempts"


def rendered() -> str:
    """The section."""
    rows = all_rows()
    lines = [
        HEADING,
        "",
        f"{len(rows)} attempts, each of which a test makes. Where it says *it*, that is the topic, the group or the",
        "transactional id of another tenant. What was refused changed nothing.",
    ]
    for group in ORDER:
        lines += ["", f"**{group}**", "", "| attempt | what it got | test |", "|---|---|---|"]
        lines += [f"| {row.attempt} | {row.got} | `{row.test}` |" for row in rows if row.group == group]
    return "\n".join(lines) + "\n"


def all_rows() -> list[Row]:
    """Every attempt, in the order of the tests."""
    return [*_of_kafka(), *_of_admin_calls(), *OTHERS]


def names_of_tests() -> set[str]:
    """The names of all tests of the node."""
    return {name for path in TESTS.rglob("test_*.py") for name in _tests_in(path)}


def missing_groups(rows: Sequence[Row]) -> list[str]:
    """Groups without any attempt."""
    return [group for group in ORDER if not any(row.group == group for row in rows)]


def _of_kafka() -> Iterator[Row]:
    for attempt in _module(TESTS / "kafka" / "test_attempts.py").ATTEMPTS:
        got = WORDS.get(attempt.name) or ", ".join(f"{Code(code).name} ({code})" for code in _codes(attempt.gets))
        yield Row(_group_of(attempt.name, got), attempt.name, got, "test_somebody_who_may_not")


def _group_of(name: str, got: str) -> str:
    """The group of an attempt: the first one whose keywords are in its name."""
    for words, group in (
        (("replica",), REPLICA),
        (("unpack",), BOMB),
        (("waits",), WAITING),
        (("transaction", "producer id"), TRANSACTIONS),
        (("alias", "full name", "bare name", "other letters", "spellings"), NAMES),
        (("id that nothing", "by its id", "by topic id"), IDS),
        (("looks", "lists all topics", "makes a topic by asking"), METADATA),
        (("group", "member", "commit", "instance"), GROUPS),
    ):
        if any(word in name for word in words):
            return group
    return GROUPS if "GROUP" in got else PLAINLY


def _codes(gets: Any) -> list[int]:
    """The error codes in an attempt's result; of a tuple, only the first member is one."""
    match gets:
        case int():
            return [int(gets)]
        case dict():
            found = [code for each in gets.values() for code in _codes(each)]
        case tuple():
            found = _codes(gets[0])
        case _:
            found = [code for each in gets for code in _codes(each)]
    return list(dict.fromkeys(found))


def _of_admin_calls() -> Iterator[Row]:
    for name in _tests_in(TESTS / "admin" / "test_attempts.py"):
        group = LINKS if {"link", "home", "copy"} & set(name.split("_")) else WAITING if "waits" in name else ADMIN
        yield Row(group, name.removeprefix("test_").replace("_", " "), _got_by_admin_call(name), name)


def _got_by_admin_call(name: str) -> str:
    return ADMIN_GOT.get(name, "an authorization error (29, 30 or 31), whether the thing is there or not")


def _tests_in(path: Path) -> list[str]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    tree = ast.walk(ast.parse(path.read_text()))
    return [node.name for node in tree if isinstance(node, functions) and node.name.startswith("test_")]


def _module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"attempts_of_{path.parent.name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    document = TESTS.parents[1] / "docs" / "security.md"
    text = document.read_text()
    document.write_text(text.partition(HEADING)[0].rstrip() + "\n\n" + rendered())
