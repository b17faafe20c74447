"""The batches that a partition accepts: none behind a refused one, and none after a seal elsewhere."""

import msgspec
import pytest

from headrace.base.errors import Code, KafkaError
from headrace.kafka.connection import Connection
from headrace.log.frames import FrameType
from headrace.node.parts import NodeParts
from headrace.partitions.rolls.frames import Seal
from headrace.wire import produce as wire_produce
from kit.three_nodes import batch, held, led_by, result, send, session, stored_by_anyone, until


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

    with monkeypatch.context() as patched:  # the roll makes no progress

        async def unreachable(*_: object, **__: object) -> object:
            raise KafkaError(Code.NOT_CONTROLLER, "no node leads the catalog")

        patched.setattr(broker.catalog, "submit", unreachable)
        refused = await result(send(broker, session(broker), index, batch(b"c")))
        assert refused.error == Code.LEADER_NOT_AVAILABLE
        assert (await held(broker, index)).next_offset == 2
    stored = await until(lambda: stored_by_anyone(brokers, index, batch(b"c")))
    assert stored is not None
    assert stored.base_offset == 2  # the roll was finished, with the end in the seal


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
    assert (await result(second)).error == Code.NOT_ENOUGH_REPLICAS  # by itself it would be stored
    other = await result(send(broker, connection, index, batch(b"not idempotent")))
    assert (other.error, other.base_offset) == (0, 0)
    for value, sequence, offset in ((b"a", 0, 1), (b"b", 1, 2), (b"c", 2, 3)):
        stored = await result(send(broker, connection, index, batch(value, producer=9, epoch=0, sequence=sequence)))
        assert (stored.error, stored.base_offset) == (0, offset)


async def test_a_batch_that_comes_too_early_by_a_new_connection_is_sent_again(
    brokers: list[NodeParts], topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka sends batches in this order when a partition has just changed its leader."""
    broker = brokers[0]
    (index, *_) = await led_by(broker)
    old, new = session(broker), session(broker)

    async def sent(connection: Connection, sequence: int) -> wire_produce.ProduceResult:
        records = batch(b"%d" % sequence, producer=9, epoch=0, sequence=sequence)
        return await result(send(broker, connection, index, records))

    assert (await sent(old, 0)).error == 0
    assert (await sent(old, 2)).error == Code.OUT_OF_ORDER_SEQUENCE_NUMBER  # this connection keeps the order
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
    monkeypatch.setattr("headrace.partitions.refusals.EARLY_S", 0.0)  # let the time pass
    assert (await sent(third, 5)).error == Code.OUT_OF_ORDER_SEQUENCE_NUMBER, "what it follows has not come"
    assert (await sent(third, 4)).error == 0


async def test_a_producer_that_is_not_known_begins_late_only_after_a_while(
    brokers: list[NodeParts], topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All batches before it would count as stored, while the first may be on its way from the partition's last
    leader."""
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
    monkeypatch.setattr("headrace.partitions.refusals.EARLY_S", 0.0)  # let the time pass
    assert (await sent(other, 7)).base_offset == 0, "it was forgotten, or its topic is a new one"
    assert (await sent(other, 8)).base_offset == 1
