"""Dropping and punching chunks: dead records go, live ones stay."""

import errno
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import StorageFull
from headrace.log.chunk import Chunk
from headrace.log.dead import DeadOffsets
from headrace.log.frames import FrameType
from headrace.log.index import Place
from headrace.log.maintenance import live_bytes, lives, oldest, summaries, summaries_of
from headrace.log.regroup import rewrite
from headrace.log.scrub import Scrubbed, scrub
from kit.written_log import Writing

FOREVER = 1 << 60


def test_a_chunk_whose_drop_has_failed_is_there_and_can_be_dropped_again(
    writing: Writing, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing.fill_chunks(2)
    writing.close_chunks()
    chunk = writing.log.closed_chunks()[0]
    opened = os.open

    def full(path: Any, flags: int, mode: int = 0o777) -> int:
        if Path(path).suffix == ".dropped":
            raise OSError(errno.ENOSPC, "full")
        return opened(path, flags, mode)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", full)
        with pytest.raises(StorageFull):
            writing.log.drop_chunk(chunk)
    assert chunk in writing.log.closed_chunks()
    writing.check()
    writing.log.drop_chunk(chunk)
    assert chunk not in writing.log.chunks()
    assert not chunk.path.exists()


def unlink_but(code: int, stuck: Collection[Path]) -> Callable[..., None]:
    """`Path.unlink` on a disk that cannot remove the files `stuck`."""
    unlink = Path.unlink

    def unlinked(path: Path, missing_ok: bool = False) -> None:
        if path in stuck:
            raise OSError(code, os.strerror(code))
        unlink(path, missing_ok=missing_ok)

    return unlinked


def test_a_chunk_whose_file_could_not_be_removed_keeps_its_mark_when_the_next_one_goes(
    writing: Writing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without that mark, the next start would consider the dropped chunk behind it as lost."""
    writing.fill_chunks(3)
    writing.close_chunks()
    first, second, third = writing.log.closed_chunks()
    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", unlink_but(errno.EIO, {first.path}))
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            writing.log.drop_chunk(first)
        writing.log.drop_chunk(second)
    end = writing.log.end
    writing.reopen()
    assert (writing.log.start, writing.log.end) == (third.start, end)
    assert not first.path.exists()
    assert not list(writing.folder.glob("*.dropped"))


def test_a_log_opens_though_the_disk_cannot_remove_a_chunk_that_was_dropped(
    writing: Writing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its companion files cannot be removed either, and the chunk behind it is dropped too."""
    writing.fill_chunks(3)
    writing.close_chunks()
    first, second, third = writing.log.closed_chunks()
    end, index = writing.log.end, second.path.with_suffix(".index")
    stuck = {first.path}
    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", unlink_but(errno.EUCLEAN, stuck))
        with pytest.raises(OSError, match=os.strerror(errno.EUCLEAN)):
            writing.log.drop_chunk(first)
        writing.log.drop_chunk(second)
        index.write_bytes(b"")
        stuck.add(index)
        for _ in range(2):
            writing.reopen()
            assert (writing.log.start, writing.log.end) == (third.start, end)
            assert first.path.exists()
            first.path.write_bytes(b"whatever is in it")
            assert list(scrub(writing.folder, Scrubbed())) == []
    writing.reopen()
    assert (writing.log.start, writing.log.end) == (third.start, end)
    assert not first.path.exists()
    assert not index.exists()


def test_punching_gives_bytes_back_and_what_is_kept_stays(writing: Writing) -> None:
    writing.fill_chunks(1, partitionlets=3, size=700)
    writing.close_chunks()
    (chunk,) = writing.log.closed_chunks()
    rewrite(chunk.path)
    writing.log.reopen_chunk(chunk)
    expected = writing.read_all(1), writing.read_all(3)
    before = chunk.path.stat().st_blocks * 512
    size = writing.log.size(2)
    in_chunk = sum(summary.length for summary in writing.log.summaries(chunk) if summary.partitionlet == 2)
    assert 0 < writing.log.punchable(chunk, {2: 1 << 62}) == in_chunk
    freed = writing.log.punch(chunk, {2: 1 << 62, 99: 5})
    assert 8000 < freed == before - chunk.path.stat().st_blocks * 512
    assert writing.log.punch(chunk, {2: 1 << 62}) == 0
    assert writing.log.punchable(chunk, {2: 1 << 62}) == 0
    for _ in range(2):
        assert (writing.read_all(1), writing.read_all(3)) == expected
        assert [s.length for s in writing.log.summaries(writing.log.closed_chunks()[0]) if s.partitionlet == 2] == [0]
        state = writing.log.load(2)
        assert state.bytes == writing.log.size(2) < size
        writing.reopen()
    (chunk, *_) = writing.log.closed_chunks()
    rewrite(chunk.path)
    writing.log.reopen_chunk(chunk)
    assert (writing.read_all(1), writing.read_all(3)) == expected
    assert chunk.body.parts[0].summary(2) is None


def test_where_the_filesystem_has_no_holes_the_chunk_is_rewritten(
    writing: Writing, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing.fill_chunks(1, partitionlets=3, size=6000)
    writing.close_chunks()
    (chunk,) = writing.log.closed_chunks()
    expected = writing.read_all(1)
    monkeypatch.setattr("headrace.log.maintenance.punch_hole", lambda *_: False)
    size = chunk.path.stat().st_size
    assert writing.log.punch(chunk, {2: 1 << 62, 3: 1 << 62}) > size // 2
    assert chunk.path.stat().st_size < size // 2
    assert writing.read_all(1) == expected
    assert writing.log.punch(chunk, {2: 1 << 62, 3: 1 << 62}) == 0


@pytest.mark.parametrize("has_holes", [True, False])
def test_punching_makes_records_without_a_timestamp_no_younger(
    writing: Writing, monkeypatch: pytest.MonkeyPatch, has_holes: bool
) -> None:
    """Such records are as old as their chunk's file, which belongs to many partitionlets."""
    writing.fill_chunks(1, partitionlets=3, size=6000)
    writing.close_chunks()
    (chunk,) = writing.log.closed_chunks()
    if not has_holes:
        monkeypatch.setattr("headrace.log.maintenance.punch_hole", lambda *_: False)
    os.utime(chunk.path, (1_000, 2_000))
    assert writing.log.punch(chunk, {2: FOREVER}) > 0
    assert chunk.path.stat().st_mtime == 2_000


def test_a_file_of_another_owner_is_punched_all_the_same(writing: Writing, monkeypatch: pytest.MonkeyPatch) -> None:
    """A volume may be used by a user id other than before: that may write the files, but not set their times."""

    def refused(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    writing.fill_chunks(1, partitionlets=3, size=6000)
    writing.close_chunks()
    (chunk,) = writing.log.closed_chunks()
    monkeypatch.setattr(os, "utime", refused)
    assert writing.log.punch(chunk, {2: FOREVER}) > 0


def test_a_chunk_of_several_parts_is_summed_up_less_what_is_dead(writing: Writing) -> None:
    """The summaries must agree with the places that readers find."""
    writing.log.append_control(type=FrameType.OPEN, epoch=1, partitionlet=9, payload=b"open 9")
    writing.fill_chunks(1, partitionlets=3, size=700)
    writing.close_chunks()
    (chunk,) = writing.log.closed_chunks()
    parts = chunk.body.parts
    assert len(parts) > 1
    cut = next(parts[-1].places(2, 0)).first
    deads: list[dict[int, int]] = [{}, {2: cut - 3}, {2: cut}, {2: cut + 3}, {2: FOREVER}, {1: 5, 2: cut, 3: FOREVER}]
    for dead in deads:
        body = replace(chunk.body, dead=DeadOffsets(dead))
        found = summaries(Chunk(path=chunk.path, start=chunk.start, body=body))
        assert [each.partitionlet for each in found] == [1, 2, 3, 9]
        chunk_with_dead = Chunk(path=chunk.path, start=chunk.start, body=body)
        assert summaries_of(chunk_with_dead, [2, 9, 77]) == [found[1], found[3]]
        assert live_bytes(chunk_with_dead) == sum(each.length for each in found)
        live = [each.max_timestamp for each in found if each.length]
        assert oldest(chunk_with_dead, bits=40, untimed=5) == ({0: min(live)} if live else {})
        for also in ({}, {1: 5, 2: FOREVER}, dict.fromkeys((1, 2, 3), FOREVER)):
            assert lives(chunk_with_dead, also) == any(
                each.length and each.last >= also.get(each.partitionlet, 0) for each in found
            )
        for each in found:
            left = [place for part in parts for place in part.places(each.partitionlet, dead.get(each.partitionlet, 0))]
            assert each[1:] == span(left)


def span(places: Sequence[Place]) -> tuple[int, int, int, int]:
    """The summary of places: first, last, largest timestamp, length."""
    if not places:
        return (-1, -1, -1, 0)
    newest = max(place.max_timestamp for place in places)
    return (places[0].first, places[-1].last, newest, sum(place.length for place in places))
