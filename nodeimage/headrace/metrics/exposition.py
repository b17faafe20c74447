"""Readings as Prometheus's text format, by prometheus-client's registry and its writer.

What is told of one node may be thousands of lines, and the loop has other work: it is written some lines at a time.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from time import monotonic
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import Metric as Family
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from headrace.metrics.histogram import Histogram
from headrace.metrics.metric import NODE, Kind, Metric
from headrace.metrics.readings import Reading, Source

READINGS_AT_ONCE: Final = 64
"""Half a millisecond's."""
HISTOGRAMS_AT_ONCE: Final = 4
"""As much, of these."""
PIECE_S: Final = 0.001
"""After so long on the loop others come first."""


Told = dict[Metric, list[Reading]]


class NodeMetrics(Collector):
    """All metrics of one node, for a registry of prometheus-client."""

    def __init__(self, declared: Sequence[Metric], *, node: str | None) -> None:
        """`node`: the label that all have; None: they have none."""
        self._declared = declared
        self._own = {} if node is None else {NODE: node}
        self._sources: list[Source] = []
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def add(self, source: Source) -> None:
        """Ask `source` too, from now on."""
        self._sources.append(source)

    def collect(self) -> Iterator[Family]:
        """See prometheus-client's Collector."""
        told = self._none()
        for source in self._sources:
            for reading in source():
                _add(told, reading)
        for metric, values in told.items():
            if values:
                yield self._family(metric, values)

    async def text(self, more: Iterable[Reading | None] = ()) -> bytes:
        """What a scrape is answered, a bit at a time; `more` beside what the sources tell."""
        began = monotonic()
        told = self._none()
        for source in (lambda: more, *self._sources):
            for number, reading in enumerate(source()):
                _add(told, reading)
                if number % READINGS_AT_ONCE == READINGS_AT_ONCE - 1:
                    began = await _turn(began)
            began = await _turn(began)
        pieces = []
        for metric, values in told.items():
            at_once = HISTOGRAMS_AT_ONCE if metric.kind is Kind.HISTOGRAM else READINGS_AT_ONCE
            for first in range(0, len(values), at_once):
                written = generate_latest(_Only(self._family(metric, values[first : first + at_once])))
                pieces.append(_without_head(written) if first else written)
                began = await _turn(began)
        return b"".join(pieces)

    def _none(self) -> Told:
        """All that is declared, in that order, without a reading yet."""
        return {metric: [] for metric in self._declared}

    def _family(self, metric: Metric, readings: Iterable[Reading]) -> Family:
        labels = [*self._own, *metric.labels]
        own = list(self._own.values())
        match metric.kind:
            case Kind.GAUGE:
                gauges = GaugeMetricFamily(metric.name, f"{metric.help}.", labels=labels)
                for each in readings:
                    gauges.add_metric([*own, *each.labels], _number(each))
                return gauges
            case Kind.COUNTER:
                counters = CounterMetricFamily(metric.name, f"{metric.help}.", labels=labels)
                for each in readings:
                    counters.add_metric([*own, *each.labels], _number(each))
                return counters
            case Kind.HISTOGRAM:
                histograms = HistogramMetricFamily(metric.name, f"{metric.help}.", labels=labels)
                for each in readings:
                    assert isinstance(each.value, Histogram)
                    histograms.add_metric([*own, *each.labels], buckets(each.value), each.value.sum)
                return histograms


def buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Upper bounds and how many durations are not above them."""
    found, below = [], 0
    for bound, count in zip((*map(str, histogram.bounds), "+Inf"), list(histogram.counts), strict=True):
        below += count
        found.append((bound, float(below)))
    return found


def _number(reading: Reading) -> float:
    assert not isinstance(reading.value, Histogram)
    return reading.value


class _Only(Collector):
    """A registry of one family, or a part of it."""

    def __init__(self, family: Family) -> None:
        self._family = family

    def collect(self) -> Iterable[Family]:
        """See prometheus-client's Collector."""
        return (self._family,)


def _add(told: Told, reading: Reading | None) -> None:
    """Raises ValueError for what is not declared."""
    if reading is None:
        return
    readings = told.get(reading.metric)
    if readings is None:
        raise ValueError(f"{reading.metric.name} is not declared")
    readings.append(reading)


def _without_head(written: bytes) -> bytes:
    """Without the lines of HELP and TYPE."""
    return written.split(b"\n", 2)[2]


async def _turn(began: float) -> float:
    """Let others run, if this had the loop for long since `began`; since when it has it."""
    if monotonic() - began < PIECE_S:
        return began
    await asyncio.sleep(0)
    return monotonic()
