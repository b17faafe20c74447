"""Whether one state of a record descends from another: each change has a random id, and a record carries the last.

A cluster store that was set back to an old copy goes on with the same counters and epochs, so none of these tells. The
id of a change that the copy has not, or of one that was made after it in its place, does (DESIGN section 13).

    changes   ("7-1f9c22ab04d3e5f6", "8-...", ...), oldest first: a counter that rises by one, and 64 random bits
              ("7~...", with a tilde, is a change that was given up: it was made to an old copy, and others went on)

A record without any is of before feature level 1. Pure, but for the random bits.
"""

import secrets
from collections.abc import Iterable
from typing import Final

Changes = tuple[str, ...]

MOST: Final = 64
"""So many a record keeps. Who has not heard of it for longer is not told apart any more."""
_ID_BYTES: Final = 8


def with_next(changes: Changes) -> Changes:
    """With the id of the change that is about to be made."""
    counter = 1 + (_counter(changes[-1]) if changes else 0)
    return (*changes, f"{counter}-{secrets.token_hex(_ID_BYTES)}")[-MOST:]


def descends(changes: Changes, known: Changes) -> bool:
    """Whether a record with `changes` comes after, or is, one with those that are known: it has the newest of them, or
    has forgotten so old ones."""
    if not known:
        return True
    newest = known[-1]
    if not changes:
        return False
    return newest in changes or _given_up(newest) in changes or _counter(newest) < _counter(changes[0])


def is_given_up(changes: Changes, known: Changes) -> bool:
    """Whether the newest change that is known is one that a record with `changes` has given up."""
    return bool(known) and _given_up(known[-1]) in changes


def merged(kept: Iterable[Changes], lost: Iterable[Changes] = ()) -> Changes:
    """A record that descends from all of these, one change later; () where none has any. What only `lost` ones have is
    given up.
    """
    of_kept = {change for changes in kept for change in changes}
    of_lost = {change for changes in lost for change in changes} - of_kept
    every = of_kept | {_given_up(change) for change in of_lost}
    every -= {change for change in every if _given_up(change) != change and _given_up(change) in every}
    if not every:
        return ()
    return with_next(tuple(sorted(every, key=lambda change: (_counter(change), change))))


def _given_up(change: str) -> str:
    return change.replace("-", "~", 1)


def _counter(change: str) -> int:
    return int(_given_up(change).partition("~")[0])
