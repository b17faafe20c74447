"""Selects the batches of a Kafka fetch that are copied. Pure functions.

Headrace has no transactions yet, so a link copies what a consumer under `read_committed` would see. It leaves out
records of aborted transactions, control batches (transaction markers), and batches that compaction emptied. In their
place it copies gap batches (`gap_batches`), which have no records and cover the offsets that were left out: the copy
ends where its source ends, and a group that has read everything continues there. All other batches are copied byte for
byte. A partial batch at the end, where the answer was full, is cut off (KIP-74).
"""

from collections.abc import Sequence

from headrace.wire.batch import ABORT_MARKER, MAX_EMPTY, BatchHeader, gap_batches, iter_batches, marker_type


def copied_runs(
    records: Sequence[memoryview], aborted: Sequence[tuple[int, int]], *, since: int = 0
) -> list[memoryview]:
    """Runs of whole batches to copy; unchanged batches are views of `records`.

    `aborted` holds (producer id, first offset) of aborted transactions, as a fetch under read_committed returns them.
    `since` is the wanted offset: no gap batch begins below it.

    Raises `UnsupportedBatch` for message formats 0 and 1, and `CorruptBatch`.
    """
    coming = sorted(aborted, key=lambda each: each[1], reverse=True)
    under_way: set[int] = set()
    runs: list[memoryview] = []
    left_out: tuple[int, int] | None = None
    for view in records:
        begin = at = 0
        for header, batch in iter_batches(view):
            last = header.base_offset + header.last_offset_delta
            while coming and coming[-1][1] <= last:
                under_way.add(coming.pop()[0])
            if _is_copied(header, batch, under_way):
                if left_out is not None:
                    runs += map(memoryview, gap_batches(*left_out))
                    left_out = None
            else:
                if at > begin:
                    runs.append(view[begin:at])
                begin = at + header.length
                if last < since:
                    at += header.length
                    continue
                if left_out is not None and last - left_out[0] >= MAX_EMPTY:  # a source may leave a gap of any size
                    runs += map(memoryview, gap_batches(*left_out))
                    left_out = None
                left_out = (max(header.base_offset, since) if left_out is None else left_out[0], last)
            at += header.length
        if at > begin:
            runs.append(view[begin:at])
    if left_out is not None:
        runs += map(memoryview, gap_batches(*left_out))
    return runs


def _is_copied(header: BatchHeader, batch: memoryview, under_way: set[int]) -> bool:
    """Whether a batch is copied. `under_way`: producers inside a transaction that was later aborted; updated here."""
    if header.control:
        if marker_type(header, batch) == ABORT_MARKER:
            under_way.discard(header.producer_id)
        return False
    if not header.record_count:
        return False
    return not (header.transactional and header.producer_id in under_way)
