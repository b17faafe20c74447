"""The change feeds of two nodes: a reader of both misses nothing that moves from one to the other."""

from headrace.base.ids import LeaderEpoch, Millis, Offset
from headrace.catalog.committed_offsets import CommitOffsets, CommittedOffset
from headrace.catalog.topics import AlterTopic
from headrace.links.serving.change_feed import Changes, Place
from headrace.links.serving.change_log import COMMITTED_OFFSET, PARTITION, TOPIC
from headrace.node.parts import NodeParts
from kit.pair import Start, append, until


async def poll(broker: NodeParts, since: Place | None, wait_ms: int = 5_000) -> Changes:
    return await broker.changes.changes(
        "/default", since, topics=True, committed_offsets=True, wait_ms=wait_ms, limit=100
    )


async def test_a_partition_that_rolls_to_another_node_is_told_there_with_where_it_begins(start: Start) -> None:
    pair = await start(1)
    partition = await pair.create("moved")
    await until(lambda: pair.second.catalog.applied >= pair.first.catalog.applied)
    there = (await poll(pair.second, None)).place
    row = await pair.first.rolls.roll(partition, to=pair.led(pair.second).id)
    found = await poll(pair.second, there)
    assert not found.reset
    assert found.changes == [((PARTITION, partition.topic_id, 0), row.first)]
    await append(await pair.partition(pair.second, "moved"), b"c")
    assert (await poll(pair.second, found.place)).changes == [((PARTITION, partition.topic_id, 0), 3)]


async def test_records_are_told_where_the_partition_is_led_alone_and_topics_and_committed_offsets_by_every_node(
    start: Start,
) -> None:
    pair = await start(1)
    partition = await pair.create("told")
    first, second = (await poll(pair.first, None)).place, (await poll(pair.second, None)).place
    await append(partition, b"c")
    topic_id = partition.topic_id
    await pair.second.catalog.submit(AlterTopic(topic_id=topic_id, set={"retention.ms": "5"}, remove=[]))
    items = [CommittedOffset(topic_id, 0, Offset(1), LeaderEpoch(-1))]
    await pair.first.catalog.submit(CommitOffsets(group="g", generation=-1, member_id="", items=items, now=Millis(1)))
    await until(lambda: pair.second.catalog.applied >= pair.first.catalog.applied)
    both = {(TOPIC, topic_id), (COMMITTED_OFFSET, "g", topic_id, 0)}
    for broker, since, wanted in (
        (pair.first, first, both | {(PARTITION, topic_id, 0)}),
        (pair.second, second, both),
    ):
        told = set()
        while told < wanted:
            found = await poll(broker, since)
            assert found.changes, f"{wanted - told} were not told"
            told |= {key for key, _ in found.changes}
            since = found.place
        assert told == wanted


async def test_a_node_that_takes_a_container_over_lets_all_begin_anew(start: Start) -> None:
    pair = await start(2)
    partition = await pair.create("taken")
    container = partition.container.id
    since = (await poll(pair.second, None)).place
    assert not (await poll(pair.second, since, wait_ms=0)).reset
    await append(partition, b"c")  # this change, noted by the first node, is lost with it
    await pair.hand_over(container, pair.second)
    assert (await poll(pair.second, since)).reset
