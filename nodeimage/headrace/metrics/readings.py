"""The values of metrics that parts of a node report. Pure."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from headrace.metrics.histogram import Histogram
from headrace.metrics.metric import Metric


class Reading(NamedTuple):
    """The value of one time series at one time."""

    metric: Metric
    value: float | Histogram
    labels: tuple[str, ...] = ()
    """The values of the metric's labels, in the order of its declaration."""


Source = Callable[[], Iterable[Reading | None]]
"""Returns a part's current readings. The caller takes some at a time, so the underlying data may change meanwhile. A
part yields None for an object without a reading, so that the caller regains control even if none has one."""
