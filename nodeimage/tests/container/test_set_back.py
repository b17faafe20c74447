"""Replicas of a container whose record in the cluster store is an old copy, or that followed such a record."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from headrace.base.ids import ContainerId, Epoch, Position
from headrace.container import lost_record, replica_folder, replicas
from headrace.container.in_sync_writer import ASKED_AGAIN_S
from headrace.peer.reports import ReplicaState
from headrace.store import container_records
from headrace.store.lineage import merged
from headrace.store.protocol import ClusterStore
from headrace.store.records import ContainerRecord
from kit.several_replicas import Several, until


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[Several]:
    nodes = Several(tmp_path, 3)
    await nodes.start()
    try:
        yield nodes
    finally:
        await nodes.stop()


async def changed_once(three: Several) -> ContainerId:
    """A container on three nodes, with some commands, whose record has a change that all of them know."""
    made = await three.create(replicas=3, min_in_sync=1)
    container = await three.led(made)
    for number in range(5):
        await container.append_command(f"{number}".encode())
    record = await three.change(made, lambda now: structs.replace(now, wanted=4))
    assert record.changes
    for node in three.nodes:
        await until(lambda node=node: node.replicas.known_record(made) == record or None)  # type: ignore[misc]
    return made


def knows(container: ContainerId, change: str) -> ReplicaState:
    return ReplicaState(container, "follower", Epoch(1), Epoch(1), Position(0), Position(0), change=change)


async def put(three: Several, record: ContainerRecord) -> None:
    def over(store: ClusterStore) -> None:
        found = store.get(f"container/{record.container_id}")
        assert found is not None
        container_records.put_container(store, record, found.version)

    await three.nodes[0].store(over)


async def test_who_went_on_by_what_was_given_up_begins_anew_and_others_do_not(three: Several) -> None:
    made = await changed_once(three)
    formats = [three.replica(number, made).incarnation for number in range(3)]
    record = three.nodes[0].view.containers[made]
    await put(
        three,
        structs.replace(
            record,
            epoch=Epoch(record.epoch + 1),
            in_sync=record.in_sync[:2],
            changes=merged([record.changes[:-1]], [record.changes]),
        ),
    )
    await until(lambda: three.replica(2, made).incarnation != formats[2] or None)
    container = await three.led(made)
    await three.same(made, [0, 1, 2], end=container.end)
    assert [three.replica(number, made).incarnation for number in range(2)] == formats[:2]
    assert three.payloads(2, made) == three.payloads(0, made)


async def test_who_leads_stands_still_while_another_knows_a_change_that_the_store_has_no_trace_of(
    three: Several,
) -> None:
    made = await changed_once(three)
    await three.led(made)
    first = three.nodes[0].replicas
    second = three.nodes[1].node_id
    first.told(second, [(made, knows(made, three.nodes[0].view.containers[made].changes[-1]))], True)
    assert made in first.led
    elsewhere = "2-0123456789abcdef"
    first.told(second, [(made, knows(made, elsewhere))], True)
    await until(lambda: made not in first.led or None)
    assert first.set_back() == [made]
    assert "no trace of a change" in first.problem(made)
    record = three.nodes[0].view.containers[made]
    changes = merged([record.changes, (elsewhere,)])
    await put(three, structs.replace(record, epoch=Epoch(record.epoch + 1), changes=changes))
    await three.led(made, by=three.nodes[0])
    assert first.set_back() == []


async def test_nobody_who_lives_leaves_before_it_has_said_what_it_knows(three: Several) -> None:
    made = await changed_once(three)
    await three.led(made)
    first, last = three.nodes[0], three.nodes[2]
    first.others.answering = {last.node_id}
    await last.stop()
    await until(lambda: first.replicas._in_sync._putting.get(made))
    await asyncio.sleep(3 * ASKED_AGAIN_S)
    assert len(first.view.containers[made].in_sync) == 3
    first.replicas.told(last.node_id, [], False)
    await asyncio.sleep(3 * ASKED_AGAIN_S)
    assert len(first.view.containers[made].in_sync) == 3, "it has not told of all yet"
    first.replicas.told(last.node_id, [], True)
    await until(lambda: len(first.view.containers[made].in_sync) == 2 or None)


async def test_what_was_told_before_counts_when_a_record_comes_that_has_no_trace_of_it(three: Several) -> None:
    """Nodes report a replica once, not with each answer."""
    made = await changed_once(three)
    await three.led(made)
    first = three.nodes[0].replicas
    three.nodes[0].others.tell = [knows(made, "2-0123456789abcdef")]
    assert made in first.led
    await three.change(made, lambda now: structs.replace(now, wanted=5))
    await until(lambda: made not in first.led or None)
    assert first.set_back() == [made]


async def test_a_damaged_replica_does_not_leave_by_an_old_copy(three: Several) -> None:
    """The leader would hand over to a member that is in sync by the old copy, before it has noticed that it is one."""
    made = await changed_once(three)
    await three.led(made)
    first = three.nodes[0]
    older = first.view.containers[made]
    await three.change(made, lambda now: structs.replace(now, wanted=5))
    await until(lambda: ((record := first.replicas.known_record(made)) and record.wanted == 5) or None)
    await first.view.close()
    await put(three, older)
    first.replicas.damaged(made)
    await until(lambda: "no trace of change" in first.replicas.problem(made) or None)
    found = await first.store(lambda store: container_records.get_container(store, made))
    assert found == older


async def test_a_store_that_was_set_back_is_not_asked_more_and_more_often(
    three: Several, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each check caused another one, whatever its result."""
    monkeypatch.setattr(replicas, "SET_BACK_RETRY_S", 0.3)
    made = await changed_once(three)
    await three.led(made)
    first, looks = three.nodes[0], []
    ask = first.store

    async def counted(change: Callable[[ClusterStore], Any]) -> Any:
        looks.append(asyncio.get_running_loop().time())
        return await ask(change)

    first.replicas.told(three.nodes[1].node_id, [(made, knows(made, "2-0123456789abcdef"))], True)
    await until(lambda: first.replicas.set_back() or None)
    monkeypatch.setattr(first, "store", counted)
    for number in range(8):
        first.replicas.records_changed({made})
        await until(lambda number=number: len(looks) > number or None)  # type: ignore[misc]
    del looks[:]
    await until(lambda: len(looks) >= 4 or None)
    assert looks[3] - looks[0] > 2 * 0.3


