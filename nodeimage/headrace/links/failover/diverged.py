"""Builds the quarantine batches for records that are not part of the home's history. Pure functions.

Such records go to the topic `<topic>.diverged` of the same stream, at the same partition number, with their original
place in headers. Each batch of them has a token (producer_state.py), so that a batch that is appended again, after a
crash, is dropped: the producer id is a hash of the topic, the partition, the home that wrote the records and the offset
at which the histories diverge; the sequence is the offset of the batch's first record counted from there. A home writes
each of its offsets once, so records that another home wrote, and that later diverge at the same offset, have another
token. Batch boundaries are the same in each attempt.

If the home moves again before quarantine is complete, the histories may diverge at another offset. Records that are
quarantined by then are left out of their batches, whose boundaries stay as if those records were included: so two
attempts at a batch differ only in records that are quarantined already.

Only the headers and CRCs of batches that clients built have been checked. A batch whose records cannot be read, or in
which one record alone would be too long, is kept raw, as it was stored: as the value of one record, or of several if it
would be too long together with its place, under a token that does not depend on where the histories diverge. The whole
batch is kept, even if the histories diverge inside it.
"""

import hashlib
import uuid
from collections.abc import Iterator, Sequence, Set
from typing import Final, NamedTuple

from headrace.base.errors import CorruptBatch
from headrace.base.ids import Home, Offset
from headrace.catalog.names import MAX_LENGTH
from headrace.links.source.histories import home_at
from headrace.links.source.source import HomeStart
from headrace.links.topics.topic_plan import DIVERGED
from headrace.log.frames import MAX_PAYLOAD_BYTES
from headrace.wire.batch import BATCH_HEADER_SIZE, BatchHeader, Header, Record, batch_records, build_batch

__all__ = [
    "HOME",
    "OFFSET",
    "PARTITION",
    "TOPIC",
    "Kept",
    "QuarantineBatch",
    "diverged_name",
    "place_of",
    "quarantine_batches",
]

OFFSET, PARTITION, HOME, TOPIC = "headrace.offset", "headrace.partition", "headrace.home", "headrace.topic"
RAW, PART = "headrace.raw", "headrace.part"
MAX_BYTES = 4 << 20
"""The maximum number of bytes of one batch's uncompressed records with their places; a larger record gets its own
batch."""
_PLACE_BYTES: Final = 512
"""The maximum number of bytes of a record's place and lengths, or of a raw batch's place and the header of its new
batch."""
RAW_BYTES = MAX_PAYLOAD_BYTES - _PLACE_BYTES
"""The maximum number of bytes of a raw batch in one record."""
_LATEST: Final = 1 << 62
"""Records with timestamps at or above this are kept raw: the timestamps may be too far apart for one batch."""
_DIGITS: Final = 20
_BLOCK: Final = 1 << 31
"""How many sequences one token has."""


Kept = tuple[bytes, bytes, int, bytes]
"""Identifies a quarantined record: topic id and home that wrote it, as in its headers, its offset, and b"". A part of
a raw batch has the batch's offset and, in place of b"", which part it is, such as b"1/3"."""


class QuarantineBatch(NamedTuple):
    """A batch for the diverged topic. `records`: how many records it holds."""

    batch: bytearray
    records: int
    """Counted as in the original topic: a raw batch in several parts counts with its first part."""


def diverged_name(stream: str, topic: str) -> str:
    """The name, within its stream, of the diverged topic of `topic`."""
    room = MAX_LENGTH - len(stream) - 1 - len(DIVERGED)
    if len(topic) <= room:
        return f"{topic}{DIVERGED}"
    digest = hashlib.sha256(topic.encode()).hexdigest()[:12]
    return f"{topic[: max(1, room - 13)].rstrip('.')}-{digest}{DIVERGED}"


def token(topic_id: bytes, partition: int, home: Home, diverged_at: Offset, block: int, *, raw: bool = False) -> int:
    """A producer id below -1 for the records that `home` wrote, and that diverged at `diverged_at`.

    `raw`: the id for part `block` of the raw batch that `home` wrote at `diverged_at`.
    """
    numbers = b"".join(part.to_bytes(8, "big") for part in (partition, home.counter, diverged_at, block))
    named = (b"headrace diverged raw" if raw else b"headrace diverged") + topic_id + numbers + home.cluster.encode()
    return -2 - (int.from_bytes(hashlib.sha256(named).digest()[:8], "big") >> 2)


