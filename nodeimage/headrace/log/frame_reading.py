"""Reads whole frames by position, for one replica to send to another (reading.py reads batches by offset).

All functions block, and run in reader threads concurrently with appends, closing, regrouping and punching. Every
checksum is verified, so that damage is never copied to another replica.

If the frames of a chunk lie in the order in which they were appended, they are read at the place that follows from
their position. Frames that fail the check there, and all frames of regrouped chunks, are looked up in the chunk's
`Layout`, which says which positions the chunk still holds, and where. Positions that no chunk holds any longer are
returned as gap frames. A gap frame may end at any position, even within a former frame, whose space was freed as well.
"""

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from weakref import ref

from headrace.base.errors import CorruptLog
from headrace.base.ids import Position
from headrace.log.chunk import Body, Chunk
from headrace.log.frames import HEADER, HEADER_BYTES, FrameType, frame_fault, gap_frames, summed_bytes
from headrace.log.gaps import stretches

_GAP: Final = int(FrameType.GAP)
_NEAR_BYTES: Final = 16 << 10
"""Frames of a regrouped chunk that are at most this many bytes apart are fetched by one read, with all between them."""
_READ_BYTES: Final = 4 << 20
_LOW: Final = 0xFFFFFFFF
_COLUMN: Final = "I"
"""Array type of a layout's columns: any count of bytes in a chunk fits in four bytes."""


class RawFrames(list[bytes | memoryview]):
    """Whole frames as they are stored, in position order, several per buffer. Of a gap frame only the header is
    included, at the end of its buffer. `end` is the position after the last frame."""

    def __init__(self, position: int) -> None:
        super().__init__()
        self.end = Position(position)


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Layout:
    """Which positions (relative to the chunk's start) a chunk holds, and at which places: one row per frame for a
    regrouped chunk, else one row per stretch of contiguous frames. Large if a regrouped chunk has small frames: 12
    bytes per frame."""

    positions: "array[int]"
    places: "array[int]"
    lengths: "array[int]"


class Layouts:
    """Caches the layout of the chunk that one sequential reader read last, since it reads a chunk in many calls."""

    __slots__ = ("_body", "_layout")

    def __init__(self) -> None:
        self._body: Callable[[], Body | None] = lambda: None
        """A weak reference, so that the file of a chunk that was replaced or dropped can close."""
        self._layout: Layout | None = None

    def of(self, chunk: Chunk, body: Body) -> Layout:
        """The layout of `chunk` according to `body`. Raises `CorruptLog`."""
        if self._layout is not None and self._body() is body:
            return self._layout
        self._layout = None
        layout = _frames_layout(chunk, body) if body.regrouped else _stretches_layout(body)
        if body.closed:
            self._body, self._layout = ref(body), layout
        return layout


def read_frames(chunks: Sequence[Chunk], position: int, *, until: int, max_bytes: int, layouts: Layouts) -> RawFrames:
    """The frames from `position` on, up to `until` at most, that cover about `max_bytes`, but at least one.

    Both positions must lie between frames or in freed space. Raises `CorruptLog`.
    """
    found = RawFrames(position)
    while found.end < until and found.end < position + max_bytes:
        chunk = next((chunk for chunk in reversed(chunks) if chunk.start <= found.end), None)
        if chunk is None or (chunk.end is not None and chunk.end <= found.end):
            newer = min((chunk.start for chunk in chunks if chunk.start > found.end), default=until)
            _add_gap(found, min(newer, until), most=position + max_bytes - found.end)
            continue
        body = chunk.body
        stop = (until if chunk.end is None else min(until, chunk.end)) - chunk.start
        try:
            if not _read_chunk(chunk, body, found, stop=stop, most=position + max_bytes - found.end, layouts=layouts):
                break
        except CorruptLog:
            if chunk.body is not body:
                continue  # the chunk was replaced while it was read
            if found:
                break  # the frames before the damage are returned; the next read raises
            raise
    return found


def _add_gap(found: RawFrames, end: int, *, most: int) -> None:
    if end - found.end < HEADER_BYTES:
        raise CorruptLog(f"no frame fits from position {found.end} to {end}. Refetch this container.")
    for header, behind in gap_frames(found.end, end, most=most):
        found.append(header)
        found.end = Position(behind)


def _read_chunk(chunk: Chunk, body: Body, found: RawFrames, *, stop: int, most: int, layouts: Layouts) -> bool:
    """Adds frames of one chunk up to `stop`, relative to the chunk's start. False: the next frame is too long."""
    if not body.regrouped:
        before = found.end
        if not _read_in_place(chunk, body, found, stop=stop, most=most):
            return False
        if found.end > before:
            return True
    layout = layouts.of(chunk, body)
    at = found.end - chunk.start
    row = bisect_right(layout.positions, at) - 1
    if row < 0 or at >= layout.positions[row] + layout.lengths[row]:
        newer = layout.positions[row + 1] if row + 1 < len(layout.positions) else stop
        _add_gap(found, chunk.start + min(newer, stop), most=most)
        return True
    if not body.regrouped or layout.positions[row] != at:
        raise CorruptLog(f"{chunk.path}: no whole frame at position {found.end}. Refetch or restore this chunk.")
    return _read_rows(chunk, body, layout, row, found, stop=stop, most=most)


