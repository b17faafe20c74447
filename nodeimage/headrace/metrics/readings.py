"""What parts of a node tell of their metrics when they are asked. Pure."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from headrace.metrics.histogram import Histogram
from headrace.metrics.metric import Metric


class Reading(NamedTuple):
    """One series at one time."""

    metric: Metric
    value: float | Histogram
    labels: tuple[str, ...] = ()
    """The values of the metric's labels, in its order."""


Source = Callable[[], Iterable[Reading | None]]
"""A part's readings as of now. They are taken some at a time: what they are read from may change meanwhile. None: the
part has looked at something of which there is nothing to tell; so whoever takes them hears of all that takes time."""
