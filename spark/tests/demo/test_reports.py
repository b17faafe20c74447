"""The reports of the demo's processes: one JSON object per line, identified by its type."""

import io
import sys
from types import SimpleNamespace

import msgspec
import pytest

from headrace_spark.demo import reports
from headrace_spark.demo.reports import LiveReport, Orders, PressReport, SparkReport, StateReport, decode_report, say


@pytest.mark.parametrize(
    ("report", "type"),
    [
        (PressReport(1, 2), "press"),
        (SparkReport("runs", batch=3), "spark"),
        (StateReport(1, 2, 3, 4), "state"),
        (LiveReport(1, 0, 0, 1.5, 2.5, 0.1, 0, (), (), 1.0, 2.0), "live"),
    ],
)
def test_a_report_is_one_line_with_its_type_and_is_read_as_it_was_said(
    monkeypatch: pytest.MonkeyPatch, report: reports.AnyReport, type: str
) -> None:
    out = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=out))
    say(report)
    line = out.getvalue()
    assert line.count(b"\n") == 1
    assert msgspec.json.decode(line)["type"] == type
    assert decode_report(line) == report


@pytest.mark.parametrize("line", [b"", b"not JSON", b'{"type": "other"}', b'{"type": "state"}'])
def test_a_line_that_is_no_report_is_refused(line: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_report(line)


def test_where_nobody_reads_any_more_a_report_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(io.BytesIO):
        def write(self, _: object) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=Gone()))
    say(PressReport())


def test_orders_come_word_by_word_until_their_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("work 2.5\nmark\n"))
    heard: list[list[str]] = []
    orders = Orders(heard.append)
    assert orders.wait(60)
    assert orders.ended
    assert heard == [["work", "2.5"], ["mark"]]
