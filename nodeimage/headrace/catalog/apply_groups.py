"""Applies the commands on consumer groups and cursors. Called inside a transaction.

The group as stored fences commits: the generation is checked here, where commits and rebalances have one order, and
not only where they arrive.
"""

from collections.abc import Collection
from typing import Any

import msgspec

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import Millis
from headrace.catalog.commands import (
    CommitCursors,
    CopyCursors,
    Cursor,
    DeleteCursors,
    DeleteGroups,
    ExpireCursors,
    ExpireSomeCursors,
    PutGroup,
)
from headrace.catalog.rows import Expired, GroupRow, TopicRow
from headrace.catalog.selects import TOPIC_IDS_AT_ONCE, group_row, select_topics_by_id
from headrace.tables.row_checksums import COLUMNS, Tables

EMPTY = "Empty"
"""The state of a group without members, in Kafka's words."""

GROUP_COLUMNS = len(COLUMNS["groups"])
CURSOR_TIME = COLUMNS["cursors"].index("committed_at")
AT_ONCE = 1000
"""Groups, and cursors of theirs, that one ExpireSomeCursors looks at, at most: some 10 ms. The same for ever, as it
belongs to the command."""
SIZES_KEPT = 10_000
_NO_MEMBERS = msgspec.msgpack.encode(())


def commit_cursors(connection: Tables, command: CommitCursors) -> list[Code]:
    """Store the offsets of those partitions that exist."""
    group = _select(connection, command.group)
    _fence(group, command)
    topics = _sizes(connection, {item.topic_id for item in command.items})
    codes, items = [], []
    for item in command.items:
        number, partitions = topics.get(item.topic_id, (0, 0))
        if not 0 <= item.partition < partitions:
            codes.append(Code.UNKNOWN_TOPIC_OR_PARTITION)
            continue
        codes.append(Code.NONE)
        items.append((number, item))
    _put(connection, group, command, items)
    return codes


def copy_cursors(connection: Tables, command: CopyCursors) -> list[Code]:
    """Store the offsets that the home of their topics has, unless the group is at work here."""
    group = _select(connection, command.group)
    if group is not None and group.member_ids:
        return [Code.NON_EMPTY_GROUP] * len(command.items)
    topics = select_topics_by_id(connection, {item.topic_id for item in command.items})
    codes, items = [], []
    for item in command.items:
        topic = topics.get(item.topic_id)
        if topic is None or not 0 <= item.partition < topic.partitions:
            codes.append(Code.UNKNOWN_TOPIC_OR_PARTITION)
        elif topic.home is None or (topic.home.cluster == command.cluster and not command.moved):
            codes.append(Code.POLICY_VIOLATION)
        else:
            codes.append(Code.NONE)
            if _counts(connection, command, topic, item):
                items.append((topic.number, item))
    if items:
        _put(connection, group, command, items)
    if command.alive:
        connection.update("groups", {"changed": "max(changed, ?1)"}, "name = ?2", command.now, command.group)
    return codes


def _counts(connection: Tables, command: CopyCursors, topic: TopicRow, item: Cursor) -> bool:
    """Whether it is to be stored, by what stands."""
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
    command: CommitCursors | CopyCursors,
    items: list[tuple[int, Cursor]],
) -> None:
    if group is None:
        _store(connection, GroupRow(command.group, 0, "", "", "", (), b"", EMPTY, command.now))
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


def delete_cursors(connection: Tables, command: DeleteCursors) -> list[Code]:
    """Forget the offsets of these partitions."""
    if _select(connection, command.group) is None:
        raise KafkaError(Code.GROUP_ID_NOT_FOUND, f"there is no group {command.group!r}")
    topics = select_topics_by_id(connection, {topic_id for topic_id, _ in command.items})
    codes = []
    for topic_id, partition in command.items:
        topic = topics.get(topic_id)
        if topic is None or not 0 <= partition < topic.partitions:
            codes.append(Code.UNKNOWN_TOPIC_OR_PARTITION)
            continue
        codes.append(Code.NONE)
        of_partition = '"group" = ?1 AND topic = ?2 AND partition = ?3'
        connection.delete("cursors", of_partition, command.group, topic.number, partition)
    return codes


def put_group(connection: Tables, command: PutGroup) -> GroupRow:
    """Store the group, unless a later generation is stored already."""
    present = _select(connection, command.group)
    if present is not None and command.generation < present.generation:
        raise KafkaError(
            Code.ILLEGAL_GENERATION,
            f"group {command.group!r} is at generation {present.generation}, beyond {command.generation}",
        )
    row = GroupRow(
        command.group,
        command.generation,
        command.protocol_type,
        command.protocol,
        command.leader,
        tuple(command.member_ids),
        command.members,
        command.state,
        command.now,
    )
    _store(connection, row)
    return row


