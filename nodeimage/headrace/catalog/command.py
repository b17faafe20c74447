"""What all commands of the catalog are made of, and the rules for changing one.

A command is a map in msgpack with a tag `type`: the name of its class, or the name that the class had when the first of
them was written; the items of its lists are arrays. It stands in the catalog container's log. All times, uuids and
placement stand inside it, so that applying it is deterministic, the same on every node; its outcome is decided when it
is applied. A field may be added at the end with a default, and never removed or given another meaning: logs are
replayed.

A command may come twice, since who submits it tries again when its leader goes away. The second copy changes nothing
that the first has done: numbers, ids and rows stay. Where that needs more than the rows themselves say, the docstring
tells how a repeat is known.

To add one: a class in the module of its family, with `apply`, and a test of it. `commands` finds it there.
"""

from typing import ClassVar, Generic, TypeVar

import msgspec

from headrace.base.levels import Level
from headrace.tables.row_checksums import Tables

O_co = TypeVar("O_co", covariant=True)


class Item(msgspec.Struct, frozen=True, array_like=True):
    """An element of a command's list."""


class CatalogCommand(msgspec.Struct, Generic[O_co], frozen=True, tag=True, omit_defaults=True):
    """A change of the catalog, which comes to an outcome of the type that it is declared with."""

    since: ClassVar[Level] = Level.ORIGINAL
    """The feature level that it belongs to. A field that is added to an older command needs a level as well: whoever
    does not know a field leaves it out, and its tables become others."""
    changes_topics: ClassVar[bool] = True
    """Whether topics, or how many partitions they have, may be others afterwards."""

    def apply(self, connection: Tables) -> O_co:
        """Change rows, inside a transaction: deterministic, without clock or chance. Raises KafkaError to refuse it.

        Applied again, after a repeat, it changes nothing more.
        """
        raise NotImplementedError
