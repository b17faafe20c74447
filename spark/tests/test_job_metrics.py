"""A job's figures, its executors and its last words, without Java."""

import json
from pathlib import Path
from typing import Any, cast

import pytest

from headrace_spark.errors import BadOption
from headrace_spark.job import Autoscale, Input, Job, read
from headrace_spark.job import __main__ as driver
from headrace_spark.job.autoscale import Standing, decide
from headrace_spark.job.ends import End, JobError, end_of, one_line, tell
from headrace_spark.job.metrics import LOOKS, Lag, Rate
from headrace_spark.job.progress import LONGEST_PAUSE_S, LOOK_S, Looker, Progress, pause_after

P, Q = ("/s:t", 0), ("/s:t", 1)


# --- lag and rate


def test_lag_is_what_is_stored_and_not_yet_done() -> None:
    lag = Lag()
    lag.look({P: 100, Q: 50}, {P: 40}, now=10)
    assert (lag.records, lag.seconds) == (110, 0)
    lag.look({P: 100, Q: 50}, {P: 100, Q: 49}, now=15)
    assert (lag.records, lag.seconds) == (1, 5)
    lag.look({P: 100, Q: 50}, {P: 100, Q: 50}, now=20)
    assert (lag.records, lag.seconds) == (0, 0)


def test_lag_in_seconds_is_since_the_job_was_at_the_end() -> None:
    lag = Lag()
    for now in range(0, 50, 10):
        lag.look({P: now * 100}, {P: 0}, now=now)
    assert lag.seconds == 40
    lag.look({P: 5000}, {P: 2000}, now=50)  # it has done what had come by second 20
    assert (lag.records, lag.seconds) == (3000, 30)
    lag.look({P: 5000}, {P: 4500}, now=55)
    assert lag.seconds == 15


def test_a_job_that_stands_still_falls_behind_second_by_second() -> None:
    lag = Lag()
    lag.look({P: 10}, {P: 10}, now=0)
    lag.look({P: 11}, {P: 10}, now=2)
    lag.look({P: 11}, {P: 10}, now=600)
    assert (lag.records, lag.seconds) == (1, 600)


def test_looks_are_bounded_and_the_oldest_stays() -> None:
    lag = Lag()
    for now in range(10 * LOOKS):
        lag.look({P: now + 1}, {P: 0}, now=now)
    assert len(lag._looks) <= LOOKS
    assert lag.seconds == 10 * LOOKS - 1


def test_a_position_beyond_the_end_is_no_lag() -> None:
    lag = Lag()
    lag.look({P: 5}, {P: 9}, now=1)
    assert (lag.records, lag.seconds) == (0, 0)


def test_the_rate_is_over_the_last_minute() -> None:
    rate = Rate()
    rate.start(now=0)
    rate.batch(600, 2.0, now=10)
    assert rate.per_second(now=10) == 60
    rate.batch(0, 0.1, now=20)
    assert rate.batch_s == 2.0
    rate.batch(600, 3.0, now=60)
    assert rate.per_second(now=60) == 20
    assert rate.per_second(now=75) == 10
    assert rate.per_second(now=130) == 0
    assert (rate.records, rate.batch_s) == (1200, 3.0)


def test_one_slow_look_does_not_keep_the_next_one_away() -> None:
    assert pause_after(0.01) == LOOK_S
    assert pause_after(0.5) == 10
    assert pause_after(40) == LONGEST_PAUSE_S


def test_lag_is_that_of_the_group_under_which_an_input_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its options may name another than the job's."""
    inputs = (Input("/s", topics=("t",)), Input("/s", "other", ("t",), options={"group": "own"}))
    looked: list[str] = []
    looker = Looker(Job("ns.job", "127.0.0.1:1", "/nowhere", inputs=inputs), Progress())
    monkeypatch.setattr(looker, "_look", lambda group, *_: looked.append(group))
    looker.start()
    looker.finish()
    assert looked == ["ns.job", "own"]


# --- how queries end


class Query:
    """One that runs until it is looked at once more."""

    def __init__(self, failure: str = "") -> None:
        self.runId = "r"
        self._failure = failure

    def awaitTermination(self, timeout: int | None = None) -> None:
        if timeout is None and self._failure:
            raise RuntimeError(self._failure)


class Session:
    """Of Spark, with a query at the first look and none at the second."""

    def __init__(self, *queries: Query) -> None:
        self._looks = [list(queries), []] if queries else [[]]
        self.streams = self

    @property
    def active(self) -> list[Query]:
        return self._looks.pop(0)


