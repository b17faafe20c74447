"""Topics and partitions in memory stay up to date, whatever happens while they are being read."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import Millis, Offset
from headrace.catalog.chains import LogStart, SetLogStart
from headrace.catalog.names import DEFAULT_STREAM
from headrace.catalog.policy import StreamPolicy
from headrace.catalog.streams import CreateStream
from headrace.catalog.topics import CreateTopics, DeleteTopics
from headrace.partitions import partitions, topics
from headrace.partitions.topics import Topic
from kit.storage import Gate, Running, until

NewNode = Callable[..., Awaitable[Running]]
TOPIC = "/default:watched"


async def topic_id(node: Running, name: str) -> bytes:
    stream, topic = name.split(":")
    row = await node.parts.catalog.query(lambda reader: reader.topics.at(stream, topic))
    assert row is not None
    return row.topic_id


async def test_a_log_start_that_moves_while_a_partition_is_loaded_is_seen(
    new_node: NewNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await new_node()
    for serial in range(20):
        await node.call("put", TOPIC, b"%d" % serial)
    await node.restart()
    (container,) = [each for each in node.parts.containers.values() if each.id != node.parts.maintenance.catalog_id]
    container.log.close_open_chunk()
    container.kick()
    await until(lambda: container.log.chunks_to_close() or container.log.chunks()[0].body.closed)
    gate = Gate(partitions.read_tails)
    monkeypatch.setattr(partitions, "read_tails", gate)
    asked = asyncio.create_task(node.call("offsets", TOPIC))
    await gate.entered()
    moved = SetLogStart(items=[LogStart(await topic_id(node, TOPIC), 0, Offset(20))])
    await node.parts.catalog.submit(moved)
    for _ in range(3):
        await node.parts.maintenance.pass_now()
    assert not container.log.chunks(), "every byte of the partition is gone"
    gate.open()
    assert await asked == (20, 20), "its next offset never falls"
    assert await node.call("put", TOPIC, b"next") == 20


async def test_a_topic_is_not_forgotten_while_its_partition_is_loaded(
    new_node: NewNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "MAX_TOPICS", 10)
    node = await new_node()
    others = [f"/default:other-{number}" for number in range(30)]
    await node.call("create", TOPIC, *others)
    await node.call("put", TOPIC, b"first")
    await node.restart()
    gate = Gate(partitions.read_tails)
    monkeypatch.setattr(partitions, "read_tails", gate)
    asked = asyncio.create_task(node.call("put", TOPIC, b"second"))
    await gate.entered()
    topic = node.parts.topics.by_name(DEFAULT_STREAM).get(TOPIC)
    for name in others:
        await node.parts.topics.resolve([name])
    assert node.parts.topics.by_name(DEFAULT_STREAM).get(others[0]) is None, "others were forgotten"
    assert node.parts.topics.by_name(DEFAULT_STREAM).get(TOPIC) is topic
    gate.open()
    assert await asked == 1
    assert await node.call("put", TOPIC, b"third") == 2


async def test_a_forgotten_topic_gives_no_second_object_of_a_partition(
    new_node: NewNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "MAX_TOPICS", 10)
    node = await new_node()
    others = [f"/default:other-{number}" for number in range(30)]
    await node.call("create", TOPIC, *others)
    (held,) = await node.parts.topics.resolve([TOPIC])
    for name in others:
        await node.parts.topics.resolve([name])
    assert node.parts.topics.by_name(DEFAULT_STREAM).get(TOPIC) is None
    (refused,) = await node.parts.partitions.leaders([(held, 0)])
    assert isinstance(refused, KafkaError)
    assert refused.code is Code.LEADER_NOT_AVAILABLE
    for serial, name in enumerate([TOPIC, *others, TOPIC, *others]):
        assert await node.call("put", name, b"v") == serial // (len(others) + 1)


@pytest.mark.parametrize("by", ["name", "id"])
async def test_a_topic_deleted_while_it_is_looked_up_stays_deleted(
    new_node: NewNode, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    node = await new_node()
    await node.call("create", TOPIC)
    deleted = await topic_id(node, TOPIC)
    await node.restart()
    look = f"rows_by_{by}"
    gate = Gate(getattr(topics, look), after=True)
    monkeypatch.setattr(topics, look, gate)
    cache = node.parts.topics
    asked = asyncio.create_task(cache.resolve([TOPIC]) if by == "name" else cache.resolve_ids([deleted]))
    await gate.entered()
    await node.parts.catalog.submit(DeleteTopics(topic_ids=[deleted], now=Millis(0)))
    gate.open()
    (found,) = await asked
    assert isinstance(found, KafkaError)
    assert cache.by_name(DEFAULT_STREAM).get(TOPIC) is None
    assert cache.cached_id(deleted) is None
    assert await node.call("put", TOPIC, b"of the new one") == 0
    assert await topic_id(node, TOPIC) != deleted


def after_creation(
    node: Running, monkeypatch: pytest.MonkeyPatch, then: Callable[[CreateTopics], Awaitable[Any]]
) -> None:
    """Run `then` after topics are created, and before their creator gets the outcome."""
    submit = node.parts.catalog.submit

    async def submitted(command: Any) -> Any:
        outcome = await submit(command)
        if isinstance(command, CreateTopics):
            await then(command)
        return outcome

    monkeypatch.setattr(node.parts.catalog, "submit", submitted)


async def test_a_topic_deleted_before_its_maker_hears_of_it_stays_deleted(
    new_node: NewNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outcome may arrive by way of another node, after the deletion was applied here."""
    node = await new_node()
    cache = node.parts.topics

    async def delete(made: CreateTopics) -> None:
        await node.parts.catalog.submit(DeleteTopics(topic_ids=[each.topic_id for each in made.items], now=Millis(0)))

    after_creation(node, monkeypatch, delete)
    (found,) = await cache.resolve([TOPIC], create=True)
    assert isinstance(found, KafkaError)
    assert found.code == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert cache.by_name(DEFAULT_STREAM).get(TOPIC) is None
    assert len(cache) == 0
    monkeypatch.undo()
    (made,) = await cache.resolve([TOPIC], create=True)
    assert isinstance(made, Topic)
    assert made.topic_id == await topic_id(node, TOPIC)


