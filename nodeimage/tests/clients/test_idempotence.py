"""What a producer may send again: KIP-98 on the wire, and the tokens of Spark's tasks."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from headrace.base.errors import Code
from headrace.wire.api_keys import ApiKey

BatchOf = Callable[..., bytearray]
TOKEN = -77


def test_a_batch_sent_twice_is_stored_once_and_answered_alike(cluster: Any, raw: Any, batch_of: BatchOf) -> None:
    client, topic = raw(cluster), cluster.topic()
    client.create(topic)
    producer = client.ask(ApiKey.INIT_PRODUCER_ID, 4, transactional_id=None, transaction_timeout=0)
    assert producer.producer_id >= 0
    first = batch_of(b"a", b"b", producer_id=producer.producer_id, producer_epoch=0, base_sequence=0)
    second = batch_of(b"c", producer_id=producer.producer_id, producer_epoch=0, base_sequence=2)
    assert [client.produce(topic, batch).base_offset for batch in (first, second, first, second)] == [0, 2, 0, 2]
    assert [record.value for record in client.records(topic)] == [b"a", b"b", b"c"]


def test_two_producers_never_get_one_id(cluster: Any, raw: Any) -> None:
    client, other = raw(cluster), raw(cluster)
    ids = [
        each.ask(ApiKey.INIT_PRODUCER_ID, version, transactional_id=None, transaction_timeout=0).producer_id
        for version in range(5)
        for each in (client, other)
    ]
    assert len(set(ids)) == 10


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"producer_epoch": 3, "base_sequence": 5}, Code.OUT_OF_ORDER_SEQUENCE_NUMBER),
        ({"producer_epoch": 2, "base_sequence": 2}, Code.INVALID_PRODUCER_EPOCH),
        ({"producer_epoch": 4, "base_sequence": 2}, Code.OUT_OF_ORDER_SEQUENCE_NUMBER),
        ({"producer_epoch": 3, "base_sequence": -1}, Code.INVALID_RECORD),
        ({"producer_epoch": -1, "base_sequence": 2}, Code.INVALID_RECORD),
        ({"producer_id": TOKEN, "producer_epoch": 0, "base_sequence": -1}, Code.INVALID_RECORD),
        ({"producer_id": TOKEN, "producer_epoch": -1, "base_sequence": 2}, Code.INVALID_RECORD),
    ],
    ids=[
        "gap",
        "old epoch",
        "new epoch in the middle",
        "no sequence",
        "no epoch",
        "token without sequence",
        "token without epoch",
    ],
)
def test_what_does_not_follow_is_refused(
    cluster: Any, raw: Any, batch_of: BatchOf, fields: dict[str, int], code: Code
) -> None:
    client, topic = raw(cluster), cluster.topic()
    client.create(topic)
    begin = batch_of(b"a", b"b", producer_id=12_345, producer_epoch=3, base_sequence=0)
    assert client.produce(topic, begin).error == 0
    result = client.produce(topic, batch_of(b"x", **({"producer_id": 12_345} | fields)))
    assert (result.error, result.base_offset) == (code, -1)
    assert result.message
    follows = batch_of(b"c", producer_id=12_345, producer_epoch=3, base_sequence=2)
    assert client.produce(topic, follows).base_offset == 2
    assert [record.value for record in client.records(topic)] == [b"a", b"b", b"c"]


def test_a_new_epoch_starts_at_zero_and_shuts_the_old_one_out(cluster: Any, raw: Any, batch_of: BatchOf) -> None:
    client, topic = raw(cluster), cluster.topic()
    client.create(topic)
    old = batch_of(b"a", producer_id=54_321, producer_epoch=0, base_sequence=0)
    assert client.produce(topic, old).error == 0
    bumped = client.ask(
        ApiKey.INIT_PRODUCER_ID,
        4,
        transactional_id=None,
        transaction_timeout=0,
        producer_id=54_321,
        producer_epoch=0,
    )
    assert (bumped.producer_id, bumped.producer_epoch) == (54_321, 1)
    new = batch_of(b"b", producer_id=54_321, producer_epoch=1, base_sequence=0)
    assert client.produce(topic, new).base_offset == 1
    assert client.produce(topic, old).error == Code.INVALID_PRODUCER_EPOCH


def test_sequences_go_round(cluster: Any, raw: Any, batch_of: BatchOf) -> None:
    client, topic = raw(cluster), cluster.topic()
    client.create(topic)

    def send(*values: bytes, sequence: int) -> Any:
        return client.produce(topic, batch_of(*values, producer_id=4_242, producer_epoch=0, base_sequence=sequence))

    assert send(b"a", sequence=0).error == 0
    assert send(b"x", sequence=2**31 - 1).error == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(b"b", sequence=1).base_offset == 1


def test_one_producer_that_calls_a_topic_by_two_names_loses_nothing_silently(
    cluster: Any, raw: Any, batch_of: BatchOf
) -> None:
    client, topic = raw(cluster), cluster.topic()
    client.create(topic)
    first = batch_of(b"by its full name", producer_id=77_777, producer_epoch=0, base_sequence=0)
    assert client.produce(topic, first).error == 0
    other = batch_of(b"by its bare name", producer_id=77_777, producer_epoch=0, base_sequence=0)
    refused = client.produce(topic.removeprefix("/default:"), other)
    assert refused.error == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert "use one name" in (refused.message or "")
    assert client.produce(topic, first).base_offset == 0


def test_a_repeat_that_was_encoded_anew_at_another_time_is_known(cluster: Any, raw: Any, batch_of: BatchOf) -> None:
    """As kafkajs does after an answer that was lost; the producer was stuck for good."""
    client, topic = raw(cluster), cluster.topic()
    client.create(topic)
    for expected in (0, 0, 0):
        repeat = batch_of(b"a", producer_id=88_888, producer_epoch=0, base_sequence=0)
        assert client.produce(topic, repeat).base_offset == expected
        until = time.time() + 0.002
        while time.time() < until:
            pass
    follows = batch_of(b"b", producer_id=88_888, producer_epoch=0, base_sequence=1)
    assert client.produce(topic, follows).base_offset == 1
    assert [record.value for record in client.records(topic)] == [b"a", b"b"]


@pytest.mark.parametrize("stored_with", ["CreateTime", "LogAppendTime"])
def test_behind_a_restart_records_tell_a_repeat_from_the_first_batch_of_a_second_name(
    new_cluster: Any, raw: Any, batch_of: BatchOf, stored_with: str
) -> None:
    """The log does not say by which name a batch came: what came by the second was taken for a repeat, and lost."""

    def send(client: Any, name: str, value: bytes, producer_id: int) -> Any:
        batch = batch_of(value, producer_id=producer_id, producer_epoch=0, base_sequence=0)
        for _ in range(100):
            result = client.produce(name, batch)
            if result.error != Code.LEADER_NOT_AVAILABLE:
                return result
            time.sleep(0.02)
        pytest.fail(f"still looked up: {result}")

    cluster = new_cluster()
    client, topic = raw(cluster), "/default:named"
    client.create(topic, **{"message.timestamp.type": stored_with})
    first, second = 4242, 4243
    for producer_id in (first, second):
        assert send(client, topic, b"by its full name", producer_id).error == 0
    cluster.restart()
    client = raw(cluster)
    other = send(client, "named", b"by its bare name", first)
    assert other.error == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert "use one name" in (other.message or "")
    assert send(client, topic, b"by its full name", first).base_offset == 0, "a repeat at another time"
    assert send(client, "named", b"by its bare name", first).error == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(client, "named", b"by its full name", second).base_offset == 1, "it may call it so all the time"
    follows = batch_of(b"more", producer_id=first, producer_epoch=0, base_sequence=1)
    assert client.produce(topic, follows).base_offset == 2
    values = [record.value for record in client.records(topic)]
    assert values == [b"by its full name", b"by its full name", b"more"]


def test_tokens_only_rise_and_repeats_are_called_so(cluster: Any, raw: Any, batch_of: BatchOf) -> None:
    client, topic = raw(cluster), cluster.topic()
    client.create(topic)

    def send(value: bytes, sequence: int) -> tuple[int, int]:
        batch = batch_of(value, value, producer_id=TOKEN, producer_epoch=0, base_sequence=sequence)
        result = client.produce(topic, batch)
        return result.error, result.base_offset

    assert send(b"first", 7) == (0, 0)
    assert send(b"gap is fine", 100) == (0, 2)
    repeat = Code.DUPLICATE_SEQUENCE_NUMBER
    assert send(b"other rows, same batch", 100) == (repeat, 2)
    assert send(b"an older re-run", 7) == (repeat, 0)
    assert send(b"never seen, but older", 50)[0] == repeat
    assert send(b"next", 101) == (0, 4)
    assert [record.value for record in client.records(topic)][::2] == [b"first", b"gap is fine", b"next"]


@pytest.mark.parametrize("crash", [False, True], ids=["restart", "kill -9"])
def test_restarts_and_rolls_forget_no_producer(new_cluster: Any, raw: Any, batch_of: BatchOf, crash: bool) -> None:
    cluster = new_cluster("--partitionlet-bytes=65536", "--chunk-bytes=1048576")
    topic = "/default:rolled"
    client = raw(cluster)
    client.create(topic)

    sent: dict[tuple[int, int], bytearray] = {}

    def send(client: Any, producer: int, sequence: int, size: int = 10) -> tuple[int, int]:
        """Sends a producer's batch, the same bytes each time."""
        batch = sent.setdefault(
            (producer, sequence),
            batch_of(b"x" * size, producer_id=producer, producer_epoch=0, base_sequence=sequence),
        )
        result = client.produce(topic, batch)
        return result.error, result.base_offset

    assert send(client, 5, 0) == (0, 0)
    assert send(client, TOKEN, 3) == (0, 1)
    for sequence in range(8):  # each fills a partitionlet
        assert send(client, 6, sequence, size=70_000) == (0, 2 + sequence)
    assert len(cluster.admin("chain", {"topic": topic})) >= 8

    def repeat(client: Any) -> None:
        assert send(client, 5, 0) == (0, 0)
        assert send(client, TOKEN, 3)[0] == Code.DUPLICATE_SEQUENCE_NUMBER
        assert send(client, TOKEN, 1)[0] == Code.DUPLICATE_SEQUENCE_NUMBER
        assert send(client, 6, 7, size=70_000) == (0, 9)
        assert send(client, 6, 9)[0] == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert len(client.records(topic)) == 10

    repeat(client)
    if crash:
        cluster.kill()
        cluster.start()
    else:
        cluster.restart()
    client = raw(cluster)
    repeat(client)
    assert send(client, 5, 1) == (0, 10)
    assert send(client, TOKEN, 4) == (0, 11)
    assert send(client, 6, 8) == (0, 12)
