"""Where two histories of one partition part: pure.

A partition's history says which home wrote its records: entries (counter, cluster, start), in rising order of
(counter, cluster) and of start. Below the first of them lie the records of counter 0, whose cluster is the topic's
*origin*. A home writes each of its offsets once, and whoever adopts a home takes over its history as a whole; so two
histories that have an entry in common agree on all that lies below it, and on the entry's own records up to where one
of the two goes on to another entry. That is where they part.

What a history says of records that are not there yet counts too: a home that was moved by agreement begins at an offset
that its cluster may still have to catch up to.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from headrace.base.ids import Home, Offset
from headrace.links.source.source import HomeStart

__all__ = ["ENDLESS", "divergence", "home_at", "is_behind"]

ENDLESS: Final = Offset((1 << 63) - 1)


def divergence(
    own: Sequence[HomeStart], own_origin: str, own_end: Offset, theirs: Sequence[HomeStart], their_origin: str
) -> Offset | None:
    """The first offset whose record here is not of their history, if there is one below `own_end`; else None.

    `theirs` is the history that wins. That they hold fewer records than their history may have makes no difference:
    they are the home, or have them from there, and what is missing is to come from them.
    """
    mine, other = _from_zero(own, own_origin), _from_zero(theirs, their_origin)
    common = 0
    for ours, its in zip(mine, other, strict=False):
        if ours != its:
            break
        common += 1
    parted = Offset(0) if not common else min(_start(mine, common), _start(other, common))
    return parted if parted < own_end else None


def home_at(history: Sequence[HomeStart], origin: str, offset: Offset) -> Home:
    """The home that wrote, or will write, the record at an offset."""
    found = Home(0, origin)
    for entry in history:
        if entry.offset > offset:
            break
        found = Home(entry.counter, entry.cluster)
    return found


def is_behind(theirs: Home, ours: Home) -> bool:
    """Whether a cluster that knows a topic's home as `theirs` is not to be pulled from: it has to hear of ours."""
    return theirs < ours


def _from_zero(history: Iterable[HomeStart], origin: str) -> list[HomeStart]:
    return [HomeStart(0, origin, Offset(0)), *history]


def _start(history: Sequence[HomeStart], index: int) -> Offset:
    return history[index].offset if index < len(history) else ENDLESS
