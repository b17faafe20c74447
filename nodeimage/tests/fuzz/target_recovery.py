"""A container's log whose bytes on disk changed: it opens and reads what is sound, or says `CorruptLog`.

An input is edits of the files of a small sound log (which file, where, what), maybe a file cut short. A log that opens
must then give only batches with their own first bytes (their frame's checksum covers them), take new ones, and open
again with these.
"""

import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import structlog

from headrace.base.errors import CorruptLog, FolderRefused
from headrace.log.container_log import ContainerLog, LogOptions
from headrace.log.frames import FrameType
from headrace.wire.batch import build_batch

OPTIONS = LogOptions(chunk_bytes=8 << 10, checkpoint_bytes=2 << 10, tail_bytes=0, fsync=False)
PARTITIONLETS = (1 << 40 | 1, 1 << 40 | 2)

sound: dict[str, bytes] = {}
"""The files of the log, as a stop left them."""
workplace = Path()


def setup(folder: Path) -> None:
    """Write the log that the inputs damage."""
    global workplace
    structlog.configure(processors=[_drop])
    workplace = folder
    folder = workplace / "sound"
    log = ContainerLog.open(folder, OPTIONS)
    for number in range(36):
        partitionlet = PARTITIONLETS[number % 2]
        if number % 13 == 0:
            if not log.room(100):
                log.make_spare()
            log.append_control(type=FrameType.COMMAND, epoch=1, partitionlet=0, payload=b"command" * 5)
        append(log, partitionlet, number // 2)
    write(log)
    for chunk in log.chunks_to_close():
        log.close_chunk(chunk)
    log.close()
    for path in sorted(folder.iterdir()):
        sound[path.name] = path.read_bytes()
    assert len(sound) >= 2, "closed chunks and an open one"


def _drop(_logger: Any, _method: str, _event: Any) -> Any:
    raise structlog.DropEvent


def append(log: ContainerLog, partitionlet: int, offset: int) -> None:
    """One batch of 300 bytes and more."""
    batch = build_batch(
        [(offset, None, b"v" * 300, [])], base_offset=offset, producer_id=9, producer_epoch=0, base_sequence=offset
    )
    if not log.room(len(batch)):
        log.make_spare()
    log.append_batch(
        partitionlet=partitionlet,
        epoch=1,
        first=offset,
        last=offset,
        max_timestamp=offset,
        batch=memoryview(batch),
    )


def write(log: ContainerLog) -> None:
    """What is pending goes to disk."""
    while (job := log.take_job()) is not None:
        log.write_job(job)
        log.job_done(job)


def seeds() -> Iterator[bytes]:
    """No damage; a byte changed in each file; each file cut."""
    yield b""
    for row in range(len(sound)):
        yield struct.pack(">BBHB", 0, row, 100, 3) + b"\xff\x00\xff"
        yield struct.pack(">BBHB", 1, row, 700, 0)


def run(data: bytes) -> None:
    """Damage a copy, open it, read all, go on, open it again."""
    folder = workplace / "damaged"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    files = {name: bytearray(content) for name, content in sound.items()}
    names = list(files)
    pos = 0
    while len(data) - pos >= 5:
        kind, row, where, count = struct.unpack_from(">BBHB", data, pos)
        pos += 5
        content = files[names[row % len(names)]]
        where %= len(content) + 1
        if kind & 1:
            del content[where:]
        else:
            change = data[pos : pos + count]
            pos += len(change)
            content[where : where + len(change)] = change
    for name, content in files.items():
        (folder / name).write_bytes(content)
    try:
        log = ContainerLog.open(folder, OPTIONS)
    except (CorruptLog, FolderRefused):
        return
    try:
        ends = read_all(log)
        for partitionlet, end in ends.items():
            append(log, partitionlet, end)
        write(log)
    except CorruptLog:
        return
    finally:
        log.close()
    again = ContainerLog.open(folder, OPTIONS)
    try:
        assert again.end == log.end, "what was synced is there"
        assert {key: end + 1 for key, end in ends.items()} == read_all(again)
    except CorruptLog:
        return  # damage in a place that the first look did not touch
    finally:
        again.close()


def read_all(log: ContainerLog) -> dict[int, int]:
    """The next offset of each partitionlet, after reading it whole."""
    ends: dict[int, int] = {}
    for partitionlet in PARTITIONLETS:
        state = log.load(partitionlet)
        end = state.next_offset or 0
        offset = 0
        while offset < end:
            batches = log.read(partitionlet, offset, limit=end, max_bytes=4_000)
            if not batches:
                break
            for batch in batches:
                (base,) = struct.unpack_from(">q", batch)
                assert offset <= base < end, f"offset {base} where {offset} was due"
                offset = base + 1
        ends[partitionlet] = end
    return ends
