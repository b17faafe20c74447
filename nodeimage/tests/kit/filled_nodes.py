"""Nodes whose streams share chunks, and the disk space of these chunks."""

import pytest

from headrace.container.leader import Leader
from kit.storage import MIB, NewNode, Running, until

LONG_AGO = 1_000_000_000_000

KEEP, LEAVE = "/test/keep", "/test/leave"


async def streams(node: Running, **ttl_ms: int) -> None:
    for name, ttl in ttl_ms.items():
        await node.call("admin", "stream.create", path=f"/test/{name}", policy={"ttl_ms": ttl})


async def fill(node: Running, topic: str, *, mib: int, time_ms: int | None = None, size: int = 50_000) -> int:
    """Write about so much; returns the number of records."""
    count = mib * MIB // size
    for serial in range(count):
        await node.call("put", topic, b"%08d" % serial + bytes(size), time_ms=time_ms)
    return count


async def with_a_full_container(new_node: NewNode) -> tuple[Running, int]:
    """A node with a container that is closed because it is full; an idle topic has a record in it."""
    node = await new_node(container_bytes=3 * MIB)
    await node.call("put", "/default:idle", b"stays")
    await streams(node, leave=3_600_000)
    first = max(node.parts.containers)
    await fill(node, f"{LEAVE}:t", mib=5)
    await until(lambda: len(node.parts.containers) > 2)
    return node, first


def data(node: Running) -> list[Leader]:
    return [each for each in node.parts.containers.values() if each.id != node.parts.maintenance.catalog_id]


def data_bytes(node: Running, *, closed: bool = False) -> int:
    """The disk space of the chunks; `closed`: without the preallocated open one."""
    chunks = [chunk for container in data(node) for chunk in container.log.chunks()]
    return sum(
        chunk.path.stat().st_blocks * 512
        for chunk in chunks
        if chunk.path.exists() and not (closed and chunk.end is None)
    )


async def maintain_until_stable(node: Running) -> None:
    """Run maintenance until the disk usage no longer shrinks."""
    before = -1
    while before != (before := data_bytes(node)):
        for _ in range(3):
            await node.parts.maintenance.pass_now()


async def close_open_chunks(node: Running) -> None:
    for container in data(node):
        chunks = container.log.chunks()
        container.log.close_open_chunk()
        container.kick()
        await until(
            lambda chunks=chunks, log=container.log: all(
                chunk.body.closed or chunk in log.chunks_to_close() for chunk in chunks
            )
        )


@pytest.fixture
def early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.storage.chunk_closing.EARLY_EVERY_S", 0.0)
