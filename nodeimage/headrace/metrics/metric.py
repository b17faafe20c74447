"""What a declaration of a metric says. Knows nothing of which there are."""

from dataclasses import dataclass
from enum import Enum
from typing import Final

PREFIX: Final = "headrace_"
NODE: Final = "node"
"""The label that every sample of a node has: the node's id."""


class Kind(Enum):
    """A metric's type, as Prometheus calls it."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One metric: its name as it is queried, and what people read about it. Each is equal to itself alone."""

    name: str
    kind: Kind
    unit: str
    """`seconds`, `bytes`, or what is counted; "": a figure without one, such as 0 or 1."""
    labels: tuple[str, ...]
    """Beside `node`."""
    help: str
    """What it means, in one line."""


def gauge(name: str, help_text: str, *labels: str, unit: str = "") -> Metric:
    """Something that goes up and down."""
    return Metric(PREFIX + name, Kind.GAUGE, unit or unit_of(name), labels, help_text)


def counter(name: str, help_text: str, *labels: str, unit: str = "") -> Metric:
    """Something that is counted since the node's start."""
    assert name.endswith("_total"), f"{name}: a counter's name ends in _total"
    return Metric(PREFIX + name, Kind.COUNTER, unit or unit_of(name.removesuffix("_total")), labels, help_text)


def histogram(name: str, help_text: str, *labels: str) -> Metric:
    """How often something took how long, since the node's start."""
    assert name.endswith("_seconds"), f"{name}: a histogram is of seconds"
    return Metric(PREFIX + name, Kind.HISTOGRAM, "seconds", labels, help_text)


def unit_of(name: str) -> str:
    """The unit that a name ends in; "": it has none."""
    last = name.rpartition("_")[2]
    return last if last in {"seconds", "bytes", "records"} else ""
