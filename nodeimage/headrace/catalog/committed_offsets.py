"""Committed offsets of consumer groups: committed, copied from another cluster, deleted, expired.

The stored group fences commits: the generation is checked here, where commits and rebalances are in one order, and not
only on arrival at the coordinator.
"""

from collections.abc import Collection
from typing import Any, ClassVar, NamedTuple

import msgspec

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import LeaderEpoch, Millis, Offset
from headrace.base.levels import Level
from headrace.catalog.command import CatalogCommand, Item
from headrace.catalog.groups import EMPTY, select_group, store_group
from headrace.catalog.rows import GroupRow, TopicRow
from headrace.catalog.selects import TOPIC_IDS_AT_ONCE, select_topics_by_id
from headrace.tables.row_checksums import COLUMNS, Tables

COMMITTED_AT = COLUMNS["cursors"].index("committed_at")
AT_ONCE = 1000
"""Limit of groups, and of their committed offsets, that one ExpireSomeOffsets reads: some 10 ms. Must never change, as
it is part of the command's meaning."""
SIZES_KEPT = 10_000
"""Limit of topics whose number and partition count are cached."""
_NO_MEMBERS = msgspec.msgpack.encode(())


class Expired(NamedTuple):
    """The numbers of committed offsets and groups that were deleted. `after`: where to continue; None: all is done."""

    committed_offsets: int
    groups: int
    after: tuple[str, int, int] | None = None


class CommittedOffset(Item, frozen=True):
    """A committed offset; `leader_epoch` -1 if the client gave none.

    `committed_ms`: when another cluster accepted the commit, by that cluster's clock; -1: now, or not known.
    `expected`, of CopyOffsets alone: the item is skipped (NONE) unless the stored committed offset has this offset and
    time, (-1, -1) meaning that there is none; None: no condition."""

    topic_id: bytes
    partition: int
    offset: Offset
    leader_epoch: LeaderEpoch
    metadata: str = ""
    committed_ms: Millis = Millis(-1)
    expected: tuple[Offset, Millis] | None = None


class CommitOffsets(CatalogCommand[list[Code]], frozen=True, tag="CommitCursors"):
    """Store the offsets of those partitions that exist. One code per item.

    Fenced by the stored group: a generation >= 0 must be the group's (ILLEGAL_GENERATION) and the member one of its
    members (UNKNOWN_MEMBER_ID); generation -1, from a consumer that is no member, requires a group without members.
    """

    group: str
    generation: int
    member_id: str
    items: list[CommittedOffset]
    now: Millis

    changes_topics: ClassVar[bool] = False

    def apply(self, connection: Tables) -> list[Code]:
        group = select_group(connection, self.group)
        _fence(group, self)
        topics = _sizes(connection, {item.topic_id for item in self.items})
        codes, items = [], []
        for item in self.items:
            number, partitions = topics.get(item.topic_id, (0, 0))
            if not 0 <= item.partition < partitions:
                codes.append(Code.UNKNOWN_TOPIC_OR_PARTITION)
                continue
            codes.append(Code.NONE)
            items.append((number, item))
        _put(connection, group, self, items)
        return codes


