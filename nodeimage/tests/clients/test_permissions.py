"""What stock clients make of refusals: alice, by her certificate, and somebody who has proved nothing."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import GroupAuthorizationFailedError, TopicAuthorizationFailedError

from headrace.node.parts import NodeParts
from headrace.security.access_rules import Kind, Permission
from kit.access import put, secure
from kit.parts import options, running
from kit.patience import PATIENCE
from kit.tls_listeners import TlsListeners

WITHIN_S = 30 * PATIENCE
REFUSED = KafkaError.TOPIC_AUTHORIZATION_FAILED


@pytest.fixture
async def parts(tmp_path: Path, listeners: TlsListeners) -> AsyncIterator[NodeParts]:
    """A secured node: alice has the default stream, but for its topic `hidden`."""
    async with running(replace(options(tmp_path), listeners_file=listeners.file)) as node:
        await node.parts.topics.resolve(["orders", "hidden"], create=True)
        shut = {(Kind.TOPIC, "/default:hidden", each): "u:bob" for each in Permission}
        await put(
            node.parts,
            {(Kind.STREAM, "/default", each): "u:alice" for each in Permission}
            | shut
            | {(Kind.GROUP, "g", Permission.CONSUME): "u:alice"},
        )
        await secure(node.parts)
        yield node.parts


def code_of(call: Callable[[], object]) -> int:
    """Of the error that a call of librdkafka ends with."""
    with pytest.raises(KafkaException) as refused:
        call()
    code: int = refused.value.args[0].code()
    return code


def delivered(told: dict[str, Any], topic: str) -> int | None:
    """The code of a record's refusal; None: it is stored."""
    codes: list[int | None] = []
    producer = Producer(told)
    producer.produce(topic, b"x", on_delivery=lambda error, _: codes.append(error.code() if error else None))
    assert producer.flush(WITHIN_S) == 0
    return codes[0]


def polled(consumer: Consumer) -> tuple[int | None, bytes | None]:
    """The first message, or the code of the first error."""
    until = time.monotonic() + WITHIN_S
    while time.monotonic() < until:
        message = consumer.poll(0.1)
        if message is not None:
            return (message.error().code(), None) if message.error() else (None, message.value())
    raise AssertionError("nothing came")


async def test_librdkafka_writes_and_reads_what_it_may(parts: NodeParts, listeners: TlsListeners) -> None:
    alice, nobody = listeners.librdkafka(own="client"), listeners.librdkafka()
    assert await asyncio.to_thread(delivered, alice | {"enable.idempotence": True}, "orders") is None
    assert await asyncio.to_thread(delivered, alice, "hidden") == REFUSED
    assert await asyncio.to_thread(delivered, alice, "default..hidden") == REFUSED
    assert await asyncio.to_thread(delivered, nobody, "orders") == REFUSED

    def reads(told: dict[str, Any], topic: str) -> tuple[int | None, bytes | None]:
        consumer = Consumer(told | {"group.id": "g", "auto.offset.reset": "earliest"})
        try:
            consumer.subscribe([topic])
            return polled(consumer)
        finally:
            consumer.close()

    assert await asyncio.to_thread(reads, alice, "orders") == (None, b"x")
    assert await asyncio.to_thread(reads, alice, "hidden") == (REFUSED, None)
    code, _ = await asyncio.to_thread(reads, nobody, "orders")
    assert code in (REFUSED, KafkaError.GROUP_AUTHORIZATION_FAILED)


async def test_librdkafka_hears_at_once_that_it_may_no_longer_read(parts: NodeParts, listeners: TlsListeners) -> None:
    consumer = Consumer(
        listeners.librdkafka(own="client") | {"group.id": "g", "enable.auto.commit": False, "fetch.wait.max.ms": 50_000}
    )

    def begin() -> tuple[int | None, bytes | None]:
        assert delivered(listeners.librdkafka(own="client"), "orders") is None
        consumer.assign([TopicPartition("orders", 0, 0)])
        return polled(consumer)

    try:
        assert await asyncio.to_thread(begin) == (None, b"x")
        await put(parts, {(Kind.STREAM, "/default", each): "u:bob" for each in (Permission.CONSUME, Permission.COPY)})
        assert await asyncio.to_thread(polled, consumer) == (REFUSED, None)
    finally:
        await asyncio.to_thread(consumer.close)


async def test_tools_see_and_change_what_they_may(parts: NodeParts, listeners: TlsListeners) -> None:
    def see() -> None:
        alice, nobody = (AdminClient(listeners.librdkafka(own=own)) for own in ("client", ""))
        assert set(alice.list_topics(timeout=WITHIN_S).topics) == {"orders"}
        assert set(nobody.list_topics(timeout=WITHIN_S).topics) == set()
        named = alice.list_topics("hidden", timeout=WITHIN_S).topics["hidden"]
        assert named.error.code() == REFUSED
        assert code_of(nobody.create_topics([NewTopic("new", 1)])["new"].result) == REFUSED
        assert alice.create_topics([NewTopic("new", 1)])["new"].result() is None
        assert code_of(alice.delete_topics(["hidden"])["hidden"].result) == REFUSED
        topic = ConfigResource(ConfigResource.Type.TOPIC, "hidden")
        assert code_of(alice.describe_configs([topic])[topic].result) == REFUSED
        broker = ConfigResource(ConfigResource.Type.BROKER, "1")
        assert code_of(alice.describe_configs([broker])[broker].result) == KafkaError.CLUSTER_AUTHORIZATION_FAILED
        operations = alice.describe_cluster(include_authorized_operations=True).result().authorized_operations
        assert [each.name for each in operations] == ["IDEMPOTENT_WRITE"]

    await asyncio.to_thread(see)


async def test_kafka_python_says_what_it_may_not(parts: NodeParts, listeners: TlsListeners) -> None:
    def tries() -> None:
        producer = KafkaProducer(acks="all", **listeners.kafka_python(own="client"))
        producer.send("orders", b"x").get(WITHIN_S)
        with pytest.raises(TopicAuthorizationFailedError):
            producer.send("hidden", b"x").get(WITHIN_S)
        producer.close()
        told = listeners.kafka_python(own="client") | {"auto_offset_reset": "earliest", "consumer_timeout_ms": 20_000}
        consumer = KafkaConsumer("orders", group_id="g", **told)
        assert next(consumer).value == b"x"
        consumer.close()
        consumer = KafkaConsumer("orders", group_id="g", **listeners.kafka_python())
        with pytest.raises((GroupAuthorizationFailedError, TopicAuthorizationFailedError)):
            consumer.poll(timeout_ms=20_000)
        consumer.close(autocommit=False)

    await asyncio.to_thread(tries)
