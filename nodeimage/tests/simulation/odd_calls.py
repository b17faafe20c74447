"""Runs in which calls of the cluster store fail with unexpected errors, before or after they have done their work.

Whatever goes wrong in a background step, the step has to be repeated. The failures are drawn from a separate random
source, so other runs stay as they were.
"""

import asyncio
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulation.cluster import Cluster


class OddError(Exception):
    """An error that no call of the store is expected to raise."""


class _OddRuntimeError(OddError, RuntimeError):
    pass


class _OddValueError(OddError, ValueError):
    pass


class _OddKeyError(OddError, KeyError):
    pass


ODD = (_OddRuntimeError, _OddValueError, _OddKeyError)


@dataclass(frozen=True, slots=True)
class Odd:
    """One call in `one_in` raises an unexpected error, from `at` on for `lasts` seconds."""

    at: float
    lasts: float
    one_in: int

    def __str__(self) -> str:
        return f"{self.at:.2f} s store odd, one call in {self.one_in} ({self.lasts:.2f} s)"


def draw_odd(chance: random.Random, *, begin: float, length: float) -> Odd | None:
    """The unexpected errors of a run; some runs have them."""
    if chance.random() < 0.85:
        return None
    return Odd(begin + chance.random() * length, chance.uniform(0.5, length), chance.choice((4, 20, 60)))


class OddCalls:
    """A store some of whose calls raise a foreign error, before or after they do their work."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.one_in = 0
        """One call in so many fails; 0: none."""

    def raises(self) -> OddError | None:
        """The error of the next call; None: none."""
        if not self.one_in or self._chance.randrange(self.one_in):
            return None
        return self._chance.choice(ODD)("nobody expected this of the store")


async def befall_oddly(cluster: "Cluster", fault: Odd) -> None:
    """Have calls fail, and later stop failing."""
    await asyncio.sleep(fault.at - cluster.loop.now)
    cluster.trace(f"FAULT {fault}")
    cluster.odd.one_in = fault.one_in
    await asyncio.sleep(fault.lasts)
    cluster.odd.one_in = 0
