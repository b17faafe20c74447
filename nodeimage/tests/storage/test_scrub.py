"""Damaged bytes are found by reads and by scrub, and only readers of those bytes are affected."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import Code, CorruptLog
from headrace.base.ids import ContainerId
from headrace.container.sync_cycle import SyncCycle
from kit.storage import Running, until

NewNode = Callable[..., Awaitable[Running]]
HURT, WHOLE = "/default:hurt", "/default:whole"
RECORDS = 60


async def filled(new_node: NewNode) -> Running:
    node = await new_node()
    for serial in range(RECORDS):
        await node.call("put", HURT, b"hurt-%04d" % serial + bytes(30_000))
        await node.call("put", WHOLE, b"whole-%04d" % serial + bytes(30_000))
    await node.parts.maintenance.pass_now()
    return node


def flip(node: Running, marker: bytes) -> Path:
    """Flip a bit some bytes after `marker` in the only chunk that contains it."""
    for path in sorted(node.containers.glob("*/*.chunk")):
        content = bytearray(path.read_bytes())
        at = content.find(marker)
        if at >= 0:
            content[at + 1000] ^= 1
            path.write_bytes(content)
            return path
    raise AssertionError(f"no chunk holds {marker!r}")


async def scrubbed(node: Running) -> dict[str, Any]:
    await node.call("admin", "scrub.start")
    state: dict[str, Any] = {"running": True}
    while state["running"]:
        await asyncio.sleep(0.05)
        state = await node.call("admin", "scrub.status")
    return state


async def test_a_flipped_bit_is_a_storage_error_for_its_readers_alone(new_node: NewNode) -> None:
    node = await filled(new_node)
    assert (await scrubbed(node))["errors"] == []
    await node.stop()
    path = flip(node, b"hurt-0007")
    await node.start()
    answer = await node.call("fetch", (HURT, 0, 7), (WHOLE, 0, 7))
    assert answer[HURT, 0].error == Code.KAFKA_STORAGE_ERROR
    assert answer[WHOLE, 0].error == 0
    assert answer[WHOLE, 0].records, "the other partition of the same fetch is served"
    assert len(await node.call("read", WHOLE)) == RECORDS
    behind = await node.call("fetch", (HURT, 0, 8))
    assert behind[HURT, 0].error == 0
    assert behind[HURT, 0].records
    state = await scrubbed(node)
    assert len(state["errors"]) >= 1
    assert all(path.name in error for error in state["errors"]), state
    assert await node.call("put", HURT, b"more") == RECORDS, "writes go on"


async def test_a_replica_that_the_disk_cannot_read_is_damaged_and_no_failure_of_the_scrub(
    new_node: NewNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unreadable footer, which is mapped, ends the helper process by a signal."""
    node = await filled(new_node)
    damaged = []

    async def ended(*_: object) -> tuple[list[bytes], int]:
        return [], -signal.SIGBUS

    monkeypatch.setattr(node.parts.scrub, "_read", ended)
    monkeypatch.setattr(node.parts.cluster.replicas, "damaged", damaged.append)
    state = await scrubbed(node)
    assert set(damaged) == {replica.id for replica in node.parts.cluster.replicas.all()}
    assert all("the disk cannot read" in error for error in state["errors"]), state


async def test_what_a_scrub_finds_while_a_log_is_cut_counts_for_nothing(
    new_node: NewNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Truncated bytes are zeros for a while, in a log that is the same object before and after."""
    node = await filled(new_node)
    damaged = []

    async def zeros(*_: object) -> tuple[list[bytes], int]:
        return [b'{"finding": "no frame where one must be"}'], 1

    monkeypatch.setattr(node.parts.scrub, "_read", zeros)
    monkeypatch.setattr(node.parts.cluster.replicas, "damaged", damaged.append)
    monkeypatch.setattr(SyncCycle, "is_closed", True)
    assert (await scrubbed(node))["errors"] == []
    assert damaged == []


async def test_a_read_up_to_the_damage_gives_what_lies_before_it(new_node: NewNode) -> None:
    node = await filled(new_node)
    await node.stop()
    flip(node, b"hurt-0007")
    await node.start()
    got = []
    offset = 0
    while True:
        (result,) = (await node.call("fetch", (HURT, 0, offset))).values()
        if result.error:
            break
        got += [bytes(buffer) for buffer in result.records]
        offset = _next_offset(result)
    assert result.error == Code.KAFKA_STORAGE_ERROR
    assert offset == 7


def _next_offset(result: Any) -> int:
    from headrace.wire.batch import iter_records

    return max(record.offset for buffer in result.records for record in iter_records(memoryview(buffer))) + 1


async def test_a_damaged_index_is_a_storage_error_and_never_taken_for_an_empty_one(new_node: NewNode) -> None:
    node = await filled(new_node)
    await node.stop()
    change(min(node.containers.glob("2/*.chunk")), at=-64 - 40)
    await node.start()
    answer = await node.call("fetch", (WHOLE, 0, 0), (HURT, 0, 0))
    assert [each.error for each in answer.values()] == [Code.KAFKA_STORAGE_ERROR] * 2
    refused = await node.call("produce", WHOLE, [b"its end is not known"])
    assert refused.error == Code.KAFKA_STORAGE_ERROR
    assert await node.call("put", "/default:new", b"v") == 0, "what does not lie there is served"
    assert (await scrubbed(node))["errors"]


async def test_a_chunk_whose_end_is_damaged_keeps_its_container_alone_from_being_led(new_node: NewNode) -> None:
    """Invariant 14: with one replica there is no other node to fetch it from."""
    node = await filled(new_node)
    await node.stop()
    change(min(node.containers.glob("2/*.chunk")), at=-30)
    await node.start()
    await until(lambda: "Refetch" in node.node.replicas.problem(ContainerId(2)))
    assert ContainerId(2) not in node.parts.containers
    refused = await node.call("produce", WHOLE, [b"nobody leads it"])
    assert refused.error in (Code.LEADER_NOT_AVAILABLE, Code.NOT_LEADER_OR_FOLLOWER)


async def test_a_catalog_whose_log_is_damaged_keeps_the_node_from_starting(new_node: NewNode) -> None:
    node = await filled(new_node)
    await node.stop()
    (chunk,) = node.containers.glob("1/*.chunk")
    (node.containers / "1" / "replica.json").write_text("{")
    assert chunk.exists()
    with pytest.raises(CorruptLog, match=r"replica\.json"):
        await node.start()


def change(path: Path, *, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


async def test_scrub_finds_nothing_wrong_while_the_node_writes_regroups_and_drops(new_node: NewNode) -> None:
    node = await new_node()
    await node.call("admin", "stream.create", path="/test/short", policy={"ttl_ms": 1})
    client = await asyncio.to_thread(type(node.client), node.port)
    stop = asyncio.Event()

    async def load() -> None:
        serial = 0
        while not stop.is_set():
            for topic in ("/test/short:t", *(f"/default:n{number}" for number in range(10))):
                await asyncio.to_thread(client.put, topic, b"%08d" % serial + bytes(9_000))
            serial += 1

    writing = asyncio.create_task(load())
    await until(lambda: node.parts.maintenance.freed_bytes > 0 and node.parts.maintenance.regrouped > 0, seconds=60)
    for _ in range(3):
        state = await scrubbed(node)
        assert state["errors"] == [], state
        assert state["state"] == "ended"
    stop.set()
    await writing
    client.close()
