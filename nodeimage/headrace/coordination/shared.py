"""What all groups of a coordinator have in common: their limits, one heap of deadlines, and one outbox of effects.

Plain state: groups write to it, and the coordinator takes out what is to be done, in order.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from headrace.coordination.deadline_heap import Deadlines
from headrace.coordination.limits import GroupLimits
from headrace.coordination.messages import Effect


@dataclass(slots=True, kw_only=True)
class Shared:
    """One coordinator's."""

    limits: GroupLimits
    deadlines: Deadlines = field(default_factory=Deadlines)
    outbox: list[Effect] = field(default_factory=list)
    tickets: Iterator[int] = field(default_factory=lambda: count(1))
    """For `Persist`s: each names one."""
