"""Followers of the catalog's container, with the tables to which they apply it: the tables always become the
leader's."""

import asyncio
import contextlib
import shutil
import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from headrace.base.errors import KafkaError
from headrace.base.ids import Epoch, Millis, Position
from headrace.catalog.policy import StreamPolicy
from headrace.catalog.streams import CreateStream, DeleteStream
from headrace.container import follower_feed
from headrace.log.container_log import ContainerLog
from headrace.log.frame_reading import RawFrames
from headrace.node import snapshot_sending
from headrace.peer.messages import ReadSnapshot, SnapshotPart, Submit
from headrace.peer.session import PeerUnreachable, Session
from headrace.store.records import CATALOG_ID
from headrace.tables import command_apply as applying_module
from kit.catalog_nodes import CHUNK_BYTES, WithTables
from kit.several_replicas import until


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[WithTables]:
    nodes = WithTables(tmp_path)
    for node in nodes.several.nodes:
        node.chunk_bytes = CHUNK_BYTES
    await nodes.several.start()
    await nodes.several.create(replicas=2, min_in_sync=1, kind="catalog", container_id=CATALOG_ID)
    await nodes.several.led(CATALOG_ID)
    for number in range(3):
        await nodes.open(number)
    yield nodes
    for number in range(3):
        await nodes.stop(number)


async def test_tables_ahead_of_the_leader_become_its_own_though_its_snapshot_is_older_than_what_is_left_of_the_log(
    nodes: WithTables,
) -> None:
    """After an unclean recovery, the log is cut to what the leader has, and the leader's snapshot is older
    than that."""
    await nodes.write(0, "/in-the-snapshot", applied_by=(1, 2))
    snapshot = await nodes.tables(1).snapshot()
    end = await nodes.write(0, "/behind-it", applied_by=(1, 2))
    await nodes.stop(1)
    await nodes.write(0, "/lost", applied_by=(2,))
    await nodes.stop(0)
    await nodes.start(1)
    await nodes.led_uncleanly(1)
    assert snapshot < end <= nodes.several.replica(1, CATALOG_ID).log.end < nodes.tables(2).applied
    after = await nodes.write(1, "/after", applied_by=())
    await until(lambda: nodes.tables(2).applied == nodes.several.replica(2, CATALOG_ID).committed == after or None)
    wanted = ["/after", "/behind-it", "/in-the-snapshot"]
    assert await nodes.paths(1) == await nodes.paths(2) == wanted
    await nodes.write(1, "/and-on", applied_by=(2,))
    assert await nodes.paths(2) == ["/after", "/and-on", *wanted[1:]]