def quarantine_batches(
    header: BatchHeader,
    batch: memoryview,
    *,
    topic_id: bytes,
    partition: int,
    diverged_at: Offset,
    history: Sequence[HomeStart],
    origin: str,
    kept: Set[Kept] = frozenset(),
) -> Iterator[QuarantineBatch]:
    """The batches to quarantine for one batch: its records from `diverged_at` on, or all of it raw, without those in
    `kept`."""
    if header.base_offset + header.last_offset_delta < diverged_at:
        return
    if not _is_splittable(header, batch):
        writer = home_at(history, origin, Offset(header.base_offset))
        yield from _raw(header, batch, topic_id, partition, diverged_at, writer, kept)
        return
    some: list[Record] = []
    size = 0
    writer = Home(0, origin)
    for record in batch_records(header, batch):
        if record.offset < diverged_at:
            continue
        weight = _weight(record)
        # A token's sequences cover one block of offsets, so a batch must not span two blocks.
        apart = some and (some[0].offset - diverged_at) // _BLOCK != (record.offset - diverged_at) // _BLOCK
        home = home_at(history, origin, Offset(record.offset))
        if some and (apart or home != writer or size + weight > MAX_BYTES):
            yield from _built(some, topic_id, partition, diverged_at, writer, kept)
            some, size = [], 0
        writer = home
        some.append(record)
        size += weight
    if some:
        yield from _built(some, topic_id, partition, diverged_at, writer, kept)


def _is_splittable(header: BatchHeader, batch: memoryview) -> bool:
    """Whether all records can be read, lie where the header says, and each fit into a batch."""
    before, last = header.base_offset - 1, header.base_offset + header.last_offset_delta
    try:
        for record in batch_records(header, batch):
            if not before < record.offset <= last or abs(record.timestamp) >= _LATEST:
                return False
            if _weight(record) > MAX_PAYLOAD_BYTES - BATCH_HEADER_SIZE:
                return False
            before = record.offset
    except CorruptBatch:
        return False
    return True


def _weight(record: Record) -> int:
    """An upper limit on the bytes of a record in a batch, with its place."""
    headers = sum(
        len(name.encode("utf-8", "surrogateescape")) + len(value or b"") + 10 for name, value in record.headers
    )
    return len(record.key or b"") + len(record.value or b"") + headers + _PLACE_BYTES


def _raw(
    header: BatchHeader,
    batch: memoryview,
    topic_id: bytes,
    partition: int,
    diverged_at: Offset,
    writer: Home,
    kept: Set[Kept],
) -> Iterator[QuarantineBatch]:
    """A batch as it is, in as many records as necessary."""
    base = Offset(header.base_offset)
    place = _place(topic_id, partition, writer, base)
    diverged = min(header.record_count, base + header.last_offset_delta + 1 - diverged_at)
    starts = range(0, header.length, RAW_BYTES)
    for index, start in enumerate(starts):
        part = f"{index + 1}/{len(starts)}".encode()
        headers = [*place, (RAW, str(header.record_count).encode()), (PART, part)]
        if _kept(headers) in kept:
            continue
        row = (header.max_timestamp, None, bytes(batch[start : start + RAW_BYTES]), headers)
        name = token(topic_id, partition, writer, base, index, raw=True)
        built = build_batch([row], producer_id=name, producer_epoch=0, base_sequence=0)
        yield QuarantineBatch(built, diverged if index == 0 else 0)


def _place(topic_id: bytes, partition: int, writer: Home, offset: Offset) -> list[Header]:
    return [
        (OFFSET, str(offset).encode()),
        (PARTITION, str(partition).encode()),
        (HOME, f"{writer.counter}:{writer.cluster}".encode()),
        (TOPIC, str(uuid.UUID(bytes=topic_id)).encode()),
    ]


def _built(
    cut: Sequence[Record], topic_id: bytes, partition: int, diverged_at: Offset, writer: Home, kept: Set[Kept]
) -> Iterator[QuarantineBatch]:
    """A batch of records that one home wrote, without those in `kept`; nothing if none are left."""
    placed = [(record, _place(topic_id, partition, writer, Offset(record.offset))) for record in cut]
    left = [(record, place) for record, place in placed if not kept or _kept(place) not in kept]
    if not left:
        return
    block, sequence = divmod(left[0][0].offset - diverged_at, _BLOCK)
    rows = [(record.timestamp, record.key, record.value, [*record.headers, *place]) for record, place in left]
    built = build_batch(
        rows,
        producer_id=token(topic_id, partition, writer, diverged_at, block),
        producer_epoch=0,
        base_sequence=sequence,
    )
    yield QuarantineBatch(built, len(rows))


def place_of(record: Record) -> Kept | None:
    """The original place of a record of the diverged topic, or of a part of a batch; None if somebody else wrote it."""
    return _kept(record.headers)


def _kept(headers: Sequence[Header]) -> Kept | None:
    named = dict(headers)
    topic, home, offset = named.get(TOPIC), named.get(HOME), named.get(OFFSET)
    if not (topic and home and offset and offset.isdigit() and len(offset) < _DIGITS):
        return None
    # Our headers come last, since a record may carry the headers of an earlier quarantine too.
    name, part = headers[-1]
    return topic, home, int(offset), (part or b"") if name == PART else b""
