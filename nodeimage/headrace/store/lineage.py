"""Whether one state of a record descends from another: each change has a random id, and a record carries the last.

A cluster store that was set back to an old copy goes on with the same counters and epochs, so none of these tells. The
id of a change that the copy has not, or of one that was made after it in its place, does (DESIGN section 13).

    changes   ("7-1f9c22ab04d3e5f6", "8-...", ...), oldest first: a counter that rises by one, and 64 random bits

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
    return bool(changes) and (known[-1] in changes or _counter(known[-1]) < _counter(changes[0]))


def merged(lines: Iterable[Changes]) -> Changes:
    """A record that descends from all of these, one change later; () where none has any."""
    every = {change for changes in lines for change in changes}
    if not every:
        return ()
    return with_next(tuple(sorted(every, key=lambda change: (_counter(change), change))))


def _counter(change: str) -> int:
    return int(change.partition("-")[0])
