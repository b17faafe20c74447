"""The index over a range of a chunk as it is stored: a checkpoint of an open chunk, or (part of) a chunk's footer.

    head, 128 bytes:
        0  8s    magic        b"HRINDEX1"
        8  u32   head crc     CRC-32C of bytes 12 to 128
       12  u32   body crc     CRC-32C of the body
       16  u64   start        place in the chunk where the range starts
       24  u64   end          place after the range
       32  5u64  counts       entries E, places N, epochs M, producers R, controls C
       72  56x                zero
    body: columns of i64, little-endian, in this order
        E x 10: partitionlet (ascending), first, last, max_timestamp, length, zero,
                places end, epochs end, producers end, controls end
                (each "end" counts the rows up to and including this entry; an entry starts where the previous one ends)
        N x 4:  first, last, max_timestamp, at << 32 | length
        M x 2:  epoch, first offset
        R x 6:  producer, producer epoch, base sequence, last sequence, base offset, timestamp
        C x 2:  at << 32 | length, type

The body is stored column by column, so that a look-up is a `bisect` over the mapped file: no object per entry, no
memory per partitionlet. Adjacent frames of a partitionlet share a place of at most BLOCK_BYTES.

Knows nothing of files except that they can be mapped, and that the disk may be unable to read a part of one. Such a
part must be detected by an ordinary read before it is used (`Touch`), since an access to it in a mapped file would kill
the process.
"""

import struct
import sys
from array import array
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import compress
from typing import Final

from crc32c import crc32c

from headrace.base.errors import CorruptLog
from headrace.log.files import mapped
from headrace.log.index import NO_PRODUCER, ControlPlace, Place, ProducerBatch, Summary
from headrace.log.table import Table, unpack_row

if sys.byteorder != "little":  # the columns are used as they are in the file
    raise ImportError("Headrace's log needs a little-endian machine.")

SEGMENT_MAGIC: Final = b"HRINDEX1"
SEGMENT_HEAD_BYTES: Final = 128
_HEAD: Final = struct.Struct("<8sII2Q5Q56x")
BLOCK_BYTES: Final = 128 << 10
"""The greatest length of a place with several frames. A read may fetch one place too many at either end."""
_SCAN_FROM: Final = 16
"""A look-up of more than 1/_SCAN_FROM of all entries scans all of them, which is faster than to bisect for each."""
_LOW: Final = 0xFFFFFFFF
Touch = Callable[[int, int], None]
"""(offset in a segment, length): reads these bytes from the disk. Raises `CorruptLog` if the disk cannot read them."""
_NO_PRODUCER: Final = NO_PRODUCER.to_bytes(8, "little", signed=True)
_PACK_4: Final = struct.Struct("=4q").pack
_PACK_10: Final = struct.Struct("=10q").pack


