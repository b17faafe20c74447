"""Dead offsets of a chunk stay dead."""

from pathlib import Path

import pytest

from headrace.base.errors import CorruptLog
from headrace.log.dead import DeadOffsets


def test_what_ends_below_the_first_kept_offset_is_gone_and_all_else_is_kept() -> None:
    dead = DeadOffsets({9: 100, 5: 30})
    assert [dead.first_kept(partitionlet) for partitionlet in (4, 5, 6, 9, 10)] == [0, 30, 0, 100, 0]
    assert DeadOffsets().first_kept(5) == 0


def test_the_higher_offset_wins() -> None:
    dead = DeadOffsets({5: 30, 9: 100}).merged({5: 20, 9: 200, 7: 1, 8: 0})
    assert dead.as_mapping() == {5: 30, 7: 1, 9: 200}


def test_the_file_says_what_was_stored(tmp_path: Path) -> None:
    path = tmp_path / "chunk.dead"
    assert DeadOffsets.load(path) == DeadOffsets()
    dead = DeadOffsets({partitionlet << 40 | 1: partitionlet for partitionlet in range(1, 200)})
    dead.store(path, start=4096)
    assert DeadOffsets.load(path) == dead
    dead.merged({5: 1}).store(path, start=4096)
    assert DeadOffsets.load(path) == dead.merged({5: 1})


@pytest.mark.parametrize("place", [64, 80, 100, -1])
def test_a_flipped_bit_is_damage_with_the_files_name(tmp_path: Path, place: int) -> None:
    path = tmp_path / "chunk.dead"
    DeadOffsets({5: 30, 9: 100}).store(path, start=4096)
    raw = bytearray(path.read_bytes())
    raw[place] ^= 1
    path.write_bytes(raw)
    with pytest.raises(CorruptLog, match=r"chunk\.dead"):
        DeadOffsets.load(path)


def test_a_file_that_was_cut_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "chunk.dead"
    DeadOffsets({5: 30, 9: 100}).store(path, start=4096)
    path.write_bytes(path.read_bytes()[:-16])
    with pytest.raises(CorruptLog):
        DeadOffsets.load(path)
