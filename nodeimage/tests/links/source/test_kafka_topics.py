"""The table of a Kafka cluster's topics: as fresh as the pace allows, and what it reports about them."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import NodeId, Offset
from headrace.links.source import kafka_topics
from headrace.links.source.kafka_topics import LATEST, KafkaTopics, pace_s
from headrace.links.source.source import TopicPartition
from headrace.wire.api_keys import ApiKey, Versions

A, B = b"a" * 16, b"b" * 16


def topic(name: str | None, topic_id: bytes, *leaders: int, error: int = 0, internal: bool = False) -> Any:
    partitions = [SimpleNamespace(partition=number, leader=leader) for number, leader in enumerate(leaders)]
    return SimpleNamespace(name=name, topic_id=topic_id, error=error, internal=internal, partitions=partitions)


class Client:
    """A Kafka cluster."""

    def __init__(self, *topics: Any) -> None:
        self.topics = list(topics)
        self.asked = 0
        self.answers: list[Any] = []
        self.requests: list[tuple[ApiKey, Any]] = []

    async def metadata(self, names: None) -> Any:
        self.asked += 1
        await asyncio.sleep(0)
        return SimpleNamespace(topics=self.topics)

    async def ask(self, node: object, key: ApiKey, versions: Versions, request: Any) -> Any:
        self.requests.append((key, request))
        return self.answers.pop(0)


def table(client: Client) -> KafkaTopics:
    given: Any = client
    return KafkaTopics(given)


async def test_it_has_the_topics_that_can_be_copied_by_id_and_by_name() -> None:
    client = Client(
        topic("a", A, 1, 2, 1),
        topic("__consumer_offsets", B, 1, internal=True),
        topic("refused", B, error=29),
        topic(None, B),
        topic("without an id", bytes(16)),
    )
    topics = table(client)
    await topics.refresh_if_older(0)
    assert [each.name for each in topics.by_id.values()] == ["a"]
    assert topics.by_name["a"] is topics.by_id[A]
    assert topics.led_by(NodeId(1)) == {TopicPartition(A, 0), TopicPartition(A, 2)}
    assert topics.led_by(NodeId(3)) == set()


async def test_callers_share_an_answer_that_is_new_enough_for_all() -> None:
    client = Client(topic("a", A, 1))
    topics = table(client)
    await asyncio.gather(*(topics.refresh_if_older(60) for _ in range(5)))
    assert (client.asked, topics.serial) == (1, 1)
    await topics.refresh_if_older(60)
    assert client.asked == 1
    await topics.refresh_if_older(-1)
    assert client.asked == 2


async def test_a_table_that_was_shown_to_be_wrong_is_asked_for_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(topic("a", A, 1))
    topics = table(client)
    await topics.refresh_if_older(0)
    loop = asyncio.get_running_loop()
    began = loop.time()
    monkeypatch.setattr(kafka_topics, "pace_s", lambda rows: 60.0)
    monkeypatch.setattr(loop, "time", lambda: began + 5)
    await topics.refresh_at_pace()
    assert client.asked == 1
    topics.mark_outdated()
    await topics.refresh_at_pace()
    assert client.asked == 2


def test_the_more_topics_there_are_the_more_seldom_all_are_looked_at() -> None:
    assert pace_s(0) == pace_s(1) > 0
    assert pace_s(10_000_000) > pace_s(1_000_000) > pace_s(0)


def config(name: str, value: str | None, *, source: int = 1) -> Any:
    return SimpleNamespace(name=name, value=value, config_source=source)


def described(name: str, *configs: Any, code: int = 0) -> Any:
    return SimpleNamespace(error_code=code, resource_name=name, configs=list(configs))


async def test_configs_are_those_that_were_set_on_the_topic_and_are_known_here() -> None:
    client = Client()
    client.answers = [
        SimpleNamespace(
            results=[
                described(
                    "a",
                    config("retention.ms", "5000"),
                    config("segment.bytes", "99", source=5),
                    config("no.such.config", "1"),
                    config("compression.type", None),
                ),
                described("gone", code=Code.UNKNOWN_TOPIC_OR_PARTITION),
                described("hidden", code=Code.TOPIC_AUTHORIZATION_FAILED),
            ]
        )
    ]
    assert await table(client).configs(["a", "gone", "hidden"]) == {"a": {"retention.ms": "5000"}, "hidden": None}


async def test_configs_of_many_are_asked_for_in_several_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_topics, "DESCRIBED", 2)
    client = Client()
    client.answers = [SimpleNamespace(results=[]) for _ in range(3)]
    await table(client).configs(list("abcde"))
    asked = [[each["resource_name"] for each in request["resources"]] for _, request in client.requests]
    assert asked == [["a", "b"], ["c", "d"], ["e"]]


async def test_configs_that_cannot_be_told_for_now_are_an_error() -> None:
    client = Client()
    client.answers = [SimpleNamespace(results=[described("a", code=Code.REQUEST_TIMED_OUT)])]
    with pytest.raises(KafkaError, match="cannot describe the configs of a now"):
        await table(client).configs(["a"])


async def test_offsets_are_asked_for_by_name_and_told_by_id() -> None:
    client = Client(topic("a", A, 1, 1))
    topics = table(client)
    await topics.refresh_if_older(0)
    partition = SimpleNamespace(partition_index=1, error_code=0, offset=7)
    client.answers = [SimpleNamespace(topics=[SimpleNamespace(name="a", partitions=[partition])])]
    wanted = [TopicPartition(A, 1), TopicPartition(B, 0)]
    assert await topics.offsets(NodeId(1), wanted, LATEST) == {TopicPartition(A, 1): (Code.NONE, Offset(7))}
    ((key, request),) = client.requests
    assert key is ApiKey.LIST_OFFSETS
    assert [each["name"] for each in request["topics"]] == ["a"]
    assert await topics.offsets(NodeId(1), [TopicPartition(B, 0)], LATEST) == {}
    assert len(client.requests) == 1, "nothing is asked of what is not in the table"
