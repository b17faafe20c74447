"""Reads a partition's state: its chain from the catalog, and the end of its open partitionlet, with its producers, from
the log.

All functions block, and run in reader threads.
"""

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from headrace.base.errors import HeadraceError
from headrace.base.ids import Offset, PartitionletId, Position
from headrace.catalog.reader import Reader
from headrace.catalog.rows import INTENDED, HomeStart, PartitionletRow
from headrace.container.leader import Leader
from headrace.log.frames import FrameType
from headrace.log.reading import NEVER, PartitionletState
from headrace.partitions.producer_state import KnownBatch, Producer, Producers
from headrace.partitions.rolls.frames import Seal, read_open, read_producers, read_seal
from headrace.partitions.topics import Topic

Key = tuple[bytes, int]
"""Topic id and partition."""
NOTHING = Position(0)
NOWHERE = -1


class Chain(NamedTuple):
    """A partition's state in the catalog."""

    rows: tuple[PartitionletRow, ...]
    log_start: int
    settled: HomeStart | None = None
    """The home that the partition was last rolled for, with its first offset; None: its topic's first home."""


class Tail(NamedTuple):
    """An open partitionlet's state in its container's log."""

    next_offset: int
    producers: Producers
    size: int
    seal: Seal | None = None
    """The partitionlet's seal, if the log has one already."""
    certain: bool = True
    """Whether the partitionlet is sure to end at `next_offset`. If not, records or a seal behind it may have expired
    and been freed on other replicas before this replica received them, so that only the catalog knows."""
    epochs: Sequence[tuple[int, int]] = ()
    """The container's epochs in which the partitionlet's present records were appended, each with its first offset."""


def read_chain(reader: Reader, topic: int, partition: int) -> Chain | None:
    """[blocking] The open and sealed partitionlets of one partition, in order; `topic` is the topic's number. None if
    there is no such partition."""
    rows = tuple(row for row in reader.chains.chain(topic, partition) if row.state != INTENDED)
    if not rows:
        return None
    log_start = reader.chains.log_starts([topic]).get((topic, partition), Offset(0))
    return Chain(rows, log_start, reader.homes.settled_at(topic, partition))


def read_tail(container: Leader, partitionlet: PartitionletId, first: int, *, since: Position = NOTHING) -> Tail:
    """[blocking] An open partitionlet's state in the log; it ends at `first` or later, and its frames lie behind
    `since`."""
    state = container.log.load(partitionlet, since=since)
    torn_below = _torn_below(container, state)
    known: dict[int, Producer] = {}
    seal: Seal | None = None
    now = int(time.time() * 1000)
    for frame in container.log.controls_of(partitionlet):
        match frame.type:
            case FrameType.OPEN:
                if frame.epoch >= container.recovered_epoch:
                    torn_below = NOWHERE
                (opened,) = read_open(frame.payload)
                entries = opened.producers
            case FrameType.PRODUCERS:
                entries = read_producers(frame.payload)
            case FrameType.SEAL:
                seal = read_seal(frame.payload)
                continue
            case _:
                continue
        for entry in entries:
            batches = [KnownBatch(*batch) for batch in entry.batches]
            torn = entry.torn or _is_torn(batches, torn_below)
            known[entry.producer_id] = Producer(entry.epoch, batches, seen=now, torn=torn)
    for producer_id, found in state.producers.items():
        batches = [KnownBatch(*batch) for batch in found.batches]
        carried_over = known.get(producer_id)
        if carried_over is not None and carried_over.epoch == found.epoch:
            oldest = batches[0].base_offset if batches else 0
            batches = [batch for batch in carried_over.batches if batch.base_offset < oldest] + batches
        if carried_over is None or found.epoch >= carried_over.epoch:
            torn = _is_torn(batches, torn_below)
            known[producer_id] = Producer(found.epoch, batches, seen=now, torn=torn)
    next_offset = first if state.next_offset is None else max(first, state.next_offset)
    if seal is not None:
        next_offset = max(first, seal.end)
    certain = seal is not None or state.last_end > container.log.gaps_end
    return Tail(next_offset, Producers(known), state.bytes, seal, certain, state.epochs)


def _torn_below(container: Leader, state: PartitionletState) -> int:
    """The end of a partitionlet at its container's last unclean recovery (invariant 15), which may have lost records
    behind it; NOWHERE without a recovery, NEVER if nothing was appended since."""
    if not container.recovered_epoch:
        return NOWHERE
    since = [first for epoch, first in state.epochs if epoch >= container.recovered_epoch]
    return since[0] if since else NEVER


def _is_torn(batches: Sequence[KnownBatch], torn_below: int) -> bool:
    return bool(batches) and batches[-1].base_offset < torn_below


def read_chains(reader: Reader, wanted: list[tuple[Topic, int]]) -> Mapping[Key, Chain]:
    """[blocking] The chains of those of these partitions that exist."""
    found = {}
    for topic, index in wanted:
        chain = read_chain(reader, topic.row.number, index)
        if chain is not None:
            found[topic.topic_id, index] = chain
    return found


def read_tails(asked: list[tuple[Key, Chain, Leader]]) -> dict[Key, Tail | Exception]:
    """[blocking] Each partition's tail, or why it cannot be read: damage to one does not affect the others."""
    tails: dict[Key, Tail | Exception] = {}
    for key, chain, container in asked:
        row = chain.rows[-1]
        # The frames of a partitionlet that was opened in the container's present epoch lie behind the epoch's start.
        since = container.opened_at if row.container_epoch == container.epoch else NOTHING
        # The log start is never above the end, and is the end where all records have expired.
        try:
            tails[key] = read_tail(container, row.id, max(row.first, chain.log_start), since=since)
        except (HeadraceError, OSError) as error:
            tails[key] = error
    return tails