def waited(session: Session, monkeypatch: pytest.MonkeyPatch) -> str:
    """What is said of a run of one query of which Spark's listeners report nothing."""
    monkeypatch.setattr(driver, "REPORTED_S", 0.2)
    progress = Progress()
    progress.started = 1
    return driver._wait(cast("Any", session), progress)


def test_a_query_that_ended_well_is_done_however_late_its_report(monkeypatch: pytest.MonkeyPatch) -> None:
    assert waited(Session(Query()), monkeypatch) == ""


def test_a_query_that_failed_between_two_looks_says_so_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    assert waited(Session(Query("no sensors")), monkeypatch) == "no sensors"


def test_a_query_that_nobody_saw_is_not_taken_for_done(monkeypatch: pytest.MonkeyPatch) -> None:
    assert waited(Session(), monkeypatch) == "a query ended, and Spark did not say how"


# --- executors

ASKED = Autoscale(min=1, max=5, lag_s=30, up_after_s=30, down_after_s=120)


def test_a_backlog_doubles_the_executors_up_to_the_most() -> None:
    standing = Standing(1, changed_at=0)
    assert decide(standing, ASKED, lag_s=31, live=1, now=29) == standing
    standing = decide(standing, ASKED, lag_s=31, live=1, now=30)
    assert standing == Standing(2, changed_at=30)
    standing = decide(standing, ASKED, lag_s=99, live=2, now=60)
    standing = decide(standing, ASKED, lag_s=99, live=4, now=90)
    assert standing == Standing(5, changed_at=90)
    assert decide(standing, ASKED, lag_s=9999, live=5, now=500) == standing


def test_no_more_are_asked_for_before_the_last_ones_are_there() -> None:
    standing = Standing(2, changed_at=0)
    assert decide(standing, ASKED, lag_s=99, live=1, now=1000) == standing


def test_they_go_one_by_one_after_a_long_calm() -> None:
    standing = Standing(3, changed_at=0)
    standing = decide(standing, ASKED, lag_s=0, live=3, now=200)
    assert standing == Standing(3, 0, calm_since=200)
    standing = decide(standing, ASKED, lag_s=7, live=3, now=319)
    assert standing.executors == 3
    standing = decide(standing, ASKED, lag_s=7, live=3, now=320)
    assert standing == Standing(2, changed_at=320)
    standing = decide(standing, ASKED, lag_s=0, live=2, now=321)
    assert decide(standing, ASKED, lag_s=0, live=2, now=440).executors == 2
    assert decide(standing, ASKED, lag_s=0, live=2, now=441).executors == 1


def test_a_lag_that_swings_around_the_limit_moves_nothing() -> None:
    standing = Standing(2, changed_at=0)
    for now in range(1000, 2000, 10):
        standing = decide(standing, ASKED, lag_s=29 if now % 20 else 0, live=2, now=now)
    assert standing.executors == 2


def test_what_is_asked_for_holds_at_once() -> None:
    assert decide(Standing(1, 0), Autoscale(min=3, max=5), lag_s=0, live=1, now=1).executors == 3
    assert decide(Standing(9, 0), ASKED, lag_s=99, live=9, now=1).executors == 5


# --- last words


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


# --- the definition


def test_a_definition_is_read_and_what_is_new_in_it_left_alone() -> None:
    job = read(
        json.dumps(
            {
                "name": "ns.j", "bootstrap": "a:1", "checkpoint": "/c/", "later": 1,
                "inputs": [{"stream": "/s", "name": "left", "topics": ["t"], "options": {"maxOffsetsPerTrigger": "5"}}],
                "output": {"stream": "/o"}, "autoscale": {"min": 1, "max": 2, "lag_s": 9},
            }
        )
    )  # fmt: skip
    assert job.reading("left") == {
        "bootstrap": "a:1", "stream": "/s", "topics": "t", "startingOffsets": "earliest", "group": "ns.j.left",
        "maxOffsetsPerTrigger": "5",
    }  # fmt: skip
    assert job.place("output") == "/c/output"
    assert job.autoscale == Autoscale(1, 2, 9)


def test_what_the_job_does_not_have_is_said() -> None:
    job = Job("j", "a:1", "/c")
    with pytest.raises(JobError, match=r"the job has no input input \(it has: none\)"):
        job.reading()
    with pytest.raises(JobError, match="the job has no output"):
        job.write(None)  # type: ignore[arg-type]
