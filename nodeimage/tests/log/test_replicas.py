"""A log and its copy, whatever was done to the log before: live records are the same, and cuts work on both."""

import shutil
import struct
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.log import frame_reading
from headrace.log.container_log import ContainerLog, LogOptions
from headrace.log.frames import FrameType
from headrace.log.regroup import rewrite
from headrace.log.scrub import Scrubbed, scrub
from kit.written_log import Writing

FOREVER = 1 << 60
OPTIONS = LogOptions(chunk_bytes=16 << 10, checkpoint_bytes=3 << 10, tail_bytes=8 << 10, fsync=False)
PARTITIONLETS = range(1, 5)

STEP = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 40), st.sampled_from([0, 40, 700, 3000])),
    st.tuples(st.just("control"), st.integers(1, 4), st.integers(0, 500)),
    st.tuples(st.just("roll"), st.just(0), st.just(0)),
    st.tuples(st.just("close"), st.just(0), st.just(0)),
    st.tuples(st.just("regroup"), st.integers(0, 9), st.just(0)),
    st.tuples(st.just("punch"), st.integers(0, 9), st.integers(0, 1 << 8)),
    st.tuples(st.just("drop"), st.integers(0, 9), st.just(0)),
)


@dataclass
class Held:
    """All that can be read from a log: batches by (partitionlet, offset), and control frames."""

    batches: dict[tuple[int, int], bytes] = field(default_factory=dict)
    controls: list[tuple[int, bytes]] = field(default_factory=list)


def held(log: ContainerLog) -> Held:
    found = Held()
    for partitionlet in PARTITIONLETS:
        raw = b"".join(log.read(partitionlet, 0, limit=FOREVER, max_bytes=FOREVER))
        at = 0
        while at < len(raw):
            base, length = struct.unpack_from(">qi", raw, at)
            found.batches[partitionlet, base] = raw[at : at + 12 + length]
            at += 12 + length
    frames = log.control_frames(log.start, log.end)
    found.controls = [(frame.position, bytes(frame.payload)) for frame in frames]
    return found


def below(found: Held, position: int, positions: dict[tuple[int, int], int]) -> Held:
    """The part of `found` that ends at or below `position`."""
    return Held(
        {key: batch for key, batch in found.batches.items() if positions[key] <= position},
        [(at, payload) for at, payload in found.controls if at + 56 + len(payload) <= position],
    )


