"""A batch of which only the end may be copied: it straddles the log start, which lies inside it.

That happens where records were deleted up to an offset (Kafka's DeleteRecords) that is no batch's first. Copies begin
at the log start, and batches are never split; so the records from there on are packed anew, at their own offsets, with
their timestamps, headers and compression, but without the producer's sequence, which belonged to the whole.
"""

from headrace.wire.batch import APPEND_TIME_BIT, BatchHeader, Record, batch_records, build_batch


def records_from(header: BatchHeader, batch: memoryview, offset: int) -> list[memoryview]:
    """[blocking] Batches with the records of `batch` at `offset` and above; none if there are none. Unpacks the batch.

    Raises `CorruptBatch`.
    """
    runs: list[list[Record]] = []
    for record in batch_records(header, batch):
        if record.offset < offset:
            continue
        if runs and runs[-1][-1].offset + 1 == record.offset:
            runs[-1].append(record)
        else:
            runs.append([record])
    return [
        memoryview(
            build_batch(
                [(each.timestamp, each.key, each.value, each.headers) for each in run],
                base_offset=run[0].offset,
                compression=header.compression,
                attributes=header.attributes & APPEND_TIME_BIT,
            )
        )
        for run in runs
    ]
