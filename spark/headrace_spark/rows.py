"""Prepares a task's rows: from Spark's Arrow batches to the rows of one record batch per partition.

Defines the accepted columns, the partition of each row, and the split of what is too large for one record batch. Which
rows form a batch depends only on the rows, not on the order in which a shuffle happened to deliver them: a task that
runs again must build the same batches from the same rows, or they are stored again.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace_spark.encode import Columns, record_sizes
from headrace_spark.errors import BadOption
from headrace_spark.murmur2 import murmur2, partitions_of
from headrace_spark.options import Naming, Partition

ACCEPTED = ("key", "value", "topic", "partition", "headers", "timestamp")
LARGE = pa.large_binary()
UNKEYED_RUN_BYTES = 16 << 20
"""A task's rows without a key go to one partition, and to one more for each multiple of this many bytes."""
BATCH_OVERHEAD_BYTES = 64
"""At least the size of a record batch's header, which every part needs besides its rows."""

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TaskRows:
    """All rows of a task: `columns` row by row, the full name of each row's topic, and the partition that the row
    requests, or -1. Shapes (rows,).
    """

    columns: Columns
    topic: pa.DictionaryArray
    partition: npt.NDArray[np.int32]
    timed: bool
    """Whether the rows have their own timestamps; otherwise they get the time of writing, which differs each time."""


def check_schema(names: Sequence[str], *, topic: str | None) -> None:
    """Raise BadOption for columns that cannot be written, before any task starts."""
    unknown = [name for name in names if name not in ACCEPTED]
    if unknown:
        raise BadOption(f"columns {', '.join(unknown)} cannot be written; a row is made of {', '.join(ACCEPTED)}")
    if "value" not in names:
        raise BadOption("rows need a column value, of binary or string")
    if topic is None and "topic" not in names:
        raise BadOption("give the option topic, or each row a column topic")


def gather(batches: Iterable[pa.RecordBatch], *, naming: Naming, topic: str | None, now_ms: int) -> TaskRows | None:
    """Return all rows of a task; None if it has none. `topic`, the option, overrides the column. Raises BadOption."""
    kept = [batch for batch in batches if batch.num_rows]
    if not kept:
        return None
    table = pa.Table.from_batches(kept)
    rows = table.num_rows
    check_schema(table.column_names, topic=topic)
    columns = {name: table.column(name).combine_chunks() for name in table.column_names}
    columns = {name: _chunkless(column) for name, column in columns.items()}
    value = _bytes(columns["value"], "value")
    key = _bytes(columns["key"], "key") if "key" in columns else None
    if key is not None and key.null_count == rows:
        key = None
    return TaskRows(
        columns=Columns(
            key=key,
            value=value,
            headers=columns.get("headers"),
            timestamps=_timestamps(columns.get("timestamp"), rows, now_ms),
        ),
        topic=_topics(columns.get("topic"), rows, naming=naming, topic=topic),
        partition=_asked_partitions(columns.get("partition"), rows),
        timed="timestamp" in columns and columns["timestamp"].null_count < rows,
    )


def by_partition(rows: TaskRows, counts: Mapping[str, int], *, turn: int) -> Iterator[tuple[Partition, Columns]]:
    """Yield the rows of each partition, in the task's order. `counts` has the number of partitions of each topic,
    `turn` numbers the task and batch, so that rows without a key rotate over the partitions. Raises BadOption.
    """
    names = rows.topic.dictionary.to_pylist()
    codes = np.asarray(rows.topic.indices)
    for code, topic in enumerate(names):
        inside = np.flatnonzero(codes == code) if len(names) > 1 else np.arange(len(codes))
        if not len(inside):
            continue
        columns = rows.columns if len(inside) == len(codes) else rows.columns.take(inside)
        numbers = _partitions(columns, rows.partition[inside], topic=topic, count=counts[topic], turn=turn)
        order = np.argsort(numbers, kind="stable")
        found, starts = np.unique(numbers[order], return_index=True)
        if len(found) == 1:
            yield (topic, int(found[0])), columns
            continue
        for number, chosen in zip(found, np.split(order, starts[1:]), strict=True):
            yield (topic, int(number)), columns.take(chosen)


