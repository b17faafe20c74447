"""Which epochs a container's log holds, and from which position on: how two logs find the point where they part.

A history is a list of (epoch, start), rising in both: the frames from `start` to the next entry's start carry `epoch`.
Only one node writes in an epoch, and in order, so two logs that have the same epoch at a position have the same bytes
there (KIP-101, KIP-279). The match point is therefore found by comparing epochs by position, never by a commit mark
(invariant 7). Positions below a history's first start were committed long ago and count as equal, unless the other log
has been away for so long that what it knows of them cannot be compared any more.

Pure functions, no I/O.
"""

from collections.abc import Sequence
from typing import Final

from headrace.base.ids import Epoch, Position

MOST_ENTRIES: Final = 1_000
"""Older entries are forgotten: what lies below the kept ones is committed on all that are in sync."""

History = tuple[tuple[Epoch, Position], ...]


def begin_epoch(history: History, *, epoch: Epoch, start: Position) -> History:
    """The history with `epoch` from `start` on. Epochs in which nothing was written leave no trace."""
    kept = tuple(entry for entry in history if entry[1] < start)
    assert not kept or kept[-1][0] < epoch, f"epoch {epoch} after {kept[-1]}"
    return (*kept, (epoch, start))[-MOST_ENTRIES:]


def clip(history: History, end: Position) -> History:
    """The history of a log that ends at `end`."""
    return tuple(entry for entry in history if entry[1] < end)


def last_epoch(history: History, end: Position) -> Epoch:
    """The epoch of the last frame below `end`; 0 for an empty log."""
    kept = clip(history, end)
    return kept[-1][0] if kept else Epoch(0)


def match_point(
    mine: Sequence[tuple[int, int]], my_end: int, theirs: Sequence[tuple[int, int]], their_end: int
) -> Position:
    """The position up to which two logs hold the same frames; `mine` is the leader's, with all committed ones."""
    end = min(my_end, their_end)
    is_known = bool(mine)
    mine = [entry for entry in mine if entry[1] < my_end]
    theirs = [entry for entry in theirs if entry[1] < their_end]
    if not theirs or not is_known:
        # One is empty, or its frames are older than its history reaches: then they are committed.
        return Position(end)
    if not mine:
        return Position(min(end, theirs[0][1]))
    base = max(mine[0][1], theirs[0][1])
    bounds = sorted({base, *(start for _, start in mine), *(start for _, start in theirs)})
    parts = next((at for at in bounds if base <= at < end and _epoch_at(mine, at) != _epoch_at(theirs, at)), end)
    if parts <= base and theirs[0][1] < base:
        # They may part anywhere below, where this log's epochs are forgotten.
        return Position(theirs[0][1])
    return Position(parts)


def _epoch_at(history: Sequence[tuple[int, int]], position: int) -> int:
    found = history[0][0]
    for epoch, start in history:
        if start > position:
            break
        found = epoch
    return found
