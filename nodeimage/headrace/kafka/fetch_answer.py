"""What one answer to Fetch tells of the partitions of a session."""

import struct
from collections.abc import Iterable
from typing import Final

from headrace.base.errors import Code
from headrace.kafka.fetch_sessions import FetchSession, Interest
from headrace.wire.fetch import FetchResult, FetchTopicResult, encode_response
from headrace.wire.primitives import Buffer

_INT: Final = struct.Struct(">i")
_LENGTH_AT: Final = 8
_COUNT_AT: Final = 57
"""In a record batch: of its length behind that, and of the number of its records."""
_ANSWERED: Final = frozenset(
    {
        Code.OFFSET_OUT_OF_RANGE,
        Code.CORRUPT_MESSAGE,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.REPLICA_NOT_AVAILABLE,
        Code.TOPIC_AUTHORIZATION_FAILED,
        Code.KAFKA_STORAGE_ERROR,
        Code.FENCED_LEADER_EPOCH,
        Code.UNKNOWN_LEADER_EPOCH,
        Code.UNKNOWN_TOPIC_ID,
        Code.INVALID_TOPIC_EXCEPTION,
    }
)
"""What clients understand in an answer to Fetch; Java's consumer ends at any other code. For those that pass they get
NOT_LEADER_OR_FOLLOWER, and come again."""


class FetchAnswer:
    """One answer, partition by partition."""

    __slots__ = ("_by_topic", "_session", "bytes", "errors", "served")

    def __init__(self, session: FetchSession) -> None:
        self._session = session
        self._by_topic: dict[str | bytes, list[FetchResult]] = {}
        self.bytes = 0
        """Of records."""
        self.errors: list[int] = []
        """Of partitions."""
        self.served: list[tuple[bytes, list[Buffer]]] = []
        """Of topics, by id, the records."""

    def add(self, interest: Interest, records: list[Buffer] | None) -> None:
        """Tell the client of a partition, if there is anything new."""
        result = _result(interest, records)
        if self._session.incremental and not _is_news(interest, result):
            return
        interest.told_high_watermark = result.high_watermark
        interest.told_log_start = result.log_start
        key, active = interest.key, self._session.active
        self._by_topic.setdefault(key[0], []).append(result)
        if result.error:
            self.errors.append(result.error)
        if result.records:
            self.bytes += sum(map(len, result.records))
            if interest.partition is not None:
                self.served.append((interest.partition.topic_id, result.records))
            if key in active:  # served: behind the others, next time
                active[key] = active.pop(key)

    def encode(self, version: int, throttle_ms: int = 0) -> list[Buffer]:
        """The answer's body. Any thread's, once all is added."""
        topics = [
            FetchTopicResult(
                topic=key if isinstance(key, str) else None,
                topic_id=key if isinstance(key, bytes) else None,
                partitions=results,
            )
            for key, results in self._by_topic.items()
        ]
        return encode_response(version, throttle_ms=throttle_ms, error=0, session_id=self._session.id, topics=topics)


def record_count(batches: Iterable[Buffer]) -> int:
    """How many records are in whole batches, by their headers."""
    found = 0
    for buffer in batches:
        at, size = 0, len(buffer)
        while at + _COUNT_AT + 4 <= size:
            found += _INT.unpack_from(buffer, at + _COUNT_AT)[0]
            at += _LENGTH_AT + 4 + max(0, _INT.unpack_from(buffer, at + _LENGTH_AT)[0])
    return found


def _is_news(interest: Interest, result: FetchResult) -> bool:
    return (
        bool(result.records)
        or result.error != 0
        or result.high_watermark != interest.told_high_watermark
        or result.log_start != interest.told_log_start
    )


def _result(interest: Interest, records: list[Buffer] | None) -> FetchResult:
    partition = interest.partition
    error = interest.error
    if partition is None or error is not None:
        known = partition is not None and not partition.deleted and not partition.left
        code = error.code if error is not None else Code.UNKNOWN_TOPIC_OR_PARTITION
        return FetchResult(
            partition=interest.key[1],
            error=code if code in _ANSWERED else Code.NOT_LEADER_OR_FOLLOWER,
            high_watermark=partition.high_watermark if known and partition is not None else -1,
            last_stable=-1,
            log_start=partition.log_start if known and partition is not None else -1,
            records=[],
        )
    return FetchResult(
        partition=interest.key[1],
        error=0,
        high_watermark=partition.high_watermark,
        last_stable=partition.high_watermark,
        log_start=partition.log_start,
        records=records or [],
    )
