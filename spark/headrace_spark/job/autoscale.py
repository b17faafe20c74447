"""How many executors a job has, by its lag: the decision, pure.

Up: while the lag is above what is allowed, twice as many, but only when those asked for before are there and have had
their time. Down: one less, when the lag has stayed far below (a quarter) for a while. In between nothing moves, so a
lag that swings around the limit does not make executors come and go.
"""

from dataclasses import dataclass, replace
from typing import Final

FAR_BELOW: Final = 0.25


@dataclass(frozen=True, slots=True)
class Autoscale:
    """What is asked for. Times in seconds."""

    min: int
    max: int
    lag_s: float = 30.0
    up_after_s: float = 30.0
    """Between two steps up."""
    down_after_s: float = 120.0
    """So long the lag has to be far below before each step down."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What has been decided."""

    executors: int
    changed_at: float
    calm_since: float | None = None
    """Since when the lag is far below."""


def decide(standing: Standing, asked: Autoscale, *, lag_s: float, live: int, now: float) -> Standing:
    """The next standing; `live` executors are there. `now` is monotonic."""
    wanted = min(max(standing.executors, asked.min), asked.max)
    if wanted != standing.executors:
        return Standing(wanted, now)
    since = now - standing.changed_at
    if lag_s > asked.lag_s:
        if wanted < asked.max and live >= wanted and since >= asked.up_after_s:
            return Standing(min(2 * wanted, asked.max), now)
        return replace(standing, calm_since=None)
    if lag_s > asked.lag_s * FAR_BELOW:
        return replace(standing, calm_since=None)
    calm_since = now if standing.calm_since is None else standing.calm_since
    if wanted > asked.min and now - calm_since >= asked.down_after_s and since >= asked.down_after_s:
        return Standing(wanted - 1, now)
    return replace(standing, calm_since=calm_since)
