"""What the tables are asked to be: how a command is read and applied, and how a file is made and brought up.

The tables' machinery knows nothing of what they hold: commands and outcomes go through it as they are.
"""

from pathlib import Path
from typing import Protocol

from headrace.base.errors import KafkaError
from headrace.tables.row_checksums import Tables

Command = object
"""As the schema decodes it."""
Outcome = object
"""What applying a command gives."""
Decided = Outcome | KafkaError
"""An outcome, or the error with which the whole command was refused."""


class Schema(Protocol):
    """Of one kind of tables."""

    def decode(self, payload: bytes | memoryview) -> Command:
        """The command in a frame. Raises NewerFormat if this version does not know it."""

    def apply(self, connection: Tables, command: Command) -> Outcome:
        """Change rows, inside a transaction: the same on every replica. Raises KafkaError to refuse the command."""

    def open(self, path: Path, *, sums: bool = True) -> Tables:
        """A connection that may apply commands; makes the file where there is none. One thread at a time.

        `sums`: rows get checksums; else they have some only where the file has them already. Raises FolderRefused for a
        newer format, sqlite3.DatabaseError for a damaged file or one of another kind.
        """

    def bring_up(self, connection: Tables, *, sums: bool) -> None:
        """Bring tables of an older format up to this one, and make the tables and indexes that they lack."""
