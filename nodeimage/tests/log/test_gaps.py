"""Gap frames: at the places that the index omits, and only there."""

from pathlib import Path
from typing import Any

from headrace.log.container_log import ContainerLog
from headrace.log.files import FILE_HEAD_BYTES
from headrace.log.frames import HEADER, FrameType
from headrace.log.regroup import rewrite
from headrace.log.scrub import Scrubbed, scrub
from kit.written_log import Writing

FOREVER = 1 << 60


def with_gaps(writing: Writing) -> list[tuple[int, int]]:
    """Fills four chunks, drops the second, and frees the middle of the third. Returns the positions that are gone."""
    writing.fill_chunks(4, partitionlets=3, size=700)
    writing.close_chunks()
    log = writing.log
    _, second, third, _ = log.closed_chunks()
    rewrite(third.path)
    log.reopen_chunk(third)
    log.punch(third, {2: FOREVER})
    log.drop_chunk(second)
    return [(second.start, second.end), (third.start, third.end)]


def test_what_was_given_back_is_a_gap_that_takes_no_room(writing: Writing, tmp_path: Path, copy_log: Any) -> None:
    ((start, end), _) = with_gaps(writing)
    frames = writing.log.read_frames(start, until=end, max_bytes=FOREVER)
    assert [len(frame) for frame in frames] == [56]
    assert HEADER.unpack(frames[0])[1:5] == (end - start, FrameType.GAP, 0, start)
    assert frames.end == end
    assert writing.log.read_frames(start + 3000, until=end, max_bytes=1).end == end
    target = ContainerLog.open(tmp_path / "copy", writing.options)
    copy_log(writing.log, target)
    target.close_open_chunk()
    while (job := target.take_job()) is not None:
        target.write_job(job)
        target.job_done(job)
    for _ in range(2):
        for partitionlet in (1, 2, 3):
            assert [*map(bytes, target.read(partitionlet, 0, limit=FOREVER, max_bytes=FOREVER))] == [
                *map(bytes, writing.log.read(partitionlet, 0, limit=FOREVER, max_bytes=FOREVER))
            ]
            assert target.size(partitionlet) == writing.log.size(partitionlet)
        assert [summary.partitionlet for chunk in target.chunks() for summary in target.summaries(chunk)].count(0) == 0
        for chunk in target.chunks_to_close():
            target.close_chunk(chunk)
        target.close()
        target = ContainerLog.open(tmp_path / "copy", writing.options)
    chunk = next(chunk for chunk in target.closed_chunks() if chunk.start <= start < (chunk.end or 0))
    assert chunk.path.stat().st_blocks * 512 < (end - start) // 2
    assert list(scrub(tmp_path / "copy", Scrubbed())) == []


def test_a_scrub_finds_places_that_neither_the_index_nor_a_gap_frame_accounts_for(
    writing: Writing, tmp_path: Path, copy_log: Any
) -> None:
    ((start, _), _) = with_gaps(writing)
    target = ContainerLog.open(tmp_path / "copy", writing.options)
    copy_log(writing.log, target)
    for chunk in target.chunks_to_close():
        target.close_chunk(chunk)
    chunk = next(c for c in target.closed_chunks() if c.start <= start < (c.end or 0))
    target.close()
    with chunk.path.open("r+b") as file:
        file.seek(FILE_HEAD_BYTES + start - chunk.start + 20)
        file.write(b"\xff")
    findings = list(scrub(tmp_path / "copy", Scrubbed()))
    assert [finding.path for finding in findings] == [chunk.path]
    assert "no gap frame" in str(findings[0])
