"""Pauses between attempts that fail. Pure: the caller waits, by the event loop's clock or by that of a simulation.

tenacity and stamina own the loop of attempts and the sleep between them. Here the owner of an attempt decides before
each one whether it still makes sense (a lost leader, a deadline, a roll that another node has finished), and several
owners are state machines that never sleep.
"""

from dataclasses import dataclass
from typing import Final

_MAX_DOUBLINGS: Final = 60
"""A power of two beyond any pause."""


def pause_s(failures: int, *, first_s: float, longest_s: float) -> float:
    """Seconds to wait after the failure that follows `failures` others: `first_s` after the first, twice as long after
    each further one, `longest_s` at most."""
    return min(first_s * 2.0 ** min(failures, _MAX_DOUBLINGS), longest_s)


@dataclass(slots=True)
class Backoff:
    """The pauses of one thing that is attempted again and again; see `pause_s`."""

    first_s: float
    longest_s: float
    failures: int = 0
    """In a row."""

    def failed(self) -> float:
        """Counts a failure; returns the seconds to wait before the next attempt."""
        pause = pause_s(self.failures, first_s=self.first_s, longest_s=self.longest_s)
        self.failures += 1
        return pause

    def succeeded(self) -> None:
        """Begins again with the first pause."""
        self.failures = 0
