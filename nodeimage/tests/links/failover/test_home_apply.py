"""Partitions are rolled for their topics' homes, and diverged records are quarantined, on a real node."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
from crc32c import crc32c

from headrace.base.errors import Code, HeadraceError, KafkaError
from headrace.base.ids import Home, Millis, Offset
from headrace.catalog.chains import LogStart, SetLogStart
from headrace.catalog.homes import HomeChange, SetHome
from headrace.catalog.rows import TopicRow
from headrace.catalog.topics import CreateTopics, NewTopic
from headrace.links.failover import home_apply, quarantine
from headrace.links.failover.home_apply import HomeApplier
from headrace.links.failover.quarantine import Quarantine
from headrace.partitions.partition import Partition
from headrace.wire.batch import build_batch, read_batch
from kit.one_node import Committed, OneNode, until


@pytest.fixture(autouse=True)
def by_hand(south: OneNode) -> None:
    """Have partitions settled by the tests' home appliers, not by the node's own."""

    async def nothing(wanted: home_apply.Unsettled) -> None:
        pass

    south.node.links.home_applier._apply_home = nothing  # type: ignore[method-assign]


@pytest.fixture
async def home_applier(south: OneNode) -> AsyncIterator[HomeApplier]:
    """A running home applier, notified of applied commands."""
    made = south.home_applier()
    south.parts.catalog.on_applied(made.applied)
    running = asyncio.create_task(made.run())
    yield made
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


async def moved(
    south: OneNode, name: str, home: tuple[int, str], lists: dict[int, list[tuple[int, str, int]]] | None
) -> None:
    row = await south.row(name)
    assert row is not None
    change = HomeChange(row.topic_id, *home, lists)  # type: ignore[arg-type]
    assert await south.parts.catalog.submit(SetHome(items=[change])) == [Code.NONE]


async def settled_for(south: OneNode, name: str, home: tuple[int, str], partitions: int = 1) -> bool:
    """Whether the home is recorded in the catalog, and the leader uses it; until then it reads the old chain."""
    row = await south.row(name)
    assert row is not None
    found = await south.parts.catalog.query(lambda reader: reader.homes.settled([row.number]))
    return not south.parts.rolls.under_way and all(
        found.get((row.number, index)) == Home(*home) for index in range(partitions)
    )


async def applies(south: OneNode, name: str, home: tuple[int, str]) -> None:
    """Run a new home applier until the topic is settled."""
    running = asyncio.create_task(south.home_applier().run())
    try:
        await until(lambda: settled_for(south, name, home))
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def produced(leader: Partition, batch: bytearray) -> None:
    """Have a client's batch stored, whatever it contains."""
    waiting = Committed()
    leader.append(memoryview(batch), read_batch(batch), append_time=None, now=0, request=waiting)
    await waiting.future


async def test_a_home_taken_by_force_begins_where_each_partition_ends(
    south: OneNode, home_applier: HomeApplier
) -> None:
    await south.append("t", b"a", b"b")
    epoch = (await south.partition("t")).leader_epoch
    await moved(south, "t", (1, south.cluster_id), None)
    await until(lambda: settled_for(south, "t", (1, south.cluster_id)))
    row = await south.row("t")
    assert row is not None
    histories = await south.parts.catalog.query(lambda reader: reader.homes.histories([row.number]))
    assert [tuple(start) for start in histories[row.number, 0]] == [(1, south.cluster_id, 2)]
    leader = await south.partition("t")
    assert leader.leader_epoch > epoch
    assert leader.next_offset == 2
    assert await south.row("t.diverged") is None


async def test_what_diverged_is_set_aside_with_its_old_place_and_the_partition_resumes_there(
    south: OneNode, home_applier: HomeApplier
) -> None:
    for value in (b"a", b"b", b"c", b"d"):
        await south.append("t", value)
    await moved(south, "t", (1, "north"), {0: [(1, "north", 2)]})
    await until(lambda: settled_for(south, "t", (1, "north")))
    leader = await south.partition("t")
    assert (leader.next_offset, leader.high_watermark) == (2, 2)
    assert await south.values("t") == [b"a", b"b"]
    aside = await south.records("t.diverged")
    assert [record.value for record in aside] == [b"c", b"d"]
    assert [dict(record.headers)["headrace.offset"] for record in aside] == [b"2", b"3"]
    assert dict(aside[0].headers)["headrace.home"] == f"0:{south.cluster_id}".encode()
    assert home_applier.quarantined == 2
    row = await south.row("t.diverged")
    assert row is not None
    assert row.configs["retention.ms"] == "-1"


