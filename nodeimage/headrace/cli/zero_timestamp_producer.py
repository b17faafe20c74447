"""A producer for records with timestamp 0 (1970-01-01T00:00:00.000Z): the first readings of files with relative times.

librdkafka replaces a timestamp of 0 by the time of sending. So our own client sends these records: one record batch for
each partition, with a producer id, so that a batch is stored once however often it is sent. Keys map to partitions as
in librdkafka's producers, by the CRC-32 of the key.
"""

import random
import time
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from headrace.base.errors import Code, HeadraceError, MalformedRequest, code_of
from headrace.cli.kafka_client import client_errors, partitions_of
from headrace.kafka_client.blocking_client import Access, BrokerConnection
from headrace.wire import produce as codec
from headrace.wire.api_keys import ApiKey
from headrace.wire.batch import build_batch

PRODUCE_VERSION: Final = 7
INIT_PRODUCER_ID_VERSION: Final = 0
METADATA_TIMEOUT_S: Final = 10.0
GIVEN_UP_S: Final = 60.0
AGAIN_S: Final = 0.1
ACKNOWLEDGE_WITHIN_MS: Final = 30_000
TRANSIENT: Final = frozenset(
    {
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.LEADER_NOT_AVAILABLE,
        Code.NOT_ENOUGH_REPLICAS,
        Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        Code.REQUEST_TIMED_OUT,
        Code.KAFKA_STORAGE_ERROR,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.COORDINATOR_LOAD_IN_PROGRESS,
        Code.COORDINATOR_NOT_AVAILABLE,
    }
)
"""Errors after which the same batch is sent again. A new topic, for instance, is not known everywhere yet."""


HELD_BYTES: Final = 512 << 10
"""Bytes of held records at which the producer is full, approximately. All in one batch, they fit topics' default limit.
"""
RECORD_BYTES: Final = 32
MAX_SEQUENCE: Final = 2**31 - 1
"""Largest sequence number, after which numbering restarts at 0."""

T = TypeVar("T")
Place = tuple[str, int]
"""(topic, partition)"""


class NotStored(HeadraceError):
    """Records could not be stored."""


class Record(NamedTuple):
    """A record to send."""

    topic: str
    partition: int
    """The partition; -1: chosen by key."""
    key: bytes | None
    value: bytes
    headers: Sequence[tuple[str, bytes]]


class _Batch(NamedTuple):
    """A record batch that may have been sent already. Whatever happens, it is resent unchanged."""

    content: bytes
    records: int
    following: int
    """The sequence number after the batch."""


