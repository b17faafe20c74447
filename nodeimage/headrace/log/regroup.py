"""Regrouping: a closed chunk rewritten in order of (partitionlet, offset), control frames first.

    python -m headrace.log.regroup FOLDER START [PAUSES_S [PARENT]]

Runs as a child process at low priority. To spare the disk too, it writes and syncs piece by piece, and after each piece
pauses three times as long as the piece took, for PAUSES_S in total. So a write that is to be acknowledged meanwhile
waits for one piece, not for a whole chunk. The process ends when the process PARENT ends.

A partitionlet's id starts with its stream's number, so frames that are read together, and expire together, are adjacent
in the file. Frames keep their bytes, including their positions; every checksum is verified during the copy, so damage
is found and never copied. Dead places (dead.py) are omitted. The new file keeps the modification time of the old one,
since records without a timestamp are as old as their file.

When the child process ends, the new file is complete and synced under a temporary name; the log then puts it in place
with one rename. So only the log's own process changes which files the log consists of: a child that ends late adds
nothing to a log that was cut or emptied meanwhile. After an earlier crash the next start removes the temporary file.
Deterministic: the same frames give the same bytes on every replica.

Exit status: 0 done; 1 failed, with a line on stderr; 4 PARENT had ended already.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from headrace.base.errors import HeadraceError
from headrace.log.chunk import CHUNK_KIND, Body, Chunk, close_file, load_body, read_trailer
from headrace.log.files import (
    FILE_HEAD_BYTES,
    REGROUPED,
    FileHead,
    OpenFile,
    full_disk_as_storage_full,
    set_write_time,
    synced_folder,
    write_all,
    write_and_sync,
)
from headrace.log.folder import chunk_path
from headrace.log.frames import HEADER_BYTES, frames_in
from headrace.log.index import ControlPlace, Place, ProducerBatch, Summary
from headrace.log.parent_death import end_with_parent
from headrace.log.reading import ProducerEntry, merge_producers
from headrace.log.segment import Segment, SegmentBuilder

REGROUPED_SUFFIX: Final = ".regrouped.tmp"
"""Suffix of the new file that lies beside a chunk's file until it replaces it."""
_NICENESS: Final = 10
_PIECE_BYTES: Final = 1 << 20
_PIECE_BYTES_WITHOUT_PAUSES: Final = 4 << 20
"""The size of a piece if there are no pauses: larger, since each sync is expensive."""
_PAUSE_FACTOR: Final = 3.0
"""A pause lasts this many times as long as the piece before it took."""


class Pauses:
    """The pauses while one chunk is rewritten: `seconds` in total, spread over its pieces."""

    def __init__(self, seconds: float, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._left_s = max(0.0, seconds)
        self._sleep = sleep
        self.piece_bytes = _PIECE_BYTES if self._left_s else _PIECE_BYTES_WITHOUT_PAUSES

    def after(self, took_s: float, *, pieces_left: int) -> None:
        """Sleeps after a piece that has been written and synced in `took_s` seconds."""
        pause = min(_PAUSE_FACTOR * took_s, self._left_s / (pieces_left + 1))
        if pause:
            self._left_s -= pause
            self._sleep(pause)


class _Output:
    """The frames of the new file, buffered."""

    def __init__(self, file: OpenFile, pauses: Pauses, *, expected: int) -> None:
        """`expected`: the most bytes of frames to be written."""
        self._file = file
        self._pauses = pauses
        self._expected = expected
        self._buffers: list[bytes | memoryview] = []
        self._buffered = 0
        self.place = 0

    def write(self, frames: memoryview) -> int:
        """Adds frames; returns their place."""
        place = self.place
        self._buffers.append(frames)
        self._buffered += len(frames)
        self.place += len(frames)
        if self._buffered >= self._pauses.piece_bytes:
            self.flush()
        return place

    def flush(self) -> None:
        """Writes and syncs the buffered frames, then pauses to leave the disk to others."""
        if not self._buffers:
            return
        began = time.monotonic()
        write_and_sync(self._file.fd, FILE_HEAD_BYTES + self.place - self._buffered, self._buffers)
        self._buffers.clear()
        self._buffered = 0
        left = -(-(self._expected - self.place) // self._pauses.piece_bytes)
        self._pauses.after(time.monotonic() - began, pieces_left=left)


def regrouped_path(path: Path) -> Path:
    """The path of a chunk's regrouped file until it replaces the chunk's file."""
    return path.with_name(path.name + REGROUPED_SUFFIX)


def rewrite(path: Path, *, pauses: Pauses | None = None) -> None:
    """Writes the closed chunk at `path`, regrouped, to a new file beside it. Raises `CorruptLog`, `StorageFull`, and
    leaves no new file then."""
    body = load_body(path)
    file = body.opened()
    trailer = read_trailer(file.fd)
    assert trailer is not None
    temporary = regrouped_path(path)
    with full_disk_as_storage_full(temporary):
        fresh = OpenFile.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            write_all(fresh.fd, 0, [FileHead(CHUNK_KIND, trailer.start, REGROUPED).encode()])
            output = _Output(fresh, pauses or Pauses(0.0), expected=body.frames_end)
            segment = _copy_frames(body, output, source=path, end=trailer.end - trailer.start)
            output.flush()
            close_file(
                fresh,
                path=temporary,
                start=trailer.start,
                end=trailer.end,
                frames_end=output.place,
                parts=(segment,),
            )
            set_write_time(fresh.fd, os.fstat(file.fd))
        except (OSError, HeadraceError):
            temporary.unlink(missing_ok=True)
            raise


def take_up(chunk: Chunk) -> None:
    """Replaces a chunk's file with the one that `rewrite` made from it. Readers of the old file can continue."""
    path = chunk.path
    temporary = regrouped_path(path)
    if temporary.exists():
        with chunk.body.losing_its_name() as old, synced_folder(path.parent):
            if _is_same_file(path, old):
                temporary.rename(path)
            else:
                drop(path)
    chunk.body = load_body(path)


def drop(path: Path) -> None:
    """Removes the file that `rewrite` wrote, if there is one."""
    regrouped_path(path).unlink(missing_ok=True)


def _is_same_file(path: Path, file: OpenFile) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fd))
    except FileNotFoundError:
        return False