class CopyOffsets(CatalogCommand[list[Code]], frozen=True, tag="CopyCursors"):
    """Store committed offsets from the home of their topics. One code per item.

    Only for topics whose home is another cluster than `cluster`, which is this one (else POLICY_VIOLATION: the home's
    commits win). Creates the group if there is none; NON_EMPTY_GROUP for all items if it has members here.

    `only_newer`: skip items (NONE) that were committed no later than the stored committed offset, by their recorded
    times; or, if an item's time is not known, whose offset is no higher. `moved`: the home has just moved here, and the
    items are from the former home, so they are also accepted for topics whose home is here. `alive`: the group exists
    at the source now, so it counts as changed, and its committed offsets do not expire here meanwhile.
    """

    group: str
    items: list[CommittedOffset]
    now: Millis
    cluster: str
    only_newer: bool = False
    moved: bool = False
    alive: bool = False

    def apply(self, connection: Tables) -> list[Code]:
        group = select_group(connection, self.group)
        if group is not None and group.member_ids:
            return [Code.NON_EMPTY_GROUP] * len(self.items)
        topics = select_topics_by_id(connection, {item.topic_id for item in self.items})
        codes, items = [], []
        for item in self.items:
            topic = topics.get(item.topic_id)
            if topic is None or not 0 <= item.partition < topic.partitions:
                codes.append(Code.UNKNOWN_TOPIC_OR_PARTITION)
            elif topic.home is None or (topic.home.cluster == self.cluster and not self.moved):
                codes.append(Code.POLICY_VIOLATION)
            else:
                codes.append(Code.NONE)
                if _is_accepted(connection, self, topic, item):
                    items.append((topic.number, item))
        if items:
            _put(connection, group, self, items)
        if self.alive:
            connection.update("groups", {"changed": "max(changed, ?1)"}, "name = ?2", self.now, self.group)
        return codes


class DeleteOffsets(CatalogCommand[list[Code]], frozen=True, tag="DeleteCursors"):
    """Delete the offsets of partitions. One code per (topic id, partition). GROUP_ID_NOT_FOUND for an unknown group."""

    group: str
    items: list[tuple[bytes, int]]

    changes_topics: ClassVar[bool] = False

    def apply(self, connection: Tables) -> list[Code]:
        if select_group(connection, self.group) is None:
            raise KafkaError(Code.GROUP_ID_NOT_FOUND, f"there is no group {self.group!r}")
        topics = select_topics_by_id(connection, {topic_id for topic_id, _ in self.items})
        codes = []
        for topic_id, partition in self.items:
            topic = topics.get(topic_id)
            if topic is None or not 0 <= partition < topic.partitions:
                codes.append(Code.UNKNOWN_TOPIC_OR_PARTITION)
                continue
            codes.append(Code.NONE)
            of_partition = '"group" = ?1 AND topic = ?2 AND partition = ?3'
            connection.delete("cursors", of_partition, self.group, topic.number, partition)
        return codes


class ExpireOffsets(CatalogCommand[Expired], frozen=True, tag="ExpireCursors"):
    """Delete old committed offsets of groups that have been empty for long, and then groups without any left.

    Deletes offsets committed before `before`, of groups that are empty and unchanged since before then.
    """

    before: Millis

    def apply(self, connection: Tables) -> Expired:
        idle = [
            row[0]
            for row in connection.execute(
                "SELECT name FROM groups WHERE changed < ? AND member_ids = ? ORDER BY name", (self.before, _NO_MEMBERS)
            )
        ]
        committed_offsets = sum(
            connection.delete("cursors", '"group" = ?1 AND committed_at < ?2', name, self.before) for name in idle
        )
        without = 'name = ?1 AND NOT EXISTS (SELECT 1 FROM cursors c WHERE c."group" = ?1)'
        groups = sum(connection.delete("groups", without, name) for name in idle)
        return Expired(committed_offsets, groups)


class ExpireSomeOffsets(CatalogCommand[Expired], frozen=True, tag="ExpireSomeCursors"):
    """As ExpireOffsets, for a bounded number of groups and of their offsets, from `after` on."""

    before: Millis
    after: tuple[str, int, int] = ("", -1, -1)
    """The place after which the command continues: a committed offset's group, topic number and partition; with -1, -1
    the beginning of the first group whose name is not below this one."""

    since: ClassVar[Level] = Level.FENCED

    def apply(self, connection: Tables) -> Expired:
        name, *place = self.after
        page = connection.execute(  # without the `members` column, which may be large
            "SELECT name, changed, member_ids FROM groups WHERE name >= ? ORDER BY name LIMIT ?", (name, AT_ONCE)
        ).fetchall()
        committed_offsets: list[tuple[Any, ...]] = []
        groups: list[tuple[str]] = []
        after = (f"{page[-1][0]}\0", -1, -1) if len(page) == AT_ONCE else None
        read = 0
        for name, changed, member_ids in page:
            if changed >= self.before or member_ids != _NO_MEMBERS:
                continue
            (topic, partition) = place if name == self.after[0] else (-1, -1)
            found = connection.rows(
                "cursors",
                '"group" = ? AND (topic, partition) > (?, ?) ORDER BY topic, partition LIMIT ?',
                name,
                topic,
                partition,
                AT_ONCE - read,
            )
            old = [each for each in found if each[COMMITTED_AT] < self.before]
            committed_offsets += old
            read += len(found)
            if read == AT_ONCE:
                after = (name, found[-1][1], found[-1][2])
                break
            if len(old) == len(found) and not _has_committed_offsets(connection, name, topic, partition):
                groups.append((name,))
        connection.delete_rows("cursors", committed_offsets)
        connection.delete_rows("groups", groups)
        return Expired(len(committed_offsets), len(groups), after)


