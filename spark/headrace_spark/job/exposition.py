"""A job's metrics for prometheus-client: their names, help texts, and values from the job's status.

Knows nothing about Spark and HTTP. Every sample has the label `streamjob`, since Prometheus sets a label `job` itself.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final, Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from headrace import __version__
from headrace_spark.job.metrics import BATCH_BOUNDS_S

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PREFIX: Final = "headrace_job_"
STATES: Final = ("Starting", "Running", "Done", "Failed")
METRICS: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "info": (("version",), "1, with the driver's version."),
    "start_time_seconds": ((), "When the driver started, in seconds since 1970."),
    "state": (("state",), "1 for the state that the job is in: Starting, Running, Done, Failed."),
    "queries": ((), "Queries that run."),
    "lag_records": ((), "Records of the job's inputs that it has still to process."),
    "lag_seconds": (
        (),
        "How long ago the job had processed everything that its inputs held, by the input furthest behind.",
    ),
    "records_total": ((), "Records that were read."),
    "batches_total": ((), "Batches with records."),
    "batch_seconds": ((), "How long batches with records took."),
    "last_batch_time_seconds": ((), "When the last batch ended, in seconds since 1970."),
    "executors": ((), "Executors that run."),
    "wanted_executors": ((), "Executors that autoscaling asks for."),
}
"""By name without PREFIX: the labels besides `streamjob`, and the help text."""


class ProgressView(Protocol):
    """The part of a job's Progress that metrics read."""

    def status(self) -> dict[str, Any]:
        """See Progress.status."""

    def batch_times(self) -> tuple[Sequence[int], float]:
        """See Progress.batch_times."""


class JobMetrics(Collector):
    """The metrics of one job."""

    def __init__(self, progress: ProgressView, *, job: str) -> None:
        self._progress = progress
        self._job = job
        self._started = time.time()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def text(self) -> bytes:
        """Return the response of /metrics."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics to prometheus-client's registry. Unknown values are left out."""
        status = self._progress.status()
        yield self._metric("info", [((__version__,), 1)])
        yield self._metric("start_time_seconds", [((), self._started)])
        yield self._metric("state", [((state,), int(state == status["state"])) for state in STATES])
        yield self._metric("queries", [((), len(status["queries"]))])
        yield self._metric("lag_records", [((), status["lag_records"])])
        if status["lag_known"]:
            yield self._metric("lag_seconds", [((), status["lag_s"])])
        yield self._metric("records_total", [((), status["records"])])
        yield self._metric("batches_total", [((), status["batches"])])
        yield self._batches()
        if status["last_progress_ms"]:
            yield self._metric("last_batch_time_seconds", [((), status["last_progress_ms"] / 1000)])
        yield self._metric("executors", [((), status["executors"])])
        if status["wanted_executors"] is not None:
            yield self._metric("wanted_executors", [((), status["wanted_executors"])])

    def _metric(self, name: str, samples: Iterable[tuple[tuple[str, ...], float]]) -> Metric:
        labels, what = METRICS[name]
        family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
        made = family(PREFIX + name.removesuffix("_total"), what, labels=("streamjob", *labels))
        for values, value in samples:
            made.add_metric((self._job, *values), value)
        return made

    def _batches(self) -> Metric:
        counts, seconds = self._progress.batch_times()
        _, what = METRICS["batch_seconds"]
        made = HistogramMetricFamily(PREFIX + "batch_seconds", what, labels=("streamjob",))
        bounds = (*map(str, BATCH_BOUNDS_S), "+Inf")
        made.add_metric((self._job,), list(zip(bounds, map(float, accumulate(counts)), strict=True)), seconds)
        return made
