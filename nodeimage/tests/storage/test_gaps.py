"""Copies with gaps between offsets within partitionlets, and with empty batches, as those of a compacted topic:
maintenance of the disk handles them."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from headrace.base.errors import Code
from headrace.base.ids import Millis, Offset
from headrace.catalog.topics import CreateTopics, NewTopic
from headrace.wire.api_keys import ApiKey
from headrace.wire.batch import build_batch, gap_batches, iter_records, read_batch, stamp
from kit.storage import Running, until

NewNode = Callable[..., Awaitable[Running]]
Log = list[tuple[int, bytes, int]]
"""Offset, value and time of each record."""
THERE = "another-cluster"
TOPICS = [f"copy-{number:02d}" for number in range(20)]
ROUNDS = 150
T0 = 1_700_000_000_000


class Committed:
    """Waits for the commit of a batch."""

    def __init__(self) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def committed(self) -> None:
        self.future.set_result(None)

    def lost(self) -> None:
        self.future.set_exception(AssertionError("the node ceased to lead"))


async def copies(node: Running, *names: str, stream: str = "/default") -> None:
    """Topics whose home is another cluster."""
    broker = node.parts
    places = broker.placement.place(len(names), "default")
    items = [
        NewTopic(stream, name, name.encode().ljust(16, b"-"), 1, {}, [container], [epoch], (0, THERE), THERE)
        for name, (container, epoch) in zip(names, places, strict=True)
    ]
    outcomes = await broker.catalog.submit(CreateTopics(items, Millis(1)))
    assert {outcome.code for outcome in outcomes} == {Code.NONE}


async def copy(node: Running, name: str, records: Log) -> None:
    """Copy one batch at the offsets of its records."""
    batch = build_batch([(time, None, value, []) for _, value, time in records])
    stamp(batch, Offset(records[0][0]), 1)
    await append(node, name, batch)


async def append(node: Running, name: str, batch: bytearray) -> None:
    header = read_batch(memoryview(batch), from_client=False)
    (topic,) = await node.parts.topics.resolve_ids([name.encode().ljust(16, b"-")])
    while True:
        partition = await node.parts.partitions.leader(topic, 0)
        if node.parts.rolls.due(partition) or partition.rolling:
            await node.parts.rolls.wait_for_roll(partition)
        elif not partition.container.has_room(len(batch)):
            await partition.container.make_room()
        else:
            break
    waiting = Committed()
    assert node.parts.home_check.copy_append(topic, partition, memoryview(batch), header, waiting=waiting)
    await waiting.future


async def interleaved(node: Running, ends: dict[str, int], *, rounds: int = ROUNDS, since: int = T0) -> dict[str, Log]:
    """Append batches of several topics in turn, with gaps of 0 to 5,000 offsets before each, or empty batches; returns
    the records by topic.

    `ends`: the end of each topic, which is updated. `since`: the time of the first records.
    """
    chance = random.Random(since)
    logs: dict[str, Log] = {name: [] for name in ends}
    for serial in range(rounds):
        for name in logs:
            base = ends[name] + chance.choice([0, 1, 17, 5_000])
            records = [
                (base + index, b"%s %d " % (name.encode(), base + index) + bytes(400), since + 1000 * serial + index)
                for index in range(2)
            ]
            if base > ends[name] and chance.random() < 0.5:
                (nothing,) = gap_batches(ends[name], base - 1)
                await append(node, name, nothing)
            await copy(node, name, records)
            logs[name] += records
            ends[name] = base + 2
    return logs


async def check(node: Running, logs: dict[str, Log], stream: str = "/default") -> None:
    """Check that all records can be read, that a read within a gap returns the next one, and that look-ups by time are
    right."""
    chance = random.Random(2)
    for name, log in logs.items():
        topic = f"{stream}:{name}"
        assert await node.call("read", topic) == [(offset, value) for offset, value, _ in log]
        for offset, _, _ in chance.sample(log, 5):
            first = next(each[0] for each in log if each[0] >= offset - 1)
            (result,) = (await node.call("fetch", (topic, 0, max(offset - 1, 0)))).values()
            found = [each.offset for each in iter_records(memoryview(result.records[0]))]
            assert next(each for each in found if each >= offset - 1) == first
        for _, _, time in chance.sample(log, 5):
            assert await by_time(node, topic, time) == next(each[0] for each in log if each[2] >= time)
        assert await by_time(node, topic, log[-1][2] + 1) == -1


async def by_time(node: Running, topic: str, timestamp: int) -> int:
    part = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
    asked = [{"name": topic, "partitions": [part]}]
    answer = await node.call("ask", ApiKey.LIST_OFFSETS, 5, replica_id=-1, isolation_level=0, topics=asked)
    return int(answer.topics[0].partitions[0].offset)


def closed(node: Running) -> list[Any]:
    return [
        chunk
        for container in node.parts.containers.values()
        if container.id != node.parts.maintenance.catalog_id
        for chunk in container.log.closed_chunks()
    ]


async def scrubbed(node: Running) -> dict[str, Any]:
    await node.call("admin", "scrub.start")
    state: dict[str, Any] = {"running": True}
    while state["running"]:
        await asyncio.sleep(0.05)
        state = await node.call("admin", "scrub.status")
    return state


async def test_gaps_are_read_over_whatever_is_done_to_the_log(new_node: NewNode) -> None:
    node = await new_node()
    await copies(node, *TOPICS)
    logs = await interleaved(node, dict.fromkeys(TOPICS, 0))
    await check(node, logs)
    await until(lambda: closed(node) and all(chunk.body.regrouped for chunk in closed(node)), seconds=60)
    await check(node, logs)
    await node.restart()
    await check(node, logs)
    for name in TOPICS[::3]:
        (topic,) = await node.parts.topics.resolve_ids([name.encode().ljust(16, b"-")])
        await node.parts.rolls.roll(await node.parts.partitions.leader(topic, 0))
    await check(node, logs)
    ends = {name: log[-1][0] + 1 for name, log in logs.items()}
    for name, log in (await interleaved(node, ends, rounds=5, since=T0 + 1_000_000)).items():
        logs[name] += log
    await check(node, logs)
    assert (await scrubbed(node))["errors"] == []


async def test_what_expires_before_a_gap_goes_and_what_lies_behind_it_stays(new_node: NewNode) -> None:
    node = await new_node()
    await copies(node, *TOPICS)
    logs = await interleaved(node, dict.fromkeys(TOPICS, 0))
    for name, log in logs.items():
        cut = log[len(log) // 2][0] - 1  # within a gap, or a batch
        assert await node.call("delete_records", f"/default:{name}", cut) >= cut
        kept = [each for each in log if each[0] >= cut]
        assert (await node.call("read", f"/default:{name}"))[-len(kept) :] == [(each[0], each[1]) for each in kept]
        logs[name] = kept
    await node.parts.maintenance.pass_now()
    await until(lambda: all(chunk.body.regrouped for chunk in closed(node)), seconds=60)
    await node.restart()
    for name, log in logs.items():
        found = await node.call("read", f"/default:{name}")
        assert [each for each in found if each[0] >= log[0][0]] == [(each[0], each[1]) for each in log]
        start, end = await node.call("offsets", f"/default:{name}")
        assert start <= log[0][0]
        assert end == log[-1][0] + 1


async def test_gaps_do_not_keep_what_has_outlived_its_time(new_node: NewNode) -> None:
    """The log start moves to the end of the expired records, after which there may be a gap."""
    node = await new_node()
    await node.call("admin", "stream.create", path="/short", policy={"ttl_ms": 3_600_000})
    await copies(node, *TOPICS, stream="/short")
    logs = await interleaved(node, dict.fromkeys(TOPICS, 0))
    await until(lambda: node.parts.controller.clocks.agreed() is not None)
    for _ in range(100):
        await node.parts.maintenance.pass_now()
        if not closed(node):
            break
    assert not closed(node), "all in closed chunks is too old"
    for name, log in logs.items():
        start, end = await node.call("offsets", f"/short:{name}")
        assert log[0][0] < start <= end == log[-1][0] + 1
