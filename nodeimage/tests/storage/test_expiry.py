"""Records expire by time, size and age, counted over all containers."""

import pytest

from headrace.base.errors import Code
from headrace.wire.api_keys import ApiKey
from kit.filled_nodes import LEAVE, LONG_AGO, NewNode, close_open_chunks, fill, maintain_until_stable, streams
from kit.storage import MIB

pytestmark = pytest.mark.usefixtures("early")


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
    """A consumer at the earliest offset has that epoch checked: if the epoch ended before, the log would seem to be
    truncated."""
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
    await node.call("delete_records", "t", 3)  # in the middle of the present epoch
    offset, epoch = await earliest()
    assert (offset, epoch > old) == (3, True)
    assert await end_of(old) == (old, 3)
    assert await end_of(epoch) == (epoch, 4)
    await node.restart()  # now both epochs come from the log
    assert await earliest() == (3, epoch)
    assert await end_of(old) == (old, 3)
    assert await end_of(epoch) == (epoch, 4)
    await node.call("put", "t", b"e")
    await node.call("admin", "roll", topic="t", partition=0)  # and now from the seal
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
