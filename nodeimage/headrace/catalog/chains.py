"""The chains of partitions: rolls, log starts, and the shortening of partitionlets that lost records.

A roll is an intent (a new partitionlet id, its container), then the seal and the opening in the containers, then
`RollDone`. In between the chain ends with an open and an intended partitionlet; after a crash the driver of rolls finds
the intended ones and finishes them.
"""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import ContainerId, Epoch, Home, LeaderEpoch, Millis, Offset, PartitionletId, partitionlet_id
from headrace.catalog.command import CatalogCommand, Item
from headrace.catalog.homes import settle
from headrace.catalog.rows import INTENDED, OPEN, SEALED, HomeStart, PartitionletRow, TopicRow
from headrace.catalog.selects import PARTITIONLET, partitionlet_row, select_retired, select_topics_by_id, taken_out
from headrace.catalog.streams import take_serials
from headrace.tables.row_checksums import Tables

ROLL_GAP = 256
"""Number of leader epochs skipped at a roll (invariant 10), so that epochs in late answers from the sealed
partitionlet's container cannot coincide with epochs of the new one."""
SKIPPED_BITS = 24
"""The number of low bits that a serial skips after the catalog has lost commands (invariant 15): serials then continue
at the next multiple of 2**24."""
MAX_LEADER_EPOCH = 2**31 - 2**24
"""Leader epoch above which a partition no longer rolls. Kafka's leader epochs have 31 bits; the rest is left for
changes of leader."""
LOST_ROLLS_GAP = 1 << 16
"""Number of leader epochs skipped at a partition's first roll after the catalog has lost commands: rolls that were lost
have used some."""


class RollOutcome(NamedTuple):
    """The outcome of one roll: the partitionlet that is intended, or open now; with INVALID_REQUEST, the partitionlet
    that is the reason for the refusal.

    The first outcome of a RollDone with a home or a resume also has `log_start`, if it moved (else -1), and `settled`:
    the home that the partition is settled for now, with the offset at which that home begins in it.
    """

    code: Code
    message: str = ""
    partitionlet: PartitionletRow | None = None
    log_start: Offset = Offset(-1)
    settled: HomeStart | None = None


class LogStartOutcome(NamedTuple):
    """The outcome for one partition: its log start now, and the partitionlets that left its chain."""

    code: Code
    offset: Offset = Offset(-1)
    dropped: tuple[PartitionletId, ...] = ()


class RetireContainer(CatalogCommand[list[Code]], frozen=True):
    """Forbid new partitionlets in a container that is about to be deleted.

    Topics, partitions and rolls that a node places there anyway, not knowing of it yet, are refused with
    LEADER_NOT_AVAILABLE.
    """

    container: ContainerId

    def apply(self, connection: Tables) -> list[Code]:
        connection.insert("retired", [(self.container,)], ignore=True)
        return [Code.NONE]


class RollTarget(Item, frozen=True):
    """A partition that is to continue in `container`. `expected_open` is a fence: it must still be the open
    partitionlet.

    `abandoned` is the partitionlet of an earlier intent whose container was deleted since; 0 if there was none. If it
    is opened there late, its RollDone is refused. (It need not be sealed in its container: a
    deleted container commits no seal.)
    """

    topic_id: bytes
    partition: int
    expected_open: PartitionletId
    container: ContainerId
    abandoned: PartitionletId = PartitionletId(0)


class RollIntent(CatalogCommand[list[RollOutcome]], frozen=True):
    """Assign each partition its next partitionlet, which the outcome contains. A repeated intent gets the same one."""

    items: list[RollTarget]
    now: Millis

    def apply(self, connection: Tables) -> list[RollOutcome]:
        topics = select_topics_by_id(connection, {item.topic_id for item in self.items})
        retired = select_retired(connection, {item.container for item in self.items})
        return [
            _intend(connection, topics.get(item.topic_id), item, retired=item.container in retired)
            for item in self.items
        ]