def _is_accepted(connection: Tables, command: CopyOffsets, topic: TopicRow, item: CommittedOffset) -> bool:
    """Whether an item is to be stored, given the committed offset that is stored now."""
    if not command.only_newer and item.expected is None:
        return True
    present = connection.execute(
        'SELECT "offset", committed_at FROM cursors WHERE "group" = ? AND topic = ? AND partition = ?',
        (command.group, topic.number, item.partition),
    ).fetchone()
    if item.expected is not None and (present or (-1, -1)) != item.expected:
        return False
    if not command.only_newer or present is None:
        return True
    offset, committed_at = present
    return bool(item.committed_ms > committed_at if item.committed_ms >= 0 else item.offset > offset)


def _put(
    connection: Tables,
    group: GroupRow | None,
    command: CommitOffsets | CopyOffsets,
    items: list[tuple[int, CommittedOffset]],
) -> None:
    if group is None:
        store_group(connection, GroupRow(command.group, 0, "", "", "", (), b"", EMPTY, command.now))
    connection.insert(
        "cursors",
        [
            (
                command.group,
                topic,
                item.partition,
                item.offset,
                item.leader_epoch,
                item.metadata,
                item.committed_ms if item.committed_ms >= 0 else command.now,
            )
            for topic, item in items
        ],
        upsert=True,
    )


def _has_committed_offsets(connection: Tables, group: str, topic: int, partition: int) -> bool:
    """Whether a group has committed offsets up to a partition, which an earlier step has left in place."""
    where = '"group" = ? AND (topic, partition) <= (?, ?) LIMIT 1'
    return topic >= 0 and bool(connection.rows("cursors", where, group, topic, partition))


def _fence(group: GroupRow | None, command: CommitOffsets) -> None:
    if command.generation < 0:
        if group is not None and group.member_ids:
            raise KafkaError(
                Code.UNKNOWN_MEMBER_ID, f"group {command.group!r} has members; only they may commit its cursors"
            )
        return
    if group is None or group.generation != command.generation:
        raise KafkaError(Code.ILLEGAL_GENERATION, f"group {command.group!r} is not at generation {command.generation}")
    if command.member_id not in group.member_ids:
        raise KafkaError(Code.UNKNOWN_MEMBER_ID, f"group {command.group!r} has no member {command.member_id!r}")


def _sizes(connection: Tables, topic_ids: Collection[bytes]) -> dict[bytes, tuple[int, int]]:
    """By topic id, (number, partitions) of at least those of these topics that exist."""
    known = connection.sizes
    if len(known) > SIZES_KEPT:
        known.clear()
    wanted = [topic_id for topic_id in topic_ids if topic_id not in known]
    for start in range(0, len(wanted), TOPIC_IDS_AT_ONCE):
        some = wanted[start : start + TOPIC_IDS_AT_ONCE]
        rows = connection.rows("topics", f"topic_id IN ({','.join('?' * len(some))})", *some)
        # A topic whose stream has no row is being deleted with it, and counts as deleted.
        there = {stream for stream in {row[2] for row in rows} if connection.rows("streams", "number = ?", stream)}
        known.update({row[1]: (row[0], row[4]) for row in rows if row[2] in there})
    return known
