"""Records with timestamp 0: each is stored once, in order, despite interrupts, losses and late answers."""

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.base.errors import Code
from headrace.cli import zero_timestamp_producer
from headrace.cli.zero_timestamp_producer import NotStored, Record, ZeroTimestampProducer
from headrace.kafka_client.blocking_client import Access
from headrace.security.client_security import Security
from headrace.wire import generic_codec
from headrace.wire import produce as codec
from headrace.wire.api_keys import ApiKey
from headrace.wire.batch import iter_batches, iter_records


class Node:
    """A node's answers, and its stored records; a batch with a known sequence is stored once."""

    def __init__(self) -> None:
        self.stored: dict[int, list[Any]] = {}
        self.sequences: dict[int, int] = {}
        self.times: set[int] = set()
        self.troubles: list[Any] = []

    def __call__(self, *_: object, **__: object) -> "Node":
        return self

    def close(self) -> None:
        """Nothing to close."""

    def ask(self, api: ApiKey, version: int, fields: dict[str, object]) -> Any:
        assert api == ApiKey.INIT_PRODUCER_ID
        return generic_codec.decode_response(api, version, bytes(6) + (7).to_bytes(8, "big") + bytes(2))

    def call(self, api: int, version: int, body: bytes) -> memoryview:
        (brought,) = codec.decode_request(memoryview(bytearray(body)), 0, version).partitions
        trouble = self.troubles.pop(0) if self.troubles else None
        if isinstance(trouble, Code):
            return self._answer(brought, trouble, version)
        assert brought.records is not None
        for header, batch in iter_batches(brought.records):
            known = self.sequences.get(brought.partition, 0)
            if header.base_sequence == known:
                self.sequences[brought.partition] = known + header.record_count
                records = list(iter_records(batch))
                self.stored.setdefault(brought.partition, []).extend(each.value for each in records)
                self.times |= {each.timestamp for each in records}
            else:
                assert header.base_sequence + header.record_count == known, "neither the next batch nor the last one"
        if trouble is not None:
            raise trouble
        return self._answer(brought, Code.NONE, version)

    @staticmethod
    def _answer(brought: codec.PartitionRecords, code: Code, version: int) -> memoryview:
        result = codec.ProduceResult(brought.topic, brought.partition, int(code))
        return memoryview(codec.encode_response(version, [result]))


class Client:
    """A librdkafka client that only answers metadata requests."""

    def list_topics(self, topic: str, *, timeout: float) -> Any:
        partitions = {number: SimpleNamespace(leader=1) for number in range(2)}
        topics = {topic: SimpleNamespace(partitions=partitions, error=None)}
        return SimpleNamespace(topics=topics, brokers={1: SimpleNamespace(host="h", port=1)})


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    node = Node()
    monkeypatch.setattr(zero_timestamp_producer, "BrokerConnection", node)
    monkeypatch.setattr(zero_timestamp_producer, "AGAIN_S", 0.0)
    return node


def producer(*values: bytes) -> ZeroTimestampProducer:
    made = ZeroTimestampProducer(Client(), client_id="test", timeout_s=1, access=Access(Security()))
    for value in values:
        made.hold(Record("t", 0, None, value, ()))
    return made


@pytest.mark.parametrize(
    "troubles",
    [
        [],
        [ConnectionError("gone after it was stored")],
        [TimeoutError("late"), Code.NOT_LEADER_OR_FOLLOWER, Code.UNKNOWN_TOPIC_OR_PARTITION],
    ],
)
def test_each_record_is_stored_once_whatever_is_lost(node: Node, troubles: list[Any]) -> None:
    node.troubles = troubles
    sending = producer(b"1", b"2")
    sending.flush()
    sending.hold(Record("t", 0, None, b"3", ()))
    sending.flush()
    assert node.stored == {0: [b"1", b"2", b"3"]}
    assert node.times == {0}
    assert sending.stored == 3
    assert sending.is_idle


def test_what_was_interrupted_is_stored_once_when_it_is_done_again(node: Node) -> None:
    node.troubles = [KeyboardInterrupt()]
    sending = producer(b"1", b"2")
    with pytest.raises(KeyboardInterrupt):
        sending.flush()
    sending.hold(Record("t", 0, None, b"3", ()))
    sending.flush()
    assert node.stored == {0: [b"1", b"2", b"3"]}
    assert sending.stored == 3


def test_a_refusal_that_does_not_pass_is_told(node: Node) -> None:
    node.troubles = [Code.MESSAGE_TOO_LARGE]
    with pytest.raises(NotStored, match="t/0: message too large"):
        producer(b"1").flush()


def test_much_is_not_held_back(node: Node) -> None:
    sending = producer(bytes(400 << 10))
    assert not sending.is_full
    sending.hold(Record("t", 0, None, bytes(200 << 10), ()))
    assert sending.is_full
