"""Retention by time and size: pure functions that decide how far log starts move, and what of a chunk is then dead.

Nothing is moved or freed here: expiry.py moves log starts, chunk_gc.py frees the bytes.

Time: a partition's records expire, from the oldest on, in all chunks whose newest record is older than the time to live
(Kafka's rule, with chunks in place of segments). Size: as many of the oldest records expire as exceed the limit. Log
starts only move over contiguous records, from the oldest on; a chunk's share of a partitionlet expires as a whole or
not at all. If a partition's records lie in containers of several leaders, each moves the start over its own, in turn.

Knows nothing of files: callers pass what each chunk holds, who owns it, and the rules.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from headrace.base.ids import Offset, PartitionletId, StreamNumber, stream_of
from headrace.catalog.chains import LogStart
from headrace.catalog.rows import Owner, Retention, StreamRetention

PartitionKey = tuple[bytes, int]
"""Topic id and partition number."""


class Share(NamedTuple):
    """One chunk's share of one partitionlet: offsets from `first` to `last`. `bytes` counts its data frames."""

    partitionlet: PartitionletId
    first: int
    last: int
    max_timestamp: int
    bytes: int


def rule_of(
    rules: Mapping[StreamNumber, StreamRetention], partitionlet: PartitionletId, topic: int
) -> Retention | None:
    """The retention rule of a topic, by its number; None if its stream is gone."""
    stream = rules.get(stream_of(partitionlet))
    return None if stream is None else stream.overrides.get(topic, stream.rule)


def expired(
    shares: Iterable[Share],
    *,
    owners: Mapping[PartitionletId, Owner],
    rules: Mapping[StreamNumber, StreamRetention],
    now: int,
    elsewhere: Mapping[PartitionKey, int] | None = None,
) -> list[LogStart]:
    """The log starts that move. `shares`: those of the closed chunks that may hold expired records, oldest first; `now`
    in milliseconds.

    `elsewhere`: bytes that other nodes lead of partitions with a size limit; they count as the newest.
    """
    starts: dict[PartitionKey, int] = {}
    moved: set[PartitionKey] = set()
    excess = _excess(shares := list(shares), owners=owners, rules=rules, elsewhere=elsewhere or {})
    for share in shares:
        owner = owners.get(share.partitionlet)
        if owner is None or share.last < 0:
            continue
        rule = rule_of(rules, share.partitionlet, owner.topic)
        if rule is None:
            continue
        key = (owner.topic_id, owner.partition)
        start = starts.setdefault(key, owner.log_start)
        if share.first > start or share.last < start:
            continue  # older records stay, so these stay too; or they are gone already
        too_old = rule.ttl_ms > 0 and share.max_timestamp + rule.ttl_ms <= now
        too_much = excess.get(key, 0) >= share.bytes
        if too_old or too_much:
            # Records beyond the end of a sealed partitionlet, restored by an unclean recovery, do not belong to the
            # partition.
            starts[key] = share.last + 1 if owner.end < 0 else min(share.last + 1, owner.end)
            moved.add(key)
            if key in excess:
                excess[key] -= share.bytes
    return [LogStart(topic_id, partition, Offset(starts[topic_id, partition])) for topic_id, partition in sorted(moved)]


def _excess(
    shares: list[Share],
    *,
    owners: Mapping[PartitionletId, Owner],
    rules: Mapping[StreamNumber, StreamRetention],
    elsewhere: Mapping[PartitionKey, int],
) -> dict[PartitionKey, int]:
    """By partition that exceeds its size limit, the excess in bytes."""
    held: dict[PartitionKey, int] = {}
    limits: dict[PartitionKey, int] = {}
    for share in shares:
        owner = owners.get(share.partitionlet)
        rule = rule_of(rules, share.partitionlet, owner.topic) if owner is not None else None
        if owner is None or rule is None or rule.bytes < 0 or share.last < owner.log_start:
            continue
        key = (owner.topic_id, owner.partition)
        held[key] = held.get(key, elsewhere.get(key, 0)) + share.bytes
        limits[key] = rule.bytes
    return {key: size - limits[key] for key, size in held.items() if size > limits[key]}


def gone(shares: Iterable[Share], *, owners: Mapping[PartitionletId, Owner]) -> tuple[dict[int, int], bool]:
    """For one chunk: the first live offset of each partitionlet of which something is dead, and whether all of the
    chunk is dead."""
    dead: dict[int, int] = {}
    whole = True
    for share in shares:
        owner = owners.get(share.partitionlet)
        if owner is None:
            dead[share.partitionlet] = 1 << 62
        elif share.last >= 0 and share.last < owner.log_start:
            dead[share.partitionlet] = owner.log_start
        elif share.last >= 0:
            whole = False
            if share.first < owner.log_start:
                dead[share.partitionlet] = owner.log_start
    return dead, whole