def run(writing: Writing, steps: list[tuple[str, int, int]]) -> dict[tuple[int, int], int]:
    """Executes `steps`; returns the position behind each batch."""
    positions: dict[tuple[int, int], int] = {}
    for step, number, detail in steps:
        log: ContainerLog = writing.log
        closed = log.closed_chunks()
        if step == "append":
            for row in range(number):
                partitionlet = (row * 7 + number) % 4 + 1
                offset = writing.next.get(partitionlet, 0)
                writing.append(
                    partitionlet,
                    records=2,
                    size=detail,
                    epoch=1 + len(positions) // 60,
                    producer=7 + row % 2,
                    producer_epoch=0,
                    sequence=offset,
                )
                positions[partitionlet, offset] = log.end
        elif step == "control":
            if not log.room(detail):
                log.make_spare()
            log.append_control(type=FrameType.MARKER, epoch=1, partitionlet=number, payload=bytes(detail))
        elif step == "roll":
            log.close_open_chunk()
        elif step == "close":
            writing.sync()
            writing.close_chunks()
        elif closed:
            chunk = closed[number % len(closed)]
            if step == "regroup":
                rewrite(chunk.path)
                log.reopen_chunk(chunk)
            elif step == "punch":
                log.punch(chunk, {detail % 4 + 1: detail, 4: detail // 2})
            elif chunk is not closed[0]:
                log.drop_chunk(chunk)
    writing.sync()
    return positions


def check_copy(
    source: ContainerLog, copy: ContainerLog, *, appended: dict[tuple[int, int], bytes], lossy: bool
) -> None:
    """Checks that the copy has all live records, and (if `lossy`) otherwise only records that are still on the disk."""
    ours, theirs = held(source), held(copy)
    assert copy.end == source.end
    assert ours.controls == theirs.controls
    assert ours.batches.items() <= theirs.batches.items() <= appended.items()
    for partitionlet in PARTITIONLETS:
        mine, others = source.load(partitionlet), copy.load(partitionlet)
        assert mine.next_offset is None or mine.next_offset <= (others.next_offset or 0)
        assert mine == others or lossy
        assert mine.sealed == others.sealed


@settings(max_examples=60)
@given(
    steps=st.lists(STEP, min_size=3, max_size=25),
    max_bytes=st.sampled_from([1, 2000, 30_000, 1 << 30]),
    cuts=st.lists(st.floats(0, 1), min_size=2, max_size=4),
    closed=st.booleans(),
)
def test_a_copy_has_all_that_lives_and_can_be_copied_and_cut(
    new_writing: Any,
    copy_log: Any,
    steps: list[tuple[str, int, int]],
    max_bytes: int,
    cuts: list[float],
    closed: bool,
) -> None:
    home = Path(tempfile.mkdtemp())
    try:
        writing = new_writing(home / "source", OPTIONS)
        positions = run(writing, [("append", 40, 700), ("close", 0, 0), *steps])
        source = writing.log
        lossy = any(step in ("punch", "drop") for step, _, _ in steps)
        appended = {
            (partitionlet, row * 2): batch
            for partitionlet, batches in writing.batches.items()
            for row, batch in enumerate(batches)
        }
        copy = ContainerLog.open(home / "copy", OPTIONS, begin=source.start)
        copy_log(source, copy, max_bytes=max_bytes)
        check_copy(source, copy, appended=appended, lossy=lossy)
        copy.close()
        copy = ContainerLog.open(home / "copy", OPTIONS)
        for chunk in copy.chunks_to_close() if closed else []:
            copy.close_chunk(chunk)
            rewrite(chunk.path)
            copy.reopen_chunk(chunk)
        check_copy(source, copy, appended=appended, lossy=lossy)
        assert list(scrub(home / "copy", Scrubbed())) == []

        second = ContainerLog.open(home / "second", OPTIONS, begin=copy.start)
        copy_log(copy, second, max_bytes=max_bytes)
        check_copy(copy, second, appended=appended, lossy=lossy)
        second.close()

        ends = [source.start]
        while ends[-1] < source.end:
            ends.append(source.read_frames(ends[-1], until=source.end, max_bytes=1).end)
        source.close()
        copy.close()
        for name in ("source", "copy"):
            for share in cuts:
                position = ends[round(share * (len(ends) - 1))]
                check_cut(home, home / name, position, positions)
    finally:
        shutil.rmtree(home)


def check_cut(home: Path, folder: Path, position: int, positions: dict[tuple[int, int], int]) -> None:
    """Checks that a copy of `folder`, cut at `position`, holds what was below, and can be appended to."""
    cut = home / "cut"
    shutil.copytree(folder, cut)
    log = ContainerLog.open(cut, OPTIONS)
    expected = below(held(log), position, positions)
    log.close()
    ContainerLog.cut(cut, position, OPTIONS)
    log = ContainerLog.open(cut, OPTIONS)
    assert log.end == position
    found = held(log)
    assert found.controls == expected.controls
    assert expected.batches.items() <= found.batches.items()
    assert all(positions[key] <= position for key in found.batches)
    for partitionlet in PARTITIONLETS:
        assert (log.load(partitionlet).next_offset or 0) <= max(
            (offset + 2 for one, offset in found.batches if one == partitionlet), default=0
        )
    if not log.room(5):
        log.make_spare()
    log.append_control(type=FrameType.SEAL, epoch=9, partitionlet=1, payload=b"after")
    log.close()
    log = ContainerLog.open(cut, OPTIONS)
    assert log.end == position + 61
    assert held(log).controls == [*expected.controls, (position, b"after")]
    log.close()
    assert list(scrub(cut, Scrubbed())) == []
    shutil.rmtree(cut)


def test_frames_are_read_while_their_chunk_is_regrouped_punched_and_dropped(
    writing: Writing, tmp_path: Path, copy_log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each change happens between the look-up in a chunk and the read of its frames."""
    writing.fill_chunks(3, partitionlets=3, size=700)
    writing.close_chunks()
    log = writing.log
    first, second, third = log.closed_chunks()

    def regroup() -> None:
        rewrite(second.path)
        log.reopen_chunk(second)

    changes = [regroup, lambda: log.punch(first, {1: FOREVER}), lambda: log.punch(second, {1: FOREVER})]
    changes.append(lambda: log.drop_chunk(third))
    real = frame_reading._bytes_at
    reads = 0

    def between(body: Any, place: int, length: int) -> memoryview:
        nonlocal reads
        reads += 1
        if reads % 20 == 0 and changes:
            changes.pop(0)()
        return real(body, place, length)

    monkeypatch.setattr(frame_reading, "_bytes_at", between)
    target = ContainerLog.open(tmp_path / "copy", writing.options)
    copy_log(log, target, max_bytes=2000)
    assert not changes
    for partitionlet in (2, 3):
        live = log.read(partitionlet, 0, limit=FOREVER, max_bytes=FOREVER)
        copied = target.read(partitionlet, 0, limit=FOREVER, max_bytes=FOREVER)
        assert set(map(bytes, live)) <= set(map(bytes, copied))


def test_an_empty_log_takes_little_of_the_disk_and_its_files_grow_with_it(new_writing: Any, tmp_path: Path) -> None:
    mib = 1 << 20
    options = LogOptions(chunk_bytes=8 * mib, open_file_bytes=mib, fsync=False)
    writing = new_writing(tmp_path / "container", options)
    assert writing.log.spare_bytes == mib
    assert sum(path.stat().st_blocks * 512 for path in writing.folder.iterdir()) <= mib + 8192
    sizes: dict[int, int] = {}
    while len(sizes) < 7:
        writing.append(1, size=100_000)
        if writing.log.wants_spare():
            writing.log.make_spare()
        writing.sync()
        chunk = writing.log.chunks()[-1]
        sizes[chunk.start] = chunk.path.stat().st_size
    grown = [size // mib for size in sizes.values()]
    assert grown[:4] == [1, 1, 2, 4]
    assert grown == sorted(grown)
    assert grown[-1] == 8
    writing.append(1, size=10 * mib)
    writing.sync()
    assert writing.log.chunks()[-1].path.stat().st_size > 10 * mib
    writing.check()
