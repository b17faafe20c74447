"""Arguments that no command can use are refused with their name, before anything is done."""

from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from headrace.cli.arguments import ANY_BYTES, LARGEST_FLOAT, LARGEST_INT, check_commands

NOT_UTF8 = "\udcff"


@pytest.fixture
def done() -> list[object]:
    """The arguments that the command was called with."""
    return []


@pytest.fixture
def app(done: list[object]) -> typer.Typer:
    made = typer.Typer()
    inner = typer.Typer()

    @inner.command()
    def deep(name: Annotated[str, typer.Argument(metavar="NAME")]) -> None:
        done.append(name)

    @made.command()
    def run(
        text: Annotated[str, typer.Argument(metavar="TEXT")] = "",
        count: Annotated[int, typer.Option("--count", "-c")] = 0,
        wait: Annotated[float, typer.Option("--wait/--no-wait")] = 0.0,
        value: Annotated[list[str] | None, typer.Option("--value")] = None,
        raw: Annotated[str, typer.Option("--raw"), ANY_BYTES] = "",
    ) -> None:
        done.append((text, count, wait, value, raw))

    made.add_typer(inner, name="inner")
    check_commands(made)
    check_commands(made)  # calling it again changes nothing
    return made


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["run", NOT_UTF8], "TEXT"),
        (["run", "--count", str(LARGEST_INT + 1)], "--count"),
        (["run", "-c", str(-LARGEST_INT - 1)], "--count"),
        (["run", "--wait", str(2 * LARGEST_FLOAT)], "--wait"),
        (["run", "--wait", "nan"], "--wait"),
        (["run", "--value", "fine", "--value", NOT_UTF8], "--value"),
        (["inner", "deep", NOT_UTF8], "NAME"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_name(
    app: typer.Typer, done: list[object], arguments: list[str], named: str
) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert named in result.output
    assert done == []


def test_what_can_be_used_comes_to_the_command(app: typer.Typer, done: list[object]) -> None:
    arguments = ["run", "ü", "--count", str(LARGEST_INT), "--wait", "1.5", "--value", "a", "--raw", NOT_UTF8]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert done == [("ü", LARGEST_INT, 1.5, ["a"], NOT_UTF8)], "bytes of records may be any"
