"""Whether one state of a record descends from another: each change has a random id, and a record carries the latest
ids.

A cluster store that was restored to an old copy continues with the same counters and epochs, so these do not reveal the
restore. The id of a change that the copy lacks, or of one made after the restore in its place, does
(docs/replication.md).

    changes   ("7-1f9c22ab04d3e5f6", "8-...", ...), oldest first: a counter that increases by one, and 64 random bits
              ("7~...", with a tilde, is a change that was given up: it was made to an old copy, and others continued)

A record without changes dates from before feature level 1. Pure, except for the random bits.
"""

import secrets
from collections.abc import Iterable
from typing import Final

Changes = tuple[str, ...]

MAX_CHANGES: Final = 64
"""Changes that a record keeps. A known change that is older than all of them counts as one of the record's own."""
_ID_BYTES: Final = 8


def with_next(changes: Changes) -> Changes:
    """Return `changes` with the id of the change that is about to be made."""
    counter = 1 + (_counter(changes[-1]) if changes else 0)
    return (*changes, f"{counter}-{secrets.token_hex(_ID_BYTES)}")[-MAX_CHANGES:]


def descends(changes: Changes, known: Changes) -> bool:
    """Return whether a record with `changes` is, or comes after, one with the `known` changes.

    It does if it has the newest known change, or has dropped changes as old as that.
    """
    if not known:
        return True
    newest = known[-1]
    if not changes:
        return False
    return newest in changes or _given_up(newest) in changes or _counter(newest) < _counter(changes[0])


def is_given_up(changes: Changes, known: Changes) -> bool:
    """Return whether a record with `changes` has given up the newest known change."""
    return bool(known) and _given_up(known[-1]) in changes


def merged(kept: Iterable[Changes], lost: Iterable[Changes] = ()) -> Changes:
    """Return changes that descend from all of these, one change later; () if there are none.

    Changes that occur only in `lost` are given up.
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
