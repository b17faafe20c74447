"""Access expressions on the cluster, path prefixes, streams, topics and groups (docs/security.md).

An expression is stored as text, which was checked before the command was written; `security/access_expression.py`
parses it. An object without an expression of its own inherits that of the next wider object.
"""

from typing import ClassVar, Final, NamedTuple

import msgspec

from headrace.base.errors import Code
from headrace.base.ids import Millis
from headrace.base.levels import Level
from headrace.catalog.command import CatalogCommand, Item
from headrace.catalog.selects import select_stream, select_topics_by_id
from headrace.tables.row_checksums import Tables

CLUSTER: Final = "cluster"
PREFIX: Final = "prefix"
STREAM: Final = "stream"
TOPIC: Final = "topic"
GROUP: Final = "group"
GROUP_PREFIX: Final = "group-prefix"
TRANSACTIONAL_ID: Final = "transactional-id"
TRANSACTIONAL_ID_PREFIX: Final = "transactional-id-prefix"


class AccessItem(Item, frozen=True):
    """The expression of one permission on one object.

    `object`: "" for the cluster; a path such as `/plant` for the prefix of streams below it, or for a stream; the name
    of a group or a transactional id, or a prefix of such names, "" for all names. For a topic it is empty, and
    `topic_id` identifies the topic. `expression`: None removes the object's own expression; "" permits nobody.
    """

    kind: str
    object: str
    permission: str
    expression: str | None
    topic_id: bytes = b""


class AccessOutcome(NamedTuple):
    """The outcome of one item. `object`, if the item succeeded: as given in the item; for a topic its full name."""

    code: Code
    object: str = ""


class SetAccess(CatalogCommand[list[AccessOutcome]], frozen=True):
    """Set and remove expressions. One outcome per item; UNKNOWN_TOPIC_OR_PARTITION or UNKNOWN_TOPIC_ID if the stream or
    topic does not exist. An item that changes nothing is a success.

    Unless all `expected` expressions hold, nothing is done, and each outcome is OPERATION_NOT_ATTEMPTED: a caller that
    changes what it has read before cannot undo what somebody else has written meanwhile. A repeat finds its own items
    in place, and is a success.
    """

    items: list[AccessItem]
    now: Millis
    expected: list[AccessItem] = msgspec.field(default_factory=list)
    """Expressions that must be in place; None in an item: the object has none of its own, or does not exist."""

    since: ClassVar[Level] = Level.SECURED
    changes_topics: ClassVar[bool] = False

    def apply(self, connection: Tables) -> list[AccessOutcome]:
        if not _all_hold(connection, self.expected) and not _all_hold(connection, self.items):
            return [AccessOutcome(Code.OPERATION_NOT_ATTEMPTED, item.object) for item in self.items]
        return [_set(connection, item) for item in self.items]


class SecureCluster(CatalogCommand[list[Code]], frozen=True):
    """Turn security on or off. While it is off, everybody who can reach a listener may do everything."""

    on: bool

    since: ClassVar[Level] = Level.SECURED
    changes_topics: ClassVar[bool] = False

    def apply(self, connection: Tables) -> list[Code]:
        connection.put_counter("secured", int(self.on))
        return [Code.NONE]


def forget_stream_access(connection: Tables, number: int) -> None:
    """Delete the expressions on a deleted stream, whose number may be assigned again."""
    connection.delete("access", "kind = ?1 AND object = ?2", STREAM, str(number))


def put_stream_access(connection: Tables, number: int, permission: str, expression: str) -> None:
    """Set the expression of one permission on a stream."""
    connection.insert("access", [(STREAM, str(number), permission, expression)], upsert=True)


def _all_hold(connection: Tables, items: list[AccessItem]) -> bool:
    """Whether all expressions are as the items demand."""
    return all(_expression(connection, item) == item.expression for item in items)


def _expression(connection: Tables, item: AccessItem) -> str | None:
    """The stored expression of an item's permission on its object; None if there is none."""
    if item.kind == TOPIC:
        topic = select_topics_by_id(connection, [item.topic_id]).get(item.topic_id)
        if topic is None:
            return None
        where: tuple[object, ...] = (topic.number, item.permission)
        select = "SELECT expression FROM topic_access WHERE topic = ? AND permission = ?"
    else:
        named = item.object
        if item.kind == STREAM:
            stream = select_stream(connection, item.object)
            if stream is None:
                return None
            named = str(stream.number)
        where = (item.kind, named, item.permission)
        select = "SELECT expression FROM access WHERE kind = ? AND object = ? AND permission = ?"
    found = connection.execute(select, where).fetchone()
    return None if found is None else str(found[0])


def _set(connection: Tables, item: AccessItem) -> AccessOutcome:
    if item.kind == TOPIC:
        topic = select_topics_by_id(connection, [item.topic_id]).get(item.topic_id)
        if topic is None:
            return AccessOutcome(Code.UNKNOWN_TOPIC_ID)
        if item.expression is None:
            connection.delete("topic_access", "topic = ?1 AND permission = ?2", topic.number, item.permission)
        else:
            connection.insert("topic_access", [(topic.number, item.permission, item.expression)], upsert=True)
        return AccessOutcome(Code.NONE, topic.full_name)
    named = item.object
    if item.kind == STREAM:
        stream = select_stream(connection, item.object)
        if stream is None:
            return AccessOutcome(Code.UNKNOWN_TOPIC_OR_PARTITION)
        named = str(stream.number)
    if item.expression is None:
        of_object = "kind = ?1 AND object = ?2 AND permission = ?3"
        connection.delete("access", of_object, item.kind, named, item.permission)
    else:
        connection.insert("access", [(item.kind, named, item.permission, item.expression)], upsert=True)
    return AccessOutcome(Code.NONE, item.object)