async def test_a_topic_forgotten_while_another_is_made_gets_no_name_any_more(
    new_node: NewNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "MAX_TOPICS", 10)
    node = await new_node()
    cache = node.parts.topics
    others = [f"/default:other-{number}" for number in range(30)]
    await node.call("create", TOPIC, *others)
    (held,) = await cache.resolve([TOPIC])
    assert isinstance(held, Topic)

    async def use_others(_: CreateTopics) -> None:
        for name in others:
            await cache.resolve([name])
        assert cache.cached_id(held.topic_id) is None, "it was forgotten"

    after_creation(node, monkeypatch, use_others)
    await cache.resolve(["watched", "new"], create=True)
    assert cache.by_name(DEFAULT_STREAM).get("watched") is None, "a topic that is not told of what changes"
    (found,) = await cache.resolve(["watched"])
    assert isinstance(found, Topic)
    assert cache.cached_id(found.topic_id) is found


def of(default_stream: str) -> Any:
    return SimpleNamespace(default_stream=default_stream)


async def test_a_bare_name_is_of_the_callers_default_stream(new_node: NewNode) -> None:
    node = await new_node()
    await node.parts.catalog.submit(CreateStream(path="/sensors", policy=StreamPolicy(), now=Millis(1)))
    cache = node.parts.topics
    (here,) = await cache.resolve(["orders"], create=True)
    assert isinstance(here, Topic)
    (none,) = await cache.resolve(["orders"], of("/sensors"))
    assert isinstance(none, KafkaError), "what was found for one is nobody else's"
    (there,) = await cache.resolve(["orders"], of("/sensors"), create=True)
    assert isinstance(there, Topic)
    assert (here.full_name, there.full_name) == ("/default:orders", "/sensors:orders")
    for default_stream, topic in ((DEFAULT_STREAM, here), ("/sensors", there)):
        assert await cache.resolve(["orders"], of(default_stream)) == [topic]
        assert cache.by_name(default_stream).get("orders") is topic
    for name in ("/default:orders", "default..orders"):
        assert await cache.resolve([name], of("/sensors")) == [here]
    assert cache.by_name("/elsewhere").get("orders") is None


async def test_a_topic_that_is_gone_is_gone_for_all_default_streams(new_node: NewNode) -> None:
    node = await new_node()
    await node.parts.catalog.submit(CreateStream(path="/sensors", policy=StreamPolicy(), now=Millis(1)))
    cache = node.parts.topics
    names = ["orders", "/sensors:orders", "sensors..orders"]
    (topic,) = {*await cache.resolve(names, of("/sensors"), create=True)}
    await cache.resolve(names[1:], of("/default"))
    assert isinstance(topic, Topic)
    await node.parts.catalog.submit(DeleteTopics(topic_ids=[topic.topic_id], now=Millis(1)))
    for name in names:
        assert cache.by_name("/sensors").get(name) is None
        assert cache.by_name(DEFAULT_STREAM).get(name) is None