def _copy_frames(body: Body, output: _Output, *, source: Path, end: int) -> Segment:
    """Copies all live frames in the new order; returns the index of the copies."""
    builder = SegmentBuilder()
    if body.frames_end:
        controls = _copy_controls(body, output, source)
        for partitionlet in sorted({s.partitionlet for part in body.parts for s in part.summaries()}):
            places = list(_copy_batches(body, output, partitionlet, source))
            if places:
                summary = Summary(
                    partitionlet,
                    places[0].first,
                    places[-1].last,
                    max(place.max_timestamp for place in places),
                    sum(place.length for place in places),
                )
            elif partitionlet in controls:
                summary = Summary(partitionlet, -1, -1, -1, 0)
            else:
                continue
            builder.add(
                summary,
                places=places,
                epochs=_epochs(body, partitionlet) if places else (),
                producers=_producers(body, partitionlet) if places else (),
                controls=controls.get(partitionlet, ()),
            )
    return Segment(memoryview(b"".join(builder.encode(start=0, end=end))), source=str(source))


def _frames_at(body: Body, at: int, length: int) -> memoryview:
    return memoryview(body.read(at, length))


def _copy_controls(body: Body, output: _Output, source: Path) -> dict[int, list[ControlPlace]]:
    copied: dict[int, list[ControlPlace]] = {}
    places = [place for part in body.parts for place in part.all_controls()]
    for at, length in places:
        view = _frames_at(body, at, length)
        (frame,) = frames_in(view, source=f"{source}, place {at}")
        copied.setdefault(frame.partitionlet, []).append(ControlPlace(output.write(view), length, frame.type))
    return copied


def _copy_batches(body: Body, output: _Output, partitionlet: int, source: Path) -> Iterator[Place]:
    kept = body.dead.first_kept(partitionlet)
    for part in body.parts:
        for place in part.places(partitionlet, kept):
            view = _frames_at(body, place.at, place.length)
            at = output.write(view)
            for frame in frames_in(view, source=f"{source}, place {place.at}", whole=True):
                length = HEADER_BYTES + len(frame.payload)
                yield Place(frame.first, frame.last, frame.max_timestamp, at, length)
                at += length


def _epochs(body: Body, partitionlet: int) -> list[tuple[int, int]]:
    epochs: list[tuple[int, int]] = []
    for part in body.parts:
        for epoch, first in part.epochs(partitionlet):
            if not epochs or epoch > epochs[-1][0]:
                epochs.append((epoch, first))
    return epochs


def _producers(body: Body, partitionlet: int) -> list[ProducerBatch]:
    known: dict[int, ProducerEntry] = {}
    for part in body.parts:
        merge_producers(known, part.producers(partitionlet))
    return [
        ProducerBatch(producer, entry.epoch, *batch)
        for producer, entry in sorted(known.items())
        for batch in entry.batches
    ]


def main(arguments: list[str]) -> int:
    """Runs the child process; returns its exit status."""
    try:
        folder, start, pauses_s = Path(arguments[0]), int(arguments[1]), sum(map(float, arguments[2:3]))
        parent = int(arguments[3]) if len(arguments) > 3 else None
    except (IndexError, ValueError):
        print("usage: python -m headrace.log.regroup FOLDER START [PAUSES_S [PARENT]]", file=sys.stderr)
        return 1
    end_with_parent(parent)
    os.nice(_NICENESS)
    try:
        rewrite(chunk_path(folder, start), pauses=Pauses(pauses_s))
    except (HeadraceError, OSError) as error:
        print(f"regroup: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
