"""Stock clients at two listeners with default streams of their own: one name, two topics; and who may use them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PythonPartition
from kafka.errors import InconsistentGroupProtocolError, TopicAuthorizationFailedError

from headrace.base.errors import Code
from headrace.base.ids import Millis
from headrace.catalog.policy import StreamPolicy
from headrace.catalog.streams import CreateStream
from headrace.node import Node
from headrace.security.access_rules import Kind, Permission
from kit.access import put, secure
from kit.own_ports import HOST, own_port
from kit.parts import options
from kit.patience import PATIENCE

WITHIN_S = 30 * PATIENCE
STREAMS = {"plant": "/plant", "lab": "/lab/cells"}
FULL = {"plant": "/plant:readings", "lab": "/lab/cells:readings"}
ALIASES = {"plant": "plant..readings", "lab": "lab.cells..readings"}
NAME = "readings"


class Listeners:
    """A node with one open listener for each of STREAMS, where the streams are there and nothing else."""

    def __init__(self, node: Node, ports: dict[str, int]) -> None:
        self.node = node
        self.ports = ports

    def at(self, listener: str) -> str:
        return f"{HOST}:{self.ports[listener]}"

    async def ends(self) -> dict[str, int]:
        """What is in each topic, by its full name."""
        found = {}
        for listener, name in FULL.items():
            (topic,) = await self.node.parts.topics.resolve([name])
            partition = await self.node.parts.partitions.leader(topic, 0)  # type: ignore[arg-type]
            found[listener] = int(partition.high_watermark)
        return found


@pytest.fixture
async def listeners(tmp_path: Path) -> AsyncIterator[Listeners]:
    ports = {name: own_port() for name in STREAMS}
    file = tmp_path / "listeners.toml"
    file.write_text(
        "".join(
            f'[[listener]]\nname = "{name}"\nport = {ports[name]}\nprotocol = "PLAINTEXT"\ndefault_stream = "{path}"\n'
            for name, path in STREAMS.items()
        )
    )
    node = Node(replace(options(tmp_path), listeners_file=file))
    await node.start()
    try:
        for path in STREAMS.values():
            await node.catalog.submit(CreateStream(path=path, policy=StreamPolicy(), now=Millis(1)))
        yield Listeners(node, ports)
    finally:
        await node.stop()


Written = Callable[[str, str, list[str]], None]
"""Writes values to a topic by way of an address."""


def written_by_librdkafka(address: str, topic: str, values: list[str]) -> None:
    producer = Producer({"bootstrap.servers": address})
    errors: list[object] = []
    for value in values:
        producer.produce(topic, value, partition=0, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(WITHIN_S) == 0
    assert errors == [None] * len(values)


def written_by_kafka_python(address: str, topic: str, values: list[str]) -> None:
    with contextlib.closing(KafkaProducer(bootstrap_servers=address, acks="all")) as producer:
        for value in values:
            producer.send(topic, value.encode(), partition=0).get(WITHIN_S)


def read_by_librdkafka(address: str, topic: str, count: int, group: str) -> list[str]:
    """Records that a member of a group reads and commits."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: list[str] = []
    try:
        while len(found) < count:
            message = consumer.poll(WITHIN_S)
            assert message is not None, f"{found} alone came"
            assert message.error() is None, message.error()
            assert message.topic() == topic
            found.append(message.value().decode())
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return found


def read_by_kafka_python(address: str, topic: str, count: int, group: str) -> list[str]:
    told = {"group_id": group, "auto_offset_reset": "earliest", "enable_auto_commit": False}
    consumer = KafkaConsumer(topic, bootstrap_servers=address, consumer_timeout_ms=1000 * WITHIN_S, **told)
    with contextlib.closing(consumer):
        found = [next(consumer).value.decode() for _ in range(count)]
        consumer.commit()
    return found


CLIENTS = pytest.mark.parametrize(
    ("write", "read"),
    [(written_by_librdkafka, read_by_librdkafka), (written_by_kafka_python, read_by_kafka_python)],
    ids=["librdkafka", "kafka-python"],
)


