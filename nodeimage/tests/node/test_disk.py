"""When a node reports that its disk is full."""

import asyncio
import errno
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest

from headrace.log.regroup import regrouped_path
from headrace.node.disk import LOOK_S, NodeDisk
from headrace.partitions.cluster_layout import NodeSettings
from headrace.storage.disk_room import DiskRoom
from headrace.store.protocol import StoreUnavailable

CHUNK = 100


class Room:
    """A disk of 10,000 bytes."""

    def __init__(self) -> None:
        self.used = 0
        self.refused = False
        self.quota_left = 10_000
        self.fault: OSError | None = None

    def has(self, length: int) -> bool:
        if self.fault is not None:
            raise self.fault
        return length <= self.quota_left

    def measure(self) -> tuple[int, int]:
        return self.used, 10_000 - self.used


async def look(disk: NodeDisk) -> None:
    disk._due = 0.0
    disk.look()
    assert disk._looking is not None
    await disk._looking


async def test_it_is_told_once_and_taken_back_when_there_is_room_for_some_more() -> None:
    room, told = Room(), []

    async def tell(full: bool) -> None:
        told.append(full)

    with ThreadPoolExecutor(1) as executor:
        disk = NodeDisk(cast(DiskRoom, room), chunk_bytes=CHUNK, executor=executor, tell=tell)
        for used, expected in ((0, []), (9_790, []), (9_810, [True]), (9_790, [True]), (9_390, [True, False])):
            room.used = used
            await look(disk)
            assert (disk.used, disk.total) == (used, 10_000)
            assert told == expected, used
        room.refused = True  # for instance a large chunk, although a small one would fit
        disk._due += LOOK_S
        disk.look()
        assert disk._looking is not None
        await disk._looking
        assert told == [True, False, True]
        assert not room.refused


async def test_what_the_store_did_not_hear_is_told_again() -> None:
    room, told, lost = Room(), [], [True]
    room.used = 9_999

    async def tell(full: bool) -> None:
        await asyncio.sleep(0)
        if lost.pop() if lost else False:
            raise StoreUnavailable("it does not answer")
        told.append(full)

    with ThreadPoolExecutor(1) as executor:
        disk = NodeDisk(cast(DiskRoom, room), chunk_bytes=CHUNK, executor=executor, tell=tell)
        await look(disk)
        assert told == []
        await look(disk)
        assert told == [True]
        lost, room.used = [True], 0
        await look(disk)
        assert told == [True]
        room.used = 9_999
        await look(disk)
        assert told == [True, True], "what failed may have landed all the same"


async def test_what_no_figure_tells_of_keeps_it_full_until_a_file_gets_its_bytes() -> None:
    """With a quota, the filesystem reports free room, but no file can use it."""
    room, told = Room(), []

    async def tell(full: bool) -> None:
        told.append(full)

    with ThreadPoolExecutor(1) as executor:
        disk = NodeDisk(cast(DiskRoom, room), chunk_bytes=CHUNK, executor=executor, tell=tell)
        room.refused, room.quota_left = True, 0
        for quota_left, expected in ((0, [True]), (0, [True]), (CHUNK, [True]), (6 * CHUNK, [True, False])):
            room.quota_left = quota_left
            await look(disk)
            assert told == expected, quota_left


async def test_a_disk_that_fails_is_looked_at_again_later_and_stays_full() -> None:
    room, told = Room(), []

    async def tell(full: bool) -> None:
        told.append(full)

    with ThreadPoolExecutor(1) as executor:
        disk = NodeDisk(cast(DiskRoom, room), chunk_bytes=CHUNK, executor=executor, tell=tell)
        room.used = 9_999
        await look(disk)
        room.used, room.fault = 0, OSError(errno.EIO, "the disk fails")
        began = time.monotonic()
        await look(disk)
        assert disk._due >= began + LOOK_S
        room.fault = None
        assert told == [True]
        await look(disk)
        assert told == [True, False]


def test_a_real_folder_has_the_bytes_that_a_file_gets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Sizes:
        disk_quota = 0
        disk_reserve = 0

    room = DiskRoom(tmp_path, Sizes())
    assert room.has(1 << 20)
    assert list(tmp_path.iterdir()) == []

    def over_quota(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.EDQUOT, "disk quota exceeded")

    monkeypatch.setattr(os, "posix_fallocate", over_quota)
    assert not room.has(1 << 20)
    assert list(tmp_path.iterdir()) == []


async def test_a_real_folder_is_measured(tmp_path: Path) -> None:
    class Sizes:
        disk_quota = 1 << 20
        disk_reserve = 0

    (tmp_path / "containers").mkdir()
    (tmp_path / "containers" / "chunk").write_bytes(bytes(256 << 10))
    used, left = DiskRoom(tmp_path, Sizes()).measure()
    assert used + left == 1 << 20
    assert 256 << 10 <= used < 300 << 10


def test_a_chunk_that_is_written_anew_counts_once(tmp_path: Path) -> None:
    folder = tmp_path / "containers" / "2"
    folder.mkdir(parents=True)
    chunk = folder / "0.chunk"
    chunk.write_bytes(b"c" * 100_000)
    room = DiskRoom(tmp_path, NodeSettings())
    used = room.used()
    assert used >= 100_000
    regrouped_path(chunk).write_bytes(b"c" * 100_000)
    assert room.used() == used
