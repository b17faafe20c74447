"""The index of frames that have no checkpoint yet, in memory.

Only the event-loop thread appends to a table, and any thread reads it meanwhile. This is safe without a lock because a
partitionlet's rows (its run) grow by one whole row in one call under the interpreter lock, nothing is ever changed or
removed, and no reader keeps a `memoryview` of an array that may still grow.

A row is seven words of an `array`, with no object per frame: first, last, largest timestamp, place << 32 | length,
epoch, producer id, producer epoch << 32 | base sequence. The only row of a partitionlet is kept as packed bytes: with
very many topics most have no second row. A table covers about `checkpoint_bytes`, so it stays small even if the chunk
is large.
"""

import struct
from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

from headrace.log.index import (
    NO_PRODUCER,
    REMEMBERED_BATCHES,
    ControlPlace,
    Place,
    ProducerBatch,
    Summary,
    last_sequence,
)

STRIDE: Final = 7
_ROW: Final = struct.Struct("=7q")
_pack_row: Final = _ROW.pack
unpack_row: Final = _ROW.unpack
_LOW: Final = 0xFFFFFFFF


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


class Table:
    """An index under construction. `start` and `end` are places in the chunk."""

    __slots__ = ("_controls", "_runs", "end", "start")

    def __init__(self, start: int) -> None:
        self.start = start
        self.end = start
        self._runs: dict[int, bytes | array[int]] = {}
        self._controls: array[int] = array("q")  # partitionlet, place << 32 | length, type

    def add_batch(
        self,
        partitionlet: int,
        first: int,
        last: int,
        max_timestamp: int,
        place: int,
        length: int,
        epoch: int,
        producer: int,
        sequence: int,
    ) -> None:
        """Adds a data frame; `sequence` is producer epoch << 32 | base sequence (positional arguments: a hot call)."""
        row = _pack_row(first, last, max_timestamp, place << 32 | length, epoch, producer, sequence)
        run = self._runs.get(partitionlet)
        if run is None:
            self._runs[partitionlet] = row
        elif isinstance(run, bytes):
            self._runs[partitionlet] = array("q", run + row)
        else:
            run.frombytes(row)
        self.end = place + length

    def add_control(self, *, partitionlet: int, place: int, length: int, type: int) -> None:
        """Adds a control frame."""
        self._controls.extend((partitionlet, place << 32 | length, type))
        self.end = place + length

    def add_gap(self, *, place: int, length: int) -> None:
        """Skips a gap frame, which has no entry in an index (gaps.py)."""
        self.end = place + length

    def last_of(self, partitionlet: int) -> tuple[int, int] | None:
        """The (last offset, its epoch) of a partitionlet; None if it has no data frame in this table."""
        run = self._run(partitionlet)
        return None if run is None else (run[-STRIDE + 1], run[-STRIDE + 4])

    def partitionlets(self) -> list[int]:
        """The ids of all partitionlets that have a frame in this table, sorted."""
        return sorted(set(self._runs).union(self._controls[0::3]))

    def entry(
        self, partitionlet: int
    ) -> tuple[Sequence[int], Iterable[Sequence[int]], Sequence[tuple[int, int]], Sequence[ProducerBatch]]:
        """The summary, places, epochs and producers of one partitionlet; summary and places may be plain tuples."""
        run = self._run(partitionlet)
        if run is None:
            return (partitionlet, -1, -1, -1, 0), (), (), ()
        if len(run) == STRIDE:
            first, last, max_timestamp, where, epoch, producer, _ = run
            length = where & _LOW
            producers = () if producer == NO_PRODUCER else self.producers(partitionlet)
            place = (first, last, max_timestamp, where >> 32, length)
            return (partitionlet, first, last, max_timestamp, length), (place,), ((epoch, first),), producers
        wheres = run[3::STRIDE]
        places = zip(
            run[0::STRIDE],
            run[1::STRIDE],
            run[2::STRIDE],
            [where >> 32 for where in wheres],
            [where & _LOW for where in wheres],
            strict=True,
        )
        summary = self.summary(partitionlet)
        assert summary is not None
        return summary, places, self.epochs(partitionlet), self.producers(partitionlet)

    def single(self, partitionlet: int) -> bytes | None:
        """The only row of a partitionlet, packed; None if it has no row, or several."""
        run = self._runs.get(partitionlet)
        return run if isinstance(run, bytes) else None

    def _run(self, partitionlet: int) -> "array[int] | None":
        run = self._runs.get(partitionlet)
        return None if run is None else _as_array(run)

    # --- Part

    def summary(self, partitionlet: int, /) -> Summary | None:
        """The summary of a partitionlet; None if it has no frame in this table."""
        run = self._run(partitionlet)
        if run is None:
            return Summary(partitionlet, -1, -1, -1, 0) if partitionlet in self._controls[0::3] else None
        rows = len(run) // STRIDE
        if rows == 1:
            return Summary(partitionlet, run[0], run[1], run[2], run[3] & _LOW)
        run = run[: rows * STRIDE]
        return Summary(
            partitionlet, run[0], run[-STRIDE + 1], max(run[2::STRIDE]), sum(word & _LOW for word in run[3::STRIDE])
        )

    def summaries(self) -> Iterator[Summary]:
        """The summaries of all partitionlets, by id."""
        for partitionlet in self.partitionlets():
            if summary := self.summary(partitionlet):
                yield summary

    def held_of(self, partitionlets: Collection[int], /) -> list[int]:
        """Those of `partitionlets` that have frames in this table."""
        controls = set(self._controls[0::3])
        return [each for each in partitionlets if each in self._runs or each in controls]

    def newest(self) -> Iterable[tuple[int, int, int]]:
        """The (partitionlet, last offset, largest timestamp) of all partitionlets with data frames in this table."""
        for partitionlet, run in list(self._runs.items()):
            if isinstance(run, bytes):
                _, last, max_timestamp, *_ = unpack_row(run)
                yield partitionlet, last, max_timestamp
            else:
                run = run[: len(run) // STRIDE * STRIDE]
                yield partitionlet, run[-STRIDE + 1], max(run[2::STRIDE])

    def places(self, partitionlet: int, /, offset: int) -> Iterator[Place]:
        """One place per frame, from the one that holds `offset` on."""
        run = self._run(partitionlet)
        if run is None:
            return
        rows = len(run) // STRIDE
        for row in range(bisect_left(range(rows), offset, key=lambda i: run[i * STRIDE + 1]), rows):
            first, last, max_timestamp, where = run[row * STRIDE : row * STRIDE + 4]
            yield Place(first, last, max_timestamp, where >> 32, where & _LOW)

    def epochs(self, partitionlet: int, /) -> Sequence[tuple[int, int]]:
        """The (epoch, first offset in the epoch) of a partitionlet, ascending."""
        run = self._run(partitionlet)
        if run is None:
            return ()
        run = run[: len(run) // STRIDE * STRIDE]
        if run[4] == run[-STRIDE + 4]:
            return ((run[4], run[0]),)
        found: dict[int, int] = {}
        for epoch, first in zip(run[4::STRIDE], run[0::STRIDE], strict=True):
            found.setdefault(epoch, first)
        return list(found.items())

    def producers(self, partitionlet: int, /) -> Sequence[ProducerBatch]:
        """The last batches, up to five, of each producer of a partitionlet; those of one producer in offset order."""
        run = self._run(partitionlet)
        if run is None:
            return ()
        rows = len(run) // STRIDE
        wanted = dict.fromkeys(run[5 : rows * STRIDE : STRIDE], REMEMBERED_BATCHES)
        wanted.pop(NO_PRODUCER, None)
        found: list[ProducerBatch] = []
        row = rows
        while wanted and row:
            row -= 1
            first, last, timestamp, _, _, producer, sequence = run[row * STRIDE : (row + 1) * STRIDE]
            if producer in wanted:
                base = _signed(sequence & _LOW, 32)
                found.append(
                    ProducerBatch(
                        producer,
                        _signed(sequence >> 32, 16),
                        base,
                        last_sequence(base, last - first) if producer > NO_PRODUCER else base,
                        first,
                        timestamp,
                    )
                )
                wanted[producer] -= 1
                if not wanted[producer]:
                    del wanted[producer]
        found.reverse()
        return found

    def controls(self, partitionlet: int, /) -> Sequence[ControlPlace]:
        """The control frames of a partitionlet, in position order."""
        controls = self._controls[:]
        return [
            ControlPlace(controls[i + 1] >> 32, controls[i + 1] & _LOW, controls[i + 2])
            for i in range(0, len(controls), 3)
            if controls[i] == partitionlet
        ]

    def controls_by_partitionlet(self) -> dict[int, list[ControlPlace]]:
        """All control frames by partitionlet, each list in position order."""
        found: dict[int, list[ControlPlace]] = {}
        controls = self._controls[:]
        for i in range(0, len(controls), 3):
            place = ControlPlace(controls[i + 1] >> 32, controls[i + 1] & _LOW, controls[i + 2])
            found.setdefault(controls[i], []).append(place)
        return found

    def all_controls(self) -> list[tuple[int, int]]:
        """The (place, length) of all control frames, in position order."""
        return [(word >> 32, word & _LOW) for word in self._controls[1::3]]

    def data_bytes(self) -> int:
        """Bytes of all data frames."""
        runs = [_as_array(run) for run in list(self._runs.values())]
        return sum(word & _LOW for run in runs for word in run[3::STRIDE])

    def known_bytes(self) -> int:
        """Bytes of all frames in this table."""
        return self.data_bytes() + sum(word & _LOW for word in self._controls[1::3])

    def has_one_partitionlet(self) -> bool:
        """Whether all data frames belong to one partitionlet."""
        return len(self._runs) <= 1


def _as_array(run: "bytes | array[int]") -> "array[int]":
    return array("q", run) if isinstance(run, bytes) else run
