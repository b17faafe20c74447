"""The file that stores, for the next start, what garbage collection of chunks has searched, and where.

    head      64 bytes, kind b"GCMK" (log/files.py)
    64  u32   crc         CRC-32C of what follows
    68  ...   dead_records.DeadRecords.encode

The file may be lost or outdated: then chunks are searched again. Blocking.
"""

import os
from pathlib import Path
from typing import Final

from crc32c import crc32c

from headrace.base.errors import CorruptLog
from headrace.log.files import FILE_HEAD_BYTES, FileHead, OpenFile, read_exactly, read_head, replace_file

MARK_KIND: Final = b"GCMK"


def store(path: Path, content: bytes) -> None:
    """Replace the mark durably. Raises `StorageFull`, OSError; the old mark then remains."""
    replace_file(path, [FileHead(MARK_KIND, 0).encode(), crc32c(content).to_bytes(4, "little"), content])


def load(path: Path) -> bytes | None:
    """The content that was stored last; None if nothing was stored. Raises `CorruptLog`, OSError."""
    try:
        file = OpenFile.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    read_head(file.fd, path, MARK_KIND)
    raw = read_exactly(file.fd, FILE_HEAD_BYTES, os.fstat(file.fd).st_size - FILE_HEAD_BYTES)
    if crc32c(raw[4:]) != int.from_bytes(raw[:4], "little"):
        raise CorruptLog(f"{path} is damaged: chunks are examined again")
    return raw[4:]
