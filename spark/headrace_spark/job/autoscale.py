"""Decides how many executors a job has, by its lag. Pure.

Up: while the lag exceeds the limit, the number is doubled, but only once the executors requested before are running and
have had time to work. Down: one less, when the lag has stayed far below the limit (a quarter) for a while. In between
the number stays, so that a lag that oscillates around the limit does not add and remove executors.
"""

from dataclasses import dataclass, replace
from typing import Final

FAR_BELOW: Final = 0.25


@dataclass(frozen=True, slots=True)
class Autoscale:
    """The requested scaling. Times in seconds."""

    min: int
    max: int
    lag_s: float = 30.0
    up_after_s: float = 30.0
    """Least time between two steps up."""
    down_after_s: float = 120.0
    """Time that the lag has to stay far below the limit before each step down."""


@dataclass(frozen=True, slots=True)
class ScaleState:
    """The last decision."""

    executors: int
    changed_at: float
    calm_since: float | None = None
    """Since when the lag has been far below the limit."""


def decide(state: ScaleState, asked: Autoscale, *, lag_s: float, live: int, now: float) -> ScaleState:
    """Return the next state. `live`: how many executors run. `now`: monotonic seconds."""
    wanted = min(max(state.executors, asked.min), asked.max)
    if wanted != state.executors:
        return ScaleState(wanted, now)
    since = now - state.changed_at
    if lag_s > asked.lag_s:
        if wanted < asked.max and live >= wanted and since >= asked.up_after_s:
            return ScaleState(min(2 * wanted, asked.max), now)
        return replace(state, calm_since=None)
    if lag_s > asked.lag_s * FAR_BELOW:
        return replace(state, calm_since=None)
    calm_since = now if state.calm_since is None else state.calm_since
    if wanted > asked.min and now - calm_since >= asked.down_after_s and since >= asked.down_after_s:
        return ScaleState(wanted - 1, now)
    return replace(state, calm_since=calm_since)
