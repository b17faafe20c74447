"""Three nodes of one cluster in the test's own loop: who leads what, who says so, and who refuses what."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from msgspec import structs

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import Millis, Position
from headrace.catalog.link_config import LinkConfig
from headrace.catalog.links import PutLink
from headrace.catalog.rows import Replaced
from headrace.container.leader import Leader
from headrace.coordination import takeover
from headrace.kafka import produce
from headrace.kafka.connection import Connection
from headrace.log.frames import FrameType
from headrace.node import Node, Options
from headrace.node.parts import NodeParts
from headrace.partitions import partitions
from headrace.partitions.cluster_layout import NodeSettings
from headrace.partitions.partition import Partition
from headrace.partitions.placement import Placement
from headrace.partitions.rolls import rolls
from headrace.partitions.rolls.frames import Seal
from headrace.partitions.rolls.steps import RollSteps
from headrace.store.records import VolumeRecord
from headrace.store.sqlite import SqliteStore
from headrace.wire import generic_codec
from headrace.wire import metadata as wire_metadata
from headrace.wire import produce as wire_produce
from headrace.wire.admin_call import encode_admin_request
from headrace.wire.api_keys import ApiKey
from headrace.wire.batch import build_batch
from headrace.wire.header import read_request_header, request_header
from headrace.wire.primitives import Buffer
from kit.parts import handler

T = TypeVar("T")
PARTITIONS = 9


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[list[Node]]:
    """Three nodes that serve, each other's replicas."""
    SqliteStore(tmp_path / "cluster.sqlite").close()
    made = [
        Node(
            Options(
                data=tmp_path / f"node-{number}",
                store=tmp_path / "cluster.sqlite",
                host="127.0.0.1",
                port=0,
                ready_file=None,
                settings=NodeSettings(chunk_bytes=1 << 20, disk_reserve=0, fsync=False, rebalance_delay_ms=10),
                first_nodes=3,
                failure_host=f"host-{number}",
                zone=f"zone-{number}",
            )
        )
        for number in (1, 2, 3)
    ]
    await asyncio.gather(*(node.start() for node in made))
    try:
        yield made
    finally:
        await asyncio.gather(*(node.stop() for node in made))


@pytest.fixture
def brokers(nodes: list[Node]) -> list[NodeParts]:
    return [node.parts for node in nodes]


async def ask(broker: NodeParts, key: ApiKey, version: int, /, **fields: Any) -> Any:
    """Ask a node as a client would."""
    request = generic_codec.decode_request(key, version, generic_codec.encode_request(key, version, fields))
    answer = await handler(broker, key)(request, session(broker))
    return generic_codec.decode_response(key, version, generic_codec.encode_response(key, version, answer))


def session(broker: NodeParts) -> Connection:
    connection = Connection(broker.dispatcher)
    connection.client_id, connection.peer = "app", "127.0.0.1:5000"
    return connection


async def described(broker: NodeParts, *names: str) -> wire_metadata.MetadataResponse:
    """Metadata 12 of a node."""
    asked = wire_metadata.MetadataRequest([(name, None) for name in names], False)
    slot = Answered()
    await broker.metadata._answer(session(broker), asked, 12, slot)  # type: ignore[arg-type]
    return wire_metadata.decode_response(slot.future.result(), 0, 12)


class Answered:
    """A slot whose answer can be waited for."""

    def __init__(self) -> None:
        self.future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def answer(self, body: list[Buffer]) -> None:
        self.future.set_result(b"".join(bytes(piece) for piece in body))

    def lose(self) -> None:
        self.future.set_exception(ConnectionError("cut off"))


def batch(*values: bytes, producer: int = -1, epoch: int = -1, sequence: int = -1) -> memoryview:
    records = [(int(time.time() * 1000), None, value, []) for value in values]
    return memoryview(build_batch(records, producer_id=producer, producer_epoch=epoch, base_sequence=sequence))


def send(broker: NodeParts, connection: Connection, partitions: int | Sequence[int], records: memoryview) -> Answered:
    """Start a Produce request to the topic `t`."""
    each = [partitions] if isinstance(partitions, int) else partitions
    parts = [wire_produce.PartitionRecords("t", partition, records) for partition in each]
    body = wire_produce.encode_request(9, wire_produce.ProduceRequest(None, -1, 6_000, parts))
    request = memoryview(bytearray(request_header(ApiKey.PRODUCE, 9, 1, "test") + body))
    slot = Answered()
    broker.produce.handle(connection, read_request_header(request), request, slot)  # type: ignore[arg-type]
    return slot


async def result(slot: Answered) -> wire_produce.ProduceResult:
    async with asyncio.timeout(100):
        ((found,), _) = wire_produce.decode_response(await slot.future, 0, 9)
    return found


@pytest.fixture
async def topic(brokers: list[NodeParts]) -> str:
    """A topic that all nodes know, with partitions on each of them."""
    await each_leads(brokers)
    made = await ask(
        brokers[0],
        ApiKey.CREATE_TOPICS,
        7,
        topics=[{"name": "t", "num_partitions": PARTITIONS, "replication_factor": -1}],
        timeout=100_000,
    )
    assert made.topics[0].error_code == 0
    assert made.topics[0].replication_factor == 3

    async def known(broker: NodeParts) -> bool:
        (found,) = await broker.topics.resolve(["t"])
        return not isinstance(found, KafkaError)

    for broker in brokers:
        await until(lambda broker=broker: known(broker))
    return "t"


@pytest.fixture
async def unmoved(nodes: list[Node], topic: str) -> list[NodeParts]:
    """The brokers, whose containers stay where they are: a machine that stands still for a while would move them."""
    for node in nodes:
        await node.controller.close()
    return [node.parts for node in nodes]