class ZeroTimestampProducer:
    """Stores records with timestamp 0. `client`: a librdkafka producer, which looks up partitions' leaders.

    It can be interrupted anywhere: records that `flush` had not stored are stored, once, when it is called again.
    """

    def __init__(self, client: Any, *, client_id: str, timeout_s: float, access: Access) -> None:
        self.stored = 0
        self._client = client
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._access = access
        self._connections: dict[tuple[str, int], BrokerConnection] = {}
        self._id: tuple[int, int] | None = None
        self._next: dict[Place, int] = {}
        """The sequence number of each partition's next batch."""
        self._held_bytes = 0
        self._waiting: tuple[list[Record], dict[Place, _Batch]] = [], {}
        """The held records, and the batches built from earlier ones; both are replaced in one step."""

    @property
    def is_full(self) -> bool:
        """Whether it holds as much as a batch should contain."""
        return self._held_bytes >= HELD_BYTES

    def hold(self, record: Record) -> None:
        """Hold a record until `flush` stores it."""
        held, _ = self._waiting
        held.append(record)
        self._held_bytes += RECORD_BYTES + len(record.key or b"") + len(record.value)

    @property
    def is_idle(self) -> bool:
        """Whether all records are stored."""
        return not any(self._waiting)

    def flush(self) -> None:
        """Return when all records are stored, in their order within a partition. Raises NotStored, KafkaClientError."""
        self._send_batches()
        held, _ = self._waiting
        by_place: dict[Place, list[Record]] = {}
        for record in held:
            by_place.setdefault((record.topic, self._partition(record)), []).append(record)
        if by_place:
            self._waiting = [], {place: self._batch(place, records) for place, records in by_place.items()}
            self._held_bytes = 0
        self._send_batches()

    def close(self) -> None:
        """Close the connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _send_batches(self) -> None:
        _, batches = self._waiting
        for place, batch in list(batches.items()):
            self._retried(place, partial(self._send, place, batch))
            self._next[place] = batch.following
            del batches[place]
            self.stored += batch.records

    def _send(self, place: Place, batch: _Batch, connection: BrokerConnection) -> None:
        """Send a batch. Raises _Retry, NotStored, OSError."""
        topic, partition = place
        brought = codec.PartitionRecords(topic, partition, memoryview(batch.content))
        request = codec.ProduceRequest(None, -1, ACKNOWLEDGE_WITHIN_MS, [brought])
        answer = connection.call(ApiKey.PRODUCE, PRODUCE_VERSION, codec.encode_request(PRODUCE_VERSION, request))
        (result,), _ = codec.decode_response(answer, 0, PRODUCE_VERSION)
        _check(result.error, result.message, place)

    def _batch(self, place: Place, records: Sequence[Record]) -> _Batch:
        if self._id is None:
            self._id = self._retried(place, self._take_id)
        producer_id, epoch = self._id
        first = self._next.get(place, 0)
        content = build_batch(
            [(0, each.key, each.value, each.headers) for each in records],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=first,
        )
        return _Batch(bytes(content), len(records), (first + len(records)) & MAX_SEQUENCE)

    def _take_id(self, connection: BrokerConnection) -> tuple[int, int]:
        fields = {"transactional_id": None, "transaction_timeout": 0}
        answer = connection.ask(ApiKey.INIT_PRODUCER_ID, INIT_PRODUCER_ID_VERSION, fields)
        _check(int(answer.error_code), "no producer id", None)
        return int(answer.producer_id), int(answer.producer_epoch)

    def _retried(self, place: Place, ask: Callable[[BrokerConnection], T]) -> T:
        """The result of `ask` at the partition's leader, retried if that may help. Raises NotStored."""
        deadline = time.monotonic() + GIVEN_UP_S
        while True:
            try:
                return ask(self._leader(*place))
            except (OSError, MalformedRequest) as error:
                failure = str(error)
                self.close()
            except _Retry as error:
                failure = str(error)
            if time.monotonic() >= deadline:
                raise NotStored(f"{place[0]}/{place[1]}: {failure}")
            time.sleep(AGAIN_S)

    def _partition(self, record: Record) -> int:
        if record.partition >= 0:
            return record.partition
        partitions = partitions_of(self._client, record.topic)
        return zlib.crc32(record.key) % len(partitions) if record.key else random.choice(partitions)

    def _leader(self, topic: str, partition: int) -> BrokerConnection:
        """A connection to the partition's leader. Raises OSError, KafkaClientError."""
        with client_errors(topic):
            metadata = self._client.list_topics(topic, timeout=METADATA_TIMEOUT_S)
        known = metadata.topics[topic].partitions.get(partition)
        leader = metadata.brokers.get(known.leader) if known is not None else None
        if leader is None:
            raise ConnectionError("nobody leads the partition")
        address = str(leader.host), int(leader.port)
        if address not in self._connections:
            self._connections[address] = BrokerConnection(
                *address, self._client_id, self._timeout_s, access=self._access
            )
        return self._connections[address]


class _Retry(Exception):
    """A failure that may not recur in a moment."""


def _check(error: int, message: str | None, place: Place | None) -> None:
    if not error:
        return
    code = code_of(error)
    text = message or code.name.lower().replace("_", " ")
    if code in TRANSIENT:
        raise _Retry(text)
    raise NotStored(f"{place[0]}/{place[1]}: {text}" if place else f"{text}: {code.name.lower()}")
