"""Retention by time and size: pure functions that decide how far log starts move, and what of a chunk is dead then.

Nothing is moved or freed here: expiry.py moves log starts, chunk_gc.py frees the bytes.

Time: a partition's records are expired up to the end of the last run of chunks whose newest record is older than the
time to live (Kafka's rule, with chunks for segments). Size: as many of the oldest records as exceed the limit. Log
starts only move over what is contiguous, from the oldest record on; a chunk's share of a partitionlet expires whole or
stays whole. Where a partition's records lie in containers of several leaders, each moves the start over its own, in
turn.

Knows nothing of files: callers pass what each chunk holds, who owns it, and the rules.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from headrace.base.ids import Offset, PartitionletId, StreamNumber, stream_of
from headrace.catalog.chains import LogStart
from headrace.catalog.rows import Owner, Retention, StreamRetention

PartitionKey = tuple[bytes, int]
"""Topic id and partition."""


class Share(NamedTuple):
    """What one chunk holds of one partitionlet. `bytes` counts its data frames."""

    partitionlet: PartitionletId
    first: int
    last: int
    max_timestamp: int
    bytes: int


def rule_of(
    rules: Mapping[StreamNumber, StreamRetention], partitionlet: PartitionletId, topic: int
) -> Retention | None:
    """The rule for a topic's number; None if its stream is gone."""
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
    """The log starts that move. `shares`: of all closed chunks, oldest first; `now` in milliseconds.

    `elsewhere`: bytes that other nodes lead of partitions with a size limit, which count as the newest.
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
            continue  # older records stay, so these do; or they are gone already
        too_old = rule.ttl_ms > 0 and share.max_timestamp + rule.ttl_ms <= now
        too_much = excess.get(key, 0) >= share.bytes
        if too_old or too_much:
            # What an unclean recovery brought back behind the end of a sealed one is no record of the partition.
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
    """By partition with a size limit, how many bytes it has above it."""
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
    """Of one chunk: the first kept offset of each partitionlet of which something is dead, and whether all is."""
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