class Rolled(Item, frozen=True):
    """A roll: the partitionlet `sealed` ended at `end` (exclusive), and `opened` continues, opened at
    `container_epoch`.

    `epochs`: the (leader epoch, first offset of that epoch) of the sealed partitionlet, in order.

    `resume`: the first offset of the opened partitionlet; -1 means `end`. If it is lower, the partition's records from
    there on leave the chain (in the containers they remain until their partitionlets expire). If it is higher, there is
    a gap, and the log start moves there if no record lies before it. `home`: the partition is settled for this home,
    and its history continues with it.
    """

    topic_id: bytes
    partition: int
    sealed: PartitionletId
    end: Offset
    epochs: list[tuple[LeaderEpoch, Offset]]
    opened: PartitionletId
    container_epoch: Epoch
    resume: Offset = Offset(-1)
    home: tuple[int, str] | None = None


class RollDone(CatalogCommand[list[RollOutcome]], frozen=True):
    """Seal and open in the chain the partitionlets that were sealed and opened in the containers. Idempotent.

    The outcome contains the partitionlet that is open now.
    """

    items: list[Rolled]
    now: Millis

    def apply(self, connection: Tables) -> list[RollOutcome]:
        topics = select_topics_by_id(connection, {item.topic_id for item in self.items})
        return [_finish(connection, topics.get(item.topic_id), item) for item in self.items]


class LogStart(Item, frozen=True):
    """A partition's new log start: records below `offset` are gone."""

    topic_id: bytes
    partition: int
    offset: Offset


class SetLogStart(CatalogCommand[list[LogStartOutcome]], frozen=True):
    """Raise log starts; sealed partitionlets entirely below them leave the chain (invariant 12: their bytes are freed
    afterwards).

    A log start never falls.
    """

    items: list[LogStart]

    def apply(self, connection: Tables) -> list[LogStartOutcome]:
        topics = select_topics_by_id(connection, {item.topic_id for item in self.items})
        return [_raise_start(connection, topics.get(item.topic_id), item) for item in self.items]


class Shortened(Item, frozen=True):
    """A sealed partitionlet that has lost its records from `end` on."""

    topic_id: bytes
    partition: int
    partitionlet: PartitionletId
    end: Offset


class ShortenChains(CatalogCommand[list[LogStartOutcome]], frozen=True):
    """End sealed partitionlets where their records end: the rest was lost (invariant 15).

    An end never rises. A log start at a lost offset moves up to the next partitionlet.
    """

    items: list[Shortened]

    def apply(self, connection: Tables) -> list[LogStartOutcome]:
        topics = select_topics_by_id(connection, {item.topic_id for item in self.items})
        return [_shorten(connection, topics.get(item.topic_id), item) for item in self.items]


def _intend(connection: Tables, topic: TopicRow | None, item: RollTarget, *, retired: bool) -> RollOutcome:
    chain = _tail(connection, topic, item.partition)
    if topic is None or chain is None:
        return RollOutcome(Code.UNKNOWN_TOPIC_OR_PARTITION, "the partition is gone")
    open_one, intended = chain
    if open_one.id != item.expected_open:
        return RollOutcome(Code.INVALID_REQUEST, "the partition has rolled meanwhile", open_one)
    if intended is not None and intended.id != item.abandoned:
        if intended.container == item.container:
            return RollOutcome(Code.NONE, "", intended)
        return RollOutcome(
            Code.INVALID_REQUEST,
            "another roll is intended; its target remains, unless its container is deleted",
            intended,
        )
    if retired:
        return RollOutcome(Code.LEADER_NOT_AVAILABLE, taken_out(item.container))
    if intended is not None:
        _delete(connection, [intended.id])
    if open_one.leader_epoch > MAX_LEADER_EPOCH:
        return RollOutcome(Code.POLICY_VIOLATION, "the partition's leader epochs are used up; use another topic")
    try:
        serial = take_serials(connection, topic.stream_number, 1)
    except KafkaError as error:
        return RollOutcome(error.code, str(error))
    row = PartitionletRow(
        id=partitionlet_id(stream=topic.stream_number, serial=serial),
        topic=topic.number,
        partition=item.partition,
        container=item.container,
        first=Offset(-1),
        end=Offset(-1),
        leader_epoch=LeaderEpoch(-1),
        container_epoch=Epoch(-1),
        state=INTENDED,
        epochs=(),
    )
    connection.insert("partitionlets", [(*row[:9], None, None)])
    return RollOutcome(Code.NONE, "", row)


