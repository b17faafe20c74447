"""What becomes of records that are not of the home's history: pure.

They go to the topic `<topic>.diverged` of the same stream, at the same partition number, with their old place in
headers. A batch of them is named by a token (producers.py), so that one that is appended again, after a crash, is
dropped: the producer id is a hash of the topic, the partition, the home that wrote the records and the offset from
which on the histories part, the sequence is the offset of the batch's first record counted from there. A home writes
each of its offsets once, so what another home wrote there, which may part at the same offset later, is not taken for
it. Batches are cut in the same way each time.

Histories may part elsewhere when the home moves again before this is through. Records that were kept by then are left
out of their batches, which are cut as if they were in: of two attempts at a batch each has what the other may leave
out only because it is kept.
"""

import hashlib
import uuid
from collections.abc import Iterator, Sequence, Set
from typing import Final, NamedTuple

from headrace.catalog.names import MAX_LENGTH
from headrace.ids import Home, Offset
from headrace.links.comparing import home_at
from headrace.links.keeping import DIVERGED
from headrace.links.source import HomeStart
from headrace.wire.batch import BatchHeader, Record, batch_records, build_batch

__all__ = ["HOME", "OFFSET", "PARTITION", "TOPIC", "AsideBatch", "Kept", "aside_batches", "diverged_name", "place_of"]

OFFSET, PARTITION, HOME, TOPIC = "headrace.offset", "headrace.partition", "headrace.home", "headrace.topic"
MOST_BYTES = 4 << 20
"""Of one batch's keys, values and headers, unpacked; a larger record goes alone."""
_BLOCK: Final = 1 << 31
"""Sequences of one token."""


Kept = tuple[bytes, bytes, int]
"""A record by its topic's id and the home that wrote it, as in its headers, and its offset."""


class AsideBatch(NamedTuple):
    """A batch for the diverged topic, of so many records."""

    batch: bytearray
    records: int


def diverged_name(stream: str, topic: str) -> str:
    """The name, in its stream, of the topic that keeps what diverged of `topic`."""
    room = MAX_LENGTH - len(stream) - 1 - len(DIVERGED)
    if len(topic) <= room:
        return f"{topic}{DIVERGED}"
    digest = hashlib.sha256(topic.encode()).hexdigest()[:12]
    return f"{topic[: max(1, room - 13)].rstrip('.')}-{digest}{DIVERGED}"


def token(topic_id: bytes, partition: int, home: Home, parted: Offset, block: int) -> int:
    """A producer id below -1 for what `home` wrote, and what parted there."""
    numbers = b"".join(part.to_bytes(8, "big") for part in (partition, home.counter, parted, block))
    named = b"headrace diverged" + topic_id + numbers + home.cluster.encode()
    return -2 - (int.from_bytes(hashlib.sha256(named).digest()[:8], "big") >> 2)


def aside_batches(
    header: BatchHeader,
    batch: memoryview,
    *,
    topic_id: bytes,
    partition: int,
    parted: Offset,
    history: Sequence[HomeStart],
    origin: str,
    kept: Set[Kept] = frozenset(),
) -> Iterator[AsideBatch]:
    """What is to be kept of one batch: its records from `parted` on, but for those that are `kept` already.

    Raises CorruptBatch, UnsupportedCompression.
    """
    some: list[Record] = []
    size = 0
    writer = Home(0, origin)
    for record in batch_records(header, batch):
        if record.offset < parted:
            continue
        weight = sum(len(part or b"") for part in (record.key, record.value)) + sum(
            len(name) + len(value or b"") for name, value in record.headers
        )
        # A token's sequences end with its block; and no batch is to be larger than one can hold.
        apart = some and (some[0].offset - parted) // _BLOCK != (record.offset - parted) // _BLOCK
        home = home_at(history, origin, Offset(record.offset))
        if some and (apart or home != writer or size + weight > MOST_BYTES):
            yield from _built(some, topic_id, partition, parted, writer, kept)
            some, size = [], 0
        writer = home
        some.append(record)
        size += weight
    if some:
        yield from _built(some, topic_id, partition, parted, writer, kept)


def _built(
    cut: Sequence[Record], topic_id: bytes, partition: int, parted: Offset, writer: Home, kept: Set[Kept]
) -> Iterator[AsideBatch]:
    """Records of one home."""
    topic, home = str(uuid.UUID(bytes=topic_id)).encode(), f"{writer.counter}:{writer.cluster}".encode()
    records = [record for record in cut if (topic, home, record.offset) not in kept] if kept else cut
    if not records:
        return
    block, sequence = divmod(records[0].offset - parted, _BLOCK)
    rows = []
    for record in records:
        place = [
            (OFFSET, str(record.offset).encode()),
            (PARTITION, str(partition).encode()),
            (HOME, home),
            (TOPIC, topic),
        ]
        rows.append((record.timestamp, record.key, record.value, [*record.headers, *place]))
    built = build_batch(
        rows,
        producer_id=token(topic_id, partition, writer, parted, block),
        producer_epoch=0,
        base_sequence=sequence,
    )
    yield AsideBatch(built, len(rows))


def place_of(record: Record) -> Kept | None:
    """Which record one of the diverged topic was; None: it was put there by somebody else."""
    headers = dict(record.headers)
    topic, home, offset = headers.get(TOPIC), headers.get(HOME), headers.get(OFFSET)
    return (topic, home, int(offset)) if topic and home and offset and offset.isdigit() else None
