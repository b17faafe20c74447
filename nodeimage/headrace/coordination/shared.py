"""The state that all groups of a coordinator share: their limits, one heap of deadlines, and one outbox of effects.

Plain state: groups add effects, and the coordinator takes them out, in order.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from headrace.coordination.deadline_heap import Deadlines
from headrace.coordination.limits import GroupLimits
from headrace.coordination.messages import Effect


@dataclass(slots=True, kw_only=True)
class Shared:
    """The shared state of one coordinator's groups."""

    limits: GroupLimits
    deadlines: Deadlines = field(default_factory=Deadlines)
    outbox: list[Effect] = field(default_factory=list)
    tickets: Iterator[int] = field(default_factory=lambda: count(1))
    """The numbers from which tickets of `Persist`s are made."""
