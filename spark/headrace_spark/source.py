"""`format("headrace")` for Spark: the data source, its batch reader and its stream reader.

Implements Spark's calls and their order. Readers are pickled to tasks, so they hold only options until they are used;
what a task reads is in its partition.
"""

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headrace.security.client_security import Security
from headrace_spark.errors import BadOption, SourceError
from headrace_spark.options import Partition, ReadOptions, read_options
from headrace_spark.plan import OffsetRange, StreamOffset, limited, pending, positions_to_json, spread
from headrace_spark.reading import read_ranges
from headrace_spark.sink import HeadraceBatchWriter, HeadraceStreamWriter

if TYPE_CHECKING:
    from headrace_spark.subscription import Subscription

log = logging.getLogger(__name__)

HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
COLUMNS = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
)
"""The columns of Spark's Kafka source."""


class HeadraceSource(DataSource):
    """Reads and writes topics of a Headrace cluster, or of any Apache Kafka cluster."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "headrace"

    def schema(self) -> StructType:
        """Return COLUMNS, and `headers` if includeHeaders is true."""
        options = read_options(self.options)
        return StructType([*COLUMNS.fields, StructField("headers", HEADERS)]) if options.include_headers else COLUMNS

    def reader(self, schema: StructType) -> "HeadraceBatchReader":
        """Return the reader for spark.read."""
        return HeadraceBatchReader(read_options(self.options), schema)

    def streamReader(self, schema: StructType) -> "HeadraceStreamReader":
        """Return the reader for spark.readStream."""
        return HeadraceStreamReader(read_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> HeadraceBatchWriter:
        """Return the writer for df.write: rows are always appended."""
        if overwrite:
            raise BadOption('a topic cannot be overwritten; use mode("append")')
        return HeadraceBatchWriter(self.options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> HeadraceStreamWriter:
        """Return the writer for df.writeStream."""
        return HeadraceStreamWriter(self.options, schema)


def _subscribe(options: ReadOptions) -> "Subscription":
    from headrace_spark.subscription import Subscription  # loads slowly, and tasks do not need it

    return Subscription(options)


class RangesPartition(InputPartition):
    """What one task reads."""

    def __init__(self, ranges: tuple[OffsetRange, ...]) -> None:
        super().__init__(None)
        self.ranges = ranges


def _read(partition: InputPartition, options: ReadOptions, schema: StructType) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, RangesPartition):  # Spark's own partition, if there is nothing to read
        return iter(())
    return read_ranges(partition.ranges, options=options, schema=to_arrow_schema(schema, timezone="UTC"))


class HeadraceBatchReader(DataSourceReader):
    """Reads the records between startingOffsets and endingOffsets, as resolved when the query is planned."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition per task."""
        options, subscription = self._options, _subscribe(self._options)
        try:
            partitions = subscription.partitions()
            start = subscription.at(options.starting, partitions)
            end = subscription.at(options.ending, partitions)
            ranges = pending(start, end)
            if not ranges:
                return []
            tasks = spread(
                ranges,
                weight=subscription.record_bytes(ranges),
                bytes_per_task=options.bytes_per_task,
                parallel=options.min_partitions,
            )
        finally:
            subscription.close()
        return [RangesPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return a task's records."""
        return _read(partition, self._options, self._schema)


class HeadraceStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream of micro-batches.

    Spark asks for the initial offset until a first batch is planned; the offset must not change meanwhile, so it is
    kept.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._asked: Subscription | None = None
        self._initial: StreamOffset | None = None
        self._target: Mapping[Partition, int] | None = None
        self._planned: StreamOffset | None = None
        self._latest: Mapping[Partition, int] = {}

    def __getstate__(self) -> tuple[ReadOptions, StructType]:
        return self._options, self._schema

    def __setstate__(self, state: tuple[ReadOptions, StructType]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    @property
    def _subscription(self) -> "Subscription":
        if self._asked is None:
            self._asked = _subscribe(self._options)
        return self._asked

    def initialOffset(self) -> dict[str, Any]:
        """Return where a query without a checkpoint starts. This also names the group, for the query's whole life."""
        if self._initial is None:
            group = self._options.group or f"spark-{uuid.uuid4().hex[:12]}"
            partitions = self._subscription.partitions()
            self._initial = StreamOffset(group, self._subscription.at(self._options.starting, partitions))
        return self._initial.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return maxBytesPerTrigger or maxOffsetsPerTrigger, else no limit."""
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Record where every partition ends now: the query stops there."""
        self._target = self._subscription.targets()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch with its plan, or `start` unchanged if there is nothing to read."""
        since = StreamOffset.from_json(start)
        self._planned = self._planned or since
        positions, self._latest = self._subscription.advance(since.positions)
        end = self._latest
        if self._target is not None:
            end = {one: min(self._target.get(one, 0), offset) for one, offset in end.items()}
            end = {one: max(offset, positions[one]) for one, offset in end.items()}
        ranges = pending(positions, end)
        if not ranges:
            return start
        sizes = self._subscription.record_bytes(ranges)
        match limit:
            case ReadMaxBytes(max_bytes=most):
                ranges, sizes = self._subscription.within(most, ranges, sizes)
            case ReadMaxRows(max_rows=most):
                ranges = limited(ranges, weight=dict.fromkeys(sizes, 1.0), limit=most)
        tasks = spread(
            ranges,
            weight=sizes,
            bytes_per_task=self._options.bytes_per_task,
            parallel=self._options.min_partitions,
        )
        reached = positions | {one.key: one.end for one in ranges}
        self._planned = StreamOffset(self._options.group or since.group, reached, tasks)
        return self._planned.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return, for progress reports, the cluster's latest offsets, and by how many records the planned batch is
        behind.
        """
        if self._planned is None:
            return None
        behind = sum(
            max(offset - self._planned.positions.get(partition, 0), 0) for partition, offset in self._latest.items()
        )
        told: dict[str, Any] = {
            "group": self._planned.group,
            "positions": positions_to_json(self._latest),
            "lag": behind,
        }
        connection = self._options.connection
        # With credentials in options, the listener (cursors.py) would need secrets, and reports are public.
        if connection.security == Security():
            told["bootstrap"] = [list(address) for address in connection.bootstrap]
        if connection.properties_file:
            told["properties_file"] = connection.properties_file
        return told

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks that `end` carries. `start` is not needed: a batch is planned once, from its start."""
        return [RangesPartition(task) for task in StreamOffset.from_json(end).tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return a task's records."""
        return _read(partition, self._options, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Commit the offsets of a finished batch. Spark calls this when it plans the next one.

        Committed offsets are for others to see, while the query continues from its checkpoint: so a failed commit does
        not stop the query, and the next one covers it.
        """
        done = StreamOffset.from_json(end)
        try:
            self._subscription.commit(done.group, done.positions)
        except SourceError as error:
            log.warning("the cursors of group %s could not be committed; the next batch does it: %s", done.group, error)

    def stop(self) -> None:
        """Close the connections."""
        if self._asked is not None:
            self._asked.close()
