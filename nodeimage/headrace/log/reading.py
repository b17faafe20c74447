"""Reads chunks: batches by offset and by time, control frames by position, a partitionlet's state.

All functions block, and run in reader threads concurrently with appends, closing, regrouping and punching: each access
to a chunk takes its `Body` once and uses only that. Frames that are indexed but not written yet are skipped; all frames
below the position `written` are written.

The checksum of each frame is verified; it covers the frame's header and the head of the batch. The rest of a batch has
its own CRC, which is verified for batches that are sent to clients, since not all clients do that (librdkafka:
check.crcs).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final, NamedTuple

from headrace.base.errors import CorruptLog
from headrace.log.chunk import Body, Chunk
from headrace.log.files import FILE_HEAD_BYTES, will_need
from headrace.log.frames import HEADER_BYTES, Frame, FrameType, frames_in, take_batches
from headrace.log.index import REMEMBERED_BATCHES, ControlPlace, Part, Place, ProducerBatch
from headrace.log.segment import BLOCK_BYTES

_GAP_BYTES: Final = 16 << 10
"""Places that are at most this many bytes apart are fetched by one read, with the bytes between them."""
_CONTROL_READ_BYTES: Final = 1 << 20
_AHEAD_CALLS: Final = 64
"""The most stretches of files that one read-ahead requests; it matters for chunks that mix many partitionlets."""
_JOIN_FROM: Final = 8
_JOIN_BELOW: Final = 16 << 10
NEVER: Final = (1 << 63) - 1


class ProducerEntry(NamedTuple):
    """The state of an idempotent producer in one partitionlet. `batches`: the last ones, up to five, oldest first, as
    (base sequence, last sequence, base offset, timestamp)."""

    epoch: int
    batches: list[tuple[int, int, int, int]]


@dataclass(slots=True)
class PartitionletState:
    """What the log holds of a partitionlet. `next_offset` is None if there is no live data frame.

    `epochs`: (container epoch, first offset), ascending. `bytes`: of live data frames, frame headers included. `first`:
    the first live offset. `last_end`: the position after the last data frame; if that is in a regrouped chunk, where
    frames lie elsewhere, the position of the chunk's first frame.
    """

    next_offset: int | None = None
    first: int | None = None
    epochs: list[tuple[int, int]] = field(default_factory=list)
    producers: dict[int, ProducerEntry] = field(default_factory=dict)
    bytes: int = 0
    max_timestamp: int = -1
    sealed: bool = False
    last_end: int = field(default=0, compare=False)


def live_places(chunk: Chunk, body: Body, partitionlet: int, offset: int, written: int) -> Iterator[Place]:
    """The live, written places of a chunk, from the one that holds `offset` (or the next one) on."""
    kept = body.dead.first_kept(partitionlet)
    offset = max(offset, kept)
    for part in body.parts:
        for place in part.places(partitionlet, offset):
            if not body.closed and chunk.start + place.at + place.length > written:
                return
            yield place


def _extents(places: Iterable[Place]) -> Iterator[list[Place]]:
    """Groups places so that one read can fetch each group."""
    extent: list[Place] = []
    end = 0
    for place in places:
        if extent and (not end <= place.at <= end + _GAP_BYTES or end - extent[0].at > 4 * _CONTROL_READ_BYTES):
            yield extent
            extent = []
        extent.append(place)
        end = place.at + place.length
    if extent:
        yield extent


def _views(chunk: Chunk, body: Body, places: Iterable[Place]) -> Iterator[tuple[Place, memoryview]]:
    """Each of `places` with its bytes."""
    for extent in _extents(places):
        base = extent[0].at
        length = extent[-1].at + extent[-1].length - base
        raw = memoryview(body.read(base, length))
        if len(raw) < length:
            raise CorruptLog(f"{chunk.path}: ends before place {base + length}. Refetch this chunk.")
        for place in extent:
            yield place, raw[place.at - base : place.at - base + place.length]


def _frames_of(chunk: Chunk, body: Body, partitionlet: int, place: Place) -> Iterator[Frame]:
    """The data frames in `place`, checked; none if the place was freed meanwhile."""
    for _, view in _views(chunk, body, (place,)):
        try:
            yield from frames_in(view, source=f"{chunk.path}, place {place.at}")
        except CorruptLog:
            if not _given_back(chunk, partitionlet, place):
                raise


def _given_back(chunk: Chunk, partitionlet: int, place: Place) -> bool:
    """Whether a place that cannot be read was freed after the reader had looked it up."""
    return place.last < chunk.body.dead.first_kept(partitionlet)


def read_batches(
    chunks: Sequence[Chunk], partitionlet: int, offset: int, *, limit: int, max_bytes: int, written: int
) -> list[bytes | memoryview]:
    """The batches that end below `limit`, from the one that holds `offset` (or the next one) on: up to `max_bytes`, but
    at least one. Many small batches are joined into one buffer. Raises `CorruptLog`."""
    batches: list[memoryview] = []
    left = max_bytes
    for chunk in chunks:
        body = chunk.body
        found = live_places(chunk, body, partitionlet, offset, written)
        places, more = _enough(found, limit=limit, max_bytes=left, some=bool(batches))
        for place, view in _views(chunk, body, places):
            try:
                left = take_batches(
                    view,
                    batches,
                    partitionlet=partitionlet,
                    offset=offset,
                    limit=limit,
                    max_bytes=left,
                    source=f"{chunk.path}, place {place.at}",
                )
            except CorruptLog:
                if not _given_back(chunk, partitionlet, place):
                    if batches:  # the batches before the damage are returned; the next read raises
                        return _joined(batches)
                    raise
            if left < 0:
                return _joined(batches)
        if left <= 0 or more:
            break
    return _joined(batches)


def read_ahead(
    chunks: Sequence[Chunk],
    partitionlet: int,
    offset: int,
    *,
    limit: int,
    read_bytes: int,
    max_bytes: int,
    written: int,
) -> int:
    """Asks the kernel to fetch up to `max_bytes` that follow the `read_bytes` which a reader already has from `offset`
    on, for the reader's next call. Bytes that the kernel does not fetch ahead are read by that call. Returns the number
    of bytes requested. Raises `CorruptLog`."""
    passed, calls, asked = read_bytes, 0, 0
    for chunk in chunks:
        body = chunk.body
        most = passed + max_bytes - asked
        places, more = _enough(
            live_places(chunk, body, partitionlet, offset, written), limit=limit, max_bytes=most, some=False
        )
        behind = 0
        while behind < len(places) and passed > 0:
            passed -= places[behind].length
            behind += 1
        places = places[behind:]
        if places:
            file = body.opened()
            for extent in _extents(places):
                length = extent[-1].at + extent[-1].length - extent[0].at
                if calls == _AHEAD_CALLS or not will_need(file.fd, FILE_HEAD_BYTES + extent[0].at, length):
                    return asked
                calls += 1
                asked += length
        if more or asked >= max_bytes:
            break
    return asked


def _enough(places: Iterable[Place], *, limit: int, max_bytes: int, some: bool) -> tuple[list[Place], bool]:
    """The first of `places`, as many as a read of `max_bytes` needs, and whether the read ends there because there are
    more.

    At least one place, unless the read has `some` batches already.
    """
    needed: list[Place] = []
    size = 0
    for place in places:
        enough = size >= max_bytes or size + place.length > max_bytes + BLOCK_BYTES
        if place.first >= limit or ((some or needed) and enough):
            return needed, True
        needed.append(place)
        size += place.length
    return needed, False


def _joined(batches: list[memoryview]) -> list[bytes | memoryview]:
    if len(batches) >= _JOIN_FROM and sum(map(len, batches)) < _JOIN_BELOW * len(batches):
        return [b"".join(batches)]
    return [*batches]


def load_state(chunks: Sequence[Chunk], partitionlet: int) -> PartitionletState:
    """What `chunks` hold of a partitionlet, including frames that are not written yet."""
    state = PartitionletState()
    newest: tuple[Chunk, Body, Part] | None = None
    for chunk in chunks:
        body = chunk.body
        kept = body.dead.first_kept(partitionlet)
        for part in body.parts:
            summary = part.summary(partitionlet)
            if summary is None:
                continue
            state.sealed = state.sealed or any(c.type == FrameType.SEAL for c in part.controls(partitionlet))
            if not summary.length or summary.last < kept:
                continue
            state.next_offset = summary.last + 1
            newest = (chunk, body, part)
            state.max_timestamp = max(state.max_timestamp, summary.max_timestamp)
            if kept > summary.first:
                left = list(part.places(partitionlet, kept))
                state.bytes += sum(place.length for place in left)
                first = left[0].first
            else:
                state.bytes += summary.length
                first = summary.first
            if state.first is None:
                state.first = first
            for epoch, epoch_first in part.epochs(partitionlet):
                if not state.epochs or epoch > state.epochs[-1][0]:
                    state.epochs.append((epoch, epoch_first))
            merge_producers(state.producers, part.producers(partitionlet))
    if newest is not None and state.next_offset is not None:
        chunk, body, part = newest
        ends = (place.at + place.length for place in part.places(partitionlet, state.next_offset - 1))
        state.last_end = chunk.start + (0 if body.regrouped else max(ends, default=0))
    return state


def merge_producers(known: dict[int, ProducerEntry], more: Iterable[ProducerBatch]) -> None:
    """Adds batches that are newer than the known ones; a new producer epoch discards the older ones, as in Kafka."""
    for producer, epoch, *batch in more:
        entry = known.get(producer)
        if entry is None or entry.epoch != epoch:
            entry = known[producer] = ProducerEntry(epoch, [])
        entry.batches.append((batch[0], batch[1], batch[2], batch[3]))
        if len(entry.batches) > REMEMBERED_BATCHES:
            del entry.batches[0]


def first_at_or_after(
    chunks: Sequence[Chunk], partitionlet: int, timestamp: int, *, limit: int, written: int
) -> bytes | None:
    """The first batch, by offset, that has a record at or after `timestamp` and ends below `limit`."""
    for chunk in chunks:
        body = chunk.body
        for place in live_places(chunk, body, partitionlet, 0, written):
            if place.first >= limit:
                return None
            if place.max_timestamp < timestamp:
                continue
            for frame in _frames_of(chunk, body, partitionlet, place):
                if frame.last >= limit:
                    return None
                if frame.max_timestamp >= timestamp:
                    return bytes(frame.payload)
    return None


def newest_by_timestamp(chunks: Sequence[Chunk], partitionlet: int, *, limit: int, written: int) -> bytes | None:
    """The first of the batches with the largest timestamp among those that end below `limit`."""
    best: tuple[Chunk, Body, Place] | None = None
    best_timestamp = -NEVER
    best_batch: bytes | None = None
    for chunk in chunks:
        body = chunk.body
        for place in live_places(chunk, body, partitionlet, 0, written):
            if place.first >= limit:
                break
            if place.max_timestamp <= best_timestamp:
                continue
            if place.last < limit:
                best, best_timestamp, best_batch = (chunk, body, place), place.max_timestamp, None
                continue
            for frame in _frames_of(chunk, body, partitionlet, place):  # the limit lies within this place
                if frame.last < limit and frame.max_timestamp > best_timestamp:
                    best, best_timestamp, best_batch = None, frame.max_timestamp, bytes(frame.payload)
    if best is not None:
        chunk, body, place = best
        for frame in _frames_of(chunk, body, partitionlet, place):
            if frame.max_timestamp == best_timestamp:
                return bytes(frame.payload)
    return best_batch


def control_frames(chunks: Sequence[Chunk], after: int, until: int) -> Iterator[Frame]:
    """The control frames that lie within positions `after` to `until`, in position order."""
    for chunk in chunks:
        if chunk.start >= until:
            return
        if chunk.end is not None and chunk.end <= after:
            continue
        body = chunk.body
        places = [place for part in body.parts for place in part.all_controls()]
        if not body.regrouped:
            places = [p for p in places if p[0] >= after - chunk.start and p[0] + p[1] <= until - chunk.start]
        for frame in _controls_at(chunk, body, places):
            if frame.position >= after and frame.position + HEADER_BYTES + len(frame.payload) <= until:
                yield frame


def controls_of(chunks: Sequence[Chunk], partitionlet: int, *, written: int) -> Iterator[Frame]:
    """The control frames of a partitionlet, in position order."""
    for chunk in chunks:
        body = chunk.body
        found: list[ControlPlace] = [c for part in body.parts for c in part.controls(partitionlet)]
        found.sort(key=itemgetter(0))
        if not body.closed:
            found = [c for c in found if chunk.start + c.at + c.length <= written]
        yield from _controls_at(chunk, body, [(c.at, c.length) for c in found])


def _controls_at(chunk: Chunk, body: Body, places: Sequence[tuple[int, int]]) -> Iterator[Frame]:
    """The control frames at `places`, which are ascending; adjacent ones are fetched by one read."""
    row = 0
    while row < len(places):
        base, end = places[row][0], sum(places[row])
        stop = row + 1
        while stop < len(places) and places[stop][0] == end and end - base < _CONTROL_READ_BYTES:
            end = sum(places[stop])
            stop += 1
        raw = memoryview(body.read(base, end - base))
        if len(raw) < end - base:
            raise CorruptLog(f"{chunk.path}: ends before place {end}. Refetch this chunk.")
        yield from frames_in(raw, source=f"{chunk.path}, place {base}")
        row = stop
