"""Maintenance of closed chunks: queries on what they hold, dropping them, and freeing their dead space.

To free space, the dead offsets are recorded durably (dead.py) and made visible to readers first; only then are the
blocks punched out of the file. So a crash at any step leaves either bytes or a hole that nobody reads. If the
filesystem does not support holes, the chunk is rewritten without its dead places instead. Space is freed by whole
places (at most BLOCK_BYTES, segment.py) and whole blocks; regrouping a chunk first makes its dead places adjacent.
"""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

from headrace.base.errors import CorruptLog
from headrace.log.chunk import Body, Chunk
from headrace.log.files import FILE_HEAD_BYTES, keeps_write_time, punch_hole
from headrace.log.folder import drop_files
from headrace.log.index import Part, Summary
from headrace.log.regroup import rewrite, take_up


def drop(chunk: Chunk, end: int) -> None:
    """Removes a closed chunk that ends at `end`, with all its frames. Readers that have it open can continue."""
    with suppress(CorruptLog):  # a chunk that cannot be opened has no readers
        with chunk.body.losing_its_name():
            drop_files(chunk.path.parent, chunk.start, end)
        return
    drop_files(chunk.path.parent, chunk.start, end)


def summaries(chunk: Chunk) -> list[Summary]:
    """Summaries of all partitionlets of a chunk, by id, without dead places; partitionlets without live data frames
    have a length of 0."""
    body = chunk.body
    dead = body.dead.as_mapping()
    found: dict[int, Summary] = {}
    for part in body.parts:
        for summary in part.summaries():
            kept = dead.get(summary.partitionlet, 0)
            here = summary if summary.first >= kept else _less(part, summary, kept)
            before = found.get(summary.partitionlet)
            found[summary.partitionlet] = here if before is None else _both(before, here)
    return [found[partitionlet] for partitionlet in sorted(found)]


def summaries_of(chunk: Chunk, partitionlets: Collection[int]) -> list[Summary]:
    """Summaries of those of `partitionlets` that a chunk holds, by id, without dead places. Reads nothing of the
    others."""
    body = chunk.body
    found: dict[int, Summary] = {}
    for part in body.parts:
        for partitionlet in part.held_of(partitionlets):
            summary = part.summary(partitionlet)
            if summary is None:
                continue
            kept = body.dead.first_kept(partitionlet)
            here = summary if summary.first >= kept else _less(part, summary, kept)
            before = found.get(partitionlet)
            found[partitionlet] = here if before is None else _both(before, here)
    return [found[partitionlet] for partitionlet in sorted(found)]


def live_bytes(chunk: Chunk) -> int:
    """Bytes of the live data frames of a chunk."""
    if chunk.body.dead:
        return sum(summary.length for summary in summaries(chunk))
    return sum(part.data_bytes() for part in chunk.body.parts)


def lives(chunk: Chunk, dead: Mapping[int, int]) -> bool:
    """Whether a chunk holds any live record that is not below its partitionlet's first kept offset in `dead`. Stops at
    the first."""
    body = chunk.body
    gone = body.dead.as_mapping()
    for part in body.parts:
        for partitionlet, last, _ in part.newest():
            if last >= gone.get(partitionlet, 0) and last >= dead.get(partitionlet, 0):
                return True
    return False


def oldest(chunk: Chunk, *, bits: int, untimed: int) -> dict[int, int]:
    """The smallest of the partitionlets' largest timestamps for each value of `partitionlet >> bits`, for the live
    records of a chunk. Records without a timestamp count as `untimed`."""
    body = chunk.body
    gone = body.dead.as_mapping()
    newest: dict[int, int] = {}
    for part in body.parts:
        for partitionlet, last, time in part.newest():
            kept = gone.get(partitionlet, 0) if gone else 0
            if last < kept:
                continue
            if kept:
                time = max(place.max_timestamp for place in part.places(partitionlet, kept))
            if time < 0:
                time = untimed
            if time > newest.get(partitionlet, -1):
                newest[partitionlet] = time
    found: dict[int, int] = {}
    for partitionlet, time in newest.items():
        group = partitionlet >> bits
        if group not in found or time < found[group]:
            found[group] = time
    return found


def _less(part: Part, summary: Summary, kept: int) -> Summary:
    """A part's summary of one partitionlet without the places that end below `kept`."""
    if not summary.length or summary.last < kept:
        return Summary(summary.partitionlet, -1, -1, -1, 0)
    places = list(part.places(summary.partitionlet, kept))
    newest = max(place.max_timestamp for place in places)
    return summary._replace(first=places[0].first, max_timestamp=newest, length=sum(place.length for place in places))


def _both(one: Summary, behind: Summary) -> Summary:
    """The summary of one partitionlet in two parts, of which `one` is the older."""
    if not behind.length:
        return one
    if not one.length:
        return behind
    newest = max(one.max_timestamp, behind.max_timestamp)
    return Summary(one.partitionlet, one.first, behind.last, newest, one.length + behind.length)


def punchable(body: Body, dead: Mapping[int, int]) -> int:
    """Bytes of the places that still count as live and end below their partitionlet's first kept offset in `dead`."""
    size = 0
    for partitionlet, kept in dead.items():
        for part in body.parts:
            for place in part.places(partitionlet, body.dead.first_kept(partitionlet)):
                if place.last >= kept:
                    break
                size += place.length
    return size


def punch(chunk: Chunk, dead: Mapping[int, int]) -> int:
    """Frees the places of a closed chunk that end below their partitionlet's first kept offset in `dead`.

    Returns the bytes returned to the filesystem. Raises `StorageFull` if the dead offsets cannot be recorded.
    """
    body = chunk.body
    touched = {partitionlet: kept for partitionlet, kept in dead.items() if punchable(body, {partitionlet: kept})}
    if touched:
        merged = body.dead.merged(touched)
        merged.store(chunk.dead_path, start=chunk.start)
        body = chunk.body = replace(body, dead=merged)
        chunk.punched = False
    ranges = [] if chunk.punched else _joined(_dead_places(body))
    before = _allocated(body)
    file = body.opened()
    block = os.fstatvfs(file.fd).f_bsize
    with keeps_write_time(file.fd):
        for start, end in ranges:
            start = -(-(FILE_HEAD_BYTES + start) // block) * block
            end = (FILE_HEAD_BYTES + end) // block * block
            if start < end and not punch_hole(file.fd, start, end):
                rewrite(chunk.path)
                take_up(chunk)
                break
    chunk.punched = True
    return max(before - _allocated(chunk.body), 0)


def _allocated(body: Body) -> int:
    file = body.opened()
    return os.fstat(file.fd).st_blocks * 512


def _dead_places(body: Body) -> Iterator[tuple[int, int]]:
    """The (start, end) of all dead places."""
    for partitionlet, kept in body.dead.as_mapping().items():
        for part in body.parts:
            for place in part.places(partitionlet, 0):
                if place.last >= kept:
                    break
                yield place.at, place.at + place.length


def _joined(places: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The places in order, with adjacent ones joined."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(places):
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined
