"""The epochs of a container's log and their start positions: how two logs find the point where they diverge.

A history is a list of (epoch, start), increasing in both: the frames from `start` to the next entry's start carry
`epoch`. Only one node writes in an epoch, and in order, so two logs that have the same epoch at a position have the
same bytes there (KIP-101, KIP-279). The match point is therefore found by comparing epochs by position, never by a
commit mark (invariant 7). Positions below a history's first start were committed long ago and count as equal, unless
the other log has been away for so long that its entries can no longer be compared.

Pure functions, no I/O.
"""

from collections.abc import Sequence
from typing import Final

from headrace.base.ids import Epoch, Position

MAX_ENTRIES: Final = 1_000
"""Entries kept in a history. Older ones are dropped: the positions below the kept ones are committed on all in-sync
replicas."""

History = tuple[tuple[Epoch, Position], ...]
"""(epoch, start position), in increasing order."""


def begin_epoch(history: History, *, epoch: Epoch, start: Position) -> History:
    """Return the history with `epoch` from `start` on. Epochs in which nothing was written are left out."""
    kept = tuple(entry for entry in history if entry[1] < start)
    assert not kept or kept[-1][0] < epoch, f"epoch {epoch} after {kept[-1]}"
    return (*kept, (epoch, start))[-MAX_ENTRIES:]


def clip(history: History, end: Position) -> History:
    """Return the history of a log that ends at `end`."""
    return tuple(entry for entry in history if entry[1] < end)


def last_epoch(history: History, end: Position) -> Epoch:
    """Return the epoch of the last frame below `end`; 0 for an empty log."""
    kept = clip(history, end)
    return kept[-1][0] if kept else Epoch(0)


def match_point(
    mine: Sequence[tuple[int, int]], my_end: int, theirs: Sequence[tuple[int, int]], their_end: int
) -> Position:
    """Return the position up to which two logs hold the same frames.

    `mine` is the leader's history; its log has all committed frames.
    """
    end = min(my_end, their_end)
    is_known = bool(mine)
    mine = [entry for entry in mine if entry[1] < my_end]
    theirs = [entry for entry in theirs if entry[1] < their_end]
    if not theirs or not is_known:
        # A log without history entries is empty, or all its frames are older than its history: those are committed.
        return Position(end)
    if not mine:
        return Position(min(end, theirs[0][1]))
    base = max(mine[0][1], theirs[0][1])
    bounds = sorted({base, *(start for _, start in mine), *(start for _, start in theirs)})
    parts = next((at for at in bounds if base <= at < end and _epoch_at(mine, at) != _epoch_at(theirs, at)), end)
    if parts <= base and theirs[0][1] < base:
        # They may diverge anywhere below `base`, where this log's epochs are no longer known.
        return Position(theirs[0][1])
    return Position(parts)


def _epoch_at(history: Sequence[tuple[int, int]], position: int) -> int:
    found = history[0][0]
    for epoch, start in history:
        if start > position:
            break
        found = epoch
    return found
