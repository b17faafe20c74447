"""Readings as Prometheus's text format (version 0.0.4), a bit at a time.

    # HELP headrace_lag_records How far a group is behind.
    # TYPE headrace_lag_records gauge
    headrace_lag_records{group="billing",node="3"} 7.0

What is told of one node may be thousands of lines, and the loop has other work: it is written some lines at a time.
prometheus-client writes the same, and tests compare the two; but it brings an HTTP server, a client and WSGI with it,
which are 7 MiB of each node.
"""

import asyncio
import math
from collections.abc import Iterable, Iterator, Sequence
from time import monotonic
from typing import Final

from headrace.metrics.histogram import Histogram
from headrace.metrics.metric import NODE, Metric
from headrace.metrics.readings import Reading, Source

READINGS_AT_ONCE: Final = 64
"""Far less than a millisecond's, of histograms too."""
PIECE_S: Final = 0.001
"""After so long on the loop others come first."""

_LABEL_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})
_HELP_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\n": "\\n"})

Told = dict[Metric, list[Reading]]


class NodeMetrics:
    """All metrics of one node."""

    def __init__(self, declared: Sequence[Metric], *, node: str | None) -> None:
        """`node`: the label that all have; None: they have none."""
        self._declared = declared
        self._own = {} if node is None else {NODE: node}
        self._sources: list[Source] = []

    def add(self, source: Source) -> None:
        """Ask `source` too, from now on."""
        self._sources.append(source)

    async def text(self, more: Iterable[Reading | None] = ()) -> bytes:
        """What a scrape is answered, a bit at a time; `more` beside what the sources tell."""
        began = monotonic()
        told: Told = {metric: [] for metric in self._declared}
        for source in (lambda: more, *self._sources):
            for number, reading in enumerate(source()):
                _add(told, reading)
                if number % READINGS_AT_ONCE == READINGS_AT_ONCE - 1:
                    began = await _turn(began)
            began = await _turn(began)
        pieces = []
        for metric, readings in told.items():
            if readings:
                pieces.append(head(metric))
            for first in range(0, len(readings), READINGS_AT_ONCE):
                some = readings[first : first + READINGS_AT_ONCE]
                lines = [line for each in some for line in samples(each, self._own)]
                # What came over the network may hold what UTF-8 cannot, and nobody may keep the metrics away with it.
                pieces.append("".join(lines).encode(errors="replace"))
                began = await _turn(began)
        return b"".join(pieces)


def head(metric: Metric) -> bytes:
    """The lines before a metric's samples."""
    told = f"{metric.help}.".translate(_HELP_ESCAPES)
    return f"# HELP {metric.name} {told}\n# TYPE {metric.name} {metric.kind.value}\n".encode()


def samples(reading: Reading, own: dict[str, str]) -> Iterator[str]:
    """A reading's lines. `own`: labels that all samples have."""
    name, value = reading.metric.name, reading.value
    labels = own | dict(zip(reading.metric.labels, reading.labels, strict=True))
    if not isinstance(value, Histogram):
        yield f"{name}{_braces(labels)} {number(value)}\n"
        return
    below = 0
    for bound, count in zip((*map(number, value.bounds), "+Inf"), list(value.counts), strict=True):
        below += count
        yield f"{name}_bucket{_braces(labels | {'le': bound})} {below}.0\n"
    yield f"{name}_count{_braces(labels)} {below}.0\n"
    yield f"{name}_sum{_braces(labels)} {number(value.sum)}\n"


def number(value: float) -> str:
    """As Go reads it."""
    if math.isfinite(value):
        return repr(float(value))
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def _braces(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{labels[name].translate(_LABEL_ESCAPES)}"' for name in sorted(labels)) + "}"


def _add(told: Told, reading: Reading | None) -> None:
    """Raises ValueError for what is not declared."""
    if reading is None:
        return
    readings = told.get(reading.metric)
    if readings is None:
        raise ValueError(f"{reading.metric.name} is not declared")
    readings.append(reading)


async def _turn(began: float) -> float:
    """Let others run, if this had the loop for long since `began`; since when it has it."""
    if monotonic() - began < PIECE_S:
        return began
    await asyncio.sleep(0)
    return monotonic()
