"""How a job's progress is measured, and how often."""

import urllib.request

import pytest

from headrace_spark.job import Input, Job
from headrace_spark.job.exposition import CONTENT_TYPE
from headrace_spark.job.progress import LONGEST_PAUSE_S, LOOK_S, Looker, Progress, pause_after, serve


def test_one_slow_look_does_not_keep_the_next_one_away() -> None:
    assert pause_after(0.01) == LOOK_S
    assert pause_after(0.5) == 10
    assert pause_after(40) == LONGEST_PAUSE_S


def test_lag_is_that_of_the_group_under_which_an_input_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its options may name another group than the job's."""
    inputs = (Input("/s", topics=("t",)), Input("/s", "other", ("t",), options={"group": "own"}))
    looked: list[str] = []
    looker = Looker(Job("ns.job", "127.0.0.1:1", "/nowhere", inputs=inputs), Progress())
    monkeypatch.setattr(looker, "_look", lambda group, *_: looked.append(group))
    looker.start()
    looker.finish()
    assert looked == ["ns.job", "own"]


def test_metrics_are_told_over_http() -> None:
    server = serve(Progress(), job="clean", port=0)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_address[1]}/metrics", timeout=10) as answer:
            assert answer.headers["Content-Type"] == CONTENT_TYPE
            text = answer.read().decode()
    finally:
        server.shutdown()
        server.server_close()
    assert 'headrace_job_state{state="Starting",streamjob="clean"} 1.0' in text