def _read_in_place(chunk: Chunk, body: Body, found: RawFrames, *, stop: int, most: int) -> bool:
    """Adds frames that lie at the place of their position, up to the first that fails the check. False: the next frame
    is too long to add."""
    start = found.end - chunk.start
    window = _bytes_at(body, start, min(max(most, HEADER_BYTES), stop - start))
    at = run = 0
    fits = True
    while start + at < stop and at + HEADER_BYTES <= len(window):
        _, length, type, _, position, *_ = HEADER.unpack_from(window, at)
        held = HEADER_BYTES if type == _GAP else length
        if length < HEADER_BYTES or start + at + length > stop or position != chunk.start + start + at:
            break
        if at + held > len(window):
            if at:
                break
            if found:
                fits = False
                break
            window = _bytes_at(body, start, held)
            if len(window) < held:
                break
        if frame_fault(window, at, whole=True):
            break
        if type == _GAP:
            found.append(window[run : at + held])
            run = at + length
        at += length
    if run < at:
        found.append(window[run:at])
    found.end = Position(found.end + at)
    return fits


def _bytes_at(body: Body, place: int, length: int) -> memoryview:
    return memoryview(body.read(place, length))


def _read_rows(chunk: Chunk, body: Body, layout: Layout, row: int, found: RawFrames, *, stop: int, most: int) -> bool:
    """Adds frames of a regrouped chunk from `row` of its layout on, up to the first missing position. False: the next
    frame is too long to add."""
    positions, places, lengths = layout.positions, layout.places, layout.lengths
    first, at, size = row, positions[row], 0
    while row < len(positions) and positions[row] == at and at + lengths[row] <= stop:
        size += lengths[row]
        if size > most and (found or row > first):
            break
        at += lengths[row]
        row += 1
    if row == first:
        if at + lengths[row] > stop:
            raise CorruptLog(f"{chunk.path}: position {chunk.start + stop} lies within a frame.")
        return False
    frames: list[memoryview] = [memoryview(b"")] * (row - first)
    for group in _neighbours(sorted(range(first, row), key=places.__getitem__), places, lengths):
        base = places[group[0]]
        raw = _bytes_at(body, base, places[group[-1]] + lengths[group[-1]] - base)
        for each in group:
            frame = raw[places[each] - base : places[each] - base + lengths[each]]
            _check(chunk, frame, position=chunk.start + positions[each], length=lengths[each])
            frames[each - first] = frame
    found += [b"".join(frames)]
    found.end = Position(chunk.start + at)
    return True


def _neighbours(rows: Sequence[int], places: "array[int]", lengths: "array[int]") -> Iterator[list[int]]:
    """Groups rows, which are sorted by place, so that one read can fetch each group."""
    group: list[int] = []
    end = 0
    for row in rows:
        if group and not places[row] <= end + _NEAR_BYTES:
            yield group
            group = []
        group.append(row)
        end = places[row] + lengths[row]
    if group:
        yield group


def _check(chunk: Chunk, frame: memoryview, *, position: int, length: int) -> None:
    fault: str | None = "the file ends within it"
    if len(frame) == length:
        _, said, _, _, at, *_ = HEADER.unpack_from(frame)
        same = (said, at) == (length, position)
        fault = frame_fault(frame, 0, whole=True) if same else "another frame than there was"
    if fault:
        raise CorruptLog(f"{chunk.path}, frame at position {position}: {fault}. Refetch or restore this chunk.")


def _stretches_layout(body: Body) -> Layout:
    starts: array[int] = array(_COLUMN)
    lengths: array[int] = array(_COLUMN)
    for start, end in stretches(body, live=True):
        starts.append(start)
        lengths.append(end - start)
    return Layout(starts, starts, lengths)


def _frames_layout(chunk: Chunk, body: Body) -> Layout:
    """Reads and checks all frame headers of a regrouped chunk, since its index does not contain positions."""
    rows: list[int] = []  # position, place and length packed into one number, to sort without a tuple per row
    for place, end in stretches(body, live=True):
        window, base = memoryview(b""), place
        while place < end:
            at = place - base
            if at + HEADER_BYTES > len(window):
                window, base, at = _bytes_at(body, place, min(_READ_BYTES, end - place)), place, 0
            length = position = type = -1
            if at + HEADER_BYTES <= len(window):
                _, length, type, _, position, *_ = HEADER.unpack_from(window, at)
            if length < HEADER_BYTES or place + length > end or position < chunk.start:
                raise CorruptLog(f"{chunk.path}, place {place}: no frame where one must be. Refetch this chunk.")
            summed = summed_bytes(type, length)
            if at + summed > len(window):
                window, base, at = _bytes_at(body, place, min(max(_READ_BYTES, summed), end - place)), place, 0
            fault = frame_fault(window, at, whole=False) if summed <= len(window) - at else "the file ends within it"
            if fault:  # a wrong position would leave a gap at the right one
                raise CorruptLog(f"{chunk.path}, place {place}: {fault}. Refetch or restore this chunk.")
            rows.append((position - chunk.start) << 64 | place << 32 | length)
            place += length
    rows.sort()
    return Layout(
        array(_COLUMN, (row >> 64 for row in rows)),
        array(_COLUMN, (row >> 32 & _LOW for row in rows)),
        array(_COLUMN, (row & _LOW for row in rows)),
    )