def parts(columns: Columns, *, limit: int) -> list[Columns]:
    """Return the rows in as few parts as keep each under `limit` bytes; rows of one key stay together and in order.

    Which rows form a part depends on the keys (on the values if there is no key), not on the order of rows. Only a key
    with more than `limit` bytes of rows is split by row number, and a row larger than that forms its own part.
    """
    sizes = record_sizes(columns)
    if int(sizes.sum()) + BATCH_OVERHEAD_BYTES <= limit:
        return [columns]
    hashes = _identity(columns)
    order = np.argsort(hashes, kind="stable")
    starts = np.flatnonzero(np.diff(hashes[order], prepend=-1))
    totals = np.add.reduceat(sizes[order], starts)
    found: list[list[Int64s]] = []
    room = 0
    for group, total in zip(np.split(order, starts[1:]), totals, strict=True):
        for piece in [group] if total <= limit else _by_row(group, sizes, limit):
            size = int(sizes[piece].sum())
            if size > room:
                found.append([])
                room = limit - BATCH_OVERHEAD_BYTES
            found[-1].append(piece)
            room -= size
    return [columns.take(np.sort(np.concatenate(pieces))) for pieces in found]


def _by_row(rows: Int64s, sizes: Int64s, limit: int) -> list[Int64s]:
    filled = sizes[rows].cumsum()
    cuts, below = list[int](), 0
    while below + limit < filled[-1]:
        cut = max(int(np.searchsorted(filled, below + limit, side="right")), (cuts[-1] if cuts else 0) + 1)
        if cut >= len(rows):
            break
        cuts.append(cut)
        below = int(filled[cut - 1])
    return np.split(rows, cuts)


def _identity(columns: Columns) -> Int64s:
    """Return a hash of each row's key, or of its value if it has none, shape (rows,)."""
    hashes = murmur2(columns.value).astype(np.int64)
    if columns.key is None:
        return hashes
    keyed = murmur2(columns.key).astype(np.int64)
    return np.where(np.asarray(columns.key.is_null()), hashes, keyed)


def _partitions(
    columns: Columns, asked: npt.NDArray[np.int32], *, topic: str, count: int, turn: int
) -> npt.NDArray[np.int32]:
    """Return each row's partition: the requested one, else by key as Kafka's clients do, else by the task's turn."""
    if asked.max(initial=-1) >= count or asked.min(initial=0) < -1:
        wrong = int(asked[(asked >= count) | (asked < -1)][0])
        raise BadOption(f"a row asks for partition {wrong} of {topic}, which has partitions 0 to {count - 1}")
    unkeyed = np.ones(len(columns), bool) if columns.key is None else np.asarray(columns.key.is_null())
    numbers = np.zeros(len(columns), np.int32)
    if columns.key is not None:
        numbers = partitions_of(columns.key, count)
    if unkeyed.any():
        runs = min(count, 1 + columns.value.nbytes // UNKEYED_RUN_BYTES)
        step = murmur2(columns.value) % np.uint32(runs) if runs > 1 else np.zeros(len(columns), np.uint32)
        numbers = np.where(unkeyed, (turn + step) % count, numbers).astype(np.int32)
    return np.where(asked >= 0, asked, numbers).astype(np.int32)


def _chunkless(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column


def _bytes(column: pa.Array, name: str) -> pa.Array:
    if pa.types.is_null(column.type):
        return pa.nulls(len(column), LARGE)
    if not any(
        test(column.type)
        for test in (pa.types.is_binary, pa.types.is_string, pa.types.is_large_binary, pa.types.is_large_string)
    ):
        raise BadOption(f"the column {name} is {column.type}; make it binary or string (to_json, cast)")
    return column.cast(LARGE)


def _timestamps(column: pa.Array | None, rows: int, now_ms: int) -> Int64s:
    if column is None or pa.types.is_null(column.type):
        return np.full(rows, now_ms, np.int64)
    if not pa.types.is_timestamp(column.type):
        raise BadOption(f"the column timestamp is {column.type}; make it a timestamp")
    micros = column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64())
    return np.asarray(pc.fill_null(micros, now_ms * 1000), dtype=np.int64) // 1000


def _topics(column: pa.Array | None, rows: int, *, naming: Naming, topic: str | None) -> pa.DictionaryArray:
    if topic is not None:
        return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([topic]))
    assert column is not None, "check_schema needs a topic"
    if column.null_count:
        raise BadOption("a row has no topic; give every row one, or the option topic")
    encoded = column.cast(pa.string()).dictionary_encode()
    names = [naming.full(name) for name in encoded.dictionary.to_pylist()]
    return pa.DictionaryArray.from_arrays(encoded.indices, pa.array(names, pa.string()))


def _asked_partitions(column: pa.Array | None, rows: int) -> npt.NDArray[np.int32]:
    if column is None or pa.types.is_null(column.type):
        return np.full(rows, -1, np.int32)
    if not pa.types.is_integer(column.type):
        raise BadOption(f"the column partition is {column.type}; make it an integer")
    try:
        return np.asarray(pc.fill_null(column.cast(pa.int32()), -1), dtype=np.int32)
    except pa.ArrowInvalid as error:
        raise BadOption(f"the column partition has a number that no partition has: {error}") from None
