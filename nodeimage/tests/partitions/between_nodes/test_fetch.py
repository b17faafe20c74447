"""Fetches while their partition continues on another node."""

import asyncio

from headrace.base.errors import Code
from headrace.kafka.connection import Connection
from kit.asking import ask, values
from kit.pair import Pair, Start, append


async def moved(pair: Pair, name: str) -> None:
    partition = await pair.create(name)
    await pair.first.rolls.roll(partition, to=pair.led(pair.second).id)


async def test_a_fetch_that_waits_is_told_at_once_that_its_partition_went_elsewhere(start: Start) -> None:
    pair = await start(1)
    partition = await pair.create("waits")
    connection = Connection(pair.first.dispatcher)
    begun = await ask(pair.first, {"waits": 2}, session=(0, 0), connection=connection).response()
    waiting = ask(pair.first, {}, session=(begun.session_id, 1), wait_ms=19_000, connection=connection)
    await asyncio.sleep(0)
    assert not waiting.future.done()
    await pair.first.rolls.roll(partition, to=pair.led(pair.second).id)
    told = await waiting.response()
    ((part,),) = [topic.partitions for topic in told.topics]
    assert part.error == Code.NOT_LEADER_OR_FOLLOWER
    again = await ask(pair.first, {}, session=(begun.session_id, 2), connection=connection).response()
    ((part,),) = [topic.partitions for topic in again.topics]
    assert part.error == Code.NOT_LEADER_OR_FOLLOWER, "until the client asks elsewhere"
    back = await pair.partition(pair.second, "waits")
    await append(back, b"c")
    await pair.second.rolls.roll(back, to=pair.led(pair.first).id)
    here = await pair.partition(pair.first, "waits")
    await append(here, b"d")
    found = await ask(pair.first, {}, session=(begun.session_id, 3), connection=connection).response()
    assert values(found) == [b"c"]
    found = await ask(pair.first, {"waits": 3}, session=(begun.session_id, 4), connection=connection).response()
    assert values(found) == [b"d"]


async def test_old_records_from_other_nodes_come_beside_those_from_here(start: Start) -> None:
    pair = await start(1)
    for name in ("one", "two"):
        await moved(pair, name)
        partition = await pair.partition(pair.second, name)
        await append(partition, b"here")
    response = await ask(pair.second, {"one": 0, "two": 2}).response()
    assert values(response) == [b"a", b"b", b"here"]
    small = await ask(pair.second, {"one": 0, "two": 0}, most=1).response()
    assert values(small) == [b"a", b"b"], "one batch comes whatever the limit"


async def test_records_of_a_node_that_is_away_are_an_error_of_their_partition_alone(start: Start) -> None:
    pair = await start(1)
    await moved(pair, "old")
    await pair.partition(pair.second, "old")
    await moved(pair, "new")
    partition = await pair.partition(pair.second, "new")
    await append(partition, b"here")
    await pair.nodes[0]._peer_server.close()
    response = await ask(pair.second, {"old": 0, "new": 2}).response()
    errors = {topic.topic: topic.partitions[0].error for topic in response.topics}
    assert errors == {"old": Code.REPLICA_NOT_AVAILABLE, "new": Code.NONE}
    assert values(response) == [b"here"]
