"""The dead offsets of a chunk, whose space has been freed: the file `<start>.dead`.

    head      64 bytes, kind b"DEAD" (files.py)
    64  u32   crc         CRC-32C of all bytes from 68 on
    68  u32   zero
    72  u64   count       number of entries E
    80  E x i64           partitionlet, ascending
        E x i64           first offset that is kept

A place of a listed partitionlet that ends below the first kept offset is dead, whether or not its bytes still exist.
The file is written whole and durably before any space is freed, so a crash in between leaves bytes that nobody reads.
The file names offsets, not bytes, so it stays valid when the chunk is regrouped.
"""

import os
import struct
from array import array
from bisect import bisect_left
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from crc32c import crc32c

from headrace.base.errors import CorruptLog
from headrace.log.files import FILE_HEAD_BYTES, FileHead, OpenFile, read_exactly, read_head, replace_file

DEAD_KIND: Final = b"DEAD"
_COUNT: Final = struct.Struct("<II Q")


class DeadOffsets:
    """The first kept offset of each partitionlet that has dead places. Immutable."""

    __slots__ = ("_kept", "_partitionlets")

    def __init__(self, kept: Mapping[int, int] | None = None) -> None:
        self._partitionlets = array("q", sorted(kept or ()))
        self._kept = array("q", (kept[partitionlet] for partitionlet in self._partitionlets) if kept else ())

    def __bool__(self) -> bool:
        return bool(self._partitionlets)

    def first_kept(self, partitionlet: int) -> int:
        """The first kept offset of a partitionlet; places that end below it are dead. 0: nothing is dead."""
        row = bisect_left(self._partitionlets, partitionlet)
        found = row < len(self._partitionlets) and self._partitionlets[row] == partitionlet
        return self._kept[row] if found else 0

    def merged(self, more: Mapping[int, int]) -> "DeadOffsets":
        """The union of both; the higher offset wins, so dead places stay dead."""
        kept = self.as_mapping()
        for partitionlet, first in more.items():
            if first > kept.get(partitionlet, 0):
                kept[partitionlet] = first
        return DeadOffsets(kept)

    def as_mapping(self) -> dict[int, int]:
        """A copy of the offsets as {partitionlet: first kept offset}."""
        return dict(zip(self._partitionlets, self._kept, strict=True))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeadOffsets) and self.as_mapping() == other.as_mapping()

    __hash__ = None  # type: ignore[assignment]

    def store(self, path: Path, *, start: int) -> None:
        """Replaces the file durably. Raises `StorageFull`, and the old file remains then."""
        columns = self._partitionlets.tobytes() + self._kept.tobytes()
        rest = _COUNT.pack(0, 0, len(self._partitionlets))[4:] + columns
        crc = crc32c(rest).to_bytes(4, "little")
        replace_file(path, [FileHead(DEAD_KIND, start).encode(), crc, rest])

    @classmethod
    def load(cls, path: Path) -> "DeadOffsets":
        """Reads the file; without a file nothing is dead. Raises `CorruptLog`."""
        try:
            file = OpenFile.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return cls()
        read_head(file.fd, path, DEAD_KIND)
        raw = read_exactly(file.fd, FILE_HEAD_BYTES, os.fstat(file.fd).st_size - FILE_HEAD_BYTES)
        if len(raw) < _COUNT.size or crc32c(raw[4:]) != _COUNT.unpack_from(raw)[0]:
            raise CorruptLog(f"{path}, byte {FILE_HEAD_BYTES}: damaged. Refetch or restore this chunk.")
        count = _COUNT.unpack_from(raw)[2]
        words = array("q", raw[_COUNT.size :])
        return cls(dict(zip(words[:count], words[count:], strict=True)))
