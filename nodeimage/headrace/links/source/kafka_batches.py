"""Which batches of a Kafka fetch are to be copied. Pure.

Headrace has no transactions yet, so what is copied must be what a consumer under `read_committed` would see: records
of aborted transactions are left out, and so are control batches (the markers of transactions) and batches that
compaction emptied. A batch that says that there are none stands for what is left out (`gap_batches`), so that the
offsets behind it count as read: a copy ends where its source ends, and a group that has read everything goes on there.
Everything else stays as it is, byte for byte. A part of a batch at the end, where the answer was full, is cut off
(KIP-74).
"""

from collections.abc import Sequence

from headrace.wire.batch import ABORT_MARKER, MOST_EMPTY, BatchHeader, gap_batches, iter_batches, marker_type


def kept(records: Sequence[memoryview], aborted: Sequence[tuple[int, int]], *, since: int = 0) -> list[memoryview]:
    """Runs of whole batches to be copied, as views of what came where it stays as it is.

    `aborted` are (producer id, first offset), as a fetch under read_committed tells; `since` is the offset that was
    asked for: what stands for others does not begin below.

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
                if left_out is not None and last - left_out[0] >= MOST_EMPTY:  # offsets may be anything
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
    """`under_way`: producers whose transaction here is one that was aborted later."""
    if header.control:
        if marker_type(header, batch) == ABORT_MARKER:
            under_way.discard(header.producer_id)
        return False
    if not header.record_count:
        return False
    return not (header.transactional and header.producer_id in under_way)
