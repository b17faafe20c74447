"""Full containers are closed, and closed containers without live records are deleted."""

import asyncio
import shutil
from functools import partial

import pytest
from msgspec import structs

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import ContainerId, Epoch
from headrace.container import replica_folder
from headrace.container.follower_feed import Piece, Recent
from headrace.control.observations import Settings
from headrace.log.container_log import LogOptions
from headrace.store import container_records
from headrace.store.protocol import ClusterStore, StoreUnavailable
from headrace.wire.api_keys import ApiKey
from kit.filled_nodes import (
    LEAVE,
    LONG_AGO,
    NewNode,
    close_open_chunks,
    data,
    fill,
    maintain_until_stable,
    streams,
    with_a_full_container,
)
from kit.storage import MIB, until

pytestmark = pytest.mark.usefixtures("early")


async def test_a_closed_container_vanishes_from_disk_when_all_in_it_has_expired(
    new_node: NewNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.storage.container_closing.REST_S", 0.0)
    node = await new_node(container_bytes=3 * MIB)
    await node.call("put", "/default:idle", b"stays")
    await streams(node, leave=3_600_000)
    first = max(node.parts.containers)
    await fill(node, f"{LEAVE}:t", mib=5, time_ms=LONG_AGO)
    await until(lambda: len(node.parts.containers) > 2)
    await maintain_until_stable(node)
    assert first in node.parts.containers, "an idle partition's record is still there"
    await node.call("delete", "/default:idle")
    await maintain_until_stable(node)
    assert first not in node.parts.containers
    await until(lambda: not (node.containers / str(first)).exists())
    await node.stop()
    await node.start()
    assert first not in node.parts.containers
    assert await node.call("put", f"{LEAVE}:t", b"next") == 5 * MIB // 50_000


async def test_a_deleted_container_is_forgotten_and_a_replica_that_was_away_meanwhile_goes(
    new_node: NewNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.storage.container_closing.REST_S", 0.0)
    monkeypatch.setattr("headrace.node.node.Settings", partial(Settings, forget_after_s=0.5))
    node, gone = await with_a_full_container(new_node)
    await node.stop()
    away, unknown = node.containers / str(gone), node.containers / "4711"
    shutil.copytree(away, node.folder / "away")
    shutil.copytree(away, unknown)
    state = replica_folder.read(unknown)
    assert state is not None
    of_another = state.record.replace(f'"container_id":{gone}', '"container_id":4711')
    replica_folder.write(unknown, structs.replace(state, record=of_another))
    await node.start()
    await until(lambda: gone in node.parts.containers)
    for topic in ("/default:idle", f"{LEAVE}:t"):
        await node.call("delete", topic)
    await maintain_until_stable(node)
    await until(lambda: not away.exists())
    view = node.node.view
    await until(lambda: gone not in view.containers)
    assert view.is_deleted(gone)

    shutil.copytree(node.folder / "away", away)
    found = await node.node._recovery.recover(apply=False)
    assert [each["container"] for each in found["containers"]] == [4711], "it alone may have lost its record"
    await node.stop()
    await node.start()
    await until(lambda: not away.exists())
    assert unknown.exists()


async def test_a_container_that_could_not_be_closed_is_closed_when_the_store_is_back(
    new_node: NewNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await new_node(container_bytes=3 * MIB)
    asked: list[bool] = []

    def away(_store: ClusterStore, container_id: ContainerId, _change: object) -> None:
        asked.append(node.parts.containers[container_id].closing)
        raise StoreUnavailable("the store is away")

    with monkeypatch.context() as patched:
        patched.setattr(container_records, "change_container", away)
        await streams(node, leave=3_600_000)
        first = max(node.parts.containers)
        await fill(node, f"{LEAVE}:t", mib=4)
        await until(lambda: bool(asked))
        assert not any(asked), "partitions would roll away, to others that wait for the store too"
        assert first in {each.container_id for each in node.parts.cluster.open_data()}
    await node.parts.maintenance.pass_now()
    await until(lambda: first not in {each.container_id for each in node.parts.cluster.open_data()})


async def test_what_is_gone_from_the_disk_is_not_kept_open_and_what_rests_not_in_memory(new_node: NewNode) -> None:
    node, first = await with_a_full_container(new_node)
    recent = node.parts.containers[first].recent = Recent()
    recent.keep(Piece(0, 1000, [bytes(1000)]))  # as if there were followers
    await close_open_chunks(node)
    await node.parts.maintenance.pass_now()
    inventory = node.parts.maintenance._inventory
    before = set(inventory._notes)
    assert {container for container, _ in before} >= {first}
    tail = node.parts.containers[first].log.appender.tail
    assert tail.used == recent.nbytes == 0, "nothing is written there any more"
    assert await node.call("read", "/default:idle") == [(0, b"stays")]
    await node.call("admin", "stream.delete", path=LEAVE, force=True)
    await maintain_until_stable(node)
    here = {(each.id, chunk.start): chunk.body for each in data(node) for chunk in each.log.chunks()}
    assert set(before) - set(here), "some are gone"
    assert all(here.get(key) is note.body for key, note in inventory._notes.items())


async def test_a_container_that_takes_nothing_but_seals_has_only_a_small_chunk_ready(
    new_node: NewNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spare chunks of other containers may have the full size, and a node has many such containers."""
    monkeypatch.setattr("headrace.node.environment.LogOptions", partial(LogOptions, open_file_bytes=MIB // 4))
    node, first = await with_a_full_container(new_node)

    def ready() -> dict[int, int]:
        found = node.folder.glob("**/containers/*/spare-*")
        return {int(path.parent.name): path.stat().st_size for path in found}

    await close_open_chunks(node)
    await node.parts.maintenance.pass_now()
    assert ready()[first] == MIB // 4
    await node.stop()
    await node.start()
    await until(lambda: first in node.parts.containers)
    assert ready()[first] == MIB // 4
    await node.call("put", "/default:idle", b"moves")
    assert await node.call("read", "/default:idle") == [(0, b"stays"), (1, b"moves")]


async def test_nothing_is_placed_in_a_deleted_container_by_who_has_not_heard(
    new_node: NewNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.storage.container_closing.REST_S", 0.0)
    node = await new_node(container_bytes=3 * MIB)
    await streams(node, leave=3_600_000)
    await node.call("put", "/default:moving", b"0")
    gone = max(node.parts.containers)
    await fill(node, f"{LEAVE}:t", mib=5, time_ms=LONG_AGO)
    (filled,) = await node.parts.topics.resolve([f"{LEAVE}:t"])
    assert not isinstance(filled, KafkaError)
    await until(lambda: len(node.parts.containers) > 2 and filled.partitions[0].container.id != gone)
    await node.call("delete", "/default:moving")
    await maintain_until_stable(node)
    assert gone not in node.parts.containers
    (live,) = (each.id for each in data(node))

    placement = node.parts.placement
    with monkeypatch.context() as stale:
        stale.setattr(placement, "place", lambda count, *_, **__: [(gone, Epoch(1))] * count)
        (made_by_use,) = await node.parts.topics.resolve(["/default:late"], create=True)
        new = {"name": "/default:made", "num_partitions": 1, "replication_factor": -1, "assignments": [], "configs": []}
        answer = await node.call("ask", ApiKey.CREATE_TOPICS, 5, topics=[new], timeout=5000, validate_only=False)
        growth = [{"name": f"{LEAVE}:t", "count": 2, "assignments": None}]
        grown = await node.call("ask", ApiKey.CREATE_PARTITIONS, 2, topics=growth, timeout=5000, validate_only=False)
    assert isinstance(made_by_use, KafkaError)
    assert made_by_use.code is Code.LEADER_NOT_AVAILABLE
    for each in (answer.topics[0], grown.results[0]):
        assert int(each.error_code) == Code.LEADER_NOT_AVAILABLE
        assert f"container {gone} no longer accepts new partitions" in each.error_message

    assert await node.call("put", "/default:late", b"v") == 0  # the next attempt finds an existing one
    (topic,) = await node.parts.topics.resolve(["/default:late"])
    assert not isinstance(topic, KafkaError)
    assert topic.partitions[0].container.id == live


async def test_a_partition_made_for_a_container_that_closes_keeps_it(
    new_node: NewNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.storage.container_closing.REST_S", 0.0)
    node = await new_node(container_bytes=MIB)
    await streams(node, leave=1000)
    await fill(node, f"{LEAVE}:t", mib=2, time_ms=LONG_AGO)

    async def create(serial: int) -> None:
        for _ in range(3):
            (topic,) = await node.parts.topics.resolve([f"/default:late-{serial}"], create=True)
            if not isinstance(topic, KafkaError) or topic.code is not Code.LEADER_NOT_AVAILABLE:
                break
        assert not isinstance(topic, Exception), topic

    for serial in range(20):
        await asyncio.gather(create(serial), node.parts.maintenance.pass_now())
    for serial in range(20):
        assert await node.call("put", f"/default:late-{serial}", b"v") == 0
    await node.restart()
    for serial in range(20):
        assert await node.call("read", f"/default:late-{serial}") == [(0, b"v")]
