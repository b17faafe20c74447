"""Reads a task's offset ranges from the nodes that lead them, as Arrow record batches.

Handles Fetch requests and their errors: moved leaders, preferred replicas, lost nodes, expired offsets. Ranges on one
node share a request; the next request is sent before the last response is decoded, so that the node and the task work
concurrently. Nothing above the high watermark is read, as nodes return no such records (invariant 2 of
docs/architecture.md); nor are records of open or aborted transactions, unless the options say otherwise.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.base.errors import Code
from headrace.wire import fetch
from headrace.wire.api_keys import ApiKey
from headrace_spark.cluster import BROKEN, Cluster
from headrace_spark.decode import AbortedTransaction, CorruptRecords, Records, decode, whole_batches
from headrace_spark.encode import HEADER
from headrace_spark.errors import RETRIABLE, BrokerError, DataLoss, code_name
from headrace_spark.options import EARLIEST, Partition, ReadOptions
from headrace_spark.plan import OffsetRange

log = logging.getLogger(__name__)

VERSION = 12
"""Version of Fetch: the last one that identifies topics by name."""
ANSWER_BYTES = 4 << 20
"""The maximum number of bytes of records in one response: they are decoded at once, and numpy's arrays are to fit into
a processor's caches.
"""
RANGES_PER_REQUEST = 256
WAIT_MS = 500
BATCH_ROWS, BATCH_BYTES = 4096, 1 << 20
"""Arrow batches below both sizes are joined, so that many small ranges do not cost a batch each."""
SAMPLE_BYTES = 4096
MAX_MILLIS = (2**63 - 1) // 1000
"""The most milliseconds that fit into 64 bits as microseconds."""


@dataclass(slots=True)
class _Progress:
    """The progress of one range."""

    range: OffsetRange
    position: int
    replica: int | None = None
    """The node that the leader named for these offsets."""

    @property
    def done(self) -> bool:
        return self.position >= self.range.end


@dataclass(slots=True)
class _Decoding:
    """Received record bytes of one range that are still to be decoded."""

    range: OffsetRange
    first: int
    records: memoryview
    aborted: list[AbortedTransaction] = field(default_factory=list)


def read_ranges(ranges: Sequence[OffsetRange], *, options: ReadOptions, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the records of all ranges as batches of `schema`; each range in order of offsets. Raises SourceError."""
    with Cluster(options.connection) as cluster:
        yield from _joined(_RangeReader(cluster, ranges, options).batches(schema))


def mean_record_bytes(
    cluster: Cluster, places: Sequence[tuple[Partition, int]], *, options: ReadOptions
) -> dict[Partition, float]:
    """Return the bytes per offset of each partition, estimated from the record batches at the given offset, as stored,
    so compressed.

    Partitions that cannot be sampled (expired, moved) are left out. Never raises for an unreachable node: sizes only
    help to divide the work.
    """
    sizes: dict[Partition, float] = {}
    leaders = cluster.leaders(partition for partition, _ in places)
    for node in set(leaders.values()):
        group = [place for place in places if leaders.get(place[0]) == node]
        request = fetch_request(
            group,
            read_committed=options.read_committed,
            partition_bytes=SAMPLE_BYTES,
            answer_bytes=SAMPLE_BYTES * len(group),
        )
        try:
            answer = cluster.to_node(node).call(ApiKey.FETCH, VERSION, request)
            response = fetch.decode_response(answer, 0, VERSION)
        except (*BROKEN, KeyError):
            cluster.drop(node)
            continue
        for topic in response.topics:
            for result in topic.partitions:
                mean = _mean_bytes(_contiguous(result.records))
                if mean is not None:
                    sizes[topic.topic or "", result.partition] = mean
    return sizes


def _mean_bytes(records: memoryview) -> float | None:
    """Return the mean bytes per offset of the batches with complete headers, the last of which may be truncated."""
    size = offsets = place = 0
    while place + HEADER.size <= len(records):
        _, length, _, _, _, _, delta, *_ = HEADER.unpack_from(records, place)
        if length <= 0 or delta < 0:
            break
        size, offsets, place = size + length + 12, offsets + delta + 1, place + length + 12
    return size / offsets if offsets else None


