"""The places of a chunk that its index covers. In a chunk that is not regrouped, all other places are gap frames.

A gap frame has no entry in an index: it belongs to no partitionlet, and regrouping omits it. So a chunk has gap frames
exactly at the places that its index omits, and the bytes there reveal an index that has lost an entry.
"""

from collections.abc import Iterator
from typing import Final

from headrace.base.errors import CorruptLog
from headrace.log.chunk import Body, Chunk
from headrace.log.files import FILE_HEAD_BYTES, punch_hole
from headrace.log.frames import HEADER, HEADER_BYTES, FrameType, frame_fault

_GAP: Final = int(FrameType.GAP)
_LOW: Final = 0xFFFFFFFF


def stretches(body: Body, *, live: bool) -> Iterator[tuple[int, int]]:
    """The (start, end) of the places that the index covers, ascending, with adjacent places joined. `live`: without
    dead places."""
    words: list[int] = []
    for part in body.parts:
        words += [at << 32 | length for at, length in part.all_controls()]
        for summary in part.summaries():
            kept = body.dead.first_kept(summary.partitionlet) if live else 0
            words += [place.at << 32 | place.length for place in part.places(summary.partitionlet, kept)]
    words.sort()
    start = end = 0
    for word in words:
        at = word >> 32
        if at != end:
            if start < end:
                yield start, end
            start = at
        end = at + (word & _LOW)
    if start < end:
        yield start, end


def gaps_of(chunk: Chunk, body: Body, *, end: int) -> Iterator[tuple[int, int]]:
    """The (place, length) of the gap frames of a chunk that is not regrouped, up to place `end`.

    Raises `CorruptLog` if a place that the index omits holds anything else.
    """
    if all(part.known_bytes() == part.end - part.start for part in body.parts):
        return
    at = 0
    for start, stop in (*stretches(body, live=False), (end, end)):
        while at < start:
            header = memoryview(body.read(at, HEADER_BYTES))
            fault: str | None = "the file ends"
            length = 0
            if len(header) == HEADER_BYTES:
                _, length, type, _, position, *_ = HEADER.unpack_from(header)
                is_gap = type == _GAP and position == chunk.start + at and HEADER_BYTES <= length <= start - at
                fault = frame_fault(header, 0, whole=False) if is_gap else "no gap frame"
            if fault:
                raise CorruptLog(
                    f"{chunk.path}, place {at}: {fault} where the index knows nothing. Refetch this chunk."
                )
            yield at, length
            at += length
        at = stop


def give_back_gaps(chunk: Chunk, *, end: int) -> None:
    """Returns the unwritten blocks of a full chunk's gap frames to the filesystem, if it supports holes."""
    file = chunk.body.opened()
    for place, length in gaps_of(chunk, chunk.body, end=end):
        if not punch_hole(file.fd, FILE_HEAD_BYTES + place + HEADER_BYTES, FILE_HEAD_BYTES + place + length):
            return
