"""Dead bytes of chunks are freed and live ones are kept, whatever is interrupted in between."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from headrace.base.errors import Code
from kit.filled_nodes import KEEP, LEAVE, LONG_AGO, NewNode, data, data_bytes, fill, maintain_until_stable, streams
from kit.storage import MIB, Running, until

pytestmark = pytest.mark.usefixtures("early")


async def test_a_short_stream_gives_its_share_of_common_chunks_back(new_node: NewNode) -> None:
    node = await new_node(chunk_bytes=2 * MIB)
    await streams(node, keep=0, leave=3_600_000)
    for serial in range(300):
        await node.call("put", f"{KEEP}:t", b"k%08d" % serial + bytes(9_000))
        await node.call("put", f"{LEAVE}:t", b"l%08d" % serial + bytes(9_000), time_ms=LONG_AGO)
    await maintain_until_stable(node)
    kept = await node.call("read", f"{KEEP}:t")
    assert [value[:9] for _, value in kept] == [b"k%08d" % serial for serial in range(300)]
    start, end = await node.call("offsets", f"{LEAVE}:t")
    assert end == 300
    assert start > 150, "what lies in closed chunks has expired"
    # Hardly more of the closed chunks is left than the other stream's records, which are as many and as long.
    assert start * 9_000 <= data_bytes(node, closed=True) < start * 9_100 * 1.1 + 100_000
    await node.restart()
    assert await node.call("offsets", f"{LEAVE}:t") == (start, end)
    assert len(await node.call("read", f"{KEEP}:t")) == 300


async def test_what_dies_in_the_open_chunk_is_given_back_without_another_write(new_node: NewNode) -> None:
    node = await new_node(chunk_bytes=16 * MIB)
    await fill(node, f"{KEEP}:t".replace("/test/keep", "/default"), mib=1)
    await node.call("create", "/default:gone")
    await fill(node, "/default:gone", mib=6)
    before = data_bytes(node)
    assert before >= 16 * MIB, "one open chunk, preallocated"
    await node.call("delete", "/default:gone")
    await until(lambda: data_bytes(node) < 4 * MIB, what="six of seven MiB given back")
    assert len(await node.call("read", "/default:t")) == 20


@pytest.mark.parametrize("by", ["time", "ttl", "delete", "write"])
async def test_an_open_chunk_that_is_as_it_was_is_not_looked_at_again(
    new_node: NewNode, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """The chunk may hold a hundred thousand idle topics; any event that may make some of it dead is still noticed."""
    node = await new_node(chunk_bytes=16 * MIB)
    await streams(node, leave=3_600_000)
    await fill(node, f"{LEAVE}:t", mib=3, time_ms=node.parts.runtime.now())
    (held,) = [each.log for each in data(node) if each.log.end > MIB]
    start, closing = held.chunks()[-1].start, node.parts.maintenance._chunk_closing
    whole, looks = closing._scan, 0

    async def counted(*given: Any) -> Any:
        nonlocal looks
        looks += given[0].log is held
        return await whole(*given)

    monkeypatch.setattr(closing, "_scan", counted)
    for _ in range(5):
        await node.parts.maintenance.pass_now()
    assert looks <= 1, "where it was written to before anybody counted what of it died"
    before = looks
    match by:
        case "time":
            later = node.parts.runtime.now() + 3_600_001
            monkeypatch.setattr(node.parts.runtime, "now", lambda: later)
        case "ttl":
            await node.call("admin", "stream.alter", path=LEAVE, changes={"ttl_ms": 1})
        case "delete":
            await node.call("delete", f"{LEAVE}:t")
        case _:
            await fill(node, f"{LEAVE}:t", mib=1)
    await node.parts.maintenance.pass_now()
    assert looks - before == (1 if by in ("time", "ttl") else 0), "what is deleted is told"
    is_open = any(each.start == start and each.end is None for each in held.chunks())
    assert is_open == (by == "write")


async def test_records_deleted_from_the_open_chunk_are_given_back_when_it_closes(
    new_node: NewNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await new_node(chunk_bytes=2 * MIB)
    monkeypatch.setattr("headrace.storage.chunk_gc.WORTH_PUNCHING", 100_000)
    count = await fill(node, "/default:small", mib=1, size=10_000)
    third = count // 3  # too little for closing the chunk early
    assert await node.call("delete_records", "/default:small", third) == third
    await node.parts.maintenance.pass_now()
    await fill(node, "/default:other", mib=4)
    await maintain_until_stable(node)
    first = data(node)[0].log.closed_chunks()[0]  # it holds both
    assert list(first.body.dead.as_mapping().values()) == [third]
    assert first.path.stat().st_blocks * 512 < first.body.frames_end - 200_000
    assert [offset for offset, _ in await node.call("read", "/default:small")] == list(range(third, count))


@pytest.mark.parametrize("by", ["topic", "stream", "records"])
async def test_deletion_gives_space_back(new_node: NewNode, by: str) -> None:
    node = await new_node()
    await streams(node, leave=0, keep=0)
    kept = await fill(node, f"{KEEP}:t", mib=2)
    count = await fill(node, f"{LEAVE}:t", mib=6)
    before = data_bytes(node)
    if by == "topic":
        await node.call("delete", f"{LEAVE}:t")
    elif by == "stream":
        await node.call("admin", "stream.delete", path=LEAVE, force=True)
    else:
        assert await node.call("delete_records", f"{LEAVE}:t", -1) == count
    await until(lambda: data_bytes(node) < before - 4 * MIB, what="space given back")
    assert len(await node.call("read", f"{KEEP}:t")) == kept
    if by == "records":
        await node.restart()
        assert await node.call("offsets", f"{LEAVE}:t") == (count, count), "the next offset never falls"
        assert await node.call("put", f"{LEAVE}:t", b"next") == count


async def test_a_recreated_topic_starts_anew_and_takes_nothing_of_the_old_one(new_node: NewNode) -> None:
    node = await new_node()
    producer = await node.call("producer_id")
    for generation in range(3):
        for sequence in range(3):
            value = b"g%d-%d" % (generation, sequence)
            assert await node.call("put", "/default:again", value, producer=(producer, 0, sequence)) == sequence
        assert [value for _, value in await node.call("read", "/default:again")] == [
            b"g%d-%d" % (generation, sequence) for sequence in range(3)
        ]
        if generation == 1:
            await node.restart()
        await node.call("delete", "/default:again")
        refused = await node.call("produce", "/default:again", [b"late"])
        assert refused.error == Code.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_crash_at_any_step_of_chunk_gc_keeps_what_lives(new_node: NewNode) -> None:
    node = await new_node(fsync=True)
    await streams(node, keep=0, leave=0)
    for serial in range(120):
        await node.call("put", f"{KEEP}:t", b"k%08d" % serial + bytes(9_000))
        await node.call("put", f"{LEAVE}:t", b"l%08d" % serial + bytes(9_000), time_ms=LONG_AGO)
    photos: list[Any] = []
    maintenance = node.parts.maintenance
    blocking = maintenance._inventory.blocking

    async def photographed(work: Callable[[], Any]) -> Any:
        if len(photos) < 12:
            photos.append(node.photograph())
        return await blocking(work)

    maintenance._inventory.blocking = photographed  # type: ignore[method-assign, assignment]
    await node.call("admin", "stream.alter", path=LEAVE, changes={"ttl_ms": 1000})
    for _ in range(3):
        await maintenance.pass_now()
    assert len(photos) >= 4
    for photo in photos[::2]:
        crashed = await new_node(folder=photo)
        kept = await crashed.call("read", f"{KEEP}:t")
        assert [value[:9] for _, value in kept] == [b"k%08d" % serial for serial in range(120)]
        assert (await crashed.call("offsets", f"{LEAVE}:t"))[1] == 120
        await maintain_until_stable(crashed)
        assert len(await crashed.call("read", f"{KEEP}:t")) == 120
        await crashed.stop()


async def many_chunks(new_node: NewNode, *, topics: int) -> Running:
    """A node whose closed chunks hold, by container, records of some topics; each topic lies in one of the chunks."""
    node = await new_node(container_bytes=8 * MIB)
    for serial in range(topics):
        await fill(node, f"/default:t-{serial}", mib=5)
    await maintain_until_stable(node)
    assert len({each.id for each in data(node)}) >= 2
    return node


def looks(node: Running) -> tuple[int, int]:
    """(chunks scanned as a whole, chunks in which partitionlets were searched for) since the start."""
    chunk_gc = node.parts.maintenance._chunk_gc
    return chunk_gc.looks, chunk_gc.searches


async def test_what_is_deleted_is_looked_for_where_it_was(new_node: NewNode) -> None:
    node = await many_chunks(new_node, topics=4)
    chunks = {each.id: len(each.log.closed_chunks()) for each in data(node)}
    whole, searched = looks(node)
    before = data_bytes(node)
    await node.call("delete", "/default:t-0")
    await until(lambda: data_bytes(node) < before - 3 * MIB, what="space given back")
    await node.parts.maintenance.pass_now()
    now_whole, now_searched = looks(node)
    assert now_searched - searched < sum(chunks.values()), "not all chunks of the node"
    assert now_whole - whole <= 5, "those that held nothing else, to be dropped"
    assert len(await node.call("read", "/default:t-3")) == 5 * MIB // 50_000


async def test_a_restart_looks_for_what_died_and_at_nothing_else(new_node: NewNode) -> None:
    node = await many_chunks(new_node, topics=4)
    await node.restart()
    await node.parts.maintenance.pass_now()
    opened = sum(any(chunk.end is None for chunk in each.log.chunks()) for each in data(node))
    assert looks(node)[0] <= opened, "what was closed has been looked at"
    before = data_bytes(node)
    task = node.parts.maintenance._task
    assert task is not None
    task.cancel()  # the node dies before anything is freed
    await asyncio.gather(task, return_exceptions=True)
    await node.call("delete", "/default:t-1")
    await until_deleted(node)
    await node.parts.maintenance._chunk_gc._store()
    closed = sum(len(each.log.closed_chunks()) for each in data(node))
    crashed = await new_node(folder=node.photograph(), container_bytes=8 * MIB)
    await until(lambda: data_bytes(crashed) < before - 3 * MIB, what="space given back after the crash")
    whole, searched = looks(crashed)
    assert whole < closed / 2
    assert searched <= closed, "each that may hold it once, which are all where the topic has been in every container"
    assert len(await crashed.call("read", "/default:t-3")) == 5 * MIB // 50_000
    await crashed.stop()


@pytest.mark.parametrize("lost", ["gone", "damaged", "older"])
async def test_where_the_mark_is_lost_all_chunks_are_looked_at(new_node: NewNode, lost: str) -> None:
    node = await many_chunks(new_node, topics=3)
    mark = node.containers.with_name("chunk-gc")
    older = mark.read_bytes()
    task = node.parts.maintenance._task
    assert task is not None
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    before = data_bytes(node)
    await node.call("delete", "/default:t-0")
    await until_deleted(node)
    await node.parts.maintenance._chunk_gc._store()
    await node.stop()
    match lost:
        case "gone":
            mark.unlink()
        case "damaged":
            mark.write_bytes(b"x" * 200)
        case _:  # as if it died between the death and the mark
            mark.write_bytes(older)
    await node.start()
    await until(lambda: data_bytes(node) < before - 3 * MIB, what="space given back")
    await node.parts.maintenance.pass_now()
    assert looks(node)[0] >= sum(len(each.log.closed_chunks()) for each in data(node))
    await node.stop()


async def until_deleted(node: Running) -> None:
    async with asyncio.timeout(60):
        while await node.parts.catalog.query(lambda reader: reader.is_forgetting()):
            await node.parts.maintenance._expiry.forget_deleted()
            await asyncio.sleep(0.01)


async def test_one_chunk_after_the_other_is_looked_at_though_nothing_is_known_to_have_died(
    new_node: NewNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await many_chunks(new_node, topics=2)
    chunk_gc = node.parts.maintenance._chunk_gc
    seen: list[tuple[int, int]] = []

    async def collect(held: Any, chunk: Any) -> None:
        seen.append((held.id, chunk.start))

    monkeypatch.setattr(chunk_gc, "_collect", collect)
    closed = sorted((each.id, chunk.start) for each in data(node) for chunk in each.log.closed_chunks())
    for _ in range(len(closed) + 1):
        chunk_gc._check_at = 0.0
        await chunk_gc.step()
        assert chunk_gc._check_at > node.parts.runtime.loop.time()
    assert seen == [*closed, closed[0]], "each in turn"
