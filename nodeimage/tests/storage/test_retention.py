"""What expires, is deleted or rolls away gives its disk back, and nothing else goes (invariant 12)."""

import asyncio
import shutil
import sqlite3
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from headrace.base.errors import Code, HeadraceError, KafkaError
from headrace.base.ids import ContainerId, Epoch, Position
from headrace.container import replica_folder
from headrace.container.follower_feed import Piece, Recent
from headrace.container.leader import Leader
from headrace.control.observations import Settings
from headrace.log.container_log import LogOptions
from headrace.store import container_records
from headrace.store.protocol import ClusterStore, StoreUnavailable
from headrace.tables import snapshot_pool, snapshots
from headrace.wire.api_keys import ApiKey
from kit.storage import MIB, Running, until

NewNode = Callable[..., Awaitable[Running]]
LONG_AGO = 1_000_000_000_000
KEEP, LEAVE = "/test/keep", "/test/leave"


async def streams(node: Running, **ttl_ms: int) -> None:
    for name, ttl in ttl_ms.items():
        await node.call("admin", "stream.create", path=f"/test/{name}", policy={"ttl_ms": ttl})


async def fill(node: Running, topic: str, *, mib: int, time_ms: int | None = None, size: int = 50_000) -> int:
    """Writes about so much; the number of records."""
    count = mib * MIB // size
    for serial in range(count):
        await node.call("put", topic, b"%08d" % serial + bytes(size), time_ms=time_ms)
    return count


async def with_a_full_container(new_node: NewNode) -> tuple[Running, int]:
    """A node with a container that is closed, as it is full; an idle topic has a record in it."""
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
    """What the chunks take up on the disk; `closed`: but for the preallocated open one."""
    chunks = [chunk for container in data(node) for chunk in container.log.chunks()]
    return sum(
        chunk.path.stat().st_blocks * 512
        for chunk in chunks
        if chunk.path.exists() and not (closed and chunk.end is None)
    )


async def maintain_until_stable(node: Running) -> None:
    """Rounds until the disk is as small as it gets."""
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


@pytest.fixture(autouse=True)
def _early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.storage.chunk_closing.EARLY_EVERY_S", 0.0)


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
    # Of the closed chunks hardly more is left than the other stream's records, which are as many and as long.
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
    """It may hold a hundred thousand idle topics; what may make some of it dead is noticed all the same."""
    node = await new_node(chunk_bytes=16 * MIB)
    await streams(node, leave=3_600_000)
    await fill(node, f"{LEAVE}:t", mib=3, time_ms=node.parts.runtime.now())
    (held,) = [each.log for each in data(node) if each.log.end > MIB]
    start, inventory = held.chunks()[-1].start, node.parts.maintenance._inventory
    whole, looks = inventory.shares, 0

    async def counted(*given: Any) -> Any:
        nonlocal looks
        looks += given[0].log is held and given[1].end is None  # else it is closed, and given back
        return await whole(*given)

    monkeypatch.setattr(inventory, "shares", counted)
    for _ in range(5):
        await node.parts.maintenance.pass_now()
    assert looks == 1
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
    assert looks == 2
    is_open = any(each.start == start and each.end is None for each in held.chunks())
    assert is_open == (by == "write")