class _RangeReader:
    """Reads ranges over one Cluster."""

    def __init__(self, cluster: Cluster, ranges: Sequence[OffsetRange], options: ReadOptions) -> None:
        self._cluster = cluster
        self._options = options
        self._open = {index: _Progress(one, one.start) for index, one in enumerate(ranges)}
        self._retry = cluster.retry("read records")

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the records of every range up to its end."""
        asked: tuple[int, list[_Progress]] | None = None
        while asked or self._unfinished():
            if asked is None:
                asked = self._ask()
            received = self._receive(*asked) if asked else []
            asked = self._ask() if received else None
            for one in received:
                records = self._decode(one)
                if records is not None:
                    yield to_arrow(records, one.range, schema=schema, options=self._options)

    def _unfinished(self) -> bool:
        self._open = {index: one for index, one in self._open.items() if not one.done}
        return bool(self._open)

    def _ask(self) -> tuple[int, list[_Progress]] | None:
        """Send a request for the first unfinished ranges that one node has; return (node, ranges), or None if none was
        sent.
        """
        if not self._unfinished():
            return None
        try:
            leaders = self._cluster.leaders({one.range.key for one in self._open.values()})
        except BROKEN as error:
            self._retry.pause(error)
            return None
        node, group = None, list[_Progress]()
        seen: set[Partition] = set()
        for one in self._open.values():
            place = one.replica if one.replica is not None else leaders.get(one.range.key)
            if place is None or one.range.key in seen or (node is not None and place != node):
                continue
            node = place
            seen.add(one.range.key)
            group.append(one)
            if len(group) == RANGES_PER_REQUEST:
                break
        if node is None:
            self._without_leaders()
            return None
        try:
            request = fetch_request(
                [(one.range.key, one.position) for one in group],
                read_committed=self._options.read_committed,
                partition_bytes=ANSWER_BYTES,
                answer_bytes=ANSWER_BYTES,
            )
            self._cluster.to_node(node).send(ApiKey.FETCH, VERSION, request)
        except (*BROKEN, KeyError) as error:
            self._lost(node, group, error)
            return None
        return node, group

    def _receive(self, node: int, group: list[_Progress]) -> list[_Decoding]:
        """Return the records in the response, in the order of the request, and advance the positions."""
        try:
            # Valid until the next answer of this node: `batches` decodes it before it receives again.
            answer = self._cluster.to_node(node).receive(passing=True)
            response = fetch.decode_response(answer, 0, VERSION)
        except BROKEN as error:
            self._lost(node, group, error)
            return []
        results = {
            (topic.topic or "", result.partition): result for topic in response.topics for result in topic.partitions
        }
        received, trouble = list[_Decoding](), int(response.error)
        for one in group:
            result = results.get(one.range.key)
            if result is None:
                continue
            if result.error != Code.NONE:
                trouble = self._refused(one, result.error) or trouble
                continue
            if result.preferred_replica >= 0 and result.preferred_replica != node:
                one.replica = result.preferred_replica
                continue
            records = _contiguous(result.records)
            following = _following(records, one.position)
            if following > one.position:
                aborted = [AbortedTransaction(*pair) for pair in result.aborted or ()]
                received.append(_Decoding(one.range, one.position, records, aborted))
                one.position = following
                self._retry.progressed()
        if not received and trouble:
            self._retry.pause(trouble)
        elif not received:
            self._retry.pause(Code.OFFSET_NOT_AVAILABLE)
        return received

    def _decode(self, one: _Decoding) -> Records | None:
        try:
            records, _ = decode(
                one.records,
                first=one.first,
                end=one.range.end,
                aborted=one.aborted if self._options.read_committed else (),
                with_headers=self._options.include_headers,
            )
        except CorruptRecords as error:
            raise BrokerError(
                Code.CORRUPT_MESSAGE, f"{one.range.topic}/{one.range.partition} from offset {one.first}: {error}"
            ) from error
        return records

    def _without_leaders(self) -> None:
        """No remaining range has a leader: wait, and skip ranges of absent partitions once the allowed time is over.

        Not earlier, since a node that has just started may not know a topic yet.
        """
        try:
            self._retry.pause(Code.LEADER_NOT_AVAILABLE)
        except BrokerError:
            gone = [one for one in self._open.values() if self._cluster.is_absent(one.range.key)]
            if not gone:
                raise
            for one in gone:
                raise_or_skip(
                    self._options,
                    f"{one.range.topic}/{one.range.partition} is gone from the cluster, "
                    f"with offsets {one.position} to {one.range.end}",
                )
                one.position = one.range.end
            self._retry.progressed()

    def _lost(self, node: int, group: list[_Progress], error: Exception) -> None:
        self._cluster.drop(node)
        for one in group:
            one.replica = None
        self._retry.pause(error)

    def _refused(self, one: _Progress, code: int) -> int:
        """Handle a partition's error code; return it if the request is to be repeated."""
        one.replica = None
        name = f"{one.range.topic}/{one.range.partition}"
        if code == Code.OFFSET_OUT_OF_RANGE:
            self._out_of_range(one, name)
            return 0
        if code not in RETRIABLE:
            raise BrokerError(code, f"{name}: the node answers {code_name(code)}")
        self._cluster.forget(one.range.key)
        return code

    def _out_of_range(self, one: _Progress, name: str) -> None:
        from headrace_spark.offsets import find_offsets  # loads slowly, and few tasks need it

        earliest = find_offsets(self._cluster, {one.range.key: EARLIEST}, read_committed=False)[one.range.key]
        if earliest <= one.position:
            raise_or_skip(
                self._options, f"{name}: offsets {one.position} to {one.range.end} are gone; was the topic recreated?"
            )
            one.position = one.range.end
            return
        raise_or_skip(
            self._options,
            f"{name}: offsets {one.position} to {min(earliest, one.range.end)} have expired; the first is {earliest}",
        )
        one.position = min(earliest, one.range.end)


