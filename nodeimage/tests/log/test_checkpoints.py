"""Checkpoints of the open chunk, as a start finds them: intact, torn or damaged."""

from pathlib import Path

import pytest

from headrace.log.checkpoints import LoadedCheckpoints, append_checkpoint, load_checkpoints
from headrace.log.index import NO_PRODUCER
from headrace.log.table import Table


def table(start: int, end: int) -> Table:
    """A table with one frame that fills the range and has the offset `start`."""
    made = Table(start)
    made.add_batch(7, start, start, 0, start, end - start, 1, NO_PRODUCER, -1)
    return made


def written(path: Path, *ends: int) -> list[int]:
    """Writes a checkpoint up to each of these places; returns the file's size after each."""
    size, start, sizes = 0, 0, []
    for end in ends:
        segment, size = append_checkpoint(path, table(start, end), start=4096, size=size, fsync=False)
        assert (segment.start, segment.end) == (start, end)
        start = end
        sizes.append(size)
    return sizes


def ranges(loaded: LoadedCheckpoints) -> list[tuple[int, int]]:
    return [(each.start, each.end) for each in loaded.segments]


def flip(path: Path, place: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[place] ^= 1
    path.write_bytes(raw)


def test_no_file_is_no_checkpoint(tmp_path: Path) -> None:
    loaded = load_checkpoints(tmp_path / "none.index")
    assert (loaded.segments, loaded.size, loaded.synced) == ([], 0, 0)


def test_checkpoints_are_found_in_order_and_say_how_far_the_chunk_was_synced(tmp_path: Path) -> None:
    path = tmp_path / "0.index"
    *_, size = written(path, 100, 250, 400)
    loaded = load_checkpoints(path)
    assert ranges(loaded) == [(0, 100), (100, 250), (250, 400)]
    assert (loaded.size, loaded.synced) == (size, 400)
    assert path.stat().st_size == size
    assert [summary.first for summary in loaded.segments[1].summaries()] == [100]


def test_one_that_was_half_written_is_left_out_and_written_over(tmp_path: Path) -> None:
    path = tmp_path / "0.index"
    first, second = written(path, 100, 250)
    path.write_bytes(path.read_bytes()[: second - 8])
    loaded = load_checkpoints(path)
    assert (ranges(loaded), loaded.size, loaded.synced) == ([(0, 100)], first, 100)
    append_checkpoint(path, table(100, 300), start=4096, size=loaded.size, fsync=False)
    assert ranges(load_checkpoints(path)) == [(0, 100), (100, 300)]


def test_behind_a_damaged_one_the_others_still_prove_what_was_synced(tmp_path: Path) -> None:
    path = tmp_path / "0.index"
    first, second, _ = written(path, 100, 250, 400)
    flip(path, (first + second) // 2)
    loaded = load_checkpoints(path)
    assert ranges(loaded) == [(0, 100)]
    assert (loaded.size, loaded.synced) == (first, 400)


def test_a_damaged_head_costs_all_segments_and_no_proof(tmp_path: Path) -> None:
    path = tmp_path / "0.index"
    written(path, 100, 250)
    flip(path, 0)
    loaded = load_checkpoints(path)
    assert (loaded.segments, loaded.size, loaded.synced) == ([], 0, 250)


def test_a_checkpoint_that_does_not_follow_the_one_before_it_is_none_of_the_chunks(tmp_path: Path) -> None:
    path = tmp_path / "0.index"
    (size,) = written(path, 100)
    append_checkpoint(path, table(150, 250), start=4096, size=size, fsync=False)
    loaded = load_checkpoints(path)
    assert (ranges(loaded), loaded.size) == ([(0, 100)], size)


@pytest.mark.parametrize("fsync", [True, False])
def test_a_new_file_takes_the_place_of_what_a_former_chunk_left(tmp_path: Path, fsync: bool) -> None:
    path = tmp_path / "0.index"
    written(path, 100, 250, 400)
    append_checkpoint(path, table(0, 50), start=8192, size=0, fsync=fsync)
    assert ranges(load_checkpoints(path)) == [(0, 50)]
