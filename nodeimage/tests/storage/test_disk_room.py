"""How much of the disk a node may use: its quota, and the reserve that keeps a full node working."""

import os
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.base.errors import StorageFull
from headrace.log.regroup import REGROUPED_SUFFIX
from headrace.storage import disk_room
from headrace.storage.disk_room import DiskRoom, ReservedRoom

BLOCK = 4096


@dataclass
class Sizes:
    """The settings."""

    disk_quota: int = 0
    disk_reserve: int = 100


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The bytes that are free on the disk; set `bytes`."""
    told = SimpleNamespace(bytes=1000)
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=told.bytes, f_frsize=1))
    return told


def chunk(folder: Path, name: str, blocks: int) -> None:
    path = folder / "containers" / "7" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(os.urandom(blocks * BLOCK))


def test_a_new_chunk_leaves_the_reserve_free(tmp_path: Path, free: SimpleNamespace) -> None:
    room = DiskRoom(tmp_path, Sizes())
    room.check(900)
    assert not room.refused
    with pytest.raises(StorageFull, match="use up the reserve"):
        room.check(901)
    assert room.refused


def test_what_a_full_node_lives_on_may_use_the_reserve_and_no_more(tmp_path: Path, free: SimpleNamespace) -> None:
    room = DiskRoom(tmp_path, Sizes())
    room.check(1000, from_reserve=True)
    ReservedRoom(room).check(1000)
    with pytest.raises(StorageFull):
        room.check(1001, from_reserve=True)


def test_a_quota_counts_what_the_containers_occupy(tmp_path: Path, free: SimpleNamespace) -> None:
    free.bytes = 1 << 40
    chunk(tmp_path, "a.chunk", 2)
    room = DiskRoom(tmp_path, Sizes(disk_quota=4 * BLOCK))
    room.check(2 * BLOCK)
    with pytest.raises(StorageFull, match="quota"):
        room.check(2 * BLOCK + 1)
    assert room.refused
    room.check(10 * BLOCK, from_reserve=True)
    assert room.measure() == (2 * BLOCK, 2 * BLOCK)


def test_what_is_about_to_take_a_chunks_place_does_not_count_twice(tmp_path: Path) -> None:
    room = DiskRoom(tmp_path, Sizes())
    assert room.used() == 0, "there are no containers yet"
    chunk(tmp_path, "a.chunk", 2)
    chunk(tmp_path, f"a{REGROUPED_SUFFIX}", 2)
    assert room.used() == 2 * BLOCK


def test_a_copy_leaves_half_of_the_reserve(tmp_path: Path, free: SimpleNamespace) -> None:
    room = DiskRoom(tmp_path, Sizes())
    room.check_copy(950)
    with pytest.raises(StorageFull):
        room.check_copy(951)
    assert not room.refused, "that says nothing of records"


def test_room_beside_what_is_occupied_is_never_less_than_none(tmp_path: Path, free: SimpleNamespace) -> None:
    assert DiskRoom(tmp_path, Sizes()).measure() == (0, 900)
    free.bytes = 50
    assert DiskRoom(tmp_path, Sizes()).measure() == (0, 0)


def test_whether_a_file_gets_its_bytes_is_tried_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = DiskRoom(tmp_path, Sizes())
    assert room.has(BLOCK)

    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert not room.has(BLOCK)
    assert list(tmp_path.iterdir()) == []


def test_what_the_filesystem_did_not_tell_is_noted(tmp_path: Path) -> None:
    room = DiskRoom(tmp_path, Sizes())
    ReservedRoom(room).lacked()
    assert room.refused


def test_without_a_quota_files_are_counted_seldom_if_that_takes_long(
    tmp_path: Path, free: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten thousand containers have some 40,000 files, and counting them takes a part of a second each time."""
    now = SimpleNamespace(s=1000.0)
    monkeypatch.setattr(disk_room.time, "monotonic", lambda: now.s)
    real = DiskRoom.used

    def slow(room: DiskRoom) -> int:
        now.s += 0.2
        return real(room)

    monkeypatch.setattr(DiskRoom, "used", slow)
    chunk(tmp_path, "a.chunk", 1)
    room = DiskRoom(tmp_path, Sizes())
    assert room.measure() == (BLOCK, 900)
    chunk(tmp_path, "b.chunk", 1)
    free.bytes = 500
    now.s += 99.9
    assert room.measure() == (BLOCK, 400), "what is left is always looked at"
    now.s += 0.2
    assert room.measure() == (2 * BLOCK, 400)
    limited = DiskRoom(tmp_path, Sizes(disk_quota=4 * BLOCK))
    assert limited.measure() == (2 * BLOCK, 400)
    chunk(tmp_path, "c.chunk", 2)
    assert limited.measure() == (4 * BLOCK, 0), "a quota depends on it"


def test_a_folder_that_cannot_be_read_does_not_count_as_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chunk(tmp_path, "a.chunk", 1)
    real = os.scandir

    def failing(path: Path | str) -> object:
        if str(path).endswith("7"):
            raise OSError(5, "Input/output error", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", failing)
    with pytest.raises(OSError, match="Input/output"):
        DiskRoom(tmp_path, Sizes()).used()
