"""Payloads of the frames that open and seal partitionlets."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from headrace.partitions.producer_state import Producers
from headrace.partitions.rolls import frames
from headrace.partitions.rolls.frames import Carried, Open, Seal, open_frames, read_open, read_producers, read_seal

SEAL = Seal(
    topic_id=b"t" * 16,
    partition=3,
    first=100,
    end=250,
    epochs=[(4, 100), (6, 180)],
    producers=[Carried(7, 1, [(0, 9, 240, 5000)])],
)


def test_a_seal_is_read_as_it_was_written() -> None:
    assert read_seal(msgspec.msgpack.encode(SEAL)) == SEAL
    settled = msgspec.structs.replace(SEAL, resume=120, home=(9, "north"), producers=[])
    assert read_seal(msgspec.msgpack.encode(settled)) == settled


def test_the_next_partitionlet_begins_at_the_end_unless_the_seal_says_where() -> None:
    assert SEAL.next_first == 250
    assert msgspec.structs.replace(SEAL, resume=120).next_first == 120
    assert msgspec.structs.replace(SEAL, resume=0).next_first == 0


def test_a_seal_of_before_homes_settles_none() -> None:
    fields: list[Any] = [b"t" * 16, 3, 100, 250, [[4, 100]], []]
    old = read_seal(msgspec.msgpack.encode(fields))
    assert (old.resume, old.home, old.next_first) == (-1, None, 250)


def test_a_producer_of_before_torn_batches_has_none() -> None:
    assert read_producers(msgspec.msgpack.encode([[7, 1, [[0, 9, 240, 5000]]]])) == [
        Carried(7, 1, [(0, 9, 240, 5000)], torn=False)
    ]


def row(partition: int) -> tuple[Any, Any]:
    topic = SimpleNamespace(stream="/plant", name="pump", topic_id=b"t" * 16)
    opened = SimpleNamespace(id=1000 + partition, partition=partition, first=0, leader_epoch=2, container_epoch=5)
    return topic, opened


def test_partitionlets_of_new_topics_are_opened_many_in_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "OPENED_AT_ONCE", 2)
    found = [read_open(payload) for payload in open_frames([row(partition) for partition in range(5)])]
    assert [[each.partition for each in opened] for opened in found] == [[0, 1], [2, 3], [4]]
    assert found[0][1] == Open(
        partitionlet=1001,
        stream="/plant",
        topic="pump",
        topic_id=b"t" * 16,
        partition=1,
        first=0,
        leader_epoch=2,
        container_epoch=5,
    )
    assert list(open_frames([])) == []


def test_a_partition_without_producers_carries_none() -> None:
    assert frames.carried(Producers()) == []


@pytest.mark.parametrize("read", [read_open, read_producers, read_seal])
def test_bytes_that_are_no_payload_are_refused(read: Any) -> None:
    for raw in (b"", b"\xc1", msgspec.msgpack.encode({"a": 1}), msgspec.msgpack.encode([1])):
        with pytest.raises(msgspec.DecodeError):
            read(raw)
