"""Reads a record's headers a second time, byte for byte.

A header's name may be any bytes. librdkafka's Python client (2.16.1) returns it as text: the name ends at a zero byte,
and one that is not UTF-8 cannot be read at all. So batches with such records are fetched again by our own client.
"""

import time
from typing import Any, Final

from headrace.base.errors import Code, CorruptBatch, HeadraceError, MalformedRequest
from headrace.kafka_client.blocking_client import Access, BrokerConnection
from headrace.kafka_client.errors import SourceRefuses
from headrace.wire import fetch
from headrace.wire.api_keys import ApiKey
from headrace.wire.batch import iter_records

FETCH_VERSION: Final = 4
"""The oldest version that every broker supports; a node answers it for old offsets too, wherever they lie."""
FETCH_BYTES: Final = 1 << 20
METADATA_TIMEOUT_S: Final = 10.0
GIVEN_UP_S: Final = 10.0
AGAIN_S: Final = 0.1

Headers = list[tuple[bytes, bytes | None]]


class HeadersUnreadable(HeadraceError):
    """A record's headers cannot be read a second time."""


class HeaderReader:
    """Reads headers of one topic's records, for a consumer that receives its records in order."""

    def __init__(self, consumer: Any, topic: str, *, client_id: str, timeout_s: float, access: Access) -> None:
        self._consumer = consumer
        self._topic = topic
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._access = access
        self._connections: dict[tuple[str, int], BrokerConnection] = {}
        self._read: dict[int, dict[int, Headers]] = {}
        """The headers from the last fetch of each partition, by offset."""

    def headers(self, partition: int, offset: int) -> Headers:
        """The headers of the record at the offset. Raises HeadersUnreadable if it has expired, or no node answers."""
        found = self._read.get(partition, {})
        if offset not in found:
            found = self._read[partition] = self._fetched(partition, offset)
        if offset not in found:
            raise HeadersUnreadable(f"{self._topic}/{partition}: the record at offset {offset} has gone meanwhile")
        return found[offset]

    def close(self) -> None:
        """Close the connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _fetched(self, partition: int, offset: int) -> dict[int, Headers]:
        deadline = time.monotonic() + GIVEN_UP_S
        while True:
            try:
                answer = self._fetch(partition, offset)
                if answer.error not in (Code.NOT_LEADER_OR_FOLLOWER, Code.LEADER_NOT_AVAILABLE):
                    break
                failure = Code(answer.error).name.lower().replace("_", " ")
            except (OSError, MalformedRequest, SourceRefuses) as error:
                failure = str(error)
                self.close()
            if time.monotonic() >= deadline:
                raise HeadersUnreadable(f"{self._topic}/{partition}: {failure}")
            time.sleep(AGAIN_S)
        if answer.error:
            raise HeadersUnreadable(f"{self._topic}/{partition}, offset {offset}: error {answer.error}")
        found: dict[int, Headers] = {}
        try:
            for record in iter_records(b"".join(answer.records)):
                if record.offset >= offset:
                    found[record.offset] = [
                        (name.encode("utf-8", "surrogateescape"), value) for name, value in record.headers
                    ]
        except CorruptBatch as error:  # perhaps in a batch after the requested record
            if offset not in found:
                raise HeadersUnreadable(f"{self._topic}/{partition}, offset {offset}: {error}") from error
        return found

    def _fetch(self, partition: int, offset: int) -> fetch.FetchResult:
        asked = fetch.FetchPartition(partition, -1, offset, -1, -1, FETCH_BYTES)
        topics = [fetch.FetchTopic(self._topic, None, [asked])]
        request = fetch.FetchRequest(0, 0, FETCH_BYTES, 0, 0, -1, topics, [], "")
        body = fetch.encode_request(FETCH_VERSION, request)
        answer = self._connection(partition).call(ApiKey.FETCH, FETCH_VERSION, body)
        return fetch.decode_response(answer, 0, FETCH_VERSION).topics[0].partitions[0]

    def _connection(self, partition: int) -> BrokerConnection:
        """A connection to the partition's leader. Raises OSError."""
        metadata = self._consumer.list_topics(self._topic, timeout=METADATA_TIMEOUT_S)
        known = metadata.topics[self._topic].partitions.get(partition)
        leader = metadata.brokers.get(known.leader) if known is not None else None
        if leader is None:
            raise ConnectionError("nobody leads the partition")
        place = (str(leader.host), int(leader.port))
        if place not in self._connections:
            self._connections[place] = BrokerConnection(*place, self._client_id, self._timeout_s, access=self._access)
        return self._connections[place]
