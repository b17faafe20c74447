from typing import Annotated

import pytest
import typer

from headrace.base.errors import HeadraceError
from headrace.cli.output import ReaderGone
from headrace.cli.running import exit_code_of

app = typer.Typer(no_args_is_help=True)
FAILURES = {
    "headrace": HeadraceError("it is\nnot there"),
    "system": FileNotFoundError(2, "No such file or directory", "f"),
    "gone": ReaderGone("gone"),
    "interrupt": KeyboardInterrupt(),
    "bug": ZeroDivisionError("division by zero"),
}


@app.command()
def fail(how: str, number: Annotated[int, typer.Option(min=1)] = 1) -> None:
    if how in FAILURES:
        raise FAILURES[how]


@app.command()
def other() -> None:
    raise typer.Exit(3)


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (["fail", "well"], 0, ""),
        (["other"], 3, ""),
        (["fail", "headrace"], 1, "a program: it is not there"),
        (["fail", "system"], 1, "a program: f: No such file or directory"),
        (["fail", "gone"], 1, ""),
        (["fail", "interrupt"], 130, ""),
        (
            ["fail", "bug"],
            1,
            "a program: unexpected ZeroDivisionError: division by zero (HEADRACE_DEBUG=1 shows where)",
        ),
        (["fail", "x", "--number", "0"], 2, "(see `a program fail --help`)"),
        (["nothing"], 2, "No such command 'nothing'"),
    ],
)
def test_every_end_has_its_code_and_one_line_at_most(
    arguments: list[str], code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code_of(app, arguments, name="a program") == code
    said = capsys.readouterr().err
    assert line in said
    assert said.count("\n") == bool(line)


def test_a_bug_shows_its_place_where_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADRACE_DEBUG", "1")
    assert exit_code_of(app, ["fail", "bug"], name="a program") == 1
    assert "Traceback" in capsys.readouterr().err
