"""Finds divergence of two logs that their histories do not show, by comparing frames.

Histories tell logs apart by epochs, since only one node writes in an epoch (container/history.py). A cluster store that
was restored from an old copy hands out epochs again: a node that led by it may have written other frames in an epoch
that other nodes know too. So when a store is rebuilt, frames are compared from the start of the last epoch that two
logs have in common. This module knows nothing of records and stores. Everything here blocks.
"""

from collections.abc import Iterator
from typing import Final

from headrace.base.ids import Position
from headrace.container.history import History, match_point
from headrace.log.container_log import ContainerLog, Layouts
from headrace.log.frame_reading import RawFrames
from headrace.log.frames import HEADER, FrameType

_AT_ONCE_BYTES: Final = 4 << 20


def diverges(log: ContainerLog, history: History, ahead: ContainerLog, history_ahead: History) -> bool:
    """Whether `log` and `ahead` hold different frames below the point up to which their histories agree.

    Space that was reclaimed in either log counts as equal. Raises CorruptLog if a log cannot be read.
    """
    point = match_point(history, log.end, history_ahead, ahead.end)
    starts = [start for _, start in (*history, *history_ahead) if start < point]
    at = Position(max([log.start, ahead.start, *starts]))
    my_layouts, their_layouts = Layouts(), Layouts()
    while at < point:
        mine = log.read_frames(at, until=log.end, max_bytes=_AT_ONCE_BYTES, layouts=my_layouts)
        theirs = ahead.read_frames(at, until=ahead.end, max_bytes=_AT_ONCE_BYTES, layouts=their_layouts)
        end = Position(min(mine.end, theirs.end, point))
        if _differ(_frames(mine, end), _frames(theirs, end)):
            return True
        at = end
    return False


_Frame = tuple[int, int]
"""(position after the frame, checksum)"""


def _frames(raw: RawFrames, end: Position) -> tuple[dict[int, _Frame], list[range]]:
    """The frames that begin below `end`, by position, and the ranges that were reclaimed."""
    found: dict[int, _Frame] = {}
    gaps: list[range] = []
    for position, length, type, crc in _headers(raw):
        if position < end:
            if type == FrameType.GAP:
                gaps.append(range(position, position + length))
            else:
                found[position] = (position + length, crc)
    return found, gaps


def _headers(raw: RawFrames) -> Iterator[tuple[int, int, int, int]]:
    for buffer in raw:
        at = 0
        while at < len(buffer):
            crc, length, type, _, position, *_ = HEADER.unpack_from(buffer, at)
            yield position, length, type, crc
            at += length  # a gap's header is always the last in its buffer


def _differ(mine: tuple[dict[int, _Frame], list[range]], theirs: tuple[dict[int, _Frame], list[range]]) -> bool:
    for (frames, _), (others, gaps) in ((mine, theirs), (theirs, mine)):
        for position, frame in frames.items():
            if others.get(position) != frame and not any(position in gap for gap in gaps):
                return True
    return False
