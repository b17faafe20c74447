"""A volume at its size limit: it refuses records, and takes them again once there is room."""

from collections.abc import Awaitable, Callable

import pytest

from headrace.base.errors import Code
from kit.storage import MIB, Running

NewNode = Callable[..., Awaitable[Running]]
TOPIC = "/small:topic"
LIMIT = 300 << 10


async def filled(new_node: NewNode) -> Running:
    """A node whose one topic in a volume with a limit holds less than a chunk, and more than the volume may."""
    node = await new_node(chunk_bytes=4 * MIB)
    await node.call("admin", "volume.create", name="small", size_limit=LIMIT)
    await node.call("admin", "stream.create", path="/small", policy={"volume": "small"})
    await node.call("create", TOPIC, "/small:other")
    await node.call("put", "/small:other", b"small")
    for _ in range(4):
        await node.call("put", TOPIC, bytes(100_000))
    await node.parts.space.pass_now()
    assert await produced(node) == Code.KAFKA_STORAGE_ERROR
    return node


def is_chunk_open(node: Running) -> bool:
    """Whether the first chunk of the volume's container is the one that grows."""
    (container,) = [each for each in node.parts.containers.values() if each.volume == "small"]
    return container.log.chunks()[0].end is None


async def produced(node: Running) -> int:
    return int((await node.call("produce", "/small:other", [b"more"])).error)


async def takes_records(node: Running) -> bool:
    """Whether it does after some rounds of looking after the disk: as soon as it does, at the latest after ten."""
    for _ in range(10):
        await node.parts.space.pass_now()
        if await produced(node) == 0:
            return True
    return False


async def test_room_is_made_though_little_is_dead_and_nothing_fills_the_chunk_in_which_it_is(new_node: NewNode) -> None:
    """While a volume refuses records, its open chunks stay as they are."""
    node = await filled(new_node)
    await node.call("delete", TOPIC)
    assert await takes_records(node)
    assert [value for _, value in await node.call("read", "/small:other")] == [b"small", b"more"]


async def test_room_is_made_where_records_are_deleted(new_node: NewNode) -> None:
    node = await filled(new_node)
    await node.call("delete_records", TOPIC, 4)
    assert await takes_records(node)


async def test_all_that_a_chunk_has_makes_room_however_little_it_is(new_node: NewNode) -> None:
    node = await new_node()
    await node.call("admin", "volume.create", name="small", size_limit=8192)
    await node.call("admin", "stream.create", path="/small", policy={"volume": "small"})
    await node.call("create", TOPIC, "/small:other")
    await node.call("put", TOPIC, bytes(10_000))
    await node.parts.space.pass_now()
    assert await produced(node) == Code.KAFKA_STORAGE_ERROR
    await node.call("delete", TOPIC)
    assert await takes_records(node)


async def test_room_is_made_of_what_was_dead_before_the_volume_came_to_its_limit(
    new_node: NewNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.storage.chunk_closing.EARLY_EVERY_S", 0.0)
    node = await filled(new_node)
    await node.call("admin", "volume.alter", name="small", size_limit=0)
    assert await takes_records(node)
    await node.call("put", "/small:other", bytes(800_000))
    await node.call("delete_records", TOPIC, 4)
    assert await takes_records(node)
    await node.parts.space.pass_now()
    assert is_chunk_open(node), "so little is not worth a chunk, while records are taken"
    await node.call("admin", "volume.alter", name="small", size_limit=MIB)
    for _ in range(10):
        await node.parts.space.pass_now()
    assert not is_chunk_open(node)
    assert await takes_records(node)


async def test_nothing_is_closed_early_where_little_is_dead(new_node: NewNode) -> None:
    node = await filled(new_node)
    assert not await takes_records(node)
    assert is_chunk_open(node)


@pytest.mark.parametrize("limit", [None, 4 * LIMIT])
async def test_a_higher_limit_makes_room(new_node: NewNode, limit: int | None) -> None:
    node = await filled(new_node)
    await node.call("admin", "volume.alter", name="small", size_limit=limit or 0)
    assert await takes_records(node)
