"""The file names in a container's folder, and how a start treats those that a crash left."""

from pathlib import Path

import pytest

from headrace.log import folder as folder_module
from headrace.log.folder import (
    BEGIN,
    CUT,
    chunk_path,
    drop_files,
    drop_mark_path,
    make_mark,
    mark_path,
    marks_in,
    names_in,
    tidy,
)


def made(folder: Path, start: int, *suffixes: str) -> None:
    for suffix in suffixes or (".chunk",):
        chunk_path(folder, start).with_suffix(suffix).touch()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_names_of_chunks_order_as_their_positions() -> None:
    paths = [chunk_path(Path("f"), start).name for start in (0, 9, 10, 10**12, 2**63)]
    assert paths == sorted(paths)
    assert paths[1] == "00000000000000000009.chunk"


def test_what_lies_in_a_folder_is_told_by_its_names_and_files_of_others_are_none_of_it(tmp_path: Path) -> None:
    made(tmp_path, 0, ".chunk", ".index")
    made(tmp_path, 100, ".chunk", ".dead")
    drop_mark_path(tmp_path, 200, 300).touch()
    for other in ("synced", "note.txt", "7.chunk", "00000000000000000100-00000000000000000200.chunk.tmp"):
        (tmp_path / other).touch()
    found = names_in(tmp_path)
    assert (found.chunks, found.indexes, found.dead, found.dropped) == ({0, 100}, {0}, {100}, {200: 300})


def test_marks_of_one_kind_are_listed_by_position(tmp_path: Path) -> None:
    for position in (30, 4, 100):
        make_mark(tmp_path, position, CUT)
    make_mark(tmp_path, 7, BEGIN)
    make_mark(tmp_path, 7, BEGIN)
    assert marks_in(tmp_path, CUT) == [4, 30, 100]
    assert marks_in(tmp_path, BEGIN) == [7]


def test_a_start_removes_half_made_files_and_what_belongs_to_no_chunk(tmp_path: Path) -> None:
    made(tmp_path, 0)
    made(tmp_path, 100, ".index", ".dead")
    (tmp_path / "spare.tmp").touch()
    found = tidy(tmp_path)
    assert found.chunks == {0}
    assert names(tmp_path) == [chunk_path(tmp_path, 0).name]


def test_a_drop_that_a_crash_cut_short_is_finished_and_its_mark_stays_for_the_newest(tmp_path: Path) -> None:
    made(tmp_path, 0)
    made(tmp_path, 100, ".chunk", ".dead")
    drop_mark_path(tmp_path, 100, 200).touch()
    found = tidy(tmp_path)
    assert (found.chunks, found.dropped) == ({0}, {100: 200})
    assert names(tmp_path) == [chunk_path(tmp_path, 0).name, drop_mark_path(tmp_path, 100, 200).name]


def test_a_dropped_chunk_that_the_disk_cannot_remove_keeps_its_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path, 100)
    made(tmp_path, 200)
    drop_mark_path(tmp_path, 100, 200).touch()
    unlink = Path.unlink

    def unlinked(path: Path, missing_ok: bool = False) -> None:
        if path == chunk_path(tmp_path, 100):
            raise OSError(5, "Input/output error")
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", unlinked)
    assert tidy(tmp_path).dropped == {100: 200}, "else the next start would take it for a chunk of the log"
    assert drop_mark_path(tmp_path, 100, 200).exists()


def test_marks_below_the_oldest_chunk_go(tmp_path: Path) -> None:
    for start in (0, 100):
        drop_mark_path(tmp_path, start, start + 100).touch()
    made(tmp_path, 200)
    assert tidy(tmp_path).dropped == {}
    assert names(tmp_path) == [chunk_path(tmp_path, 200).name]


def test_a_begin_means_nothing_once_there_is_a_chunk(tmp_path: Path) -> None:
    make_mark(tmp_path, 50, BEGIN)
    tidy(tmp_path)
    assert marks_in(tmp_path, BEGIN) == [50]
    made(tmp_path, 50)
    tidy(tmp_path)
    assert not mark_path(tmp_path, 50, BEGIN).exists()


def test_a_chunk_is_marked_as_dropped_before_it_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path, 0)
    made(tmp_path, 100, ".chunk", ".index", ".dead")

    def crash(folder: Path, start: int) -> None:
        raise OSError("the power is gone")

    with monkeypatch.context() as broken:
        broken.setattr(folder_module, "remove_chunk_files", crash)
        with pytest.raises(OSError, match="power"):
            drop_files(tmp_path, 100, 200)
    assert names_in(tmp_path).dropped == {100: 200}
    assert names_in(tmp_path).chunks == {0, 100}
    drop_files(tmp_path, 100, 200)
    assert names(tmp_path) == [chunk_path(tmp_path, 0).name, drop_mark_path(tmp_path, 100, 200).name]
