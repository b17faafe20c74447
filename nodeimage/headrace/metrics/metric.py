"""The declaration of a metric. Knows nothing of which metrics exist."""

from dataclasses import dataclass
from enum import Enum
from typing import Final

PREFIX: Final = "headrace_"
NODE: Final = "node"
"""The label of every sample of a node, whose value is the node's id."""


class Kind(Enum):
    """The type of a metric, by Prometheus's name."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One metric: its name in queries, and its description. Compared by identity."""

    name: str
    kind: Kind
    unit: str
    """`seconds`, `bytes`, or the things that are counted; "" for a number without a unit, such as 0 or 1."""
    labels: tuple[str, ...]
    """The names of the labels besides `node`."""
    help: str
    """The meaning of the metric, in one line."""


def gauge(name: str, help_text: str, *labels: str, unit: str = "") -> Metric:
    """Declares a metric that can rise and fall."""
    return Metric(PREFIX + name, Kind.GAUGE, unit or unit_of(name), labels, help_text)


def counter(name: str, help_text: str, *labels: str, unit: str = "") -> Metric:
    """Declares a metric that counts since the node's start."""
    assert name.endswith("_total"), f"{name}: a counter's name ends in _total"
    return Metric(PREFIX + name, Kind.COUNTER, unit or unit_of(name.removesuffix("_total")), labels, help_text)


def histogram(name: str, help_text: str, *labels: str) -> Metric:
    """Declares a histogram of durations since the node's start."""
    assert name.endswith("_seconds"), f"{name}: a histogram is of seconds"
    return Metric(PREFIX + name, Kind.HISTOGRAM, "seconds", labels, help_text)


def unit_of(name: str) -> str:
    """The unit at the end of a metric's name; "" if there is none."""
    last = name.rpartition("_")[2]
    return last if last in {"seconds", "bytes", "records"} else ""
