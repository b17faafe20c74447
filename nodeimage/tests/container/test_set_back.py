"""Replicas whose container's record the cluster store has only as an old copy, or which went on by one."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec import structs
from several import Several, until

from headrace.container.in_sync import ASKED_AGAIN_S
from headrace.ids import ContainerId, Epoch, Position
from headrace.peer.reports import ReplicaState
from headrace.store import container_records
from headrace.store.lineage import merged
from headrace.store.protocol import ClusterStore
from headrace.store.records import ContainerRecord


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
    formats = [three.replica(number, made).format for number in range(3)]
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
    await until(lambda: three.replica(2, made).format != formats[2] or None)
    container = await three.led(made)
    await three.same(made, [0, 1, 2], end=container.end)
    assert [three.replica(number, made).format for number in range(2)] == formats[:2]
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
    first.replicas.heard = lambda: {last.node_id}
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
    """Nodes tell of a replica once, not with each answer."""
    made = await changed_once(three)
    await three.led(made)
    first = three.nodes[0].replicas
    first.told_of = lambda container: [knows(container, "2-0123456789abcdef")]
    assert made in first.led
    await three.change(made, lambda now: structs.replace(now, wanted=5))
    await until(lambda: made not in first.led or None)
    assert first.set_back() == [made]
