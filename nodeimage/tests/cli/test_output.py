"""Output: nothing in it steers the terminal, and rows are whole lines without a terminal."""

import io
import json
import sys

import pytest

from headrace.cli import output
from headrace.cli.output import (
    WIDE,
    OutputFailed,
    ReaderGone,
    json_text,
    note,
    print_fields,
    print_json,
    print_line,
    print_table,
)


def test_json_is_one_line_and_bytes_that_are_no_text_stand_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"name": "ü\n", "count": 3})
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out) == {"name": "ü\n", "count": 3}
    found = json.loads(json_text({"group": "a\udcff"}))
    assert found["group_base64"] == "Yf8="


def test_escapes_of_terminals_are_shown_and_not_sent(capsys: pytest.CaptureFixture[str]) -> None:
    print_line("a\x1b[31mb")
    note("c\x1b]0;title\x07")
    print_table(["na\x1bme"], [["d\x1b[2J"]])
    print_fields([("e\x1b", "f\x1b")])
    told = capsys.readouterr()
    assert "\x1b" not in told.out + told.err
    assert "31mb" in told.out


def test_a_row_is_one_line_where_no_terminal_is(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["name", "size"], [["n" * 2 * WIDE, 7], [None, 8]], right=["size"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[1].split() == ["n" * 2 * WIDE, "7"]
    assert lines[2].split() == ["-", "8"]


def test_fields_stand_below_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    print_fields([("a", 1), ("longer", 2)])
    assert capsys.readouterr().out == "a       1\nlonger  2\n"
    print_fields([])


class Broken(io.StringIO):
    """A stream that cannot be written to."""

    def __init__(self, error: OSError) -> None:
        super().__init__()
        self.error = error

    def write(self, text: str) -> int:
        raise self.error


def test_a_result_that_cannot_be_written_ends_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Broken(OSError(28, "No space left on device")))
    with pytest.raises(OutputFailed, match="No space left"):
        print_line("x")
    monkeypatch.setattr(sys, "stdout", Broken(BrokenPipeError(32, "Broken pipe")))
    with pytest.raises(ReaderGone):
        print_json({})


@pytest.mark.parametrize("stream", [None, Broken(OSError(5, "Input/output error"))])
def test_a_line_for_a_reader_who_has_gone_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], stream: io.StringIO | None
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    note("x")
    assert capsys.readouterr().out == "", "stdout carries nothing but the result"


def test_a_stream_that_is_closed_is_no_terminal() -> None:
    closed = io.StringIO()
    closed.close()
    assert not output.is_terminal(closed)
    assert not output.is_terminal(None)