def delete_groups(connection: Tables, command: DeleteGroups) -> list[Code]:
    """Forget empty groups with their cursors."""
    codes = []
    for name in command.groups:
        group = _select(connection, name)
        if group is None:
            codes.append(Code.GROUP_ID_NOT_FOUND)
        elif group.member_ids:
            codes.append(Code.NON_EMPTY_GROUP)
        else:
            codes.append(Code.NONE)
            connection.delete("cursors", '"group" = ?1', name)
            connection.delete("groups", "name = ?1", name)
    return codes


def expire_cursors(connection: Tables, command: ExpireCursors) -> Expired:
    """Forget old cursors of groups that have long been empty, then those groups if nothing is left of them."""
    idle = [
        row[0]
        for row in connection.execute(
            "SELECT name FROM groups WHERE changed < ? AND member_ids = ? ORDER BY name", (command.before, _NO_MEMBERS)
        )
    ]
    cursors = sum(
        connection.delete("cursors", '"group" = ?1 AND committed_at < ?2', name, command.before) for name in idle
    )
    without = 'name = ?1 AND NOT EXISTS (SELECT 1 FROM cursors c WHERE c."group" = ?1)'
    groups = sum(connection.delete("groups", without, name) for name in idle)
    return Expired(cursors, groups)


def expire_some_cursors(connection: Tables, command: ExpireSomeCursors) -> Expired:
    """As `expire_cursors`, for a bounded number of groups and of their cursors."""
    name, *place = command.after
    page = connection.execute(  # without what groups at work hold of their members, which may be much
        "SELECT name, changed, member_ids FROM groups WHERE name >= ? ORDER BY name LIMIT ?", (name, AT_ONCE)
    ).fetchall()
    cursors: list[tuple[Any, ...]] = []
    groups: list[tuple[str]] = []
    after = (f"{page[-1][0]}\0", -1, -1) if len(page) == AT_ONCE else None
    looked = 0
    for name, changed, member_ids in page:
        if changed >= command.before or member_ids != _NO_MEMBERS:
            continue
        (topic, partition) = place if name == command.after[0] else (-1, -1)
        found = connection.rows(
            "cursors",
            '"group" = ? AND (topic, partition) > (?, ?) ORDER BY topic, partition LIMIT ?',
            name,
            topic,
            partition,
            AT_ONCE - looked,
        )
        old = [each for each in found if each[CURSOR_TIME] < command.before]
        cursors += old
        looked += len(found)
        if looked == AT_ONCE:
            after = (name, found[-1][1], found[-1][2])
            break
        if len(old) == len(found) and not _has_cursors(connection, name, topic, partition):
            groups.append((name,))
    connection.delete_rows("cursors", cursors)
    connection.delete_rows("groups", groups)
    return Expired(len(cursors), len(groups), after)


def _has_cursors(connection: Tables, group: str, topic: int, partition: int) -> bool:
    """Whether some are left of an earlier step, which came up to there."""
    where = '"group" = ? AND (topic, partition) <= (?, ?) LIMIT 1'
    return topic >= 0 and bool(connection.rows("cursors", where, group, topic, partition))


def _fence(group: GroupRow | None, command: CommitCursors) -> None:
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


def _select(connection: Tables, name: str) -> GroupRow | None:
    found = connection.rows("groups", "name = ?", name)
    return group_row(found[0][:GROUP_COLUMNS]) if found else None


def _sizes(connection: Tables, topic_ids: Collection[bytes]) -> dict[bytes, tuple[int, int]]:
    """(number, partitions) of at least the topics with these ids, of those that exist."""
    known = connection.sizes
    if len(known) > SIZES_KEPT:
        known.clear()
    wanted = [topic_id for topic_id in topic_ids if topic_id not in known]
    for start in range(0, len(wanted), TOPIC_IDS_AT_ONCE):
        some = wanted[start : start + TOPIC_IDS_AT_ONCE]
        rows = connection.rows("topics", f"topic_id IN ({','.join('?' * len(some))})", *some)
        # A stream that has no row is being deleted, and a topic of it is gone.
        there = {stream for stream in {row[2] for row in rows} if connection.rows("streams", "number = ?", stream)}
        known.update({row[1]: (row[0], row[4]) for row in rows if row[2] in there})
    return known


def _store(connection: Tables, row: GroupRow) -> None:
    members = msgspec.msgpack.encode(row.member_ids)
    columns = (*row[:5], members, row.members, row.state, Millis(row.changed))
    connection.insert("groups", [columns], upsert=True)
