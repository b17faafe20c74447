"""The operator's metrics for prometheus-client: their declarations, those counted as they happen, and those read at
each scrape.

The parts of the operator keep their own counts, and `figures` reads them.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import prometheus_client
from prometheus_client import CollectorRegistry, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from headrace_operator.cache import Cache

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PREFIX: Final = "headrace_operator_"
BUCKETS_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
AT_ONCE: Final = 500
"""Resources that are processed before the loop serves other tasks."""

Figures = Mapping[str, Mapping[tuple[str, ...], float]]
"""Values by the metric's name without PREFIX, and by the values of its labels."""

FIGURES: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "reconciles_total": (("outcome",), "Reconciles of resources, by outcome; those that failed are retried."),
    "reconcile_seconds_total": ((), "Time spent in reconciles."),
    "reconcile_errors_total": (("kind", "error"), "Reconciles that failed, by kind and class of the error."),
    "missed_changes_total": ((), "Changes that a sweep found and no watch had reported."),
    "writes_total": ((), "Writes to the API server, including statuses, without events."),
    "unchanged_total": ((), "Objects that were checked and needed no write."),
    "status_writes_total": ((), "Statuses written."),
    "admin_calls_total": ((), "Calls to storage nodes."),
    "queue_resources": ((), "Resources that wait for a reconcile or are being reconciled."),
    "resources": (("kind",), "Resources that the operator manages, by kind."),
    "objects": (
        ("kind", "condition", "status"),
        "Resources by kind, condition and the condition's status; Ready summarizes the other conditions.",
    ),
}
"""The labels and the help text of the metrics that are read at each scrape."""
DURATION: Final = "reconcile_duration_seconds"
DURATION_LABELS: Final = ("kind", "outcome")
DURATION_HELP: Final = "How long a reconcile took, by kind and outcome."

# Headrace exports no creation times of counters: they would double the number of series.
prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]


class Reconciles:
    """Durations and errors of reconciles."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.errors: Counter[tuple[str, ...]] = Counter()
        """By kind and class of the error."""
        self._durations = Histogram(
            PREFIX + DURATION, DURATION_HELP, DURATION_LABELS, registry=self.registry, buckets=BUCKETS_S
        )

    def done(self, kind: str, seconds: float, error: Exception | None) -> None:
        """Count a reconcile that has ended."""
        self._durations.labels(kind, "done" if error is None else "failed").observe(seconds)
        if error is not None:
            self.errors[kind, type(error).__name__] += 1


class Told(Collector):
    """A collector of the values that were read for one scrape."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics to prometheus-client's registry. Raises KeyError for a name that FIGURES does not have."""
        for name, series in self._figures.items():
            labels, what = FIGURES[name]
            family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            made = family(PREFIX + name.removesuffix("_total"), what, labels=labels)
            for values, value in series.items():
                made.add_metric(values, value)
            yield made


class Metrics:
    """All metrics of one operator."""

    def __init__(
        self, *, reconciles: Reconciles, figures: Callable[[], Figures], cache: Cache, kinds: Sequence[str]
    ) -> None:
        """`figures`: reads all of FIGURES except those counted by `reconciles`, and the numbers of resources of `kinds`
        in `cache`.
        """
        self._figures = figures
        self._cache = cache
        self._kinds = kinds
        self._reconciles = reconciles
        ProcessCollector(registry=reconciles.registry)

    async def text(self) -> bytes:
        """Return the response of /metrics."""
        objects = await conditions(self._cache, self._kinds)
        counted: Figures = {
            "resources": {(kind,): self._cache.count(kind) for kind in self._kinds},
            "reconcile_errors_total": self._reconciles.errors,
            "objects": objects,
        }
        told = CollectorRegistry()
        told.register(Told({**self._figures(), **counted}))
        return generate_latest(told) + generate_latest(self._reconciles.registry)


async def conditions(cache: Cache, kinds: Sequence[str]) -> Mapping[tuple[str, ...], float]:
    """Return how many resources have a condition, by kind, condition and status; other tasks run in between."""
    found: Counter[tuple[str, ...]] = Counter()
    for kind in kinds:
        for number, body in enumerate(cache.all(kind), 1):
            found.update(_conditions(kind, body))
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
    return dict(found)


def _conditions(kind: str, body: Mapping[str, Any]) -> Iterable[tuple[str, ...]]:
    told = (body.get("status") or {}).get("conditions") or []
    return ((kind, str(each.get("type")), str(each.get("status"))) for each in told)
