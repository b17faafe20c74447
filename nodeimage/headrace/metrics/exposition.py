"""Encodes readings in Prometheus's text format (version 0.0.4), some lines at a time.

    # HELP headrace_group_members Members of a group.
    # TYPE headrace_group_members gauge
    headrace_group_members{group="billing",node="3"} 7.0

The metrics of one node may be thousands of lines, and the loop has other work, so they are encoded some lines at a
time. prometheus-client would write the same, and tests compare the two; but it includes an HTTP server, a client and
WSGI, which take 7 MiB of memory in each node.
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
"""Readings that are handled before the time is checked: far less than a millisecond's work, even for histograms."""
PIECE_S: Final = 0.001
"""Seconds on the loop after which other tasks get their turn."""

_LABEL_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})
_HELP_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\n": "\\n"})

Told = dict[Metric, list[Reading]]


class NodeMetrics:
    """Collects and encodes all metrics of one node."""

    def __init__(self, declared: Sequence[Metric], *, node: str | None) -> None:
        """`node`: the value of the label `node` of all samples; None: they have no such label."""
        self._declared = declared
        self._own = {} if node is None else {NODE: node}
        self._sources: list[Source] = []

    def add(self, source: Source) -> None:
        """Includes the readings of `source` from now on."""
        self._sources.append(source)

    async def text(self, more: Iterable[Reading | None] = ()) -> bytes:
        """The response to a scrape: `more` readings and those of all sources. Yields to other tasks now and then."""
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
                # Text from the network may not be encodable in UTF-8, and must not prevent the response.
                pieces.append("".join(lines).encode(errors="replace"))
                began = await _turn(began)
        return b"".join(pieces)


def head(metric: Metric) -> bytes:
    """The two comment lines before a metric's samples."""
    told = f"{metric.help}.".translate(_HELP_ESCAPES)
    return f"# HELP {metric.name} {told}\n# TYPE {metric.name} {metric.kind.value}\n".encode()


def samples(reading: Reading, own: dict[str, str]) -> Iterator[str]:
    """The lines of a reading. `own`: labels that all samples have."""
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
    """A number in the form that Go parses."""
    if math.isfinite(value):
        return repr(float(value))
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def _braces(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{labels[name].translate(_LABEL_ESCAPES)}"' for name in sorted(labels)) + "}"


def _add(told: Told, reading: Reading | None) -> None:
    """Adds a reading to those of its metric. Raises ValueError for a metric that is not declared."""
    if reading is None:
        return
    readings = told.get(reading.metric)
    if readings is None:
        raise ValueError(f"{reading.metric.name} is not declared")
    readings.append(reading)


async def _turn(began: float) -> float:
    """Lets other tasks run if `PIECE_S` has passed since `began`. Returns when the current piece of work began."""
    if monotonic() - began < PIECE_S:
        return began
    await asyncio.sleep(0)
    return monotonic()