async def test_what_was_deleted_before_is_not_set_aside(south: OneNode, home_applier: HomeApplier) -> None:
    for value in (b"a", b"b", b"c", b"d"):
        await south.append("t", value)
    row = await south.row("t")
    assert row is not None
    await south.parts.catalog.submit(SetLogStart(items=[LogStart(row.topic_id, 0, Offset(3))]))
    await moved(south, "t", (1, "north"), {0: [(1, "north", 1)]})
    await until(lambda: settled_for(south, "t", (1, "north")))
    assert [record.value for record in await south.records("t.diverged")] == [b"d"]


async def test_records_of_the_shared_history_stay(south: OneNode, home_applier: HomeApplier) -> None:
    await south.append("t", b"a", b"b")
    await moved(south, "t", (1, "north"), {0: [(1, "north", 2)]})
    await until(lambda: settled_for(south, "t", (1, "north")))
    assert await south.values("t") == [b"a", b"b"]
    assert await south.row("t.diverged") is None


@pytest.mark.parametrize("step", ["before_roll", "in_the_middle"])
async def test_what_was_set_aside_before_a_crash_is_not_set_aside_twice(
    south: OneNode, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    for value in (b"a", b"b", b"c", b"d"):
        await south.append("t", value)
    await moved(south, "t", (1, "north"), {0: [(1, "north", 1)]})

    class Crash(HeadraceError):
        pass

    appended = 0
    real = Quarantine.add

    async def crashing(*arguments: object, **named: object) -> object:
        nonlocal appended
        found = await real(*arguments, **named)  # type: ignore[arg-type]
        appended += 1
        if appended <= 2:
            raise Crash("the node ends here")
        return found

    if step == "before_roll":
        monkeypatch.setattr(Quarantine, "add", crashing)
    else:
        real_append = Quarantine._append

        async def append(*arguments: object) -> None:
            nonlocal appended
            await real_append(*arguments)  # type: ignore[arg-type]
            appended += 1
            if appended in (2, 3):
                raise Crash("the node ends here")

        monkeypatch.setattr(Quarantine, "_append", append)
    await applies(south, "t", (1, "north"))
    assert appended >= 3
    assert await south.values("t.diverged") == [b"b", b"c", b"d"]
    assert await south.values("t") == [b"a"]


async def test_what_was_set_aside_for_a_home_that_moved_on_is_not_set_aside_again(
    south: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in (b"a", b"b", b"c", b"d"):
        await south.append("t", value)
    await moved(south, "t", (1, "north"), {0: [(1, "north", 2)]})
    keep, homes = Quarantine.add, []

    async def then_it_moves(aside: Quarantine, row: TopicRow, *arguments: Any, **named: Any) -> object:
        found = await keep(aside, row, *arguments, **named)
        homes.append(row.home)
        if row.home == Home(1, "north"):
            await moved(south, "t", (2, "east"), {0: [(2, "east", 1)]})
            raise HeadraceError("the node ends here")
        return found

    monkeypatch.setattr(Quarantine, "add", then_it_moves)
    await applies(south, "t", (2, "east"))
    assert homes[0] == Home(1, "north")
    assert await south.values("t") == [b"a"]
    assert sorted(map(str, await south.values("t.diverged"))) == ["b'b'", "b'c'", "b'd'"]


async def test_what_clients_write_to_the_diverged_topic_stands_in_for_nothing_and_is_in_nobodys_way(
    south: OneNode,
) -> None:
    """A record that was sent again with its headers, and a batch that claims to be compressed but is not."""
    for value in (b"a", b"b"):
        await south.append("t", value)
    row = await south.row("t")
    assert row is not None
    place = [
        ("headrace.offset", b"1"),
        ("headrace.partition", b"0"),
        ("headrace.home", f"0:{south.cluster_id}".encode()),
        ("headrace.topic", str(uuid.UUID(bytes=row.topic_id)).encode()),
    ]
    await south.topic("t.diverged", create=True)
    leader = await south.partition("t.diverged")
    claims = bytearray(build_batch([(1, None, b"x", [])]))
    claims[22] = 4  # zstd
    claims[17:21] = crc32c(bytes(claims[21:])).to_bytes(4, "big")
    for batch in (build_batch([(1, None, b"b", place)]), claims):
        await produced(leader, batch)
    await moved(south, "t", (1, "north"), {0: [(1, "north", 1)]})
    await applies(south, "t", (1, "north"))
    assert await south.values("t") == [b"a"]
    assert leader.high_watermark == 3, "it is set aside"


async def test_a_batch_whose_records_cannot_be_read_is_set_aside_raw_once_and_holds_nothing_up(
    south: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Produce checks only the header and the CRC; the records can be anything."""
    await south.append("t", b"a")
    leader = await south.partition("t")
    claims = bytearray(build_batch([(1, None, b"b", []), (1, None, b"c", [])]))
    claims[22] = 4  # claims zstd, but is not compressed
    claims[17:21] = crc32c(bytes(claims[21:])).to_bytes(4, "big")
    await produced(leader, claims)
    stored = bytes(claims)  # as stored
    await south.append("t", b"d")
    token = bytearray(build_batch([(1, None, b"x", [])], producer_id=-9, producer_epoch=0, base_sequence=0))
    token[22] = 4  # a client's batch in the topic that is searched for repeats
    token[17:21] = crc32c(bytes(token[21:])).to_bytes(4, "big")
    await south.topic("t.diverged", create=True)
    row = await south.row("t.diverged")
    assert row is not None
    await south.append_once(row.topic_id, 0, token)
    appended = Quarantine._append
    crashed = 0

    async def append(*arguments: Any) -> None:
        nonlocal crashed
        await appended(*arguments)
        crashed += 1
        if crashed == 1:
            raise HeadraceError("the node ends here")

    monkeypatch.setattr(Quarantine, "_append", append)
    home_applier = south.home_applier()
    await moved(south, "t", (1, "north"), {0: [(1, "north", 2)]})
    running = asyncio.create_task(home_applier.run())
    await until(lambda: settled_for(south, "t", (1, "north")))
    running.cancel()
    aside = await south.partition("t.diverged")
    assert aside.high_watermark == 3, "with the client's"
    assert (await south.partition("t")).next_offset == 2
    await south.parts.catalog.submit(SetLogStart(items=[LogStart(row.topic_id, 0, Offset(1))]))
    await until(lambda: aside.log_start == 1)
    raw, record = await south.records("t.diverged")
    assert (raw.value, record.value) == (stored, b"d")
    assert raw.headers[-2:] == [("headrace.raw", b"2"), ("headrace.part", b"1/1")]
    assert home_applier.quarantined == 1, "the rest was before the crash"


async def test_no_batch_that_could_not_be_replicated_is_appended_once(
    south: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await south.append("t", b"a")
    row = await south.row("t")
    assert row is not None
    batch = build_batch([(1, None, b"x", [])], producer_id=-9, producer_epoch=0, base_sequence=0)
    monkeypatch.setattr(quarantine, "MAX_PAYLOAD_BYTES", len(batch) - 1)
    with pytest.raises(KafkaError) as refused:
        await south.append_once(row.topic_id, 0, batch)
    assert refused.value.code == Code.MESSAGE_TOO_LARGE
    monkeypatch.setattr(quarantine, "MAX_PAYLOAD_BYTES", len(batch))
    assert await south.append_once(row.topic_id, 0, batch) == 1


async def test_where_the_diverged_topic_is_led_elsewhere_for_the_moment_it_is_tried_again_soon(
    south: OneNode, home_applier: HomeApplier, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep, failed = Quarantine.add, []

    async def fails_once(*args: object, **more: object) -> object:
        if not failed:
            failed.append(True)
            raise KafkaError(Code.NOT_LEADER_OR_FOLLOWER, "the diverged topic is led elsewhere by now")
        return await keep(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Quarantine, "add", fails_once)
    await south.append("t", b"a")
    await south.append("t", b"b")
    await moved(south, "t", (1, "north"), {0: [(1, "north", 1)]})
    await until(lambda: settled_for(south, "t", (1, "north")), timeout_s=home_apply.SWEEP_S / 2)
    assert failed
    assert [record.value for record in await south.records("t.diverged")] == [b"b"]


async def test_a_fault_of_ours_holds_up_neither_other_partitions_nor_the_next_look(
    south: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("t", "other"):
        await south.append(name, b"a")
        await moved(south, name, (1, south.cluster_id), None)
    left = {"_of": 1, "_apply_home": 1}
    for name in left:
        whole = getattr(HomeApplier, name)

        def faulty(self: HomeApplier, *arguments: Any, name: str = name, whole: Any = whole) -> Any:
            left[name] -= 1
            if left[name] >= 0:
                raise KeyError(name)
            return whole(self, *arguments)

        monkeypatch.setattr(HomeApplier, name, faulty)
    for name in ("t", "other"):
        await applies(south, name, (1, south.cluster_id))
    assert max(left.values()) < 0


async def test_a_problem_is_told_until_a_sweep_has_succeeded(south: OneNode, monkeypatch: pytest.MonkeyPatch) -> None:
    applier = south.home_applier()
    sweep = applier._sweep
    told: list[str | None] = []

    async def sweep_at_last() -> None:
        told.append(applier.problem)
        if len(told) < 4:
            raise KafkaError(Code.BROKER_NOT_AVAILABLE, "the catalog cannot be read")
        await sweep()

    monkeypatch.setattr(home_apply, "RETRY_S", 0.01)
    monkeypatch.setattr(applier, "_sweep", sweep_at_last)
    running = asyncio.create_task(applier.run())
    await until(lambda: len(told) == 4 and applier.problem is None)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert told == [None, *["the catalog cannot be read"] * 3]


async def test_the_newest_of_several_homes_counts(south: OneNode, home_applier: HomeApplier) -> None:
    for value in (b"a", b"b", b"c"):
        await south.append("t", value)
    await moved(south, "t", (1, "north"), {0: [(1, "north", 2)]})
    await moved(south, "t", (2, "east"), {0: [(1, "north", 2), (2, "east", 5)]})
    await moved(south, "t", (3, south.cluster_id), None)
    await until(lambda: settled_for(south, "t", (3, south.cluster_id)))
    everything = await south.values("t") + (
        await south.values("t.diverged") if await south.row("t.diverged") is not None else []
    )
    assert sorted(everything) == [b"a", b"b", b"c"]


async def test_all_partitions_of_many_topics_are_settled(south: OneNode, home_applier: HomeApplier) -> None:
    names = [f"t{index}" for index in range(40)]
    for name in names:
        await south.append(name, b"a")
    rows = [await south.row(name) for name in names]
    items = [HomeChange(row.topic_id, 1, south.cluster_id, None) for row in rows if row is not None]
    await south.parts.catalog.submit(SetHome(items=items))
    for name in names:
        await until(lambda name=name: settled_for(south, name, (1, south.cluster_id)))  # type: ignore[misc]
    assert home_applier.problem is None


async def test_what_diverged_behind_gaps_is_set_aside_whole(south: OneNode, home_applier: HomeApplier) -> None:
    ((container, epoch),) = south.parts.placement.place(1, "default")
    item = NewTopic("/s", "c", b"copied-topic-id!", 1, {}, [container], [epoch], (0, "north"), "north")
    (made,) = await south.parts.catalog.submit(CreateTopics([item], Millis(1)))
    assert made.code is Code.NONE
    for offset in (0, 10, 20, 30):
        topic, leader = await south.topic("c"), await south.partition("c")
        if offset == 20:  # gaps in a partitionlet, and at the end of a sealed one
            await south.parts.rolls.roll(leader)
            leader = await south.partition("c")
        batch = build_batch([(1, None, b"%d" % offset, [])], base_offset=offset, compression=2)
        if not leader.container.has_room(len(batch)):
            await leader.container.make_room()
        waiting = Committed()
        header = read_batch(batch, from_client=False)
        assert south.parts.home_check.copy_append(topic, leader, memoryview(batch), header, waiting=waiting)
        await waiting.future
    await moved(south, "c", (1, "east"), {0: [(1, "east", 5)]})
    await until(lambda: settled_for(south, "c", (1, "east")))
    assert await south.values("c") == [b"0"]
    assert [record.value for record in await south.records("c.diverged")] == [b"10", b"20", b"30"]
    assert (await south.partition("c")).next_offset == 5
