"""A full disk: reads continue, writes are refused with a storage error, and resume when there is room."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from headrace.base.errors import Code
from kit.storage import MIB, Running, until

NewNode = Callable[..., Awaitable[Running]]
TOPIC = "/default:filler"
SIZE = 100_000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 24 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    made = mount is not None and os.getuid() == 0
    if made:
        command = [mount or "", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)]
        made = subprocess.run(command, capture_output=True).returncode == 0
    if not made:
        pytest.skip("a small filesystem needs the right to mount one")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


async def fill(node: Running, topic: str = TOPIC) -> int:
    """Write until the node refuses; returns the number of records accepted."""
    taken = 0
    while True:
        result = await node.call("produce", topic, [b"%08d" % taken + bytes(SIZE)])
        if result.error:
            assert result.error == Code.KAFKA_STORAGE_ERROR, result
            return taken
        assert result.base_offset == taken
        taken += 1
        assert taken < 1000


async def check_full(node: Running, taken: int) -> None:
    """The node serves reads, refuses writes, and its catalog still works."""
    assert len(await node.call("read", TOPIC)) == taken
    assert (await node.call("produce", TOPIC, [bytes(SIZE)])).error == Code.KAFKA_STORAGE_ERROR
    await node.call("create", f"/default:made-when-full-{taken}-{len(node.parts.topics)}")
    assert await node.call("offsets", TOPIC) == (0, taken)


async def wait_for_room(node: Running, topic: str, offset: int) -> None:
    for _ in range(400):
        result = await node.call("produce", topic, [b"back"])
        if result.error == 0:
            assert result.base_offset == offset
            return
        assert result.error == Code.KAFKA_STORAGE_ERROR, result
        await asyncio.sleep(0.05)  # as a producer backs off
    raise AssertionError("writes do not come back")


async def test_the_reserve_is_left_free_and_deleting_makes_room(new_node: NewNode, small_disk: Path) -> None:
    reserve = 18 * MIB  # the catalog's chunk is 1 MiB here, like all others
    node = await new_node(folder=small_disk / "node", disk_reserve=reserve)
    await node.call("create", TOPIC, "/default:other")
    await node.call("put", "/default:other", b"small")
    taken = await fill(node)
    assert taken >= 10
    found = os.statvfs(small_disk)
    assert found.f_bavail * found.f_frsize >= reserve - 2 * MIB
    await check_full(node, taken)
    await node.restart()
    await check_full(node, taken)
    await node.call("delete", TOPIC)
    await wait_for_room(node, "/default:other", 1)
    assert [value for _, value in await node.call("read", "/default:other")] == [b"small", b"back"]


async def test_expiry_makes_room_on_a_full_disk_though_producers_have_to_be_carried_over(
    new_node: NewNode, small_disk: Path
) -> None:
    node = await new_node(folder=small_disk / "node", disk_reserve=16 * MIB)
    await node.call("create", TOPIC)
    producer = await node.call("producer_id")
    await node.call("put", TOPIC, b"%08d" % 0 + bytes(SIZE), producer=(producer, 0, 0))
    taken = 1
    while (result := await node.call("produce", TOPIC, [bytes(90_000)])).error == 0:
        taken += 1
    assert result.error == Code.KAFKA_STORAGE_ERROR
    while (await node.call("produce", TOPIC, [b"fill the rest"])).error == 0:
        taken += 1
    stored = await node.call("produce", TOPIC, [b"%08d" % 0 + bytes(SIZE)], producer=(producer, 0, 0))
    assert (stored.error, stored.base_offset) == (0, 0), "what is stored needs no room"
    await node.call("admin", "stream.alter", path="/default", changes={"ttl_ms": 1})
    await wait_for_room(node, TOPIC, taken)
    again = await node.call("produce", TOPIC, [b"%08d" % 0 + bytes(SIZE)], producer=(producer, 0, 0))
    assert (again.error, again.base_offset) == (0, 0), "the producer is known though its chunk is gone"


async def test_writes_come_back_when_others_make_room_on_a_disk_without_a_single_block_left(
    new_node: NewNode, small_disk: Path
) -> None:
    node = await new_node(folder=small_disk / "node")
    await node.call("create", TOPIC)
    for serial in range(30):
        await node.call("put", TOPIC, b"%08d" % serial + bytes(SIZE))
    hog = small_disk / "hog"
    with hog.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    taken = 30 + await _more(node, 30)
    assert len(await node.call("read", TOPIC)) == taken
    hog.unlink()
    await wait_for_room(node, TOPIC, taken)
    await node.restart()
    assert len(await node.call("read", TOPIC)) == taken + 1
    await node.call("create", "/default:after")
    assert await node.call("put", "/default:after", b"v") == 0


async def _more(node: Running, first: int) -> int:
    taken = 0
    while True:
        result = await node.call("produce", TOPIC, [b"%08d" % (first + taken) + bytes(SIZE)])
        if result.error:
            assert result.error == Code.KAFKA_STORAGE_ERROR, result
            return taken
        taken += 1


async def test_a_quota_bounds_what_the_node_keeps(new_node: NewNode) -> None:
    node = await new_node(disk_quota=20 * MIB)
    await node.call("create", TOPIC, "/default:other")
    taken = await fill(node)
    held = sum(path.stat().st_blocks * 512 for path in node.containers.rglob("*") if path.is_file())
    assert 15 * MIB < held <= 20 * MIB or taken == 0, held
    await check_full(node, taken)
    await node.call("delete_records", TOPIC, taken)
    await wait_for_room(node, "/default:other", 0)
    await until(lambda: len(node.parts.topics) >= 2)
