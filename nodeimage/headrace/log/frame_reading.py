"""Reading of whole frames by position, which one replica sends to another (reading.py reads batches by offset).

All of it blocks, and runs in reader threads beside appends, closing, regrouping and punching. Every checksum is
checked, so that damage is never copied to another replica.

Where the frames of a chunk lie in the order in which they were appended, they are read from their place on. Frames that
do not check there, and every regrouped chunk, are looked up in the chunk's `Layout`: which of its positions are still
held, and where. Positions that no chunk holds any more come as gap frames. A gap frame may end at any position: frames
that began before its end were given back as well.
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
"""Frames this near to each other in a regrouped chunk are fetched with one read, what lies between with them."""
_READ_BYTES: Final = 4 << 20
_LOW: Final = 0xFFFFFFFF
_COLUMN: Final = "I"
"""Whatever counts bytes of a chunk fits in four."""


class RawFrames(list[bytes | memoryview]):
    """Whole frames as they are stored, in position order, several to a buffer; of a gap frame the header alone, at the
    end of its buffer. `end` is the position behind the last one."""

    def __init__(self, position: int) -> None:
        super().__init__()
        self.end = Position(position)


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Layout:
    """What a chunk holds, by position (counted from the chunk's start): of a regrouped chunk frame by frame, else by
    stretches of frames that follow each other. Of a chunk of small frames it is large: 12 bytes a frame."""

    positions: "array[int]"
    places: "array[int]"
    lengths: "array[int]"


class Layouts:
    """Of the chunks that one copy reads: the newest is kept, since it comes back for the same chunk many times."""

    __slots__ = ("_body", "_layout")

    def __init__(self) -> None:
        self._body: Callable[[], Body | None] = lambda: None
        """Not held: the file of a chunk that was replaced or dropped closes."""
        self._layout: Layout | None = None

    def of(self, chunk: Chunk, body: Body) -> Layout:
        """The layout of `chunk` as `body` has it. Raises `CorruptLog`."""
        if self._layout is not None and self._body() is body:
            return self._layout
        self._layout = None
        layout = _frames_layout(chunk, body) if body.regrouped else _stretches_layout(body)
        if body.closed:
            self._body, self._layout = ref(body), layout
        return layout


def read_frames(chunks: Sequence[Chunk], position: int, *, until: int, max_bytes: int, layouts: Layouts) -> RawFrames:
    """The frames from `position` to `until` at most that cover about `max_bytes`, at least one.

    Both positions lie between frames, or in what was given back. Raises `CorruptLog`.
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
                continue  # given back while it was read
            if found:
                break  # what lies before the damage is sent; the next read meets it
            raise
    return found


def _add_gap(found: RawFrames, end: int, *, most: int) -> None:
    if end - found.end < HEADER_BYTES:
        raise CorruptLog(f"no frame can be from position {found.end} to {end}. Fetch this container anew.")
    for header, behind in gap_frames(found.end, end, most=most):
        found.append(header)
        found.end = Position(behind)


def _read_chunk(chunk: Chunk, body: Body, found: RawFrames, *, stop: int, most: int, layouts: Layouts) -> bool:
    """Adds frames of one chunk up to place or position `stop`. False: the next one is too long to be added."""
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
    """Adds the frames that lie where their positions say, up to the first that does not check. False as above."""
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
    """Adds the frames of a regrouped chunk from `row` of its layout on, up to what was left out. False as above."""
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
        for one in group:
            frame = raw[places[one] - base : places[one] - base + lengths[one]]
            _check(chunk, frame, position=chunk.start + positions[one], length=lengths[one])
            frames[one - first] = frame
    found += [b"".join(frames)]
    found.end = Position(chunk.start + at)
    return True


def _neighbours(rows: Sequence[int], places: "array[int]", lengths: "array[int]") -> Iterator[list[int]]:
    """Groups rows, which rise by place, that one read fetches."""
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
    """Reads and checks all headers of a regrouped chunk: its index does not know positions."""
    rows: list[int] = []  # position, place, length in one number, so that they sort without an object each
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
            if fault:  # a wrong position would leave a gap where it was
                raise CorruptLog(f"{chunk.path}, place {place}: {fault}. Refetch or restore this chunk.")
            rows.append((position - chunk.start) << 64 | place << 32 | length)
            place += length
    rows.sort()
    return Layout(
        array(_COLUMN, (row >> 64 for row in rows)),
        array(_COLUMN, (row >> 32 & _LOW for row in rows)),
        array(_COLUMN, (row & _LOW for row in rows)),
    )
