"""ListOffsets of a node that leads several containers, some without contact to their followers."""

import asyncio

import pytest

from headrace.base.errors import Code
from headrace.base.ids import ContainerId
from headrace.container.leader import Leader
from headrace.kafka import list_offsets
from headrace.kafka.connection import Connection
from headrace.wire import generic_codec
from headrace.wire.api_keys import ApiKey
from kit.pair import Pair, Start

LATEST = -1
NAMES = ("here", "moved", "stays")


async def in_two_containers(pair: Pair) -> tuple[ContainerId, ContainerId]:
    """Two topics in the first node's container, and one in the second node's, which the first node leads now."""
    here = (await pair.create("here")).container.id
    await pair.create("stays")
    moved = await pair.create("moved")
    there = pair.led(pair.second).id
    await pair.first.rolls.roll(moved, to=there)
    await pair.partition(pair.second, "moved")
    await pair.hand_over(there, pair.first)
    await pair.partition(pair.first, "moved")
    return here, there


async def latest(pair: Pair) -> list[tuple[int, int]]:
    """(error, offset) of each topic, as the first node answers."""
    part = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": LATEST}
    fields = {
        "replica_id": -1,
        "isolation_level": 0,
        "topics": [{"name": name, "partitions": [part]} for name in NAMES],
    }
    request = generic_codec.decode_request(
        ApiKey.LIST_OFFSETS, 7, generic_codec.encode_request(ApiKey.LIST_OFFSETS, 7, fields)
    )
    async with asyncio.timeout(20):
        answer = await pair.first.list_offsets.list_offsets(request, Connection(pair.first.dispatcher))
    answered = generic_codec.decode_response(
        ApiKey.LIST_OFFSETS, 7, generic_codec.encode_response(ApiKey.LIST_OFFSETS, 7, answer)
    )
    assert [topic.name for topic in answered.topics] == list(NAMES)
    parts = [part for topic in answered.topics for part in topic.partitions]
    return [(part.error_code, part.offset) for part in parts]


async def test_containers_that_stall_are_waited_for_at_the_same_time_and_once(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = await start(2)
    here, there = await in_two_containers(pair)
    waited: list[ContainerId] = []
    back = asyncio.Event()

    async def back_in_touch(container: Leader) -> bool:
        waited.append(container.id)
        if len(waited) == 2:
            back.set()
        await back.wait()
        return True

    monkeypatch.setattr(list_offsets, "back_in_touch", back_in_touch)
    monkeypatch.setattr(Leader, "in_touch", property(lambda _: back.is_set()))
    assert await latest(pair) == [(0, 2)] * 3
    assert waited == [here, there]


async def test_a_container_that_stalls_keeps_no_offset_of_another_back(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = await start(2)
    _, there = await in_two_containers(pair)
    monkeypatch.setattr("headrace.container.commit_wait.OUT_OF_TOUCH_S", 0.0)
    monkeypatch.setattr(Leader, "in_touch", property(lambda each: each.id != there))
    assert await latest(pair) == [(0, 2), (Code.LEADER_NOT_AVAILABLE, -1), (0, 2)]
