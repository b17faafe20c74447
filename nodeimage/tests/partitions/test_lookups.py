"""Objects created through another node are found; if that cannot be guaranteed, they are not reported as unknown."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import Millis
from headrace.catalog.link_config import LinkConfig
from headrace.catalog.links import PutLink
from headrace.node.parts import NodeParts
from headrace.wire.admin_call import encode_admin_request
from headrace.wire.api_keys import ApiKey
from kit.three_nodes import (
    T,
    applying_nothing,
    ask,
    each_leads,
    session,
)


@pytest.mark.parametrize("asked", [0, 1, 2])
async def test_what_was_made_by_way_of_another_node_is_there_for_whoever_asks_next(
    brokers: list[NodeParts], asked: int
) -> None:
    """A tool may use one node after the other: `stream create`, CreateTopics, CreatePartitions, DeleteTopics."""
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