def _finish(connection: Tables, topic: TopicRow | None, item: Rolled) -> RollOutcome:
    chain = _tail(connection, topic, item.partition)
    if topic is None or chain is None:
        return RollOutcome(Code.UNKNOWN_TOPIC_OR_PARTITION, "the partition is gone")
    open_one, intended = chain
    if open_one.id == item.opened:
        return RollOutcome(Code.NONE, "", open_one)
    if open_one.id != item.sealed or intended is None or intended.id != item.opened:
        return RollOutcome(Code.INVALID_REQUEST, "this roll was not intended, or is over", open_one)
    if item.end < open_one.first:
        return RollOutcome(Code.INVALID_REQUEST, f"a partitionlet from {open_one.first} cannot end at {item.end}")
    first = item.end if item.resume < 0 else item.resume
    end = min(item.end, first)
    epochs = tuple((epoch, since) for epoch, since in item.epochs)
    connection.update(
        "partitionlets",
        {"state": "?1", "end": "?2", "epochs": "?3", "cut": "?4"},
        "id = ?5",
        SEALED,
        end,
        msgspec.msgpack.encode(epochs),
        1 if end < item.end else None,
        open_one.id,
    )
    lost_rolls = intended.id >> SKIPPED_BITS != open_one.id >> SKIPPED_BITS
    highest = max([open_one.leader_epoch, *(epoch for epoch, _ in epochs)])
    opened = intended._replace(
        state=OPEN,
        first=first,
        leader_epoch=LeaderEpoch(highest + (LOST_ROLLS_GAP if lost_rolls else ROLL_GAP)),
        container_epoch=item.container_epoch,
    )
    connection.update(
        "partitionlets",
        {"state": "?1", "first": "?2", "leader_epoch": "?3", "container_epoch": "?4"},
        "id = ?5",
        OPEN,
        opened.first,
        opened.leader_epoch,
        opened.container_epoch,
        opened.id,
    )
    present = _log_start(connection, topic.number, item.partition)
    if first < item.end:
        _cut_from(connection, topic.number, item.partition, first, present)
    if first < item.end or item.home is not None:
        _cut_committed_offsets(connection, topic.number, item.partition, first)
    # Keeping a partitionlet without records would lengthen the chain of an idle topic at every roll.
    if end <= open_one.first or end <= present:
        _delete(connection, [open_one.id])
    start = Offset(-1)
    if first > item.end and not _has_sealed(connection, topic.number, item.partition):
        start = _put_log_start(connection, topic.number, item.partition, max(first, present))
    settled = None
    if item.home is not None:
        settled = settle(connection, topic, item.partition, Home(*item.home), first)
    return RollOutcome(Code.NONE, "", opened, start, settled)


def _cut_from(connection: Tables, topic: int, partition: int, offset: Offset, log_start: Offset) -> None:
    """End sealed partitionlets at `offset`; delete those without any records left, so that their bytes are freed."""
    of_partition = "topic = ?1 AND state = ?2 AND partition = ?3"
    cut = {"end": "?4", "cut": "1"}
    connection.update("partitionlets", cut, f'{of_partition} AND "end" > ?4', topic, SEALED, partition, offset)
    connection.delete(
        "partitionlets", f'{of_partition} AND "end" <= max(first, ?4)', topic, SEALED, partition, log_start
    )


def _cut_committed_offsets(connection: Tables, topic: int, partition: int, offset: Offset) -> None:
    """Reset committed offsets above `offset` to it: those groups have read records that are cut now, or were lost
    before, and other records follow at `offset`.

    Committed offsets keep their times: a commit at the new home counts as newer (CopyOffsets), one from before the cut
    does not. Their leader epoch becomes -1, since the epoch of the last record below `offset` is not known here.
    """
    connection.update(
        "cursors",
        {"offset": "?1", "leader_epoch": "-1"},
        'topic = ?2 AND partition = ?3 AND "offset" > ?1',
        offset,
        topic,
        partition,
    )


