"""The feature level that the catalog's log has reached."""

from typing import ClassVar

from headrace.base.errors import Code
from headrace.base.levels import Level
from headrace.catalog.command import CatalogCommand
from headrace.catalog.counters import counter
from headrace.tables.row_checksums import Tables


class RaiseLevel(CatalogCommand[list[Code]], frozen=True):
    """Mark that the log after this command may contain commands of a feature level (headrace.base.levels).

    As every replica applies this command at the same position, other commands may be applied differently from there on.
    """

    level: int

    since: ClassVar[Level] = Level.FENCED

    def apply(self, connection: Tables) -> list[Code]:
        known = counter(connection, "level")
        if known is None or known < self.level:
            connection.put_counter("level", self.level)
        return [Code.NONE]
