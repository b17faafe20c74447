"""The base classes of the catalog's commands, and the rules for changing commands.

A command is a map in msgpack with a tag `type`: the name of its class, or the name that the class had when the command
was introduced; the items of its lists are arrays. Commands are stored in the catalog container's log. A command
contains all times, uuids and placement, so that applying it is deterministic, the same on every node; its outcome is
decided when it is applied. A field may be added at the end with a default; fields are never removed, and never change
their meaning: logs are replayed.

A command may arrive twice, since its submitter tries again when the leader goes away. The second copy changes nothing
that the first one has done: numbers, ids and rows stay. If a repeat cannot be recognized by the rows themselves, the
command's docstring explains how it is recognized.

To add a command, add a class with `apply` to the module of its family, and a test of it. `commands` finds it there.
"""

from typing import ClassVar, Generic, TypeVar

import msgspec

from headrace.base.levels import Level
from headrace.tables.row_checksums import Tables

O_co = TypeVar("O_co", covariant=True)


class Item(msgspec.Struct, frozen=True, array_like=True):
    """An element of a command's list."""


class CatalogCommand(msgspec.Struct, Generic[O_co], frozen=True, tag=True, omit_defaults=True):
    """A change of the catalog. Its type parameter is the type of its outcome."""

    since: ClassVar[Level] = Level.ORIGINAL
    """The feature level that the command belongs to. A field added to an older command needs a level as well: a node
    that does not know a field ignores it, and its tables would differ."""
    changes_topics: ClassVar[bool] = True
    """Whether the command may change topics or their numbers of partitions."""

    def apply(self, connection: Tables) -> O_co:
        """Change rows, inside a transaction, and return the outcome: deterministic, without clock or randomness. Raises
        KafkaError to refuse the command.

        Applying a repeat of the command changes nothing more.
        """
        raise NotImplementedError