def _has_sealed(connection: Tables, topic: int, partition: int) -> bool:
    found = connection.execute(
        "SELECT 1 FROM partitionlets WHERE topic = ? AND state = ? AND partition = ? LIMIT 1",
        (topic, SEALED, partition),
    ).fetchone()
    return found is not None


def _raise_start(connection: Tables, topic: TopicRow | None, item: LogStart) -> LogStartOutcome:
    if topic is None or not 0 <= item.partition < topic.partitions:
        return LogStartOutcome(Code.UNKNOWN_TOPIC_OR_PARTITION)
    present = _log_start(connection, topic.number, item.partition)
    if item.offset <= present:
        return LogStartOutcome(Code.NONE, present)
    start = _put_log_start(connection, topic.number, item.partition, item.offset)
    below = [
        PartitionletId(row[0])
        for row in connection.execute(
            'SELECT id FROM partitionlets WHERE topic = ? AND state = ? AND partition = ? AND "end" <= ? ORDER BY id',
            (topic.number, SEALED, item.partition, start),
        )
    ]
    _delete(connection, below)
    return LogStartOutcome(Code.NONE, start, tuple(below))


def _shorten(connection: Tables, topic: TopicRow | None, item: Shortened) -> LogStartOutcome:
    if topic is None:
        return LogStartOutcome(Code.UNKNOWN_TOPIC_OR_PARTITION)
    start = _log_start(connection, topic.number, item.partition)
    found = connection.execute(
        'SELECT first, "end" FROM partitionlets WHERE id = ? AND topic = ? AND partition = ? AND state = ?',
        (item.partitionlet, topic.number, item.partition, SEALED),
    ).fetchone()
    if found is None or item.end >= found[1]:
        return LogStartOutcome(Code.NONE, start)
    dropped = item.end <= max(found[0], start)
    if dropped:
        _delete(connection, [item.partitionlet])
    else:
        connection.update("partitionlets", {"end": "?1"}, "id = ?2", item.end, item.partitionlet)
    start = _put_log_start(connection, topic.number, item.partition, start)
    return LogStartOutcome(Code.NONE, start, (item.partitionlet,) if dropped else ())


def _tail(
    connection: Tables, topic: TopicRow | None, partition: int
) -> tuple[PartitionletRow, PartitionletRow | None] | None:
    """The partition's open partitionlet and the intended one, if any; None if there is no such partition."""
    if topic is None:
        return None
    rows = connection.execute(
        f"{PARTITIONLET} WHERE p.topic = ? AND p.state IN (?, ?) AND p.partition = ?",
        (topic.number, INTENDED, OPEN, partition),
    )
    found = {row.state: row for row in map(partitionlet_row, rows)}
    return (found[OPEN], found.get(INTENDED)) if OPEN in found else None


def _log_start(connection: Tables, topic: int, partition: int) -> Offset:
    row = connection.execute(
        'SELECT "offset" FROM log_starts WHERE topic = ? AND partition = ?', (topic, partition)
    ).fetchone()
    return Offset(0 if row is None else row[0])


def _put_log_start(connection: Tables, topic: int, partition: int, offset: Offset) -> Offset:
    """Move the log start to `offset`, or to the next partitionlet if `offset` lies in none; returns the log start."""
    (first,) = connection.execute(
        "SELECT min(first) FROM partitionlets WHERE topic = ? AND state IN (?, ?) AND partition = ? "
        'AND (state = ? OR "end" > ?)',
        (topic, OPEN, SEALED, partition, OPEN, offset),
    ).fetchone()
    start = offset if first is None else Offset(max(offset, first))
    if start > 0:
        connection.insert("log_starts", [(topic, partition, start)], upsert=True)
    return start


def _delete(connection: Tables, partitionlets: Iterable[PartitionletId]) -> None:
    for each in partitionlets:
        connection.delete("partitionlets", "id = ?1", each)
