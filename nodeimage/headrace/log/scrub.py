"""Scrub: reads a container's log back and checks every checksum.

    python -m headrace.log.scrub FOLDER [--json] [--synced POSITION] [--parent PID]

Runs as a child process at low priority, beside a node that continues to write, close, regroup and drop chunks. In a
closed chunk it checks the footer, each frame, each batch, and that the footer agrees with the frames about each place.
In an open chunk it checks all that is certainly synced, as proved by checkpoints, a newer chunk or the log's writer;
frames after that may be half written, and are checked by a start. A chunk that was dropped, or is dropped while it is
read, is skipped; a chunk that is closed or replaced meanwhile is read again in its new state.

Output: a line per finding, then a summary. With --json one object per line: {"finding": ...}, and at the end
{"chunks", "frames", "bytes", "findings"}. Exit status: 0 nothing found; 1 findings; 2 could not run; 3 the log was
written by a newer version; 4 the process PID had ended already.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace.base.errors import CorruptLog, HeadraceError, NewerFormat, OutOfDescriptors
from headrace.log.checkpoints import load_checkpoints
from headrace.log.chunk import CHUNK_KIND, Body, Chunk, load_body, read_trailer
from headrace.log.files import FILE_HEAD_BYTES, OpenFile, lost_as_corrupt_log, read_exactly, read_head
from headrace.log.folder import chunk_path, names_in
from headrace.log.frames import HEADER_BYTES, Frame, FrameType, frames_in
from headrace.log.gaps import gaps_of
from headrace.log.index import Part, Place
from headrace.log.parent_death import end_with_parent

EXIT_NEWER: Final = 3
"""Exit status of the child process if it met data that a newer version wrote."""
_NICENESS: Final = 10
_READ_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Finding:
    """One case of damage. `place` is counted from the chunk's first frame; -1: the file as a whole."""

    path: Path
    place: int
    message: str

    def __str__(self) -> str:
        where = f", place {self.place}" if self.place >= 0 else ""
        return f"{self.path}{where}: {self.message}"


@dataclass(slots=True)
class Scrubbed:
    """Counts of what has been read so far."""

    chunks: int = 0
    frames: int = 0
    bytes: int = 0


def scrub(folder: Path, scrubbed: Scrubbed, *, synced: int = 0) -> Iterator[Finding]:
    """Checks the log in `folder` and adds to the counts in `scrubbed`. `synced`: a position up to which the log is
    certainly synced.

    Raises OSError, `OutOfDescriptors`: the log, or the rest of it, could not be checked; `NewerFormat`.
    """
    names = names_in(folder)
    for start in sorted(names.chunks - names.dropped.keys()):
        path = chunk_path(folder, start)
        try:
            with lost_as_corrupt_log():
                yield from _unless_changed(path, scrubbed, synced)
        except FileNotFoundError:
            continue  # dropped meanwhile
        except CorruptLog as error:
            yield Finding(path, -1, str(error))
        scrubbed.chunks += 1


def _unless_changed(path: Path, scrubbed: Scrubbed, synced: int) -> Iterator[Finding]:
    """The findings in a chunk; if its state changed meanwhile, those of another attempt, three in all. Only the last
    attempt counts in `scrubbed`."""
    frames, bytes = scrubbed.frames, scrubbed.bytes
    for _ in range(3):
        scrubbed.frames, scrubbed.bytes = frames, bytes
        before = _state(path)
        findings = list(_scrub_chunk(path, scrubbed, synced))
        if not findings or _state(path) == before:
            break
    yield from findings


def _state(path: Path) -> tuple[int, ...]:
    """A value that changes when a chunk gets a checkpoint or is closed, regrouped or punched."""
    chunk = path.stat()
    state = [chunk.st_ino, chunk.st_size]
    for suffix in (".index", ".dead"):
        try:
            companion = path.with_suffix(suffix).stat()
            state += [companion.st_ino, companion.st_size]
        except FileNotFoundError:
            state += [0, 0]
    return tuple(state)


def _scrub_chunk(path: Path, scrubbed: Scrubbed, synced: int) -> Iterator[Finding]:
    try:
        file = OpenFile.open(path, os.O_RDONLY)
        head = read_head(file.fd, path, CHUNK_KIND)
        if head.start != int(path.stem):
            yield Finding(path, -1, f"holds the chunk of position {head.start}")
        if read_trailer(file.fd) is not None:
            yield from _scrub_closed(path, head.start, scrubbed)
        else:
            yield from _scrub_open(path, file, head.start, scrubbed, synced)
    except (NewerFormat, OutOfDescriptors):
        raise
    except HeadraceError as error:
        yield Finding(path, -1, str(error))


def _synced(path: Path, known: int) -> int:
    """The place below which an open chunk is certainly synced: `known`, or the chunk's end if a newer chunk exists."""
    names = names_in(path.parent)
    start = int(path.stem)
    return min((newer - start for newer in (*names.chunks, *names.dropped) if newer > start), default=known)


