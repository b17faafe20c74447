"""Trims a batch that straddles the log start, so that only its end is copied.

A batch straddles the log start where records were deleted up to an offset inside it (Kafka's DeleteRecords). Copies
begin at the log start, and stored batches are never split; so the records from the log start on are packed into new
batches, at their own offsets, with their timestamps, headers and compression, but without the producer's sequence,
which belonged to the whole batch."""

from headrace.wire.batch import APPEND_TIME_BIT, BatchHeader, Record, batch_records, build_batch


def records_from(header: BatchHeader, batch: memoryview, offset: int) -> list[memoryview]:
    """[blocking] Batches with the records of `batch` at `offset` and above; empty if there are none. Decompresses it.

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
