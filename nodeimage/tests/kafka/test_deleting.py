"""Deleted topics and streams are gone at once, and their rows are removed in the background, on a whole node."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from headrace.base.errors import Code
from headrace.base.ids import Millis
from headrace.base.levels import Level
from headrace.catalog.deletions import AT_ONCE
from headrace.catalog.policy import StreamPolicy
from headrace.catalog.streams import CreateStream, DeleteStream
from headrace.catalog.topics import CreateTopics, NewTopic
from headrace.node.parts import NodeParts
from headrace.wire.api_keys import ApiKey

NOW = Millis(1)
Ask = Callable[..., Awaitable[Any]]


async def at_level_1(broker: NodeParts) -> None:
    async with asyncio.timeout(30):
        while await broker.catalog.query(lambda reader: reader.level()) < Level.FENCED:  # noqa: ASYNC110  # of a thread
            await asyncio.sleep(0.01)


async def make(broker: NodeParts, path: str, count: int) -> list[bytes]:
    await broker.catalog.submit(CreateStream(path, StreamPolicy(), NOW))
    ((container, epoch),) = broker.placement.place(1, "default")
    ids = [uuid.uuid4().bytes for _ in range(count)]
    items = [NewTopic(path, f"t-{at}", id_, 1, {}, [container], [epoch]) for at, id_ in enumerate(ids)]
    await broker.catalog.submit(CreateTopics(items, NOW))
    return ids


async def until_forgotten(broker: NodeParts) -> None:
    async with asyncio.timeout(60):
        while await broker.catalog.query(lambda reader: reader.is_forgetting()):
            await broker.maintenance.pass_now()
            await asyncio.sleep(0.01)


async def test_the_rows_of_a_deleted_stream_go_by_themselves(broker: NodeParts) -> None:
    await at_level_1(broker)
    await make(broker, "/many", 2 * AT_ONCE)
    died: list[None] = []
    records_freed = broker.maintenance.records_freed
    broker.maintenance.records_freed = lambda: (died.append(None), records_freed())[1]  # type: ignore[method-assign]
    await broker.catalog.submit(DeleteStream("/many", NOW, force=True))
    assert await broker.catalog.query(lambda reader: reader.is_forgetting())
    assert await broker.catalog.query(lambda reader: reader.streams.at("/many")) is None
    again = await make(broker, "/many", 3)
    await until_forgotten(broker)
    assert len(died) == 2  # at the end, too: then nothing lives any more of what it had
    found = await broker.catalog.query(lambda reader: reader.topics.page("/many"))
    assert {row.topic_id for row in found} == set(again)


async def test_a_request_to_delete_many_topics_is_several_commands_and_one_answer(broker: NodeParts, ask: Ask) -> None:
    await at_level_1(broker)
    await make(broker, "/many", 1100)
    submitted: list[int] = []
    submit = broker.catalog.submit

    async def noted(command: Any, **options: Any) -> Any:
        submitted.append(len(getattr(command, "topic_ids", ())))
        return await submit(command, **options)

    broker.catalog.submit = noted  # type: ignore[method-assign]
    names = [f"/many:t-{at}" for at in range(1100)]
    fields = {"topics": [{"name": name, "topic_id": None} for name in [*names, "/many:none"]], "timeout": 30_000}
    answer = await ask(ApiKey.DELETE_TOPICS, 6, fields)
    assert [each.error_code for each in answer.responses] == [0] * 1100 + [3]
    assert [each.name for each in answer.responses][:3] == names[:3]
    assert [count for count in submitted if count] == [500, 500, 100]
    found = await broker.catalog.query(lambda reader: reader.topics.page("/many"))
    assert found == []


async def test_what_cannot_be_deleted_in_time_is_told_once_and_not_waited_for_again(
    broker: NodeParts, ask: Ask
) -> None:
    await make(broker, "/many", 1100)
    asked: list[int] = []

    async def never(command: Any, **_options: Any) -> Any:
        asked.append(1)
        await asyncio.Event().wait()

    submit, broker.catalog.submit = broker.catalog.submit, never  # type: ignore[method-assign]
    try:
        topics = [{"name": f"/many:t-{at}", "topic_id": None} for at in range(1100)]
        answer = await ask(ApiKey.DELETE_TOPICS, 6, {"topics": topics, "timeout": 10})
    finally:
        broker.catalog.submit = submit  # type: ignore[method-assign]
    assert {each.error_code for each in answer.responses} == {Code.REQUEST_TIMED_OUT}
    assert len(asked) == 1