async def test_what_is_found_of_a_replica_that_is_being_cut_is_of_one_moment(
    three: Several, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the history of the leader for which it is cut, the frames that are cut would count as that leader's, ahead
    of all others."""
    made = await changed_once(three)
    await three.led(made)
    replica = three.replica(1, made)
    end, before, read = replica.log.end, replica.last_epoch, replica_folder.read

    def of_later(folder: Path) -> replica_folder.ReplicaFile | None:
        state = read(folder)
        assert state is not None
        return structs.replace(state, history=(*state.history, (Epoch(before + 3), Position(end - 1))))

    monkeypatch.setattr(lost_record.replica_folder, "read", of_later)
    _, (told,), _ = await three.nodes[1].replicas.unrecorded(set(), also_still_recorded=True)
    assert (told.end, told.last_epoch) == (end, before)


async def test_a_log_is_not_opened_to_be_looked_at_while_it_is_opened_for_a_role(
    three: Several, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If two tasks open it, one would remove files that the other is about to use."""
    made = await changed_once(three)
    await three.led(made)
    replicas = three.nodes[1].replicas
    slot = replicas._slots[made]
    replica, slot.replica = slot.replica, None
    opened: list[object] = []
    look = lost_record.found_replica

    def looked(*arguments: Any, **more: Any) -> Any:
        opened.append(more["opened"])
        return look(*arguments, **more)

    monkeypatch.setattr("headrace.container.replicas.found_replica", looked)
    async with replicas._folder_lock(made):
        looking = asyncio.create_task(replicas.unrecorded(set(), also_still_recorded=True))
        await asyncio.sleep(0.05)
        assert not opened
        slot.replica = replica
    await looking
    assert replica is not None
    assert opened == [(replica.log.end, replica.history)]