async def until(check: Callable[[], Awaitable[T]]) -> T:
    """What `check` gives, once that is something."""
    async with asyncio.timeout(100):
        while True:
            found = await check()
            if found:
                return found
            await asyncio.sleep(0.001)


async def each_leads(brokers: list[NodeParts]) -> None:
    """Wait until every node knows that each leads a container which takes new partitions."""

    async def known() -> bool:
        return all(
            {each.primary for each in broker.cluster.open_data()} == {other.node.node_id for other in brokers}
            for broker in brokers
        )

    await until(known)


@contextlib.asynccontextmanager
async def applying_nothing(broker: NodeParts) -> AsyncIterator[None]:
    """What is committed meanwhile is not known to this node, however it is asked."""
    async with broker.catalog._applier._turn:
        yield


async def led_by(broker: NodeParts) -> list[int]:
    """Partitions of `t` that a node leads."""
    (shown,) = (await described(broker, "t")).topics
    return [each.partition for each in shown.partitions if each.leader == broker.node.node_id]


async def held(broker: NodeParts, index: int) -> Partition:
    (found,) = await broker.topics.resolve(["t"])
    assert not isinstance(found, KafkaError)
    return await broker.partitions.leader(found, index)


async def coordinator(brokers: list[NodeParts]) -> NodeParts:
    (found,) = [broker for broker in brokers if broker.cluster.catalog_container is not None]
    await found.coordination.service()
    return found


async def test_every_node_names_all_nodes_and_the_same_leaders(brokers: list[NodeParts], topic: str) -> None:
    known = sorted((broker.node.node_id, "127.0.0.1", broker.node.port, broker.node.rack) for broker in brokers)

    async def agreed() -> list[wire_metadata.PartitionMeta]:
        """The partitions as all nodes show them, once they show the same, and each leads some: one that stood still as
        they started is given back what it led."""
        answers = [await described(broker, topic) for broker in brokers]
        assert [[tuple(each) for each in answer.brokers] for answer in answers] == [known] * 3
        first, *others = [list(answer.topics[0].partitions) for answer in answers]
        each_leads = {each.leader for each in first} == {broker.node.node_id for broker in brokers}
        return first if each_leads and all(other == first for other in others) else []

    partitions = await until(agreed)
    for each in partitions:
        assert (each.error, sorted(each.replicas), each.offline) == (0, [1, 2, 3], [])
        assert each.leader in each.isr


async def test_the_cluster_has_all_nodes(brokers: list[NodeParts]) -> None:
    answer = await ask(brokers[1], ApiKey.DESCRIBE_CLUSTER, 1)
    assert [(each.broker_id, each.port) for each in answer.brokers] == sorted(
        (broker.node.node_id, broker.node.port) for broker in brokers
    )
    assert answer.controller_id == brokers[1].node.node_id


async def test_what_another_node_leads_is_refused_as_that_and_not_as_unknown(
    brokers: list[NodeParts], topic: str
) -> None:
    here, there = brokers[0], brokers[1]
    (index, *_) = await led_by(there)
    refused = await result(send(here, session(here), index, batch(b"a")))
    assert (refused.error, refused.base_offset) == (Code.NOT_LEADER_OR_FOLLOWER, -1)
    asked = {"partition_index": index, "current_leader_epoch": -1, "timestamp": -1}
    listed = await ask(
        here,
        ApiKey.LIST_OFFSETS,
        7,
        replica_id=-1,
        isolation_level=0,
        topics=[{"name": topic, "partitions": [asked]}],
    )
    assert listed.topics[0].partitions[0].error_code == Code.NOT_LEADER_OR_FOLLOWER
    epochs = await ask(
        here,
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        3,
        replica_id=-1,
        topics=[{"topic": topic, "partitions": [{"partition": index, "current_leader_epoch": -1, "leader_epoch": 0}]}],
    )
    assert epochs.topics[0].partitions[0].error_code == Code.NOT_LEADER_OR_FOLLOWER
    deleted = await ask(
        here,
        ApiKey.DELETE_RECORDS,
        2,
        topics=[{"name": topic, "partitions": [{"partition_index": index, "offset": 0}]}],
        timeout=5_000,
    )
    assert deleted.topics[0].partitions[0].error_code == Code.NOT_LEADER_OR_FOLLOWER

    async def stored() -> bool:
        found = await result(send(there, session(there), index, batch(b"a")))
        assert found.error in (0, Code.NOT_ENOUGH_REPLICAS)  # the new container's followers may not be there yet
        return found.error == 0

    await until(stored)


