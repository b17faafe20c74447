"""A client that says on the wire exactly what a test wants said, beside the stock clients.

`raw` opens connections to a running cluster. A request's version is the test's choice; answers come back decoded.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import pytest

from headrace.kafka_client.blocking_client import BrokerConnection
from headrace.wire import fetch, generic_codec, produce
from headrace.wire.api_keys import ApiKey
from headrace.wire.batch import Record, build_batch, iter_records
from headrace.wire.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from headrace.wire.produce import PartitionRecords, ProduceRequest, ProduceResult


class Address(Protocol):
    """A running cluster, as far as a client needs it."""

    host: str
    port: int


class RawClient:
    """One connection."""

    def __init__(self, address: Address) -> None:
        self.connection = BrokerConnection(address.host, address.port, "raw", 30.0)

    def ask(self, key: ApiKey, version: int, **fields: Any) -> Any:
        """Any API but the hot ones: the decoded answer."""
        body = self.connection.call(key, version, generic_codec.encode_request(key, version, fields))
        return generic_codec.decode_response(key, version, body)

    def produce(
        self, topic: str, batch: bytes | bytearray, *, partition: int = 0, acks: int = -1, version: int = 9
    ) -> ProduceResult:
        """Produces one batch; the partition's result."""
        request = ProduceRequest(None, acks, 10_000, [PartitionRecords(topic, partition, memoryview(batch))])
        body = self.connection.call(ApiKey.PRODUCE, version, produce.encode_request(version, request))
        ((result,), _throttle) = produce.decode_response(body, 0, version)
        return result

    def fetch(
        self,
        *partitions: tuple[str | bytes, FetchPartition],
        session: tuple[int, int] = (0, -1),
        forgotten: Sequence[tuple[str, int]] = (),
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        max_bytes: int = 50 << 20,
        version: int = 12,
    ) -> FetchResponse:
        """Fetches (topic name, or id from version 13 on; what is asked of one partition)."""
        topics = [
            FetchTopic(name, None, [asked]) if isinstance(name, str) else FetchTopic(None, name, [asked])
            for name, asked in partitions
        ]
        gone: list[tuple[str | None, bytes | None, list[int]]] = [(name, None, [number]) for name, number in forgotten]
        request = FetchRequest(max_wait_ms, min_bytes, max_bytes, 0, *session, topics, gone, "")
        body = self.connection.call(ApiKey.FETCH, version, fetch.encode_request(version, request))
        return fetch.decode_response(body, 0, version)

    def records(self, topic: str, *, partition: int = 0, offset: int = 0) -> list[Record]:
        """All records from `offset` to the high watermark, which is asked for with the first fetch."""
        found: list[Record] = []
        while True:
            response = self.fetch((topic, asked(offset, partition=partition)))
            (result,) = response.topics[0].partitions
            assert result.error == 0, result
            for records in result.records:
                found += [record for record in iter_records(records) if record.offset >= offset]
            if found:
                offset = found[-1].offset + 1
            if offset >= result.high_watermark:
                return found
            assert result.records, f"nothing at {offset} of {result.high_watermark}"

    def create(self, topic: str, *, partitions: int = 1, **configs: str) -> bytes:
        """Makes a topic; its id."""
        answer = self.ask(
            ApiKey.CREATE_TOPICS,
            7,
            topics=[
                {
                    "name": topic,
                    "num_partitions": partitions,
                    "replication_factor": -1,
                    "configs": [{"name": name.replace("_", "."), "value": value} for name, value in configs.items()],
                }
            ],
            timeout_ms=10_000,
        )
        (made,) = answer.topics
        assert not made.error_code, made
        return bytes(made.topic_id.bytes)

    def close(self) -> None:
        """Closes the connection."""
        self.connection.close()


def asked(offset: int, *, partition: int = 0, max_bytes: int = 1 << 20, leader_epoch: int = -1) -> FetchPartition:
    """What a fetch asks of one partition."""
    return FetchPartition(partition, leader_epoch, offset, -1, -1, max_bytes)


def batch_of(*values: bytes, **fields: Any) -> bytearray:
    """A record batch of these values, all of now; `fields` as `build_batch` has them."""
    now = int(time.time() * 1000)
    return build_batch([(now, None, value, []) for value in values], **fields)


@pytest.fixture
def raw() -> Iterator[Callable[[Address], RawClient]]:
    """Opens raw connections; closed after the test."""
    opened: list[RawClient] = []

    def connect(address: Address) -> RawClient:
        client = RawClient(address)
        opened.append(client)
        return client

    yield connect
    for client in opened:
        client.close()


@pytest.fixture(name="asked")
def asked_fixture() -> Callable[..., FetchPartition]:
    """`asked(offset, ...)`: what a fetch asks of one partition."""
    return asked


@pytest.fixture(name="batch_of")
def batch_of_fixture() -> Callable[..., bytearray]:
    """`batch_of(b"value", ...)`: a record batch."""
    return batch_of
