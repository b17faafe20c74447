"""Anomaly detection in a sensor's windows: a robust score against the sensor's recent past, one window at a time.

Holds the decision and its state, as pure functions without Spark. The score is the distance of a
window's mean from the median of the windows before it, in units of their spread (1.4826 x the median absolute
deviation, which is the standard deviation where values are normal; Iglewicz and Hoaglin 1993). Unlike mean and standard
deviation, median and MAD are not shifted by the outliers to be detected. A window is flagged if it and the windows just
before it all score high, so that a single spike of a healthy machine raises no alarm.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import NamedTuple

MAD_TO_DEVIATION = 1.4826

Span = tuple[datetime, datetime]


@dataclass(frozen=True, slots=True)
class Detection:
    """Parameters of the detection. `history`, `warm_up` and `persistence` count windows."""

    history: int = 42
    """How many earlier windows a window is compared with."""
    warm_up: int = 21
    """How many windows must have been seen before any is judged."""
    threshold: float = 3.5
    """Scores above it, or below its negative, count as high."""
    persistence: int = 3
    """How many consecutive windows must score high."""
    least_spread: float = 0.02
    """Minimum of the spread, as a share of the median, so that a constant sensor's noise is no anomaly."""


class Past(NamedTuple):
    """What is kept of a sensor between windows: the means of the last windows, oldest first, and how many of the latest
    consecutive windows scored high.
    """

    means: tuple[float, ...] = ()
    high: int = 0


class Judgement(NamedTuple):
    """The result for one window."""

    baseline: float
    """The median of the earlier windows; the window's own mean during warm-up."""
    score: float
    """Distance from the baseline in spreads; 0 during warm-up."""
    anomaly: bool


def judge(mean: float, past: Past, detection: Detection) -> tuple[Judgement, Past]:
    """Return the judgement of a window by its mean, and the past for the next window."""
    means = past.means[-detection.history :]
    score, baseline = 0.0, mean
    if len(means) >= detection.warm_up:
        baseline = median(means)
        spread = MAD_TO_DEVIATION * median([abs(one - baseline) for one in means])
        spread = max(spread, detection.least_spread * abs(baseline), 1e-12)
        score = (mean - baseline) / spread
    high = past.high + 1 if abs(score) > detection.threshold else 0
    kept = (*means, mean)[-detection.history :]
    return Judgement(baseline, score, high >= detection.persistence), Past(kept, high)


class Quality(NamedTuple):
    """How well alarms match labelled windows."""

    alarms: int
    """Flagged windows, with windows close together counted as one."""
    true_alarms: int
    """Alarms that overlap a labelled window."""
    labelled: int
    found: int
    """Labelled windows that an alarm overlaps."""

    @property
    def precision(self) -> float:
        """The share of alarms that are true; 1 if there are no alarms."""
        return self.true_alarms / self.alarms if self.alarms else 1.0

    @property
    def recall(self) -> float:
        """The share of labelled windows that were found; 1 if there are none."""
        return self.found / self.labelled if self.labelled else 1.0


def alarms_of(flagged: Sequence[Span], *, gap_s: float) -> list[Span]:
    """Merge flagged windows into alarms: windows at most `gap_s` seconds apart are one. In order of time."""
    alarms: list[Span] = []
    for start, end in sorted(flagged):
        if alarms and (start - alarms[-1][1]).total_seconds() <= gap_s:
            alarms[-1] = (alarms[-1][0], max(alarms[-1][1], end))
        else:
            alarms.append((start, end))
    return alarms


def quality(alarms: Sequence[Span], labelled: Sequence[Span]) -> Quality:
    """Return how alarms match labelled windows, by the Numenta Anomaly Benchmark's rule: overlapping is enough."""

    def touch(one: Span, other: Span) -> bool:
        return one[0] <= other[1] and one[1] >= other[0]

    return Quality(
        alarms=len(alarms),
        true_alarms=sum(any(touch(alarm, label) for label in labelled) for alarm in alarms),
        labelled=len(labelled),
        found=sum(any(touch(alarm, label) for alarm in alarms) for label in labelled),
    )