async def test_a_command_that_its_sender_had_given_up_does_not_land_late(
    nodes: WithTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed 161142: the command was held up for a while in a connection that was dead."""
    sent: list[tuple[Submit, bytes]] = []

    async def call(_address: Any, asked: Submit, payload: list[bytes], *, timeout_s: float) -> Any:
        sent.append((asked, payload[0]))
        if len(sent) == 1:
            raise PeerUnreachable("the way is cut", timed_out=True)
        return await nodes.submitted(0, *sent[-1]), memoryview(b"")

    monkeypatch.setattr(nodes.node(1).peers, "call", call)
    await nodes.tables(1).submit(CreateStream("/made", StreamPolicy(), Millis(1)))
    assert await nodes.paths(1) == ["/made"]
    (given_up, payload), (repeat, _) = sent
    assert (given_up.number, repeat.number, given_up.epoch) == (1, 2, repeat.epoch)
    with pytest.raises(KafkaError, match="given up this or a later one"):
        await nodes.submitted(0, given_up, payload)
    await nodes.several.change(CATALOG_ID, lambda record: structs.replace(record, epoch=Epoch(record.epoch + 1)))
    await until(lambda: nodes.leads_in(0) > given_up.epoch or None)
    with pytest.raises(KafkaError, match="of epoch 1"):
        await nodes.submitted(0, given_up, payload)
    await nodes.tables(1).submit(DeleteStream("/made", Millis(1)))
    assert await nodes.paths(1) == []


async def test_tables_become_those_of_a_leader_that_ends_before_where_their_log_begins(nodes: WithTables) -> None:
    await nodes.write(0, "/in-the-snapshot", applied_by=(1, 2))
    snapshot = await nodes.tables(1).snapshot()
    await nodes.write(0, "/behind-it", applied_by=(1, 2))
    await nodes.stop(1)
    lost = await nodes.write(0, "/lost", applied_by=(2,))
    await nodes.stop(0)
    replica = nodes.several.replica(2, CATALOG_ID)
    await replica.stop()
    await replica.reset(lost)  # as one that had come with a snapshot
    replica.learn_committed(lost)
    await nodes.start(1)
    assert snapshot < nodes.several.replica(1, CATALOG_ID).log.end < replica.log.start
    await nodes.led_uncleanly(1)
    after = await nodes.write(1, "/after", applied_by=())
    await until(lambda: nodes.tables(2).applied == replica.committed == after or None)
    assert await nodes.paths(2) == ["/after", "/behind-it", "/in-the-snapshot"]


async def test_tables_are_looked_at_before_their_log_grows_over_what_it_lost(nodes: WithTables) -> None:
    """A node's log was cut and the node ended before it got a snapshot: its tables are behind again once the log has
    grown."""
    end = await nodes.write(0, "/common", applied_by=(1, 2))
    await nodes.stop(1)
    await nodes.write(0, "/lost", applied_by=(2,))
    await nodes.stop(0)
    replica = nodes.several.replica(2, CATALOG_ID)
    await replica.stop()
    await replica.cut(end)
    await nodes.stop(2)
    await nodes.start(1)
    await nodes.led_uncleanly(1)
    for number in range(20):
        await nodes.write(1, f"/after-{number:02}", applied_by=())
    leads = nodes.several.replica(1, CATALOG_ID)
    await nodes.node(2).start()
    replica = await until(lambda: nodes.node(2).replicas.replica(CATALOG_ID))
    with contextlib.suppress(TimeoutError):  # it may follow before its tables are open, and must not
        await until(lambda: replica.log.end == leads.log.end or None, limit_s=1.0)
    await nodes.open(2)
    await nodes.tables(2).wait_applied(leads.committed)
    assert await nodes.paths(2) == await nodes.paths(1)
    assert "/lost" not in await nodes.paths(2)


async def test_tables_that_apply_what_their_log_loses_meanwhile_become_those_of_the_leader(
    nodes: WithTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands were read before the log was cut, so the tables claimed to be applied up to a position where another
    log has other commands."""
    whole, applying, go_on = applying_module.apply_all, asyncio.Event(), threading.Event()
    loop, slow = asyncio.get_running_loop(), nodes.tables(2)._connection

    def slowly(connection: sqlite3.Connection, work: Any, schema: Any) -> Any:
        if connection is slow and b"/lost" in repr(work).encode():
            loop.call_soon_threadsafe(applying.set)
            assert go_on.wait(20)
        return whole(connection, work, schema)

    await nodes.write(0, "/common", applied_by=(1, 2))
    await nodes.stop(1)
    monkeypatch.setattr(applying_module, "apply_all", slowly)
    await nodes.write(0, "/lost", applied_by=())
    await asyncio.wait_for(applying.wait(), 20)
    await nodes.stop(0)
    await nodes.start(1)
    await nodes.led_uncleanly(1)
    for number in range(20):
        await nodes.write(1, f"/after-{number:02}", applied_by=())
    leads, replica = (nodes.several.replica(number, CATALOG_ID) for number in (1, 2))
    with contextlib.suppress(TimeoutError):
        await until(lambda: replica.log.end == leads.log.end or None, limit_s=1.0)
    await nodes.led_uncleanly(1)  # another follower takes its place, and finds nothing to cut
    await nodes.write(1, "/and-on", applied_by=())
    with contextlib.suppress(TimeoutError):
        await until(lambda: replica.log.end == leads.log.end or None, limit_s=1.0)
    go_on.set()
    await until(lambda: nodes.tables(2).applied == replica.committed == leads.committed or None)
    assert await nodes.paths(2) == await nodes.paths(1)
    assert "/lost" not in await nodes.paths(2)


async def test_who_is_fed_while_the_log_is_trimmed_begins_anew(
    nodes: WithTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gap in place of commands would leave the follower's tables without their effect."""
    monkeypatch.setattr(follower_feed, "KEPT_BYTES", 0)  # it is fed from the disk
    await nodes.stop(2)
    leads = nodes.several.replica(0, CATALOG_ID).log
    while not (full := leads.chunks_to_close()):
        await nodes.write(0, f"/stream-at-{leads.end}", applied_by=(1,))
    leads.close_chunk(full[0])
    snapshot = await nodes.tables(0).snapshot()
    trimmed: list[Position] = []
    read_frames = ContainerLog.read_frames

    def trim_and_read(log: ContainerLog, position: Position, **how: Any) -> RawFrames:
        if log is leads and not trimmed:
            log.trim(snapshot)  # as the next snapshot does
            trimmed.append(log.start)
            assert position < log.start
        return read_frames(log, position, **how)

    monkeypatch.setattr(ContainerLog, "read_frames", trim_and_read)
    await nodes.start(2)
    await nodes.write(0, "/after", applied_by=(1, 2))
    assert trimmed
    assert await nodes.paths(2) == await nodes.paths(0)
    assert nodes.several.replica(2, CATALOG_ID).log.start > 0


async def tables_lost(nodes: WithTables, number: int) -> tuple[list[str], Position]:
    """A node that starts without its tables, and without commands that they need in its log; returns what it had."""
    logs = [nodes.several.replica(each, CATALOG_ID).log for each in range(3)]
    while not logs[0].chunks_to_close():
        await nodes.write(0, f"/stream-at-{logs[0].end}", applied_by=(1, 2))
    for log in logs:
        log.close_chunk(log.chunks_to_close()[0])
    for path in ("/one", "/two"):
        end = await nodes.write(0, path, applied_by=(1, 2))
        for each in range(3):
            await nodes.tables(each).snapshot()
    await until(lambda: all(log.start > 0 for log in logs) or None)
    before = await nodes.paths(number)
    await nodes.stop(number)
    shutil.rmtree(nodes.node(number).folder.parent / "catalog")
    await nodes.start(number)
    return before, end


@pytest.mark.parametrize("gives_tables", [True, False], ids=["of this version", "of the version before"])
@pytest.mark.parametrize("number", [0, 1, 2], ids=["primary", "follower", "observer"])
async def test_tables_that_are_lost_with_their_snapshots_come_from_another_though_their_log_begins_behind_them(
    nodes: WithTables, number: int, *, gives_tables: bool
) -> None:
    """The log no longer has all the commands that the tables lack."""
    nodes.gives_tables = gives_tables
    if not gives_tables:
        for node in nodes.several.nodes:
            node.handlers.clear()
    before, end = await tables_lost(nodes, number)
    await nodes.tables(number).wait_applied(end)
    assert await nodes.paths(number) == before
    leads = next(each for each in (0, 1) if nodes.node(each).replicas.led.get(CATALOG_ID))
    assert leads == (1 if number == 0 else 0), "who has lost them leads no more"
    await nodes.several.led(CATALOG_ID, by=nodes.node(leads))
    await nodes.write(leads, "/after", applied_by=tuple({0, 1, 2} - {leads}))
    assert await nodes.paths(number) == await nodes.paths(leads)


async def test_tables_that_are_lost_come_back_where_the_minimum_forbids_to_leave_the_in_sync_set(
    nodes: WithTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node ended every minute, and everything that needs the catalog stalled, although another node has what it
    lacks."""
    pieces = 0

    async def slow(asked: ReadSnapshot, payload: memoryview, session: Session) -> tuple[SnapshotPart, list[bytes]]:
        nonlocal pieces
        pieces += 1
        await asyncio.sleep(0.25)
        return await nodes.catalog(0).snapshot_read(asked, payload, session)

    monkeypatch.setattr(snapshot_sending, "PIECE_BYTES", 10_000)
    monkeypatch.setattr(applying_module, "_TRIMMED_S", 2.0)
    nodes.node(0).handlers[ReadSnapshot] = slow
    await nodes.several.change(CATALOG_ID, lambda record: structs.replace(record, min_in_sync=2))
    replica = nodes.several.replica(1, CATALOG_ID)
    incarnation, start = replica.incarnation, replica.log.start
    before, end = await tables_lost(nodes, 1)
    await asyncio.wait_for(nodes.tables(1).wait_applied(end), 20)
    assert pieces * 0.25 > 2.0, "they were longer on their way than a node waits for the next piece"
    assert await nodes.paths(1) == before
    replica = nodes.several.replica(1, CATALOG_ID)
    assert (replica.incarnation, replica.log.start > start, replica.log.end) == (incarnation, True, end)
    record = nodes.node(0).view.containers[CATALOG_ID]
    assert (len(record.in_sync), record.epoch) == (2, 1)
    assert not nodes.node(1).replicas.states()[0].damaged
    await nodes.write(0, "/after", applied_by=(1, 2))
    assert await nodes.paths(1) == await nodes.paths(0)
    await until(lambda: not list((nodes.node(1).folder.parent / "catalog").glob("*.tmp")) or None)


async def test_a_leader_that_has_lost_its_tables_lets_another_lead_and_gets_them_where_it_may_not_leave_the_set(
    nodes: WithTables,
) -> None:
    await nodes.several.change(CATALOG_ID, lambda record: structs.replace(record, min_in_sync=2))
    incarnation = nodes.several.replica(0, CATALOG_ID).incarnation
    before, end = await tables_lost(nodes, 0)
    await asyncio.wait_for(nodes.tables(0).wait_applied(end), 20)
    assert await nodes.paths(0) == before
    await until(lambda: nodes.leads_in(1) or None)
    record = nodes.node(1).view.containers[CATALOG_ID]
    assert (record.leader, len(record.in_sync)) == (nodes.node(1).node_id, 2)
    assert nodes.several.replica(0, CATALOG_ID).incarnation == incarnation
    await nodes.write(1, "/after", applied_by=(0, 2))