class SegmentBuilder:
    """Collects entries in ascending order of partitionlet, and encodes them. Entries are collected as rows; `encode`
    turns them into columns."""

    def __init__(self) -> None:
        self._entries: array[int] = array("q")
        self._places: array[int] = array("q")
        self._epochs: array[int] = array("q")
        self._producers: array[int] = array("q")
        self._controls: array[int] = array("q")

    def add(
        self,
        summary: Sequence[int],
        *,
        places: Iterable[Sequence[int]],
        epochs: Iterable[Sequence[int]],
        producers: Iterable[Sequence[int]],
        controls: Iterable[ControlPlace],
    ) -> None:
        """Adds one partitionlet: its `Summary`, its `Place`s (adjacent ones are joined up to BLOCK_BYTES), its (epoch,
        first offset) pairs, `ProducerBatch`es and `ControlPlace`s. All but the last may be plain tuples."""
        rows = self._places
        end = -1
        length = 0
        for first, last, max_timestamp, at, size in places:
            if at == end and length + size <= BLOCK_BYTES:
                length += size
                rows[-3] = last
                if max_timestamp > rows[-2]:
                    rows[-2] = max_timestamp
                rows[-1] += size
            else:
                length = size
                rows.frombytes(_PACK_4(first, last, max_timestamp, at << 32 | size))
            end = at + size
        for epoch in epochs:
            self._epochs.extend(epoch)
        for batch in producers:
            self._producers.extend(batch)
        for control in controls:
            self._controls.extend((control.at << 32 | control.length, control.type))
        self._entries.frombytes(
            _PACK_10(
                *summary,
                0,
                len(rows) // 4,
                len(self._epochs) // 2,
                len(self._producers) // 6,
                len(self._controls) // 2,
            )
        )

    def add_single(self, partitionlet: int, row: bytes) -> None:
        """Adds a partitionlet that has one data frame, which no idempotent producer wrote, and no control frames. `row`
        as in table.py. With very many topics most partitionlets are like that."""
        first, last, max_timestamp, where, epoch, _, _ = unpack_row(row)
        self._places.frombytes(row[:32])
        self._epochs.extend((epoch, first))
        self._entries.frombytes(
            _PACK_10(
                partitionlet,
                first,
                last,
                max_timestamp,
                where & _LOW,
                0,
                len(self._places) // 4,
                len(self._epochs) // 2,
                len(self._producers) // 6,
                len(self._controls) // 2,
            )
        )

    def encode(self, *, start: int, end: int) -> list[bytes]:
        """The segment as head and body, ready to be written."""
        groups = (
            (self._entries, 10),
            (self._places, 4),
            (self._epochs, 2),
            (self._producers, 6),
            (self._controls, 2),
        )
        body = b"".join([rows[column::width].tobytes() for rows, width in groups for column in range(width)])
        return [_encode_head(start, end, [len(rows) // width for rows, width in groups], crc32c(body)), body]


def _encode_head(start: int, end: int, counts: Sequence[int], body_crc: int) -> bytes:
    head = bytearray(_HEAD.pack(SEGMENT_MAGIC, 0, body_crc, start, end, *counts))
    head[8:12] = crc32c(memoryview(head)[12:]).to_bytes(4, "little")
    return bytes(head)


def encode_table(table: Table) -> list[bytes]:
    """The segment with the content of `table`, as head and body."""
    builder = SegmentBuilder()
    controls = table.controls_by_partitionlet()
    for partitionlet in table.partitionlets():
        row = table.single(partitionlet)
        if row is not None and row[40:48] == _NO_PRODUCER and partitionlet not in controls:
            builder.add_single(partitionlet, row)
            continue
        summary, places, epochs, producers = table.entry(partitionlet)
        builder.add(summary, places=places, epochs=epochs, producers=producers, controls=controls.get(partitionlet, ()))
    return builder.encode(start=table.start, end=table.end)


class Segment:
    """A segment in a mapped file. The body's checksum is verified at the first use."""

    __slots__ = ("_body_crc", "_counts", "_touch", "_verified", "_words", "end", "raw", "source", "start")

    def __init__(self, raw: memoryview, *, source: str, touch: Touch | None = None) -> None:
        """`raw` starts with the head, and may continue beyond the segment. Raises `CorruptLog` for a bad head."""
        self.source = source
        self._touch = touch
        if touch is not None:
            touch(0, SEGMENT_HEAD_BYTES)
        if len(raw) < SEGMENT_HEAD_BYTES or bytes(raw[:8]) != SEGMENT_MAGIC:
            raise CorruptLog(f"{source}: no index segment where one must be. Refetch or restore this chunk.")
        _, head_crc, self._body_crc, self.start, self.end, *counts = _HEAD.unpack_from(raw)
        self._counts: list[int] = counts
        entries, places, epochs, producers, controls = self._counts
        words = entries * 10 + places * 4 + epochs * 2 + producers * 6 + controls * 2
        size = SEGMENT_HEAD_BYTES + words * 8
        if crc32c(raw[12:SEGMENT_HEAD_BYTES]) != head_crc or len(raw) < size:
            raise CorruptLog(f"{source}: the head of an index segment is damaged. Refetch or restore this chunk.")
        self.raw = raw[:size]
        self._words: memoryview[int] = self.raw[SEGMENT_HEAD_BYTES:].cast("q")
        self._verified = False

    @classmethod
    def map(cls, fd: int, offset: int, *, length: int, source: str) -> "Segment":
        """Maps the segment that starts at `offset` of the file and is at most `length` bytes long. Its bytes must just
        have been written or touched. Raises `OutOfDescriptors`."""
        return cls(mapped(fd, offset, length, what=source), source=f"{source}, byte {offset}")

    def verify(self) -> None:
        """Raises `CorruptLog` if the body's checksum does not match."""
        if not self._verified:
            touch = self._touch  # read once: threads may verify at the same time
            if touch is not None:
                touch(SEGMENT_HEAD_BYTES, len(self.raw) - SEGMENT_HEAD_BYTES)
            if crc32c(self.raw[SEGMENT_HEAD_BYTES:]) != self._body_crc:
                raise CorruptLog(f"{self.source}: an index segment is damaged. Refetch or restore this chunk.")
            self._verified = True
            self._touch = None

    @property
    def entries(self) -> int:
        """The number of partitionlets."""
        return self._counts[0]

    @property
    def place_count(self) -> int:
        """The number of places."""
        return self._counts[1]

    def _find(self, partitionlet: int) -> int:
        """The row of a partitionlet's entry; -1 if it has none."""
        self.verify()
        entries = self._counts[0]
        row = bisect_left(self._words, partitionlet, 0, entries)
        return row if row < entries and self._words[row] == partitionlet else -1

    def _rows(self, entry: int, group: int) -> tuple[int, int]:
        """The rows of an entry in a group: 0 places, 1 epochs, 2 producers, 3 controls."""
        entries = self._counts[0]
        ends = (6 + group) * entries
        return (self._words[ends + entry - 1] if entry else 0), self._words[ends + entry]

    def _base(self, group: int) -> int:
        """The word at which a group starts: 0 places, 1 epochs, 2 producers, 3 controls."""
        entries, places, epochs, producers, _ = self._counts
        return entries * 10 + (0, places * 4, places * 4 + epochs * 2, places * 4 + epochs * 2 + producers * 6)[group]

    def _summary(self, entry: int) -> Summary:
        words, entries = self._words, self._counts[0]
        return Summary(*(words[column * entries + entry] for column in range(5)))

    # --- Part

    def summary(self, partitionlet: int, /) -> Summary | None:
        """The summary of a partitionlet; None if it has no frame in this segment."""
        entry = self._find(partitionlet)
        return None if entry < 0 else self._summary(entry)

    def summaries(self) -> Iterator[Summary]:
        """The summaries of all partitionlets, by id."""
        self.verify()
        words, entries = self._words, self._counts[0]
        columns = (words[column * entries : (column + 1) * entries] for column in range(5))
        return map(Summary._make, zip(*columns, strict=True))

    def held_of(self, partitionlets: Collection[int], /) -> list[int]:
        """Those of `partitionlets` that have frames in this segment. Reads only the column of ids, without verifying
        its checksum: a caller must look up the returned ids with a method that verifies, and entries that damage hides
        are missing until the damage is found."""
        entries = self._counts[0]
        if not entries:
            return []
        touch = self._touch
        if touch is not None:
            touch(SEGMENT_HEAD_BYTES, entries * 8)
        words = self._words
        if len(partitionlets) * _SCAN_FROM > entries:
            return [each for each in words[:entries].tolist() if each in partitionlets]
        found = []
        for each in partitionlets:
            row = bisect_left(words, each, 0, entries)
            if row < entries and words[row] == each:
                found.append(each)
        return found

    def newest(self) -> Iterable[tuple[int, int, int]]:
        """See `Part.newest`. Works on columns, and creates no object per entry but the returned tuple."""
        self.verify()
        words, entries = self._words, self._counts[0]
        lasts, times, lengths = (words[column * entries : (column + 1) * entries] for column in (2, 3, 4))
        return compress(zip(words[:entries], lasts, times, strict=True), lengths)

    def places(self, partitionlet: int, /, offset: int) -> Iterator[Place]:
        """The places of a partitionlet, from the one that holds `offset` (or the next one) on."""
        entry = self._find(partitionlet)
        if entry < 0:
            return
        words, count = self._words, self._counts[1]
        start, end = self._rows(entry, 0)
        firsts = self._base(0)
        lasts = firsts + count
        for row in range(bisect_left(words, offset, lasts + start, lasts + end) - lasts, end):
            where = words[lasts + 2 * count + row]
            yield Place(words[firsts + row], words[lasts + row], words[lasts + count + row], where >> 32, where & _LOW)

    def epochs(self, partitionlet: int, /) -> Sequence[tuple[int, int]]:
        """The (epoch, first offset in the epoch) of a partitionlet, ascending."""
        entry = self._find(partitionlet)
        if entry < 0:
            return ()
        words, base, count = self._words, self._base(1), self._counts[2]
        return [(words[base + row], words[base + count + row]) for row in range(*self._rows(entry, 1))]

    def producers(self, partitionlet: int, /) -> Sequence[ProducerBatch]:
        """The last batches, up to five, of each producer of a partitionlet; those of one producer in offset order."""
        entry = self._find(partitionlet)
        if entry < 0:
            return ()
        words, base, count = self._words, self._base(2), self._counts[3]
        return [
            ProducerBatch(*(words[base + column * count + row] for column in range(6)))
            for row in range(*self._rows(entry, 2))
        ]

    def controls(self, partitionlet: int, /) -> Sequence[ControlPlace]:
        """The control frames of a partitionlet, in position order."""
        entry = self._find(partitionlet)
        if entry < 0:
            return ()
        words, base, count = self._words, self._base(3), self._counts[4]
        return [
            ControlPlace(words[base + row] >> 32, words[base + row] & _LOW, words[base + count + row])
            for row in range(*self._rows(entry, 3))
        ]

    def all_controls(self) -> list[tuple[int, int]]:
        """The (place, length) of all control frames, in position order."""
        self.verify()
        base = self._base(3)
        return [(word >> 32, word & _LOW) for word in sorted(self._words[base : base + self._counts[4]])]

    def data_bytes(self) -> int:
        """Bytes of all data frames."""
        self.verify()
        entries = self._counts[0]
        return sum(self._words[entries * 4 : entries * 5])

    def known_bytes(self) -> int:
        """Bytes of all frames in this segment."""
        return self.data_bytes() + sum(length for _, length in self.all_controls())

    def has_one_partitionlet(self) -> bool:
        """Whether all data frames belong to one partitionlet."""
        self.verify()
        entries = self._counts[0]
        with_data = (length for length in self._words[entries * 4 : entries * 5] if length)
        return next(with_data, None) is None or next(with_data, None) is None


def segments_in(raw: memoryview, *, source: str, touch: Touch) -> Iterator[Segment]:
    """The contiguous segments that fill `raw`. Raises `CorruptLog` at the first bad head."""
    at = 0
    while at < len(raw):
        segment = Segment(
            raw[at:],
            source=f"{source}, {at} bytes on",
            touch=lambda offset, length, at=at: touch(at + offset, length),  # type: ignore[misc]
        )
        yield segment
        at += len(segment.raw)
