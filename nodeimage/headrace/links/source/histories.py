"""Finds where two histories of one partition diverge. Pure functions.

A partition's history says which home wrote its records: entries (counter, cluster, start), in ascending order of
(counter, cluster) and of start. The records below the first entry belong to counter 0, whose cluster is the topic's
*origin*. A home writes each of its offsets once, and a cluster that becomes home inherits the previous history as a
whole. So two histories with a common entry agree on everything below that entry, and on the entry's own records up to
where one of the two continues with another entry. There they diverge.

Entries count even if their records do not exist here yet: a home that moved by agreement begins at an offset that its
cluster may still have to catch up to.
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
    """The first offset below `own_end` whose record here is not part of their history, or None.

    `theirs` is the winning history. It makes no difference if they hold fewer records than their history covers: they
    are the home or copy from it, and will deliver the missing records.
    """
    mine, other = _from_zero(own, own_origin), _from_zero(theirs, their_origin)
    common = 0
    for ours, its in zip(mine, other, strict=False):
        if ours != its:
            break
        common += 1
    diverged_at = Offset(0) if not common else min(_start(mine, common), _start(other, common))
    return diverged_at if diverged_at < own_end else None


def home_at(history: Sequence[HomeStart], origin: str, offset: Offset) -> Home:
    """The home that wrote, or will write, the record at an offset."""
    found = Home(0, origin)
    for entry in history:
        if entry.offset > offset:
            break
        found = Home(entry.counter, entry.cluster)
    return found


def is_behind(theirs: Home, ours: Home) -> bool:
    """Whether a cluster that knows the home `theirs` must not be pulled from, as it has yet to learn of `ours`."""
    return theirs < ours


def _from_zero(history: Iterable[HomeStart], origin: str) -> list[HomeStart]:
    return [HomeStart(0, origin, Offset(0)), *history]


def _start(history: Sequence[HomeStart], index: int) -> Offset:
    return history[index].offset if index < len(history) else ENDLESS