@CLIENTS
async def test_one_name_is_another_topic_at_each_listener(
    listeners: Listeners, write: Written, read: Callable[..., list[str]]
) -> None:
    values = {"plant": ["p1", "p2", "p3"], "lab": ["l1"]}
    for listener, these in values.items():
        await asyncio.to_thread(write, listeners.at(listener), NAME, these)
    assert await listeners.ends() == {"plant": 3, "lab": 1}
    for listener, these in values.items():
        got = await asyncio.to_thread(read, listeners.at(listener), NAME, len(these), f"of-{listener}")
        assert got == these
    for listener, other in (("plant", "lab"), ("lab", "plant")):
        got = await asyncio.to_thread(read, listeners.at(listener), ALIASES[other], len(values[other]), f"to-{other}")
        assert got == values[other]


async def test_a_full_name_is_one_topic_at_all_listeners(listeners: Listeners) -> None:
    for listener in STREAMS:
        await asyncio.to_thread(written_by_librdkafka, listeners.at(listener), FULL["lab"], [listener])
    (gone,) = await listeners.node.parts.topics.resolve([FULL["plant"]])
    assert not hasattr(gone, "row")
    got = await asyncio.to_thread(read_by_librdkafka, listeners.at("plant"), FULL["lab"], 2, "g")
    assert got == ["plant", "lab"]


async def test_lists_have_short_names_of_the_own_stream(listeners: Listeners) -> None:
    for listener in STREAMS:
        await asyncio.to_thread(written_by_librdkafka, listeners.at(listener), NAME, ["x"])
    for listener, other in (("plant", "lab"), ("lab", "plant")):
        shown = await asyncio.to_thread(
            AdminClient({"bootstrap.servers": listeners.at(listener)}).list_topics, timeout=10
        )
        assert set(shown.topics) == {NAME, FULL[other]}

        def listed(address: str) -> set[str]:
            with contextlib.closing(KafkaConsumer(bootstrap_servers=address)) as consumer:
                return set(consumer.topics())

        assert await asyncio.to_thread(listed, listeners.at(listener)) == {NAME, FULL[other]}


async def test_a_pattern_finds_the_topics_of_the_own_stream(listeners: Listeners) -> None:
    for listener in STREAMS:
        await asyncio.to_thread(written_by_librdkafka, listeners.at(listener), NAME, [listener])

    def read(address: str) -> tuple[str, str]:
        consumer = Consumer({"bootstrap.servers": address, "group.id": address, "auto.offset.reset": "earliest"})
        consumer.subscribe(["^read.*"])
        try:
            message = consumer.poll(WITHIN_S)
            return message.topic(), message.value().decode()
        finally:
            consumer.close()

    for listener in STREAMS:
        assert await asyncio.to_thread(read, listeners.at(listener)) == (NAME, listener)


async def test_a_group_goes_on_by_the_other_listener_where_it_was(listeners: Listeners) -> None:
    """What it has committed is of topics, not of names."""
    await asyncio.to_thread(written_by_librdkafka, listeners.at("plant"), NAME, ["1", "2"])
    await asyncio.to_thread(written_by_librdkafka, listeners.at("lab"), NAME, ["other"])
    assert await asyncio.to_thread(read_by_librdkafka, listeners.at("plant"), NAME, 2, "g") == ["1", "2"]
    await asyncio.to_thread(written_by_librdkafka, listeners.at("plant"), NAME, ["3"])
    assert await asyncio.to_thread(read_by_librdkafka, listeners.at("lab"), FULL["plant"], 1, "g") == ["3"]
    assert await asyncio.to_thread(read_by_kafka_python, listeners.at("lab"), NAME, 1, "g") == ["other"]

    def committed() -> dict[str, list[int]]:
        found = {}
        for listener in STREAMS:
            told = {"bootstrap_servers": listeners.at(listener), "group_id": "g"}
            with contextlib.closing(KafkaConsumer(**told)) as consumer:
                names = (NAME, *ALIASES.values())
                found[listener] = [consumer.committed(PythonPartition(each, 0)) for each in names]
        return found

    assert await asyncio.to_thread(committed) == {"plant": [3, 3, 1], "lab": [1, 3, 1]}


