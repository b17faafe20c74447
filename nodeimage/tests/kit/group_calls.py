"""Requests of group members, as clients send them."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.base.errors import Code
from headrace.catalog.names import DEFAULT_STREAM
from headrace.coordination.limits import GroupLimits
from headrace.coordination.service import make_service
from headrace.node.parts import NodeParts
from headrace.wire import generic_codec
from headrace.wire.api_keys import ApiKey
from kit.parts import handler

Ask = Callable[..., Awaitable[Any]]

SUBSCRIPTION = b"\0\0\0\0\0\1\0\6orders\0\0\0\0"
"""A consumer's subscription to the topic `orders`."""


def asker(broker: NodeParts) -> Ask:
    """Sends requests as a client of that name would, through request and response bytes."""

    async def ask(
        key: ApiKey,
        version: int | None = None,
        /,
        client_id: str = "app",
        default_stream: str = DEFAULT_STREAM,
        **fields: Any,
    ) -> Any:
        version = broker.dispatcher.apis[key].versions.highest if version is None else version
        request = generic_codec.decode_request(key, version, generic_codec.encode_request(key, version, fields))
        session = SimpleNamespace(
            client_id=client_id, peer="127.0.0.1:5000", listener="", default_stream=default_stream
        )
        answer = await handler(broker, key)(request, session)
        return generic_codec.decode_response(key, version, generic_codec.encode_response(key, version, answer))

    return ask


@pytest.fixture
async def orders(broker: NodeParts) -> str:
    """A topic of the default stream."""
    (topic,) = await broker.topics.resolve(["orders"], create=True)
    assert topic.topic_id
    return "orders"


async def join(ask: Ask, group: str = "g", member_id: str = "", version: int = 9, **more: Any) -> Any:
    fields: dict[str, Any] = {
        "group_id": group,
        "session_timeout": 30_000,
        "rebalance_timeout": 60_000,
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": SUBSCRIPTION}],
    }
    result = await ask(ApiKey.JOIN_GROUP, version, **fields | more)
    if result.error_code == Code.MEMBER_ID_REQUIRED:
        return await join(ask, group, result.member_id, version, **more)
    return result


async def sync(ask: Ask, joined: Any, version: int = 5, group: str = "g", plan: Mapping[str, bytes] = {}) -> Any:
    assignments = [{"member_id": member, "assignment": each} for member, each in plan.items()]
    return await ask(
        ApiKey.SYNC_GROUP,
        version,
        group_id=group,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=assignments,
    )


async def alone(ask: Ask, group: str = "g", **more: Any) -> Any:
    """A group of one member that has its assignment."""
    joined = await join(ask, group, **more)
    assert joined.error_code == Code.NONE
    synced = await sync(ask, joined, group=group, plan={joined.member_id: b"all"})
    assert (synced.error_code, synced.assignment) == (Code.NONE, b"all")
    return joined


async def until(ask: Ask, group: str, *states: str) -> None:
    """Wait until the group is in one of these states."""
    async with asyncio.timeout(100):
        while True:
            described = await ask(ApiKey.DESCRIBE_GROUPS, groups=[group])
            if described.groups[0].group_state in states:
                return
            await asyncio.sleep(0.001)


def committed_offsets(name: str, *offsets: int, metadata: str | None = "") -> list[dict[str, Any]]:
    partitions = [
        {"partition_index": index, "committed_offset": offset, "committed_metadata": metadata}
        for index, offset in enumerate(offsets)
    ]
    return [{"name": name, "partitions": partitions}]


async def commit(ask: Ask, topics: list[dict[str, Any]], version: int = 9, member: Any = None, group: str = "g") -> Any:
    return await ask(
        ApiKey.OFFSET_COMMIT,
        version,
        group_id=group,
        generation_id_or_member_epoch=member.generation_id if member else -1,
        member_id=member.member_id if member else "",
        topics=topics,
    )


async def fetched(ask: Ask, topics: list[tuple[str, list[int]]] | None, group: str = "g") -> dict[tuple[str, int], int]:
    asked = None if topics is None else [{"name": name, "partition_indexes": parts} for name, parts in topics]
    answer = await ask(ApiKey.OFFSET_FETCH, groups=[{"group_id": group, "topics": asked}])
    (found,) = answer.groups
    assert found.error_code == Code.NONE
    return {
        (topic.name, part.partition_index): part.committed_offset for topic in found.topics for part in topic.partitions
    }


def codes(answer: Any) -> list[int]:
    return [int(part.error_code) for topic in answer.topics for part in topic.partitions]


async def let_sessions_be_short(broker: NodeParts) -> None:
    (await broker.coordination.service()).close()
    limits = GroupLimits(initial_rebalance_delay_ms=10, min_session_timeout_ms=50)
    broker.coordination._service = make_service(runtime=broker.runtime, catalog=broker.catalog, limits=limits)
