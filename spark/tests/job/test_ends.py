"""How a job ends: with one line, and whether a retry may succeed, where Kubernetes reads it."""

import json
import os
from pathlib import Path
from typing import Any, cast

import pytest

from headrace_spark.errors import BadOption
from headrace_spark.job import __main__ as driver
from headrace_spark.job.ends import TERMINATION_BYTES, End, JobError, end_of, one_line, tell
from headrace_spark.job.progress import Progress


class Query:
    """A query that runs until it is checked once more."""

    def __init__(self, failure: str = "") -> None:
        self.runId = "r"
        self._failure = failure

    def awaitTermination(self, timeout: int | None = None) -> None:
        if timeout is None and self._failure:
            raise RuntimeError(self._failure)


class Session:
    """A Spark session with a query at the first look and none at the second."""

    def __init__(self, *queries: Query) -> None:
        self._looks = [list(queries), []] if queries else [[]]
        self.streams = self

    @property
    def active(self) -> list[Query]:
        return self._looks.pop(0)


def waited(session: Session, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the result of waiting for one query about which Spark's listeners report nothing."""
    monkeypatch.setattr(driver, "REPORTED_S", 0.2)
    progress = Progress()
    progress.started = 1
    return driver._wait(cast("Any", session), progress)


def test_a_query_that_ended_well_is_done_however_late_its_report(monkeypatch: pytest.MonkeyPatch) -> None:
    assert waited(Session(Query()), monkeypatch) == ""


def test_a_query_that_failed_between_two_looks_says_so_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    assert waited(Session(Query("no sensors")), monkeypatch) == "no sensors"


def test_a_query_that_nobody_saw_is_not_taken_for_done(monkeypatch: pytest.MonkeyPatch) -> None:
    assert waited(Session(), monkeypatch) == "a query ended, and Spark did not report how"


WRAPPED = """[STREAM_FAILED] Query [id = 1-a, runId = 2-b] terminated with exception: \
[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed: Traceback (most recent call last):
  File "x.py", line 1, in f
headrace_spark.errors.BadOption: the cluster has no topic /a:b; create it first
 SQLSTATE: 38000
=== Streaming Query ===
Identifier: [id = 1]"""

PLAIN = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [DIVIDE_BY_ZERO] Division by zero. \
SQLSTATE: 22012 SQLSTATE: XXKST
=== Streaming Query ==="""

PYTHON = """An error occurred
Traceback (most recent call last):
  File 'a'
ValueError: first

During it
Traceback (most recent call last):
  File 'b'
KeyError: 'x'
\tat org.apache.Spark"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (WRAPPED, "the cluster has no topic /a:b; create it first"),
        (PLAIN, "[DIVIDE_BY_ZERO] Division by zero."),
        (PYTHON, "KeyError: 'x'"),
        (
            "An error occurred while calling None.org.apache.SparkSession.\n: java.lang.StateError: why\n\tat x",
            "java.lang.StateError: why",
        ),
        (
            "[PARSE_SYNTAX_ERROR] Syntax error. SQLSTATE: 42601 (line 1)\n\n== SQL ==",
            "[PARSE_SYNTAX_ERROR] Syntax error.",
        ),
    ],
)
def test_an_error_is_told_in_one_line(text: str, line: str) -> None:
    assert one_line(text) == line
    assert len(one_line("x" * 10_000)) <= 600


def test_an_end_says_whether_trying_again_may_help() -> None:
    from pyspark.errors import AnalysisException

    assert end_of(AnalysisException("no such column")) is End.WRONG
    assert end_of(BadOption("no")) is End.WRONG
    assert end_of(JobError(End.ABSENT, "no topic")) is End.ABSENT
    assert end_of(RuntimeError("what?")) is End.FAILED


def test_the_last_word_is_where_kubernetes_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADRACE_TERMINATION", str(tmp_path / "log"))
    tell(End.FAILED, "it broke", {"records": 7, "state": "Failed"})
    assert json.loads((tmp_path / "log").read_text()) == {
        "records": 7, "state": "Failed", "end": "failed", "failure": "it broke",
    }  # fmt: skip
    assert capsys.readouterr().err == "headrace: it broke\n"


@pytest.mark.parametrize("letter", ["x", "ä", "𝄞", '"', "\n"])
@pytest.mark.parametrize("figures", [{"state": "Failed"}, {"state": "Failed", "failure": "?" * 9000, "queries": 3}])
def test_a_long_last_word_is_cut_to_what_kubernetes_keeps_and_stays_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, letter: str, figures: dict[str, Any]
) -> None:
    monkeypatch.setenv("HEADRACE_TERMINATION", str(tmp_path / "log"))
    for length in (600, 10_000):
        tell(End.FAILED, f"it broke: {letter * length}", figures)
        kept = (tmp_path / "log").read_bytes()
        assert len(kept) <= TERMINATION_BYTES
        assert length == 600 or len(kept) > TERMINATION_BYTES - 6  # a character has six bytes at most
        told = json.loads(kept)
        assert (told["end"], told["state"]) == ("failed", "Failed")
        assert told["failure"].startswith(f"it broke: {letter * 100}")
        assert set(told["failure"].removeprefix("it broke: ").rstrip("…")) == {letter}
    tell(End.FAILED, "it broke", {"records": 7, "topics": "t" * 9000, "state": "Failed"})
    told = json.loads((tmp_path / "log").read_text())
    assert "topics" not in told
    assert (told["failure"], told["records"], told["end"]) == ("it broke", 7, "failed")


def test_a_last_word_with_bytes_that_are_no_text_is_written_nevertheless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_TERMINATION", str(tmp_path / "log"))
    tell(End.FAILED, "no file " + os.fsdecode(b"x\xff"), {})
    assert json.loads((tmp_path / "log").read_text())["failure"] == "no file x?"
