"""The feature level that the catalog's log has come to."""

from typing import ClassVar

from headrace.base.errors import Code
from headrace.base.levels import Level
from headrace.catalog.command import CatalogCommand
from headrace.catalog.counters import counter
from headrace.tables.row_checksums import Tables


class RaiseLevel(CatalogCommand[list[Code]], frozen=True):
    """Behind here the log may hold what belongs to a feature level (headrace.base.levels).

    Since every replica meets it at the same position, commands may be applied otherwise from there on.
    """

    level: int

    since: ClassVar[Level] = Level.FENCED

    def apply(self, connection: Tables) -> list[Code]:
        known = counter(connection, "level")
        if known is None or known < self.level:
            connection.put_counter("level", self.level)
        return [Code.NONE]
