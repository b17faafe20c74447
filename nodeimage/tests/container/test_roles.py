"""Which replica takes which role: the one that its record names, in an epoch in which no node has written."""

import asyncio
import shutil

import msgspec
from msgspec import structs

from headrace.base.ids import Epoch
from headrace.store import records
from headrace.store.protocol import ClusterStore
from headrace.store.records import ContainerRecord
from kit.several_replicas import Several, handed_to, until


async def test_an_epoch_that_was_another_nodes_is_refused_by_all(three: Several) -> None:
    """A store that was restored to an old copy and has continued since assigns an epoch for the second time."""
    container_id = await three.create(replicas=3, min_in_sync=2)
    await (await three.led(container_id)).append_command(b"early")
    record = await three.change(container_id, handed_to(1, three))
    container = await three.led(container_id, by=three.nodes[1])
    await container.append_command(b"acknowledged")
    await until(lambda: all(three.replica(n, container_id).known_record == record for n in range(3)) or None)
    key = f"{records.CONTAINER_PREFIX}{container_id}"
    for epoch in (record.epoch, record.epoch - 1):
        impostor = structs.replace(record, leader=three.nodes[2].node_id, epoch=Epoch(epoch))

        def put_back(store: ClusterStore, impostor: ContainerRecord = impostor) -> None:
            found = store.get(key)
            assert found is not None
            store.put(key, msgspec.json.encode(impostor), found.version)

        await three.nodes[0].store(put_back)
        told = f"lead epoch {epoch}, but"
        for node in three.nodes:
            await until(lambda node=node, told=told: told in node.replicas.problem(container_id) or None)
        assert container_id not in three.nodes[2].replicas.led
    for number in range(3):
        assert three.replica(number, container_id).known_record == record
        assert three.payloads(number, container_id) == [b"early", b"acknowledged"]


async def test_a_leader_that_starts_again_takes_a_new_epoch(three: Several) -> None:
    container_id = await three.create(replicas=3, min_in_sync=2)
    container = await three.led(container_id)
    await container.append_command(b"one")
    await three.nodes[0].stop()
    await three.nodes[0].start()
    again = await three.led(container_id, by=three.nodes[0])
    assert again.epoch > container.epoch
    await again.append_command(b"two")
    for number in range(3):
        assert three.payloads(number, container_id) == [b"one", b"two"]


async def test_a_lost_folder_is_another_incarnation_and_is_filled_again(three: Several) -> None:
    """Invariants 5 and 14."""
    container_id = await three.create(replicas=3, min_in_sync=2)
    container = await three.led(container_id)
    await container.append_command(b"one")
    before = three.replica(2, container_id).incarnation
    await three.nodes[2].stop()
    shutil.rmtree(three.nodes[2].folder)
    await container.append_command(b"two")
    await three.nodes[2].start()
    await until(lambda: len(container.state.in_sync) == 3 or None)
    assert three.replica(2, container_id).incarnation != before
    assert three.payloads(2, container_id) == [b"one", b"two"]


async def test_a_node_whose_replica_was_lost_does_not_lead(three: Several) -> None:
    container_id = await three.create(replicas=3, min_in_sync=2)
    container = await three.led(container_id)
    await container.append_command(b"one")
    await three.nodes[0].stop()
    shutil.rmtree(three.nodes[0].folder)
    await three.nodes[0].start()
    await until(lambda: three.nodes[0].replicas.replica(container_id))
    await asyncio.sleep(0.5)
    assert container_id not in three.nodes[0].replicas.led
    await three.change(container_id, handed_to(1, three, without=(0,)))  # type: ignore[arg-type]
    second = await three.led(container_id)
    await until(lambda: len(second.state.in_sync) == 3 or None)
    assert three.payloads(0, container_id) == [b"one"]


async def test_a_node_that_reads_along_becomes_a_replica(three: Several) -> None:
    """Every node follows the catalog; a node that did so as an observer begins to count when the record names it."""
    container_id = await three.create(replicas=2, min_in_sync=1, kind="catalog")
    container = await three.led(container_id)
    end = await container.append_command(b"one")
    await three.same(container_id, [2], end=end)
    third = three.nodes[2].node_id
    assert third not in {member.node for member in container.state.waits_for}
    await three.change(container_id, lambda record: structs.replace(record, replicas=(*record.replicas, third)))
    await until(lambda: third in {member.node for member in container.state.in_sync} or None)