async def test_records_deleted_from_the_open_chunk_are_given_back_when_it_closes(
    new_node: NewNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await new_node(chunk_bytes=2 * MIB)
    monkeypatch.setattr("headrace.storage.chunk_gc.WORTH_PUNCHING", 100_000)
    count = await fill(node, "/default:small", mib=1, size=10_000)
    third = count // 3  # less than is worth closing a chunk for
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


async def test_the_next_offset_and_producers_survive_the_expiry_of_everything(new_node: NewNode) -> None:
    node = await new_node()
    await streams(node, leave=3_600_000)
    topic = f"{LEAVE}:t"
    producer = await node.call("producer_id")
    token = -77
    await node.call("put", topic, b"by token", producer=(token, 0, 4), time_ms=LONG_AGO)
    for sequence in range(60):
        await node.call("put", topic, bytes(50_000), producer=(producer, 0, sequence), time_ms=LONG_AGO)
    await maintain_until_stable(node)
    for _ in range(2):
        await close_open_chunks(node)
        await maintain_until_stable(node)
    assert await node.call("offsets", topic) == (61, 61)
    await node.restart()
    assert await node.call("offsets", topic) == (61, 61)
    again = await node.call("produce", topic, [bytes(50_000)], producer=(producer, 0, 59), time_ms=LONG_AGO)
    assert (again.error, again.base_offset) == (0, 60), "the last batch is known though its chunk is gone"
    again = await node.call("produce", topic, [b"by token"], producer=(token, 0, 4), time_ms=LONG_AGO)
    assert (again.error, again.base_offset) == (Code.DUPLICATE_SEQUENCE_NUMBER, 0), "a token never expires"
    assert await node.call("put", topic, b"next", producer=(producer, 0, 60)) == 61


async def test_epochs_begin_no_earlier_than_what_is_kept(new_node: NewNode) -> None:
    """A consumer at the earliest offset has that epoch checked: did it end before, the log would seem to be cut."""
    node = await new_node()

    async def earliest() -> tuple[int, int]:
        part = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -2}
        topics = [{"name": "t", "partitions": [part]}]
        answer = await node.call("ask", ApiKey.LIST_OFFSETS, 5, replica_id=-1, isolation_level=0, topics=topics)
        (found,) = answer.topics[0].partitions
        return found.offset, found.leader_epoch

    async def end_of(epoch: int) -> tuple[int, int]:
        part = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": epoch}
        topics = [{"topic": "t", "partitions": [part]}]
        answer = await node.call("ask", ApiKey.OFFSET_FOR_LEADER_EPOCH, 3, replica_id=-1, topics=topics)
        (found,) = answer.topics[0].partitions
        return found.leader_epoch, found.end_offset

    await node.call("put", "t", b"a", b"b")
    _, old = await earliest()
    await node.restart()
    await node.call("put", "t", b"c", b"d")
    assert await earliest() == (0, old)
    assert await end_of(old) == (old, 2)
    await node.call("delete_records", "t", 3)  # in the midst of the epoch that is on
    offset, epoch = await earliest()
    assert (offset, epoch > old) == (3, True)
    assert await end_of(old) == (old, 3)
    assert await end_of(epoch) == (epoch, 4)
    await node.restart()  # now both epochs are read from the log
    assert await earliest() == (3, epoch)
    assert await end_of(old) == (old, 3)
    assert await end_of(epoch) == (epoch, 4)
    await node.call("put", "t", b"e")
    await node.call("admin", "roll", topic="t", partition=0)  # and from the seal
    assert await earliest() == (3, epoch)
    assert await end_of(old) == (old, 3)
    assert await end_of(epoch) == (epoch, 4)
    await node.call("delete_records", "t", 5)
    assert (await earliest())[1] > epoch + 1, "of the partitionlet that is left"
    assert await end_of(epoch) == (epoch, 5)


async def test_size_limits_count_all_containers(new_node: NewNode) -> None:
    node = await new_node(container_bytes=2 * MIB)
    await node.call("create", "/default:big", retention_bytes=str(3 * MIB))
    for _ in range(10):
        await fill(node, "/default:big", mib=1)
        await node.parts.maintenance.pass_now()
    assert len(node.parts.containers) > 3, "it went through several containers"
    await maintain_until_stable(node)
    start, end = await node.call("offsets", "/default:big")
    held = (end - start) * 50_000
    assert held < 6 * MIB, "the limit holds for the partition, not per container"
    assert held > 2 * MIB


async def test_retention_changed_at_runtime_counts_at_once(new_node: NewNode) -> None:
    node = await new_node()
    await fill(node, "/default:t", mib=3, time_ms=LONG_AGO)
    await node.call("create", "/default:own", retention_ms="-1")
    await fill(node, "/default:own", mib=3, time_ms=LONG_AGO)
    await maintain_until_stable(node)
    assert (await node.call("offsets", "/default:t"))[0] == 0, "the default stream keeps for ever"
    await node.call("admin", "stream.alter", path="/default", changes={"ttl_ms": 1000})
    await maintain_until_stable(node)
    assert (await node.call("offsets", "/default:t"))[0] > 0
    assert (await node.call("offsets", "/default:own"))[0] == 0, "a topic's own retention.ms is over its stream's"
    resource = {
        "resource_type": 2,
        "resource_name": "/default:own",
        "configs": [{"name": "retention.ms", "config_operation": 0, "value": "1000"}],
    }
    answer = await node.call("ask", ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, resources=[resource], validate_only=False)
    assert int(answer.responses[0].error_code) == 0, answer
    await maintain_until_stable(node)
    assert (await node.call("offsets", "/default:own"))[0] > 0


async def test_records_without_a_timestamp_expire_by_the_age_of_their_chunk(new_node: NewNode) -> None:
    node = await new_node()
    await streams(node, leave=3_600_000)
    await fill(node, f"{LEAVE}:t", mib=3, time_ms=-1)
    await maintain_until_stable(node)
    assert (await node.call("offsets", f"{LEAVE}:t"))[0] == 0


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


async def test_a_snapshot_for_a_follower_that_cannot_be_written_is_an_error_that_its_leader_tells(
    new_node: NewNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended the task that takes the follower on, without a word."""
    node = await new_node()

    def full(folder: Path, **_how: Any) -> Position:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(snapshots, "write_snapshot", full)
        with pytest.raises(HeadraceError, match="disk is full"):
            await node.node._catalog.snapshot(Position(0))
    monkeypatch.setattr(snapshot_pool, "AGAIN_S", 0.0)
    node.node.catalog._snapshots._again_at = 0.0
    (await node.node._catalog.snapshot(Position(0))).close()


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
    """Others may be as long as all chunks are, and a node has many such containers."""
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
        assert f"container {gone} takes no new partitions" in each.error_message

    assert await node.call("put", "/default:late", b"v") == 0  # the next try finds one that is there
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
