"""Fetch on the wire: sessions by KIP-227, waiting, limits, epochs, rolled partitions."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from headrace.base.errors import Code
from headrace.wire.api_keys import ApiKey
from headrace.wire.batch import iter_records

Asked = Callable[..., Any]
BatchOf = Callable[..., bytearray]


def partitions(response: Any) -> dict[tuple[str, int], Any]:
    return {(topic.topic, part.partition): part for topic in response.topics for part in topic.partitions}


def values(result: Any) -> list[bytes]:
    return [record.value for records in result.records for record in iter_records(records)]


@pytest.fixture
def topic(cluster: Any, raw: Any) -> str:
    name: str = cluster.topic()
    raw(cluster).create(name, partitions=3)
    return name


def test_a_session_answers_only_with_news(cluster: Any, raw: Any, topic: str, asked: Asked, batch_of: BatchOf) -> None:
    client = raw(cluster)
    client.produce(topic, batch_of(b"zero"), partition=0)
    both = ((topic, asked(0)), (topic, asked(0, partition=1)))
    full = client.fetch(*both, session=(0, 0))
    assert full.error == 0
    assert full.session_id > 0
    assert set(partitions(full)) == {(topic, 0), (topic, 1)}  # a full fetch answers for all
    assert values(partitions(full)[topic, 0]) == [b"zero"]

    session = full.session_id
    quiet = client.fetch((topic, asked(1)), session=(session, 1))
    assert (quiet.error, quiet.session_id, quiet.topics) == (0, session, [])

    client.produce(topic, batch_of(b"one"), partition=1)
    news = client.fetch(session=(session, 2))
    assert {key: values(part) for key, part in partitions(news).items()} == {(topic, 1): [b"one"]}

    again = client.fetch(session=(session, 3))  # the consumer has not moved: the records come again
    assert values(partitions(again)[topic, 1]) == [b"one"]
    assert client.fetch((topic, asked(1, partition=1)), session=(session, 4)).topics == []


def test_forgotten_partitions_are_silent(cluster: Any, raw: Any, topic: str, asked: Asked, batch_of: BatchOf) -> None:
    client = raw(cluster)
    session = client.fetch((topic, asked(0)), (topic, asked(0, partition=1)), session=(0, 0)).session_id
    client.produce(topic, batch_of(b"a"), partition=0)
    client.produce(topic, batch_of(b"b"), partition=1)
    news = client.fetch(session=(session, 1), forgotten=[(topic, 0)])
    assert set(partitions(news)) == {(topic, 1)}
    added = client.fetch((topic, asked(0)), session=(session, 2))  # and taken up again
    assert set(partitions(added)) == {(topic, 0), (topic, 1)}


def test_a_session_tells_of_a_moved_log_start(
    cluster: Any, raw: Any, topic: str, asked: Asked, batch_of: BatchOf
) -> None:
    client = raw(cluster)
    client.produce(topic, batch_of(b"a", b"b"))
    session = client.fetch((topic, asked(2)), session=(0, 0)).session_id
    assert client.fetch(session=(session, 1)).topics == []
    part = {"partition_index": 0, "offset": 1}
    deleted = client.ask(ApiKey.DELETE_RECORDS, 2, topics=[{"name": topic, "partitions": [part]}], timeout_ms=9000)
    assert deleted.topics[0].partitions[0].low_watermark == 1
    (told,) = partitions(client.fetch(session=(session, 2))).values()
    assert (told.error, told.log_start, told.high_watermark, told.records) == (0, 1, 2, [])
    assert client.fetch(session=(session, 3)).topics == []


@pytest.mark.parametrize("version", [7, 11, 12])
def test_sessions_that_are_not_known_or_not_in_step(
    cluster: Any, raw: Any, topic: str, asked: Asked, version: int
) -> None:
    client = raw(cluster)
    unknown = client.fetch(session=(987_654_321, 5), version=version)
    assert (unknown.error, unknown.topics) == (Code.FETCH_SESSION_ID_NOT_FOUND, [])
    session = client.fetch((topic, asked(0)), session=(0, 0), version=version).session_id
    skipped = client.fetch(session=(session, 2), version=version)
    assert (skipped.error, skipped.topics) == (Code.INVALID_FETCH_SESSION_EPOCH, [])
    assert client.fetch(session=(session, 1), version=version).error == 0  # the session is as it was
    assert client.fetch(session=(session, 1), version=version).error == Code.INVALID_FETCH_SESSION_EPOCH


def test_epoch_minus_one_ends_a_session(cluster: Any, raw: Any, topic: str, asked: Asked) -> None:
    client = raw(cluster)
    session = client.fetch((topic, asked(0)), session=(0, 0)).session_id
    last = client.fetch((topic, asked(0)), session=(session, -1))
    assert (last.error, last.session_id) == (0, 0)
    assert set(partitions(last)) == {(topic, 0)}
    assert client.fetch(session=(session, 1)).error == Code.FETCH_SESSION_ID_NOT_FOUND


def test_epoch_zero_replaces_a_session(cluster: Any, raw: Any, topic: str, asked: Asked) -> None:
    client = raw(cluster)
    old = client.fetch((topic, asked(0)), session=(0, 0)).session_id
    new = client.fetch((topic, asked(0)), session=(old, 0)).session_id
    assert new not in (0, old)
    assert client.fetch(session=(old, 1)).error == Code.FETCH_SESSION_ID_NOT_FOUND
    assert client.fetch(session=(new, 1)).error == 0


def test_a_waiting_session_wakes_for_any_of_its_partitions(
    cluster: Any, raw: Any, topic: str, asked: Asked, batch_of: BatchOf
) -> None:
    client, producer = raw(cluster), raw(cluster)
    session = client.fetch(*((topic, asked(0, partition=number)) for number in range(3)), session=(0, 0)).session_id
    answers: list[Any] = []
    waits = threading.Thread(target=lambda: answers.append(client.fetch(session=(session, 1), max_wait_ms=20_000)))
    waits.start()
    producer.produce(topic, batch_of(b"woken"), partition=2)
    waits.join(10)
    assert not waits.is_alive(), "the fetch was not woken"
    assert {key: values(part) for key, part in partitions(answers[0]).items()} == {(topic, 2): [b"woken"]}


def test_a_deleted_topic_is_told_in_a_session_and_its_successor_found(
    cluster: Any, raw: Any, topic: str, asked: Asked, batch_of: BatchOf
) -> None:
    client, other = raw(cluster), raw(cluster)
    session = client.fetch((topic, asked(0)), session=(0, 0)).session_id
    answers: list[Any] = []
    waits = threading.Thread(target=lambda: answers.append(client.fetch(session=(session, 1), max_wait_ms=20_000)))
    waits.start()
    other.ask(ApiKey.DELETE_TOPICS, 5, topic_names=[topic], timeout_ms=9_000)
    waits.join(10)
    assert not waits.is_alive(), "the fetch was not woken"
    assert [part.error for part in partitions(answers[0]).values()] == [Code.UNKNOWN_TOPIC_OR_PARTITION]
    other.create(topic)
    other.produce(topic, batch_of(b"new life"))
    found = client.fetch((topic, asked(0)), session=(session, 2))
    assert values(partitions(found)[topic, 0]) == [b"new life"]


def test_by_topic_id(cluster: Any, raw: Any, asked: Asked, batch_of: BatchOf) -> None:
    client, name = raw(cluster), cluster.topic()
    topic_id = client.create(name)
    client.produce(name, batch_of(b"a"))
    for version in (13, 14, 15, 16):
        (topic,) = client.fetch((topic_id, asked(0)), version=version).topics
        assert (topic.topic_id, values(topic.partitions[0])) == (topic_id, [b"a"])
    (unknown,) = client.fetch((b"\x01" * 16, asked(0)), version=13).topics
    assert unknown.partitions[0].error == Code.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("version", range(4, 13))
def test_every_version_reads(cluster: Any, raw: Any, asked: Asked, batch_of: BatchOf, version: int) -> None:
    client, name = raw(cluster), cluster.topic()
    client.create(name)
    client.produce(name, batch_of(b"a", b"b"))
    client.produce(name, batch_of(b"c"))
    (part,) = partitions(client.fetch((name, asked(1)), version=version)).values()
    assert (part.error, part.high_watermark, part.last_stable) == (0, 3, 3)
    assert values(part) == [b"a", b"b", b"c"]  # the batch that holds offset 1, whole


def test_waiting_ends_with_max_wait_or_when_min_bytes_are_there(
    cluster: Any, raw: Any, topic: str, asked: Asked, batch_of: BatchOf
) -> None:
    client = raw(cluster)
    client.produce(topic, batch_of(b"a"))
    began = time.monotonic()
    (part,) = partitions(client.fetch((topic, asked(0)), max_wait_ms=300, min_bytes=100_000)).values()
    assert time.monotonic() - began >= 0.3
    assert values(part) == [b"a"]
    began = time.monotonic()
    capped = client.fetch((topic, asked(0)), max_wait_ms=20_000, min_bytes=100_000, max_bytes=10)
    assert time.monotonic() - began < 10, "more than max_bytes can never come"
    assert values(next(iter(partitions(capped).values()))) == [b"a"]


@pytest.mark.parametrize("limits", [{"max_bytes": 0}, {"max_bytes": -5}, {"max_bytes": 1}])
def test_the_first_batch_comes_however_small_the_limit(
    cluster: Any, raw: Any, topic: str, asked: Asked, batch_of: BatchOf, limits: dict[str, int]
) -> None:
    client = raw(cluster)
    client.produce(topic, batch_of(b"a" * 1000))
    client.produce(topic, batch_of(b"b"))
    (part,) = partitions(client.fetch((topic, asked(0, **limits)), **limits)).values()
    assert values(part) == [b"a" * 1000]


def test_partitions_take_turns_when_an_answer_is_full(
    cluster: Any, raw: Any, topic: str, asked: Asked, batch_of: BatchOf
) -> None:
    client = raw(cluster)
    for number in range(3):
        for _ in range(4):
            client.produce(topic, batch_of(b"x" * 5_000), partition=number)
    offsets = dict.fromkeys(range(3), 0)
    everything = [(topic, asked(0, partition=number)) for number in range(3)]
    response = client.fetch(*everything, session=(0, 0), max_bytes=6_000)
    session, served = response.session_id, []
    for epoch in range(1, 13):
        moved = []
        for (_, number), part in partitions(response).items():
            if part.records:
                served.append(number)
                offsets[number] += len(values(part))
                moved.append((topic, asked(offsets[number], partition=number)))
        response = client.fetch(*moved, session=(session, epoch), max_bytes=6_000)
    assert offsets == {0: 4, 1: 4, 2: 4}
    assert set(served[:3]) == {0, 1, 2}, served


@pytest.mark.parametrize(
    ("offset", "code"), [(-1, Code.OFFSET_OUT_OF_RANGE), (3, Code.OFFSET_OUT_OF_RANGE), (2, Code.NONE)]
)
def test_offsets_out_of_range(
    cluster: Any, raw: Any, topic: str, asked: Asked, batch_of: BatchOf, offset: int, code: Code
) -> None:
    client = raw(cluster)
    client.produce(topic, batch_of(b"a", b"b"))
    (part,) = partitions(client.fetch((topic, asked(offset)), max_wait_ms=10)).values()
    assert (part.error, part.records) == (code, [])


def test_stale_and_future_leader_epochs(cluster: Any, raw: Any, topic: str, asked: Asked, batch_of: BatchOf) -> None:
    client = raw(cluster)
    client.produce(topic, batch_of(b"a"))
    cluster.admin("roll", {"topic": topic, "partition": 0})
    now = cluster.admin("chain", {"topic": topic, "partition": 0})[-1]["leader_epoch"]
    assert now > 0
    for epoch, code in ((now, 0), (now - 1, Code.FENCED_LEADER_EPOCH), (now + 1, Code.UNKNOWN_LEADER_EPOCH)):
        (part,) = partitions(client.fetch((topic, asked(0, leader_epoch=epoch)))).values()
        assert part.error == code


def test_old_offsets_are_read_across_rolls_and_the_epochs_tell(
    new_cluster: Any, raw: Any, asked: Asked, batch_of: BatchOf
) -> None:
    cluster = new_cluster("--partitionlet-bytes=1048576", "--chunk-bytes=4194304")
    client, topic = raw(cluster), "/default:rolled"
    client.create(topic)
    for number in range(80):
        assert client.produce(topic, batch_of(*(b"%03d" % number + b"x" * 10_000 for _ in range(10)))).error == 0
    chain = cluster.admin("chain", {"topic": topic})
    assert len(chain) >= 7
    assert [row["first"] for row in chain[1:]] == [row["end"] for row in chain[:-1]]
    epochs = [row["leader_epoch"] for row in chain]
    assert epochs == sorted(set(epochs)), "a roll raises the leader epoch"
    cluster.restart()
    client = raw(cluster)
    for offset in (0, 799, 333, chain[3]["first"], chain[3]["first"] - 1):
        records = client.records(topic, offset=offset)
        assert [record.offset for record in records] == list(range(offset, 800))
        assert [record.value[:3] for record in records] == [b"%03d" % (each // 10) for each in range(offset, 800)]
    for row in chain[:-1]:
        part = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": row["leader_epoch"]}
        answer = client.ask(
            ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, replica_id=-1, topics=[{"topic": topic, "partitions": [part]}]
        )
        (end,) = answer.topics[0].partitions
        assert (end.error_code, end.leader_epoch, end.end_offset) == (0, row["leader_epoch"], row["end"])
