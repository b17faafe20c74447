"""Consumer groups as stored by their coordinators."""

from typing import ClassVar

import msgspec

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import Millis
from headrace.catalog.command import CatalogCommand
from headrace.catalog.rows import GroupRow
from headrace.catalog.selects import group_row
from headrace.tables.row_checksums import COLUMNS, Tables

EMPTY = "Empty"
"""The state of a group without members, in Kafka's words."""
GROUP_COLUMNS = len(COLUMNS["groups"])


class PutGroup(CatalogCommand[GroupRow], frozen=True):
    """Store a group's state as its coordinator has it. A generation lower than the stored one is refused.

    `member_ids` fences commits; it is empty for an empty group. `members` are bytes of the coordinator, opaque here.
    """

    group: str
    generation: int
    protocol_type: str
    protocol: str
    leader: str
    member_ids: list[str]
    members: bytes
    state: str
    now: Millis

    changes_topics: ClassVar[bool] = False

    def apply(self, connection: Tables) -> GroupRow:
        present = select_group(connection, self.group)
        if present is not None and self.generation < present.generation:
            raise KafkaError(
                Code.ILLEGAL_GENERATION,
                f"group {self.group!r} is at generation {present.generation}, beyond {self.generation}",
            )
        row = GroupRow(
            self.group,
            self.generation,
            self.protocol_type,
            self.protocol,
            self.leader,
            tuple(self.member_ids),
            self.members,
            self.state,
            self.now,
        )
        store_group(connection, row)
        return row


class DeleteGroups(CatalogCommand[list[Code]], frozen=True):
    """Delete empty groups with their committed offsets.

    One code per group: NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND, NONE.
    """

    groups: list[str]

    def apply(self, connection: Tables) -> list[Code]:
        codes = []
        for name in self.groups:
            group = select_group(connection, name)
            if group is None:
                codes.append(Code.GROUP_ID_NOT_FOUND)
            elif group.member_ids:
                codes.append(Code.NON_EMPTY_GROUP)
            else:
                codes.append(Code.NONE)
                connection.delete("cursors", '"group" = ?1', name)
                connection.delete("groups", "name = ?1", name)
        return codes


def select_group(connection: Tables, name: str) -> GroupRow | None:
    """The group of that name; None if there is none."""
    found = connection.rows("groups", "name = ?", name)
    return group_row(found[0][:GROUP_COLUMNS]) if found else None


def store_group(connection: Tables, row: GroupRow) -> None:
    """Store a group, replacing the one of that name."""
    members = msgspec.msgpack.encode(row.member_ids)
    columns = (*row[:5], members, row.members, row.state, Millis(row.changed))
    connection.insert("groups", [columns], upsert=True)
