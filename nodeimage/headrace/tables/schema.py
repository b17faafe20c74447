"""The interface of a schema: it decodes and applies commands, and creates and upgrades files.

The rest of this package knows nothing of the contents of tables, and passes commands and outcomes through unchanged.
"""

from pathlib import Path
from typing import Protocol

from headrace.base.errors import KafkaError
from headrace.tables.row_checksums import Tables

Command = object
"""A command as decoded by the schema."""
Outcome = object
"""The result of applying a command."""
Decided = Outcome | KafkaError
"""An outcome, or the error with which the whole command was refused."""


class Schema(Protocol):
    """The schema of one kind of tables."""

    def decode(self, payload: bytes | memoryview) -> Command:
        """The command in a frame's payload. Raises NewerFormat if this version does not know it."""

    def apply(self, connection: Tables, command: Command) -> Outcome:
        """Change rows, inside a transaction, in the same way on every replica. Raises KafkaError to refuse the
        command."""

    def open(self, path: Path, *, sums: bool = True) -> Tables:
        """Open a connection that can apply commands, to be used by one thread at a time; creates a missing file.

        `sums`: whether to add checksums to rows; without it rows have checksums only if the file has them already.
        Raises FolderRefused for a newer format, sqlite3.DatabaseError for a damaged file or one of another kind.
        """

    def bring_up(self, connection: Tables, *, sums: bool) -> None:
        """Upgrade tables of an older format to this one, and create missing tables and indexes."""