def raise_or_skip(options: ReadOptions, what: str) -> None:
    """Raise DataLoss; if failOnDataLoss is false, only log it."""
    if options.fail_on_data_loss:
        raise DataLoss(f"{what}. Set failOnDataLoss to false to continue without them")
    log.warning("%s; the query continues, as failOnDataLoss is false", what)


def fetch_request(
    places: Iterable[tuple[Partition, int]], *, read_committed: bool, partition_bytes: int, answer_bytes: int
) -> bytes:
    """Return a Fetch request of VERSION, for each partition from an offset on."""
    topics: dict[str, list[fetch.FetchPartition]] = {}
    for (topic, number), offset in places:
        topics.setdefault(topic, []).append(
            fetch.FetchPartition(
                partition=number,
                current_leader_epoch=-1,
                offset=offset,
                last_fetched_epoch=-1,
                log_start=-1,
                max_bytes=partition_bytes,
            )
        )
    request = fetch.FetchRequest(
        max_wait_ms=WAIT_MS,
        min_bytes=1,
        max_bytes=answer_bytes,
        isolation=1 if read_committed else 0,
        session_id=0,
        session_epoch=-1,
        topics=[fetch.FetchTopic(topic, None, partitions) for topic, partitions in topics.items()],
        forgotten=[],
        rack="",
    )
    return fetch.encode_request(VERSION, request)


def _contiguous(records: Sequence[bytes | bytearray | memoryview]) -> memoryview:
    if len(records) == 1:
        return memoryview(records[0])
    return memoryview(b"".join(records))


def _following(records: memoryview, position: int) -> int:
    """Return the offset after the last whole batch, at least `position`."""
    for batch in whole_batches(records):
        base, _, _, _, _, _, delta, *_ = HEADER.unpack_from(batch)
        position = max(position, base + delta + 1)
    return position


def to_arrow(records: Records, source: OffsetRange, *, schema: pa.Schema, options: ReadOptions) -> pa.RecordBatch:
    """Return one range's records as a batch with the columns of Spark's Kafka source."""
    rows = len(records.offset)
    topic = pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(rows, np.int32)), pa.array([options.naming.shown(source.topic)])
    )
    columns = [
        records.key,
        records.value,
        topic.cast(pa.string()),
        pa.array(np.full(rows, source.partition, np.int32)),
        pa.array(records.offset),
        micros(records.timestamp).cast(schema.field("timestamp").type),
        pa.array(records.timestamp_type),
    ]
    if records.headers is not None:
        columns.append(records.headers.cast(schema.field("headers").type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def micros(millis: npt.NDArray[np.int64]) -> pa.Array:
    """Return times in milliseconds as microseconds for Spark; null for a time that does not fit (nanoseconds by
    mistake).
    """
    fits = (millis >= -MAX_MILLIS) & (millis <= MAX_MILLIS)
    return pa.array(np.where(fits, millis, 0) * 1000, mask=~fits)


def _joined(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in the same order, in batches of at least BATCH_ROWS or BATCH_BYTES except for the last."""
    small: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        small.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= BATCH_ROWS or size >= BATCH_BYTES:
            yield small[0] if len(small) == 1 else pa.concat_batches(small)
            small, rows, size = [], 0, 0
    if small:
        yield small[0] if len(small) == 1 else pa.concat_batches(small)
