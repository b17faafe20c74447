"""Regrouping: a closed chunk rewritten in order of (partitionlet, offset), control frames first.

    python -m headrace.log.regroup FOLDER START [PAUSES_S [PARENT]]

Run as a helper process at low priority, for the disk too: it writes and syncs piece by piece, and leaves the disk to
others for three times as long as each took, for PAUSES_S in all. What is acknowledged meanwhile waits behind one piece,
not behind a chunk. It ends with the process PARENT.

A partitionlet's id starts with its stream's number, so neighbours in the file are what is read, and what expires,
together. Frames keep their bytes, their positions included; every checksum is checked on the way, so damage is found
and never copied. Dead places (dead.py) are left out.

The new file is complete and synced under another name when the helper ends; the log takes it up then, in one rename.
So the log's process alone changes what the folder holds: a helper that ends late puts nothing into a log that was cut
or emptied meanwhile. A crash before leaves a file that the next start removes.
Deterministic: the same frames give the same bytes on every replica.

Exit status: 0 done; 1 not done, with a line on stderr.
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
"""Of a file that lies beside a chunk until it takes its place."""
_NICENESS: Final = 10
_PIECE_BYTES: Final = 1 << 20
_HASTY_PIECE_BYTES: Final = 4 << 20
"""Without pauses: each sync has its price."""
_TIMES: Final = 3.0
"""A pause is so many times as long as the piece before it took."""


class Pauses:
    """Those of one chunk: so many seconds in all, spread over its pieces."""

    def __init__(self, seconds: float, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._left_s = max(0.0, seconds)
        self._sleep = sleep
        self.piece_bytes = _PIECE_BYTES if self._left_s else _HASTY_PIECE_BYTES

    def after(self, took_s: float, *, pieces_left: int) -> None:
        """A piece has been written and synced."""
        pause = min(_TIMES * took_s, self._left_s / (pieces_left + 1))
        if pause:
            self._left_s -= pause
            self._sleep(pause)


class _Output:
    """The frames of the new file, buffered."""

    def __init__(self, file: OpenFile, pauses: Pauses, *, expected: int) -> None:
        """`expected`: bytes of frames, at most."""
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
        """Writes and syncs what is buffered, and lets others have the disk."""
        if not self._buffers:
            return
        began = time.monotonic()
        write_and_sync(self._file.fd, FILE_HEAD_BYTES + self.place - self._buffered, self._buffers)
        self._buffers.clear()
        self._buffered = 0
        left = -(-(self._expected - self.place) // self._pauses.piece_bytes)
        self._pauses.after(time.monotonic() - began, pieces_left=left)


def regrouped_path(path: Path) -> Path:
    """Where a regrouped chunk waits to be taken up."""
    return path.with_name(path.name + REGROUPED_SUFFIX)


def rewrite(path: Path, *, pauses: Pauses | None = None) -> None:
    """Writes the closed chunk at `path` anew, beside it. Raises `CorruptLog`, `StorageFull`: there is nothing then."""
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
        except (OSError, HeadraceError):
            temporary.unlink(missing_ok=True)
            raise


def take_up(chunk: Chunk) -> None:
    """Puts the file that `rewrite` left into the place of the one that it was made from. Who reads that goes on."""
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
    """Removes what `rewrite` left, if it did."""
    regrouped_path(path).unlink(missing_ok=True)


def _is_same_file(path: Path, file: OpenFile) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fd))
    except FileNotFoundError:
        return False


def _copy_frames(body: Body, output: _Output, *, source: Path, end: int) -> Segment:
    """Copies all live frames in their new order; returns their index."""
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
    """The helper process."""
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
