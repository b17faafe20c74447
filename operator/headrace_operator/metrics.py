"""The operator's metrics, as prometheus-client tells them: what each is, what is counted as it happens, and what is
read when Prometheus asks.

Knows nothing of who counts: the parts of the operator keep their own counts, and `figures` reads them.
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
"""Resources that are looked at before others have their turn on the loop."""

Figures = Mapping[str, Mapping[tuple[str, ...], float]]
"""By name without PREFIX, and by the values of its labels."""

FIGURES: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "reconciles_total": (("outcome",), "Looks at a resource, by what came of them; those that failed are repeated."),
    "reconcile_seconds_total": ((), "Time that was spent in reconciles."),
    "reconcile_errors_total": (("kind", "error"), "Reconciles that failed, by kind and class of the error."),
    "missed_changes_total": ((), "Changes that a sweep found, and no watch had told of."),
    "writes_total": ((), "Writes to the API server, statuses included, events not."),
    "unchanged_total": ((), "Objects that were looked at, and were as they should be."),
    "status_writes_total": ((), "Statuses written."),
    "admin_calls_total": ((), "Calls to storage nodes."),
    "queue_resources": ((), "Resources that wait for a reconcile, or are in one."),
    "resources": (("kind",), "Resources that are looked after, by kind."),
    "objects": (
        ("kind", "condition", "status"),
        "Resources by kind, condition and the condition's status; Ready sums up.",
    ),
}
"""The labels of what is read when Prometheus asks, and what it is."""
DURATION: Final = "reconcile_duration_seconds"
DURATION_LABELS: Final = ("kind", "outcome")
DURATION_HELP: Final = "How long a reconcile took, by kind and outcome."

# What a series began at is told by no metric of Headrace: it would double the series of what is counted.
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
        """A reconcile has ended."""
        self._durations.labels(kind, "done" if error is None else "failed").observe(seconds)
        if error is not None:
            self.errors[kind, type(error).__name__] += 1


class Told(Collector):
    """What was read for one answer."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def collect(self) -> Iterable[Metric]:
        """As prometheus-client's registry asks. Raises KeyError for what FIGURES does not have."""
        for name, series in self._figures.items():
            labels, what = FIGURES[name]
            family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            made = family(PREFIX + name.removesuffix("_total"), what, labels=labels)
            for values, value in series.items():
                made.add_metric(values, value)
            yield made


class Metrics:
    """All of one operator's."""

    def __init__(
        self, *, reconciles: Reconciles, figures: Callable[[], Figures], cache: Cache, kinds: Sequence[str]
    ) -> None:
        """`figures`: all of FIGURES but what is counted of `reconciles` and of the resources of `kinds` in `cache`."""
        self._figures = figures
        self._cache = cache
        self._kinds = kinds
        self._reconciles = reconciles
        ProcessCollector(registry=reconciles.registry)

    async def text(self) -> bytes:
        """What /metrics answers."""
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
    """How many resources have a condition so, by kind, condition and status; others have their turn meanwhile."""
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
