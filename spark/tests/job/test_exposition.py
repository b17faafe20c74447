"""A job's metrics: what is exported, and what is left out because it is unknown."""

from collections.abc import Sequence
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from headrace_spark.job.exposition import METRICS, PREFIX, JobMetrics
from headrace_spark.job.metrics import BATCH_BOUNDS_S, Rate

STATUS: dict[str, Any] = {
    "state": "Running",
    "queries": ["clean"],
    "lag_known": True,
    "lag_records": 12,
    "lag_s": 3.5,
    "records": 1000,
    "batches": 3,
    "last_progress_ms": 1_700_000_000_500,
    "executors": 2,
    "wanted_executors": 4,
}


class Progress:
    def __init__(self, rate: Rate, **status: Any) -> None:
        self._rate = rate
        self._status = {**STATUS, **status}

    def status(self) -> dict[str, Any]:
        return self._status

    def batch_times(self) -> tuple[Sequence[int], float]:
        return self._rate.batch_counts, self._rate.batches_s


def told(progress: Progress, job: str = "clean") -> dict[tuple[str, str], float]:
    """Return the samples by name and the label besides `streamjob`, which all have."""
    found = {}
    for family in text_string_to_metric_families(JobMetrics(progress, job=job).text().decode()):
        for each in family.samples:
            labels = dict(each.labels)
            assert labels.pop("streamjob") == job
            found[each.name, next(iter(labels.values()), "")] = each.value
    return found


def test_all_that_is_declared_is_told() -> None:
    rate = Rate()
    for seconds in (0.05, 0.3, 1000.0):
        rate.batch(10, seconds, now=2000)
    rate.batch(0, 5.0, now=2000)
    found = told(Progress(rate))
    ends = {f"batch_seconds_{end}" for end in ("bucket", "count", "sum")}
    assert {name.removeprefix(PREFIX) for name, _ in found} == {*METRICS, *ends} - {"batch_seconds"}
    assert found["headrace_job_state", "Running"] == 1
    assert found["headrace_job_state", "Failed"] == 0
    assert found["headrace_job_lag_seconds", ""] == 3.5
    assert found["headrace_job_last_batch_time_seconds", ""] == 1_700_000_000.5
    assert found["headrace_job_batch_seconds_bucket", "0.1"] == 1
    assert found["headrace_job_batch_seconds_bucket", str(BATCH_BOUNDS_S[-1])] == 2
    assert found["headrace_job_batch_seconds_bucket", "+Inf"] == found["headrace_job_batch_seconds_count", ""] == 3
    assert found["headrace_job_batch_seconds_sum", ""] == 1000.35


def test_what_is_not_known_is_left_out() -> None:
    names = {name for name, _ in told(Progress(Rate(), lag_known=False, last_progress_ms=0, wanted_executors=None))}
    assert "headrace_job_lag_records" in names
    assert not names & {
        "headrace_job_lag_seconds",
        "headrace_job_last_batch_time_seconds",
        "headrace_job_wanted_executors",
    }


def test_a_name_cannot_break_the_text() -> None:
    assert told(Progress(Rate()), job='a"\\\n')["headrace_job_queries", ""] == 1
