"""One answer to Fetch: what it reports on the partitions of a session, and how many records it has."""

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from headrace.base.errors import Code
from headrace.kafka.fetch_sessions import FetchSession, Key, WatchedPartition
from headrace.wire.fetch import FetchResult, FetchTopicResult, encode_response
from headrace.wire.primitives import Buffer

_COUNT: Final = struct.Struct(">i")
_COUNT_AT: Final = 57
"""Offset of the number of records in a record batch's header."""
_OFFSETS: Final = struct.Struct(">q15xi")
"""The first fields of a record batch: its base offset and, relative to that, its last offset."""
_LENGTH_AND_COUNT: Final = struct.Struct(">i45xi")
_LENGTH_AT: Final = 8
"""Offset of the length in a record batch's header. The length counts the bytes that follow it."""
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
"""The error codes that clients handle in an answer to Fetch; Java's consumer ends at any other code. Temporary errors
with other codes are reported as NOT_LEADER_OR_FOLLOWER, which makes clients retry."""


class FetchAnswer:
    """One answer, built partition by partition. Its records count as traffic of their topics."""

    __slots__ = ("_by_topic", "_counts", "_session", "bytes", "errors")

    def __init__(self, session: FetchSession, counts: Mapping[Key, int] | None = None) -> None:
        """`counts`: the numbers of records of partitions that were read from disk; those of the others are counted
        here."""
        self._session = session
        self._counts = counts
        self._by_topic: dict[str | bytes, list[FetchResult]] = {}
        self.bytes = 0
        """Bytes of records in the answer."""
        self.errors: list[int] = []
        """Error codes of partitions."""

    def add(self, interest: WatchedPartition, records: list[Buffer] | None) -> None:
        """Add a partition's result, unless the session is incremental and nothing has changed."""
        result = _result(interest, records)
        if self._session.incremental and not _is_news(interest, result):
            return
        interest.sent_high_watermark = result.high_watermark
        interest.sent_log_start = result.log_start
        key, active = interest.key, self._session.active
        self._by_topic.setdefault(key[0], []).append(result)
        if result.error:
            self.errors.append(result.error)
        if batches := result.records:
            size = sum(map(len, batches))
            self.bytes += size
            if (topic := interest.topic) is not None:
                count = None if self._counts is None else self._counts.get(key)
                if count is None:
                    # Records that are produced here leave no gaps between offsets; copies of another cluster's records
                    # may.
                    count = record_count_of_tail(batches, topic.home is None)
                traffic = topic.traffic
                traffic.out_bytes += size
                traffic.out_records += count
            if key in active:  # served: moves behind the others for the next time
                active[key] = active.pop(key)

    def encode(self, version: int, throttle_ms: int = 0) -> list[Buffer]:
        """The answer's body. May run in any thread once all partitions are added."""
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
    """The number of records in whole batches, of which each buffer may hold several. Reads each batch's header."""
    found = 0
    for buffer in batches:
        at, last = _LENGTH_AT, len(buffer) - _LENGTH_AND_COUNT.size
        while at <= last:
            length, count = _LENGTH_AND_COUNT.unpack_from(buffer, at)
            found += count
            at += _LENGTH_AT + 4 + max(0, length)
    return found


def record_count_of_tail(batches: Sequence[Buffer], is_dense: bool) -> int:
    """The number of records in adjacent batches, one per buffer, at least one. `is_dense`: there are no gaps between
    offsets, so the first and the last batch suffice, however many there are."""
    if len(batches) == 1:
        (count,) = _COUNT.unpack_from(batches[0], _COUNT_AT)
        return int(count)
    if is_dense:
        (begin, _), (base, delta) = _OFFSETS.unpack_from(batches[0]), _OFFSETS.unpack_from(batches[-1])
        return int(base + delta + 1 - begin)
    return sum(_COUNT.unpack_from(batch, _COUNT_AT)[0] for batch in batches)


def _is_news(interest: WatchedPartition, result: FetchResult) -> bool:
    return (
        bool(result.records)
        or result.error != 0
        or result.high_watermark != interest.sent_high_watermark
        or result.log_start != interest.sent_log_start
    )


def _result(interest: WatchedPartition, records: list[Buffer] | None) -> FetchResult:
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
