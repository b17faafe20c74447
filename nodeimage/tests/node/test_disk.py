"""When a node says that it is full."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

from headrace.broker.disk_room import DiskRoom
from headrace.node.disk import LOOK_S, NodeDisk
from headrace.store.protocol import StoreUnavailable

CHUNK = 100


class Room:
    """A disk of 10,000 bytes."""

    def __init__(self) -> None:
        self.used = 0
        self.refused = False

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
        room.refused = True  # such as a large chunk, where a small one would have room
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


async def test_a_real_folder_is_measured(tmp_path: Path) -> None:
    class Sizes:
        disk_quota = 1 << 20
        disk_reserve = 0

    (tmp_path / "containers").mkdir()
    (tmp_path / "containers" / "chunk").write_bytes(bytes(256 << 10))
    used, left = DiskRoom(tmp_path, Sizes()).measure()
    assert used + left == 1 << 20
    assert 256 << 10 <= used < 300 << 10