async def test_a_group_takes_no_member_to_whom_its_names_are_other_topics(listeners: Listeners) -> None:
    """Each would read a part of its own topic, and nobody the rest."""
    for listener in STREAMS:
        await asyncio.to_thread(written_by_librdkafka, listeners.at(listener), NAME, [listener])
    member = Consumer({"bootstrap.servers": listeners.at("plant"), "group.id": "g", "auto.offset.reset": "earliest"})
    member.subscribe([NAME])
    try:
        message = await asyncio.to_thread(member.poll, WITHIN_S)
        assert message.value() == b"plant"

        def joined() -> None:
            with contextlib.closing(
                KafkaConsumer(NAME, bootstrap_servers=listeners.at("lab"), group_id="g")
            ) as consumer:
                consumer.poll(timeout_ms=1000 * WITHIN_S)

        with pytest.raises(InconsistentGroupProtocolError):
            await asyncio.to_thread(joined)
    finally:
        await asyncio.to_thread(member.close)


async def test_what_somebody_may_do_goes_by_the_full_name(listeners: Listeners) -> None:
    for listener in STREAMS:
        await asyncio.to_thread(written_by_librdkafka, listeners.at(listener), NAME, [listener])
    everybody = {(Kind.STREAM, STREAMS["plant"], each): "p" for each in Permission}
    nobody = {(Kind.STREAM, STREAMS["lab"], each): "u:bob" for each in Permission}
    await put(listeners.node.parts, {**everybody, **nobody, (Kind.GROUP, "g", Permission.CONSUME): "p"})
    await secure(listeners.node.parts)
    for listener, name in (("plant", NAME), ("plant", FULL["plant"]), ("lab", FULL["plant"])):
        await asyncio.to_thread(written_by_librdkafka, listeners.at(listener), name, ["more"])
    got = await asyncio.to_thread(read_by_librdkafka, listeners.at("plant"), NAME, 4, "g")
    assert got == ["plant", "more", "more", "more"]

    def refused(address: str, name: str) -> set[object]:
        """What librdkafka hears of writing, reading and looking up."""
        codes: set[object] = set()
        producer = Producer({"bootstrap.servers": address, "message.timeout.ms": int(1000 * WITHIN_S)})
        producer.produce(name, b"x", on_delivery=lambda error, _: codes.add(error.code()))
        assert producer.flush(WITHIN_S) == 0
        consumer = Consumer({"bootstrap.servers": address, "group.id": "g"})
        try:
            consumer.subscribe([name])
            codes.add(consumer.poll(WITHIN_S).error().code())
        finally:
            consumer.close()
        shown = AdminClient({"bootstrap.servers": address}).list_topics(name, timeout=WITHIN_S)
        codes.add(shown.topics[name].error.code())
        return codes

    for listener, name in (("lab", NAME), ("lab", FULL["lab"]), ("plant", FULL["lab"]), ("plant", ALIASES["lab"])):
        assert await asyncio.to_thread(refused, listeners.at(listener), name) == {Code.TOPIC_AUTHORIZATION_FAILED}

    with pytest.raises(TopicAuthorizationFailedError):
        await asyncio.to_thread(written_by_kafka_python, listeners.at("lab"), NAME, ["x"])
    listed = await asyncio.to_thread(AdminClient({"bootstrap.servers": listeners.at("lab")}).list_topics, timeout=10)
    assert set(listed.topics) == {FULL["plant"]}
    assert await listeners.ends() == {"plant": 4, "lab": 1}
    with pytest.raises(KafkaException):
        await asyncio.to_thread(
            AdminClient({"bootstrap.servers": listeners.at("lab")}).delete_topics([NAME])[NAME].result, WITHIN_S
        )
    assert (await listeners.ends())["lab"] == 1