def _scrub_open(path: Path, file: OpenFile, start: int, scrubbed: Scrubbed, synced: int) -> Iterator[Finding]:
    checkpoints = load_checkpoints(path.with_suffix(".index"))
    indexed = checkpoints.segments[-1].end if checkpoints.segments else 0
    if checkpoints.synced > indexed:
        yield Finding(path.with_suffix(".index"), indexed, "a checkpoint is damaged; the next start scans more")
    end = _synced(path, max(checkpoints.synced, synced - start))
    at = 0
    while at < end:
        window = memoryview(read_exactly(file.fd, FILE_HEAD_BYTES + at, min(_READ_BYTES, end - at)))
        used = 0
        try:
            for frame in frames_in(_whole_frames(window), source=str(path), whole=True):
                if frame.position != start + at + used:
                    yield Finding(path, at + used, f"a frame says that it is at position {frame.position}")
                used += HEADER_BYTES + len(frame.payload)
                scrubbed.frames += 1
            if not used:  # the frame is longer than the window
                length = int.from_bytes(window[4:8], "little")
                view = memoryview(read_exactly(file.fd, FILE_HEAD_BYTES + at, min(max(length, HEADER_BYTES), end - at)))
                for _ in frames_in(view, source=str(path), whole=True):
                    scrubbed.frames += 1
                used = len(view)
        except CorruptLog as error:
            yield Finding(path, at + used, str(error))
            return  # the start of the next frame is unknown
        at += used
        scrubbed.bytes += used


def _whole_frames(window: memoryview) -> memoryview:
    """The start of `window` that consists of whole frames according to their lengths."""
    at = 0
    while at + HEADER_BYTES <= len(window):
        length = int.from_bytes(window[at + 4 : at + 8], "little")
        if length < HEADER_BYTES or at + length > len(window):
            break
        at += length
    return window[:at]


def _scrub_closed(path: Path, start: int, scrubbed: Scrubbed) -> Iterator[Finding]:
    body = load_body(path)
    accounted = 0
    for part in body.parts:
        for at, length in part.all_controls():
            accounted += length
            for frame in _frames(path, body, at, length, scrubbed):
                if isinstance(frame, Finding):
                    yield frame
                elif frame.type == FrameType.DATA or (not body.regrouped and frame.position != start + at):
                    yield Finding(path, at, "the footer has a control frame here, the file another frame")
        for summary in part.summaries():
            kept = body.dead.first_kept(summary.partitionlet)
            length = 0
            for place in part.places(summary.partitionlet, 0):
                length += place.length
                if place.last >= kept:
                    yield from _scrub_place(path, body, summary.partitionlet, place, scrubbed)
            accounted += length
            yield from _scrub_summary(path, part, summary.partitionlet, length)
    if not body.regrouped:
        chunk = Chunk(path=path, start=start, body=body)
        for _, length in gaps_of(chunk, body, end=body.frames_end):
            accounted += length
            scrubbed.frames += 1
    if accounted != body.frames_end:
        yield Finding(path, -1, f"the footer accounts for {accounted} bytes of {body.frames_end}")


def _scrub_place(path: Path, body: Body, partitionlet: int, place: Place, scrubbed: Scrubbed) -> Iterator[Finding]:
    first = last = newest = -1
    for frame in _frames(path, body, place.at, place.length, scrubbed):
        if isinstance(frame, Finding):
            yield frame
            return
        if frame.type != FrameType.DATA or frame.partitionlet != partitionlet or frame.first <= last:
            yield Finding(path, place.at, f"the footer has partitionlet {partitionlet} here, the file another frame")
            return
        first = frame.first if first < 0 else first
        last = frame.last
        newest = max(newest, frame.max_timestamp)
    if (first, last, newest) != (place.first, place.last, place.max_timestamp):
        yield Finding(path, place.at, f"offsets {first} to {last}, the footer has {place.first} to {place.last}")


def _scrub_summary(path: Path, part: Part, partitionlet: int, length: int) -> Iterator[Finding]:
    summary = part.summary(partitionlet)
    if summary is None or summary.length != length:
        yield Finding(path, -1, f"the footer's sum of partitionlet {partitionlet} is not that of its places")


def _frames(path: Path, body: Body, at: int, length: int, scrubbed: Scrubbed) -> Iterator[Frame | Finding]:
    view = memoryview(body.read(at, length))
    try:
        for frame in frames_in(view, source=str(path), whole=True):
            scrubbed.frames += 1
            yield frame
        if len(view) < length:
            yield Finding(path, at, "the file ends within this place")
    except CorruptLog as error:
        yield Finding(path, at, str(error))
    scrubbed.bytes += length


def main(arguments: list[str]) -> int:
    """Runs the child process; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m headrace.log.scrub", description="Checks a container's log.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--synced", type=int, default=0, help="position up to which the log's writer has synced")
    parser.add_argument("--parent", type=int, help="the process with which it ends")
    chosen = parser.parse_args(arguments)
    end_with_parent(chosen.parent)
    os.nice(_NICENESS)
    scrubbed, findings = Scrubbed(), 0
    try:
        for finding in scrub(chosen.folder, scrubbed, synced=chosen.synced):
            findings += 1
            print(json.dumps({"finding": str(finding)}) if chosen.json else finding, flush=True)
    except NewerFormat as error:
        print(f"scrub: {error}", file=sys.stderr)
        return EXIT_NEWER
    except (OSError, OutOfDescriptors) as error:
        print(f"scrub: {error}", file=sys.stderr)
        return 2
    summary = {"chunks": scrubbed.chunks, "frames": scrubbed.frames, "bytes": scrubbed.bytes, "findings": findings}
    print(json.dumps(summary) if chosen.json else ", ".join(f"{count} {name}" for name, count in summary.items()))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
