"""`format("headrace")` to write: a task's rows for one partition become one record batch, stored once.

Implements Spark's writer calls, and identifies tasks. All work is done in the tasks: when the last one is acknowledged
everything is stored, and Spark's commit has nothing left to do. A task is identified by its query, its number and its
micro-batch, so a second attempt, a speculative one, or a batch that a restarted query runs again, is stored once if it
has the same rows.
"""

import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from headrace_spark.cluster import Cluster
from headrace_spark.encode import build_batch
from headrace_spark.errors import BadOption, SourceError
from headrace_spark.once import store_once
from headrace_spark.options import WriteOptions, write_options
from headrace_spark.producing import Outgoing
from headrace_spark.rows import TaskRows, by_partition, check_schema, gather, parts
from headrace_spark.tokens import TaskToken

QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
"""Spark's local properties of a streaming query's tasks: the query's and the micro-batch's id."""


@dataclass
class Written(WriterCommitMessage):
    """What a task has stored."""

    rows: int
    batches: int


class HeadraceBatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame. Created once per job, on the driver, so that the query's name is the same in all of its
    tasks.
    """

    def __init__(self, raw: Mapping[str, str], schema: StructType) -> None:
        self._options = write_options(raw)
        check_schema(schema.fieldNames(), topic=self._options.topic)
        self._query = self._options.query or f"job-{uuid.uuid4().hex}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Store a task's rows."""
        return _write(iterator, self._options, TaskToken(self._query, _context().partitionId(), self._options.batch))


class HeadraceStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a streaming query."""

    def __init__(self, raw: Mapping[str, str], schema: StructType) -> None:
        self._options = write_options(raw)
        check_schema(schema.fieldNames(), topic=self._options.topic)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Store a task's rows of one micro-batch."""
        context = _context()
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        if query is None or batch is None:
            raise SourceError(f"Spark names no query for this task (local properties {QUERY_ID} and {BATCH_ID})")
        return _write(iterator, self._options, TaskToken(query, context.partitionId(), int(batch)))


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise SourceError("rows are written by Spark's tasks only")
    return context


def _write(batches: Iterator[pa.RecordBatch], options: WriteOptions, token: TaskToken) -> Written:
    rows = gather(batches, naming=options.naming, topic=options.topic, now_ms=time.time_ns() // 1_000_000)
    if rows is None:
        return Written(0, 0)
    with Cluster(options.connection) as cluster:
        topics = sorted(set(rows.topic.dictionary.to_pylist()))
        counts = cluster.partition_counts(topics, create=True)
        absent = [topic for topic in topics if topic not in counts]
        if absent:
            raise BadOption(f"the cluster has no topic {', '.join(absent)} and does not create it; create it first")
        outgoing = list(_outgoing(rows, counts, options, token))
        store_once(cluster, outgoing, timed=rows.timed)
    return Written(len(rows.columns), len(outgoing))


def _outgoing(rows: TaskRows, counts: Mapping[str, int], options: WriteOptions, token: TaskToken) -> Iterator[Outgoing]:
    for partition, columns in by_partition(rows, counts, turn=token.task + token.batch):
        for number, part in enumerate(parts(columns, limit=options.max_batch_bytes)):
            batch = build_batch(part, token=token.part(partition[0], number), compression=options.compression)
            yield partition, batch