async def test_no_latest_offset_and_no_group_out_of_touch_with_the_followers(
    brokers: list[NodeParts], topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await coordinator(brokers)
    (index, *_) = await led_by(broker)
    await held(broker, index)
    monkeypatch.setattr("headrace.container.commit_wait.OUT_OF_TOUCH_S", 0.0)
    monkeypatch.setattr(Leader, "in_touch", property(lambda _: False))

    async def listed(timestamp: int) -> int:
        asked = {"partition_index": index, "current_leader_epoch": -1, "timestamp": timestamp}
        topics = [{"name": topic, "partitions": [asked]}]
        answer = await ask(broker, ApiKey.LIST_OFFSETS, 7, replica_id=-1, isolation_level=0, topics=topics)
        return int(answer.topics[0].partitions[0].error_code)

    assert await listed(-1) == Code.LEADER_NOT_AVAILABLE
    assert await listed(-2) == 0
    beat = await ask(broker, ApiKey.HEARTBEAT, 4, group_id="g", generation_id=1, member_id="m")
    assert beat.error_code == Code.COORDINATOR_NOT_AVAILABLE


async def test_no_latest_offset_while_the_partition_may_go_on_elsewhere(
    unmoved: list[NodeParts], topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next leader may have acknowledged more before this node hears of that."""
    first, second = unmoved[0], unmoved[1]
    (index, *_) = await led_by(first)
    partition = await held(first, index)
    target = next(each for each in second.containers.values() if each.id != second.maintenance.catalog_id)
    recording, heard = asyncio.Event(), asyncio.Event()
    record = RollSteps._record

    async def recorded(steps: RollSteps, *of: Any) -> bool:
        recording.set()
        await heard.wait()
        return await record(steps, *of)

    monkeypatch.setattr(RollSteps, "_record", recorded)

    async def latest() -> int:
        asked = {"partition_index": index, "current_leader_epoch": -1, "timestamp": -1}
        topics = [{"name": topic, "partitions": [asked]}]
        answer = await ask(first, ApiKey.LIST_OFFSETS, 7, replica_id=-1, isolation_level=0, topics=topics)
        return int(answer.topics[0].partitions[0].error_code)

    assert await latest() == 0
    rolling = asyncio.create_task(first.rolls.roll(partition, to=target.id))
    await recording.wait()
    asked = asyncio.create_task(latest())
    await asyncio.wait([asked], timeout=0.2)
    assert not asked.done()
    heard.set()
    assert await asked == Code.NOT_LEADER_OR_FOLLOWER
    await rolling


async def test_offsets_by_time_are_found_in_partitionlets_that_other_nodes_lead(
    unmoved: list[NodeParts], topic: str
) -> None:
    first, second = unmoved[0], unmoved[1]
    (index, *_) = await led_by(first)
    for times in ((1_000, 2_000), (3_000, 4_000)):
        records = [(each, None, b"value", []) for each in times]
        assert (await result(send(first, session(first), index, memoryview(build_batch(records))))).error == 0
    target = next(each for each in second.containers.values() if each.id != second.maintenance.catalog_id)
    await first.rolls.roll(await held(first, index), to=target.id)

    async def led() -> bool:
        return index in await led_by(second)

    await until(led)
    late = memoryview(build_batch([(5_000, None, b"value", [])]))
    assert (await result(send(second, session(second), index, late))).base_offset == 4

    async def found(timestamp: int) -> tuple[int, int, int]:
        asked = {"partition_index": index, "current_leader_epoch": -1, "timestamp": timestamp}
        topics = [{"name": topic, "partitions": [asked]}]
        answer = await ask(second, ApiKey.LIST_OFFSETS, 7, replica_id=-1, isolation_level=0, topics=topics)
        (part,) = answer.topics[0].partitions
        return part.error_code, part.offset, part.timestamp

    assert [(await found(at))[:2] for at in (0, 2_000, 2_001, 4_500, 6_000)] == [
        (0, 0),
        (0, 1),
        (0, 2),
        (0, 4),
        (0, -1),
    ]
    assert await found(-3) == (0, 4, 5_000)
    deleted = await ask(
        second,
        ApiKey.DELETE_RECORDS,
        2,
        topics=[{"name": topic, "partitions": [{"partition_index": index, "offset": 1}]}],
        timeout=5_000,
    )
    assert deleted.topics[0].partitions[0].error_code == 0
    assert (await found(0))[:2] == (0, 1)  # the log start lies inside a batch of the other node's partitionlet


# --- groups


async def join(broker: NodeParts, member_id: str = "") -> Any:
    joined = await ask(
        broker,
        ApiKey.JOIN_GROUP,
        9,
        group_id="g",
        session_timeout=30_000,
        rebalance_timeout=60_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[{"name": "range", "metadata": b"\0\0\0\0\0\1\0\1t\0\0\0\0"}],
    )
    return await join(broker, joined.member_id) if joined.error_code == Code.MEMBER_ID_REQUIRED else joined


async def sync(broker: NodeParts, joined: Any) -> Any:
    return await ask(
        broker,
        ApiKey.SYNC_GROUP,
        5,
        group_id="g",
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[{"member_id": joined.member_id, "assignment": b"all"}],
    )


async def commit(broker: NodeParts, joined: Any, offset: int) -> int:
    answer = await ask(
        broker,
        ApiKey.OFFSET_COMMIT,
        8,
        group_id="g",
        generation_id_or_member_epoch=joined.generation_id,
        member_id=joined.member_id,
        topics=[{"name": "t", "partitions": [{"partition_index": 0, "committed_offset": offset}]}],
    )
    return int(answer.topics[0].partitions[0].error_code)


async def cursor(broker: NodeParts) -> int:
    answer = await ask(
        broker,
        ApiKey.OFFSET_FETCH,
        7,
        group_id="g",
        topics=[{"name": "t", "partition_indexes": [0]}],
        require_stable=True,
    )
    assert answer.error_code == 0
    return int(answer.topics[0].partitions[0].committed_offset)


async def find(broker: NodeParts) -> tuple[int, int]:
    found = await ask(broker, ApiKey.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=["g"])
    return found.coordinators[0].error_code, found.coordinators[0].node_id


async def test_who_knows_an_old_coordinator_names_the_one_that_this_knows_or_waits(
    nodes: list[Node], brokers: list[NodeParts], monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = await coordinator(brokers)
    behind, former = (broker for broker in brokers if broker is not leader)
    names = {behind.node.node_id: former.node.node_id}
    monkeypatch.setattr(
        takeover.Coordination, "leader", property(lambda self: names.get(self._cluster.node_id, leader.node.node_id))
    )
    assert await find(behind) == (Code.NONE, leader.node.node_id)
    names[former.node.node_id] = behind.node.node_id
    monkeypatch.setattr(takeover, "FIND_S", 0.3)
    assert await find(behind) == (Code.COORDINATOR_NOT_AVAILABLE, -1)
    monkeypatch.setattr(takeover, "FIND_S", 20.0)
    looking = [asyncio.create_task(find(behind)) for _ in range(3)]
    await asyncio.sleep(0.2)
    assert not any(each.done() for each in looking)
    names.clear()
    assert await asyncio.gather(*looking) == [(Code.NONE, leader.node.node_id)] * 3
    names[behind.node.node_id] = former.node.node_id
    await nodes[brokers.index(former)].stop()

    async def is_named() -> bool:
        return await find(behind) == (Code.NONE, former.node.node_id)

    await until(is_named)  # who says nothing is named as before; a session may hear its last answer yet


async def test_groups_live_where_the_catalog_is_led(brokers: list[NodeParts], topic: str) -> None:
    leader = await coordinator(brokers)
    for broker in brokers:
        found = await ask(broker, ApiKey.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=["g", "h"])
        assert {(each.error_code, each.node_id, each.port) for each in found.coordinators} == {
            (0, leader.node.node_id, leader.node.port)
        }
    joined = await join(leader)
    assert (await sync(leader, joined)).assignment == b"all"
    assert await commit(leader, joined, 5) == 0
    listed = await ask(leader, ApiKey.LIST_GROUPS, 4, states_filter=[])
    assert [each.group_id for each in listed.groups] == ["g"]
    for other in brokers:
        if other is leader:
            continue
        assert (await join(other)).error_code == Code.NOT_COORDINATOR
        assert await commit(other, joined, 6) == Code.NOT_COORDINATOR
        described = await ask(other, ApiKey.DESCRIBE_GROUPS, 5, groups=["g"])
        assert described.groups[0].error_code == Code.NOT_COORDINATOR
        with pytest.raises(KafkaError) as ended:  # which ends the client's connection
            await cursor(other)
        assert ended.value.code is Code.NOT_COORDINATOR
        listed = await ask(other, ApiKey.LIST_GROUPS, 4, states_filter=[])
        assert (listed.error_code, list(listed.groups)) == (0, [])


async def test_groups_and_cursors_go_on_at_the_next_coordinator(nodes: list[Node], topic: str) -> None:
    brokers = [node.parts for node in nodes]
    first = await coordinator(brokers)
    joined = await join(first)
    await sync(first, joined)
    assert await commit(first, joined, 5) == 0
    newcomer = asyncio.create_task(join(first))

    async def rebalances() -> bool:
        (group,) = (await ask(first, ApiKey.DESCRIBE_GROUPS, 5, groups=["g"])).groups
        return bool(group.group_state == "PreparingRebalance")

    await until(rebalances)
    (leaving,) = [node for node in nodes if node.parts is first]
    left = asyncio.create_task(leaving.stop())
    async with asyncio.timeout(100):
        assert (await newcomer).error_code == Code.NOT_COORDINATOR
        await left
    second = await coordinator([broker for broker in brokers if broker is not first])
    assert await cursor(second) == 5
    beat = await ask(
        second,
        ApiKey.HEARTBEAT,
        4,
        group_id="g",
        generation_id=joined.generation_id,
        member_id=joined.member_id,
    )
    assert beat.error_code == 0
    assert await commit(second, joined, 6) == 0
    assert await cursor(second) == 6


async def test_what_a_node_led_is_led_elsewhere_after_it_stopped(nodes: list[Node], topic: str) -> None:
    leaving, *staying = nodes
    moved = await led_by(leaving.parts)
    before = (await described(staying[0].parts, topic)).topics[0].partitions
    first = await result(send(leaving.parts, session(leaving.parts), moved[0], batch(b"a", b"b")))
    assert (first.error, first.base_offset) == (0, 0)
    await leaving.stop()
    gone = leaving.parts.node.node_id

    async def heard() -> Any:
        return (await described(staying[0].parts, topic)).topics[0].partitions

    after = await heard()
    async with asyncio.timeout(20):
        while any(each.leader == gone for each in after):
            await asyncio.sleep(0.01)
            after = await heard()
    for old, new in zip(before, after, strict=True):
        if old.partition in moved:
            assert new.leader != leaving.parts.node.node_id
            assert new.leader_epoch > old.leader_epoch
        else:
            assert (new.leader, new.leader_epoch) == (old.leader, old.leader_epoch)
    (candidate,) = [node.parts for node in staying if node.parts.node.node_id == after[moved[0]].leader]
    found = await held(candidate, moved[0])
    assert (found.high_watermark, found.next_offset) == (2, 2)
    assert leaving.parts.node.node_id not in [each.node_id for each in (await described(candidate)).brokers]


async def test_what_is_dead_is_not_in_sync_and_is_told_as_offline(
    nodes: list[Node], topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, _, dying = (node.parts for node in nodes)
    await nodes[2].stop()
    async with asyncio.timeout(100):
        while dying.node.node_id not in asked.controller.dead():  # noqa: ASYNC110  # it is looked up, nothing tells of it
            await asyncio.sleep(0.02)
    answer = await described(asked, topic)
    assert all(
        dying.node.node_id not in each.isr and each.offline == [dying.node.node_id]
        for each in answer.topics[0].partitions
    )
    found = await ask(asked, ApiKey.DESCRIBE_CLUSTER, 1)
    assert {each.broker_id for each in found.brokers} == {node.parts.node.node_id for node in nodes[:2]}
    # The records keep a minimum of two in the in-sync set, whoever of them lives.
    others = {node.parts.node.node_id for node in nodes[1:]}
    monkeypatch.setattr(asked.controller, "dead", lambda: frozenset(others))
    for each in (await described(asked, topic)).topics[0].partitions:
        assert (each.isr, set(each.offline)) == ([asked.node.node_id], others)
    monkeypatch.setattr(asked.controller, "dead", lambda: frozenset())
    assert all(len(each.isr) >= 2 for each in (await described(asked, topic)).topics[0].partitions)


# --- leadership that goes while something waits


async def test_a_producer_whose_batch_is_in_doubt_is_cut_off(brokers: list[NodeParts], topic: str) -> None:
    broker = brokers[0]
    (index, *_) = await led_by(broker)
    container = (await held(broker, index)).container
    slot = send(broker, session(broker), index, batch(b"in doubt"))
    container.lose()
    broker.container_left(container)
    with pytest.raises(ConnectionError):
        await slot.future


async def test_partitions_leave_memory_with_their_container(brokers: list[NodeParts], topic: str) -> None:
    broker = brokers[0]
    (index, *_) = await led_by(broker)
    partition = await held(broker, index)
    woken: list[bool] = []

    class Fetching:
        def wake(self) -> None:
            woken.append(partition.left)

    partition.watch(Fetching())
    partition.container.lose()
    broker.container_left(partition.container)
    assert woken == [True]
    (found,) = await broker.topics.resolve([topic])
    assert not isinstance(found, KafkaError)
    assert index not in found.partitions


async def test_nothing_is_loaded_before_the_container_serves(
    brokers: list[NodeParts], topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = brokers[0]
    (index, *_) = await led_by(broker)
    assert (await result(send(broker, session(broker), index, batch(b"a")))).error == 0
    partition = await held(broker, index)
    container = partition.container
    (found,) = await broker.topics.resolve([topic])
    assert not isinstance(found, KafkaError)
    broker.partitions.moved_away(found, index)
    container.state.epoch_start = Position(container.log.end + 1)  # as after a promotion
    monkeypatch.setattr(partitions, "SERVES_S", 0.0)
    with pytest.raises(KafkaError) as refused:
        await broker.partitions.leader(found, index)
    assert refused.value.code is Code.LEADER_NOT_AVAILABLE
    monkeypatch.setattr(partitions, "SERVES_S", 3600.0)
    loading = asyncio.create_task(broker.partitions.leader(found, index))
    await asyncio.sleep(0)
    assert not loading.done()
    await container.append_control(FrameType.PRODUCERS, msgspec.msgpack.encode([]))
    assert (await loading).high_watermark == 1


async def test_a_partitionlet_that_is_sealed_takes_no_batch_though_the_catalog_does_not_know(
    brokers: list[NodeParts], topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = brokers[0]
    (index, *_) = await led_by(broker)
    assert (await result(send(broker, session(broker), index, batch(b"a", b"b")))).error == 0
    partition = await held(broker, index)
    row = partition.chain[-1]
    seal = Seal(partition.topic_id, index, row.first, 2, [(partition.leader_epoch, 0)], [])
    await partition.container.append_control(
        FrameType.SEAL, msgspec.msgpack.encode(seal), partitionlet=row.id, first=0, last=1
    )
    (found,) = await broker.topics.resolve([topic])
    assert not isinstance(found, KafkaError)
    broker.partitions.moved_away(found, index)
    again = await held(broker, index)
    assert (again.seal, again.next_offset) == (seal, 2)

    with monkeypatch.context() as patched:  # the roll does not get on

        async def unreachable(*_: object, **__: object) -> object:
            raise KafkaError(Code.NOT_CONTROLLER, "no node leads the catalog")

        patched.setattr(broker.catalog, "submit", unreachable)
        refused = await result(send(broker, session(broker), index, batch(b"c")))
        assert refused.error == Code.LEADER_NOT_AVAILABLE
        assert (await held(broker, index)).next_offset == 2
    stored = await until(lambda: stored_by_anyone(brokers, index, batch(b"c")))
    assert stored is not None
    assert stored.base_offset == 2  # the roll was finished, at the end that the seal names


async def stored_by_anyone(
    brokers: list[NodeParts], index: int, records: memoryview
) -> wire_produce.ProduceResult | None:
    """The answer of whoever leads the partition."""
    for broker in brokers:
        answer = await result(send(broker, session(broker), index, records))
        if answer.error == 0:
            return answer
        assert answer.error in (Code.NOT_LEADER_OR_FOLLOWER, Code.LEADER_NOT_AVAILABLE)
    return None


async def test_rows_that_were_replaced_are_looked_up_again(brokers: list[NodeParts], topic: str) -> None:
    broker = brokers[0]
    (busy, quiet, *_) = await led_by(broker)
    assert (await result(send(broker, session(broker), busy, batch(b"a")))).error == 0
    partition = await held(broker, busy)
    woken = asyncio.Event()

    class Fetching:
        def wake(self) -> None:
            woken.set()

    partition.watch(Fetching())
    partition.chain = (partition.chain[-1]._replace(first=0, leader_epoch=-5),)
    broker.applied_changes.applied([(Replaced(Position(0)), None)])
    async with asyncio.timeout(10):
        await woken.wait()
    assert partition.chain[-1].leader_epoch >= 0
    assert await held(broker, busy) is partition
    assert (await result(send(broker, session(broker), quiet, batch(b"a")))).error == 0


# --- order


async def test_a_batch_behind_a_refused_one_is_not_stored_before_it(brokers: list[NodeParts], topic: str) -> None:
    broker = brokers[0]
    (index, *_) = await led_by(broker)
    state = (await held(broker, index)).container.state
    connection = session(broker)
    state.stalled = True
    first = send(broker, connection, index, batch(b"a", producer=9, epoch=0, sequence=0))
    state.stalled = False
    second = send(broker, connection, index, batch(b"b", producer=9, epoch=0, sequence=1))
    assert (await result(first)).error == Code.NOT_ENOUGH_REPLICAS
    assert (await result(second)).error == Code.NOT_ENOUGH_REPLICAS  # on its own it would be stored
    other = await result(send(broker, connection, index, batch(b"not idempotent")))
    assert (other.error, other.base_offset) == (0, 0)
    for value, sequence, offset in ((b"a", 0, 1), (b"b", 1, 2), (b"c", 2, 3)):
        stored = await result(send(broker, connection, index, batch(value, producer=9, epoch=0, sequence=sequence)))
        assert (stored.error, stored.base_offset) == (0, offset)


async def test_what_would_roll_is_refused_at_once_where_too_few_are_in_sync(
    brokers: list[NodeParts], topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It held up its producer's connection, and what was for other partitions on that, until a follower was back."""
    monkeypatch.setattr(rolls, "ROLL_WAIT_S", 100.0)
    broker = brokers[0]
    (index, *_) = await led_by(broker)
    container = (await held(broker, index)).container
    container.state._min_in_sync = 4

    async def stalls() -> bool:
        return container.state.stalled

    await until(stalls)
    container.closing = True
    began = time.monotonic()
    refused = await result(send(broker, session(broker), index, batch(b"a")))
    assert refused.error == Code.NOT_ENOUGH_REPLICAS
    assert time.monotonic() - began < rolls.ROLL_WAIT_S / 2
    assert not broker.rolls.under_way


async def test_a_roll_that_does_not_get_on_is_waited_for_once(
    brokers: list[NodeParts], topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither again by each batch, nor after the roll of another partition, nor again for each piece of a request."""

    async def stuck(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(RollSteps, "run", stuck)
    monkeypatch.setattr(broker_rolls := brokers[0].rolls, "_limit", 0)
    monkeypatch.setattr(rolls, "ROLL_WAIT_S", 1.0)
    broker = brokers[0]
    (first, second, third, *_) = await led_by(broker)

    async def refused(*partitions: int) -> float:
        """How long that took."""
        began = time.monotonic()
        slot = send(broker, session(broker), partitions, batch(b"a"))
        async with asyncio.timeout(100):
            found, _ = wire_produce.decode_response(await slot.future, 0, 9)
        assert [each.error for each in found] == [Code.LEADER_NOT_AVAILABLE] * len(partitions)
        return time.monotonic() - began

    assert 0.9 < await refused(first, second) < 1.9
    assert await refused(first) < 0.9
    assert broker_rolls.under_way == 2
    monkeypatch.setattr(rolls, "ROLL_WAIT_S", 60.0)
    monkeypatch.setattr(produce, "MOST_WAIT_S", 1.0)
    monkeypatch.setattr(produce, "MANY", 1)
    assert 0.9 < await refused(first, second, third) < 1.9


async def test_a_client_to_which_too_much_is_refused_is_cut_off(
    brokers: list[NodeParts], topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each refusal is remembered for a minute."""
    monkeypatch.setattr("headrace.partitions.refusals.MOST_REMEMBERED", 5)
    broker = brokers[0]
    (index, *_) = await led_by(broker)
    state = (await held(broker, index)).container.state
    connection = session(broker)
    for producer in range(7):
        state.stalled = True
        answer = send(broker, connection, index, batch(b"a", producer=producer, epoch=0, sequence=0))
        if producer < 6:
            assert (await result(answer)).error == Code.NOT_ENOUGH_REPLICAS
    state.stalled = False
    with pytest.raises(ConnectionError):
        await result(answer)


async def test_a_batch_that_waited_shares_the_refusal_that_stood_when_it_came(
    brokers: list[NodeParts], topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic could not be looked up for the first; for the second it took longer than the refusal is remembered."""
    monkeypatch.setattr("headrace.partitions.refusals.REMEMBERED_OF_ANOTHER_LIFE_S", 0.05)
    broker = brokers[0]
    (index, *_) = await led_by(broker)
    known = broker.topics.cached(topic)
    resolve = broker.topics.resolve
    fails = True

    async def resolved(names: Sequence[str], *rest: Any, **more: Any) -> Any:
        if fails:
            raise KafkaError(Code.COORDINATOR_NOT_AVAILABLE, "the catalog is away")
        await asyncio.sleep(0.1)
        return await resolve(names, *rest, **more)

    monkeypatch.setattr(broker.topics, "resolve", resolved)
    monkeypatch.setattr(broker.topics, "cached", lambda _name: None)
    connection = session(broker)
    first = await result(send(broker, connection, index, batch(b"a", producer=9, epoch=0, sequence=0)))
    assert first.error == Code.LEADER_NOT_AVAILABLE
    fails = False
    waits = send(broker, connection, index, batch(b"b", producer=9, epoch=0, sequence=1))
    await asyncio.sleep(0.05)
    monkeypatch.setattr(broker.topics, "cached", lambda _name: known)
    assert (await result(waits)).error == Code.LEADER_NOT_AVAILABLE  # on its own it would be stored
    for value, sequence in ((b"a", 0), (b"b", 1)):
        stored = await result(send(broker, connection, index, batch(value, producer=9, epoch=0, sequence=sequence)))
        assert (stored.error, stored.base_offset) == (0, sequence)


async def test_a_batch_that_comes_too_early_by_a_new_connection_is_sent_again(
    brokers: list[NodeParts], topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As librdkafka sends them where a partition has just changed hands."""
    broker = brokers[0]
    (index, *_) = await led_by(broker)
    old, new = session(broker), session(broker)

    async def sent(connection: Connection, sequence: int) -> wire_produce.ProduceResult:
        records = batch(b"%d" % sequence, producer=9, epoch=0, sequence=sequence)
        return await result(send(broker, connection, index, records))

    assert (await sent(old, 0)).error == 0
    assert (await sent(old, 2)).error == Code.OUT_OF_ORDER_SEQUENCE_NUMBER  # it knows what it has sent by this one
    early = await sent(new, 2)
    assert early.error == Code.LEADER_NOT_AVAILABLE
    assert "1 comes next; send it again" in (early.message or "")
    assert (await sent(new, 3)).error == Code.LEADER_NOT_AVAILABLE
    for sequence in (1, 2, 3):
        stored = await sent(new, sequence)
        assert (stored.error, stored.base_offset) == (0, sequence)
    assert (await sent(new, 5)).error == Code.OUT_OF_ORDER_SEQUENCE_NUMBER

    third = session(broker)
    assert (await sent(third, 5)).error == Code.LEADER_NOT_AVAILABLE
    monkeypatch.setattr("headrace.partitions.refusals.EARLY_S", 0.0)  # time goes by
    assert (await sent(third, 5)).error == Code.OUT_OF_ORDER_SEQUENCE_NUMBER, "what it follows has not come"
    assert (await sent(third, 4)).error == 0


async def test_a_producer_that_is_not_known_begins_late_only_after_a_while(
    brokers: list[NodeParts], topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All before its batch would count as stored: its first may be on its way from the partition's last leader."""
    monkeypatch.setattr("headrace.partitions.refusals.EARLY_S", 60.0)
    broker = brokers[0]
    index, other, *_ = await led_by(broker)
    connection = session(broker)

    async def sent(partition: int, sequence: int, epoch: int = 0) -> wire_produce.ProduceResult:
        records = batch(b"%d" % sequence, producer=9, epoch=epoch, sequence=sequence)
        return await result(send(broker, connection, partition, records))

    early = await sent(index, 1)
    assert early.error == Code.LEADER_NOT_AVAILABLE
    assert "sequence 1 is not its first; send it again" in (early.message or "")
    assert (await sent(index, 2)).error == Code.LEADER_NOT_AVAILABLE
    for sequence in (0, 1, 2):
        stored = await sent(index, sequence)
        assert (stored.error, stored.base_offset) == (0, sequence)

    connection = session(broker)
    assert (await sent(index, 1, epoch=1)).error == Code.LEADER_NOT_AVAILABLE, "so does its first of a new epoch"
    assert (await sent(index, 0, epoch=1)).base_offset == 3
    assert (await sent(index, 1, epoch=1)).base_offset == 4

    assert (await sent(other, 7)).error == Code.LEADER_NOT_AVAILABLE
    monkeypatch.setattr("headrace.partitions.refusals.EARLY_S", 0.0)  # time goes by
    assert (await sent(other, 7)).base_offset == 0, "it was forgotten, or its topic is a new one"
    assert (await sent(other, 8)).base_offset == 1


# --- placing


async def test_new_partitions_avoid_nodes_that_leave(brokers: list[NodeParts]) -> None:
    view = brokers[0].cluster.view
    await each_leads(brokers)
    draining = next(node for node in view.nodes.values() if node.node_id == brokers[1].node.node_id)
    view.nodes[draining.node_id] = structs.replace(draining, draining=True)
    places = Placement(brokers[0].cluster).place(300, "default")
    led = [view.containers[container].primary for container, _ in places]
    assert {led.count(broker.node.node_id) for broker in brokers} == {0, 150}
    assert all(epoch == view.containers[container].epoch for container, epoch in places)


async def test_without_a_container_of_the_volume_nothing_is_placed(brokers: list[NodeParts]) -> None:
    with pytest.raises(KafkaError) as refused:
        brokers[0].placement.place(1, "another")
    assert refused.value.code is Code.LEADER_NOT_AVAILABLE


async def test_topics_of_a_volume_that_asks_for_more_nodes_than_there_are_are_refused(brokers: list[NodeParts]) -> None:
    broker = brokers[0]
    broker.cluster.view.volumes["wide"] = VolumeRecord("wide", replicas=5, min_in_sync=4)
    with pytest.raises(KafkaError, match="asks for 4 in sync at least") as refused:
        broker.placement.place(1, "wide")
    assert refused.value.code is Code.INVALID_REPLICATION_FACTOR


async def test_a_partition_that_has_nowhere_to_go_on_for_now_refuses_no_producer_for_good(
    brokers: list[NodeParts], topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes that drain, say. librdkafka gives a batch up at INVALID_REPLICATION_FACTOR."""
    broker = brokers[0]
    partition = await held(broker, (await led_by(broker))[0])
    broker.cluster.view.volumes["default"] = VolumeRecord("default", replicas=5, min_in_sync=4)
    monkeypatch.setattr(Placement, "_candidates", lambda *_: [])
    with pytest.raises(KafkaError, match="asks for 4 in sync at least") as refused:
        await broker.rolls.roll(partition)
    assert refused.value.code is Code.LEADER_NOT_AVAILABLE


@pytest.mark.parametrize("asked", [0, 1, 2])
async def test_what_was_made_by_way_of_another_node_is_there_for_whoever_asks_next(
    brokers: list[NodeParts], asked: int
) -> None:
    """A tool asks one node after the other: `stream create`, CreateTopics, CreatePartitions, DeleteTopics."""
    await each_leads(brokers)
    behind, maker = brokers[asked], brokers[(asked + 1) % 3]
    made = {"name": "/s:t", "num_partitions": 2, "replication_factor": -1}
    grow = {"name": "/s:t", "count": 3, "assignments": None}

    async def meanwhile(first: Awaitable[object], then: Callable[[], Awaitable[T]]) -> T:
        async with applying_nothing(behind):
            await first
            answer = asyncio.create_task(then())  # type: ignore[arg-type]
            await asyncio.sleep(0.1)
            assert not answer.done()
        return await answer

    created = await meanwhile(
        maker.admin.call("stream.create", {"path": "/s"}, session(maker)),
        lambda: ask(behind, ApiKey.CREATE_TOPICS, 7, topics=[made], timeout=10_000),
    )
    assert created.topics[0].error_code == 0, created.topics[0].error_message
    await ask(behind, ApiKey.DELETE_TOPICS, 5, topic_names=["/s:t"], timeout=10_000)
    grown = await meanwhile(
        ask(maker, ApiKey.CREATE_TOPICS, 7, topics=[made], timeout=10_000),
        lambda: ask(behind, ApiKey.CREATE_PARTITIONS, 3, topics=[grow], timeout=10_000),
    )
    assert grown.results[0].error_code == 0, grown.results[0].error_message
    shown = await meanwhile(
        maker.admin.call("stream.create", {"path": "/other"}, session(maker)),
        lambda: behind.admin.call("stream.show", {"path": "/other"}, session(behind)),
    )
    assert shown["path"] == "/other"


@pytest.mark.parametrize("asked", [0, 1, 2])
async def test_a_topic_made_by_way_of_another_node_is_deleted_by_its_id(brokers: list[NodeParts], asked: int) -> None:
    await each_leads(brokers)
    behind, maker = brokers[asked], brokers[(asked + 1) % 3]
    async with applying_nothing(behind):
        made = {"name": "t", "num_partitions": 1, "replication_factor": -1}
        created = await ask(maker, ApiKey.CREATE_TOPICS, 7, topics=[made], timeout=10_000)
        topics = [{"name": None, "topic_id": created.topics[0].topic_id}]
        deleting = asyncio.create_task(ask(behind, ApiKey.DELETE_TOPICS, 6, topics=topics, timeout=10_000))
        await asyncio.sleep(0.1)
        assert not deleting.done()
    deleted = await deleting
    assert deleted.responses[0].error_code == 0, deleted.responses[0].error_message


@pytest.mark.parametrize("asked", [0, 1, 2])
async def test_links_and_topics_made_by_way_of_another_node_are_there_for_links_and_moves(
    brokers: list[NodeParts], asked: int
) -> None:
    await each_leads(brokers)
    behind, maker = brokers[asked], brokers[(asked + 1) % 3]

    async def call(method: str, **params: Any) -> Any:
        body = encode_admin_request(method, params)
        answer = msgspec.msgpack.decode(await behind.admin.handle(body, session(behind)))
        return answer["message"] if answer["error"] else answer["result"]

    async def made(path: str) -> None:
        """A stream with a topic `t`, and a link into it by the stream's name."""
        topic = {"name": f"{path}:t", "num_partitions": 1, "replication_factor": -1}
        config = LinkConfig(source=["127.0.0.1:1"], source_stream="/s", source_cluster="far")
        await maker.admin.call("stream.create", {"path": path}, session(maker))
        await ask(maker, ApiKey.CREATE_TOPICS, 7, topics=[topic], timeout=10_000)
        await maker.catalog.submit(PutLink(name=path[1:], stream=path, config=config, now=Millis(1), create=True))

    async with applying_nothing(behind):
        for path in ("/a", "/b", "/c", "/d", "/e"):
            await made(path)
        again = {"source": ["127.0.0.1:1"], "source_stream": "/s", "stream": "/b", "if_not_exists": True}
        answers = asyncio.gather(
            call("link.pause", name="a"),
            call("link.create", name="b", **again),
            call("home.move", stream="/c"),
            call("home.move", stream="/d", topics=["t"]),
            call("home.move", stream="/e", to="far"),
        )
        await asyncio.sleep(0.1)
        assert not answers.done()
    paused, present, all_moved, one_moved, passed_on = await answers
    assert (paused["state"], present["stream"]) == ("Paused", "/b")
    assert [(each["topic"], each["error"]) for each in all_moved + one_moved] == [("/c:t", None), ("/d:t", None)]
    assert "cluster far was asked" in passed_on


async def test_what_cannot_be_told_of_is_not_called_unknown(
    brokers: list[NodeParts], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cut_off() -> None:
        raise KafkaError(Code.REQUEST_TIMED_OUT, "the catalog's primary does not answer")

    monkeypatch.setattr(brokers[0].catalog, "catch_up", cut_off)
    topics = [{"name": name, "num_partitions": 1, "replication_factor": -1} for name in ("t", "/s:t")]
    await each_leads(brokers)
    made = await ask(brokers[0], ApiKey.CREATE_TOPICS, 7, topics=topics, timeout=10_000)
    assert [each.error_code for each in made.topics] == [0, Code.REQUEST_TIMED_OUT]
    deleted = await ask(brokers[0], ApiKey.DELETE_TOPICS, 5, topic_names=["t", "/s:t"], timeout=10_000)
    assert [each.error_code for each in deleted.responses] == [0, Code.REQUEST_TIMED_OUT]
