"""The cluster store on one machine: one SQLite file, shared by the machine's processes.

    records(key, value, version)   value NULL: deleted; the row is kept for a while, for watchers. A value has a
                                   checksum (headrace.base.sealed_json) over key, version and itself
    revision                       one counter; each write takes the next value as the record's version

A write is one IMMEDIATE transaction, so compare-and-set works between processes; synchronous=FULL makes it durable on
return. Uses the standard library's sqlite3, not sqlite-utils, whose import takes more memory than a node
(CONTRIBUTING.md).
"""

import contextlib
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from headrace.base.errors import FolderRefused
from headrace.base.sealed_json import seal, unseal
from headrace.base.wal import WalBound
from headrace.store.protocol import Changes, StoreFull, StoreUnavailable, VersionConflict, Versioned

APPLICATION_ID = 0x48525354
"""'HRST' in the file's header."""
FORMAT = 1
"""Version of the schema, in user_version. A newer one is refused."""

_BUSY_S = 5.0
"""Seconds that a call waits for another process's lock."""
_POLL_S = 0.05
"""Seconds between two checks for changes."""
_WAL_BYTES = 4 << 20
"""Size in bytes of the write-ahead log above which it is truncated: continuous reads by all processes would let it
grow."""
_FULL = ("SQLITE_FULL", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_SHMSIZE", "SQLITE_IOERR_TRUNCATE")
"""Errors of a full disk, including when SQLite extends the WAL or its shared-memory index."""
_DAMAGED = ("SQLITE_NOTADB", "SQLITE_CORRUPT")
"""Errors of a file with invalid content."""
_REMOVED_KEPT = 10_000
"""Revisions for which a removal is remembered; a watch from an older revision gets everything."""

_SCHEMA = """
CREATE TABLE records(key TEXT PRIMARY KEY, value BLOB, version INTEGER NOT NULL UNIQUE) WITHOUT ROWID;
CREATE TABLE revision(only INTEGER PRIMARY KEY CHECK(only = 1), value INTEGER NOT NULL, forgotten INTEGER NOT NULL);
INSERT INTO revision VALUES (1, 0, 0);
"""


class SqliteStore:
    """A ClusterStore in the file at `path`, created if missing. Threads may share it; each call is one transaction.

    The constructor raises FolderRefused for a file of a newer format or of another kind, and StoreUnavailable; the
    methods raise only the latter.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._highest = 0
        """The highest revision seen. It only decreases if the file is replaced by another one."""
        self._generation = 0
        with _reported(path, opening=True):
            self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=_BUSY_S)
        self._wal = WalBound(self._connection, path, most_bytes=_WAL_BYTES, busy_ms=int(_BUSY_S * 1000))
        try:
            with _reported(path, opening=True):
                self._prepare()
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    def get(self, key: str) -> Versioned | None:
        """See ClusterStore."""
        with self._one_call():
            row = self._connection.execute(
                "SELECT key, value, version FROM records WHERE key = ? AND value IS NOT NULL", (key,)
            ).fetchone()
        return None if row is None else self._checked(*row)

    def list(self, prefix: str) -> list[Versioned]:
        """See ClusterStore."""
        with self._one_call():
            return [*self._found(prefix, since=0)]

    def put(self, key: str, value: bytes, expected_version: int | None) -> int:
        """See ClusterStore."""
        with self._write() as connection:
            self._expect(key, expected_version)
            version = self._next_revision()
            connection.execute(
                "INSERT INTO records VALUES (?, ?, ?) "
                "ON CONFLICT DO UPDATE SET value = excluded.value, version = excluded.version",
                (key, seal(value, salt=_salt(key, version)), version),
            )
        self._highest = max(self._highest, version)
        return version

    def delete(self, key: str, expected_version: int) -> None:
        """See ClusterStore."""
        with self._write() as connection:
            self._expect(key, expected_version)
            revision = self._next_revision()
            connection.execute("UPDATE records SET value = NULL, version = ? WHERE key = ?", (revision, key))
            forgotten = revision - _REMOVED_KEPT
            if forgotten > 0:
                connection.execute("DELETE FROM records WHERE value IS NULL AND version <= ?", (forgotten,))
                connection.execute("UPDATE revision SET forgotten = ?", (forgotten,))

    def watch(self, prefix: str, *, since: int, timeout_s: float) -> Changes:
        """See ClusterStore. Polls every `_POLL_S`."""
        deadline = time.monotonic() + timeout_s
        while True:
            changes = self._changes(prefix, since)
            left = deadline - time.monotonic()
            if changes.whole or changes.records or changes.removed or left <= 0:
                return changes
            since = changes.revision
            time.sleep(min(_POLL_S, left))

    def _changes(self, prefix: str, since: int) -> Changes:
        with self._one_call():
            self._connection.execute("BEGIN")
            try:
                revision, forgotten = self._connection.execute("SELECT value, forgotten FROM revision").fetchone()
                self._generation += revision < self._highest
                self._highest = revision
                if revision == since:
                    return Changes(revision, [], {}, whole=False, generation=self._generation, one_count=True)
                whole = since == 0 or not forgotten <= since < revision
                records = [*self._found(prefix, since=0 if whole else since)]
                removed = {} if whole else _removed(self._connection, prefix, since=since)
                return Changes(revision, records, removed, whole, self._generation, one_count=True)
            finally:
                self._connection.execute("ROLLBACK")

    def _found(self, prefix: str, *, since: int) -> Iterator[Versioned]:
        rows = self._connection.execute(_since("key, value, version", "value IS NOT NULL"), (prefix, since))
        return (self._checked(*row) for row in sorted(rows))

    def _checked(self, key: str, value: bytes, version: int) -> Versioned:
        """Return a record after verifying its checksum.

        Raises StoreUnavailable: no decision may be based on a store that is partly damaged.
        """
        try:
            return Versioned(key, unseal(value, salt=_salt(key, version)), version)
        except ValueError as error:
            raise StoreUnavailable(
                f"the cluster store {self._path} is damaged: its record {key} is not what was written. Stop all nodes, "
                "then rebuild it with `headrace recover-store`"
            ) from error

    def _expect(self, key: str, expected: int | None) -> None:
        row = self._connection.execute(
            "SELECT version FROM records WHERE key = ? AND value IS NOT NULL", (key,)
        ).fetchone()
        found = None if row is None else int(row[0])
        if found != expected:
            raise VersionConflict(key, expected=expected, found=found)

    def _next_revision(self) -> int:
        self._connection.execute("UPDATE revision SET value = value + 1")
        return int(self._connection.execute("SELECT value FROM revision").fetchone()[0])

    @contextlib.contextmanager
    def _one_call(self) -> Iterator[None]:
        with self._lock, _reported(self._path):
            try:
                yield
            except sqlite3.Error as error:
                if getattr(error, "sqlite_errorname", "").startswith(_DAMAGED):
                    # The damaged pages would stay cached until the next write; an operator may restore the file before.
                    self._connection.execute("PRAGMA shrink_memory")
                raise

    @contextlib.contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        with self._one_call():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
            self._wal.written()

    def _use_wal(self) -> None:
        """Switch to WAL mode, with retries: SQLite's timeout does not cover this while another process switches a new
        file."""
        deadline = time.monotonic() + _BUSY_S
        while True:
            try:
                self._connection.execute("PRAGMA journal_mode=WAL")
                return
            except sqlite3.OperationalError as error:
                if not getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY") or time.monotonic() > deadline:
                    raise
            time.sleep(_POLL_S)

    def _prepare(self) -> None:
        self._use_wal()
        self._connection.execute("PRAGMA synchronous=FULL")
        self._connection.execute("PRAGMA cache_size=-256")
        self._connection.execute("BEGIN IMMEDIATE")  # two processes may both find the file new
        try:
            (found,) = self._connection.execute("PRAGMA user_version").fetchone()
            (kind,) = self._connection.execute("PRAGMA application_id").fetchone()
            (tables,) = self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if found == 0 and tables == 0:
                for statement in filter(None, map(str.strip, _SCHEMA.split(";"))):
                    self._connection.execute(statement)
                self._connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
                self._connection.execute(f"PRAGMA user_version={FORMAT}")
            elif kind != APPLICATION_ID:
                raise FolderRefused(f"{self._path} is not a cluster store; choose another folder")
            elif found > FORMAT:
                raise FolderRefused(
                    f"{self._path} has format {found}, this version reads {FORMAT}; use a newer headrace"
                )
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise


def _salt(key: str, version: int) -> bytes:
    return f"{key}\0{version}".encode()


def _removed(connection: sqlite3.Connection, prefix: str, *, since: int) -> dict[str, int]:
    rows = connection.execute(_since("key, version", "value IS NULL"), (prefix, since))
    return dict(sorted(rows))


def _since(columns: str, which: str) -> str:
    """Return a query for the records after a version, ordered by version.

    The order makes SQLite use the index on versions: watchers poll twenty times a second, and nodes also read after
    changes of their own, so a query must not scan all records for the few that changed.
    """
    return (
        f"SELECT {columns} FROM records WHERE version > ?2 AND substr(key, 1, length(?1)) = ?1 AND {which} "
        "ORDER BY version"
    )


@contextlib.contextmanager
def _reported(path: Path, *, opening: bool = False) -> Iterator[None]:
    """Convert SQLite's errors.

    `opening`: a file of another kind is refused permanently. In a store that was already open, it only makes the store
    unavailable, since an operator may be restoring the right file.
    """
    try:
        yield
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", "")
        if opening and name == "SQLITE_NOTADB":
            raise FolderRefused(f"{path} is not a cluster store; choose another folder") from error
        if name.startswith(_FULL):
            raise StoreFull(f"no room on the disk for the cluster store {path}: {error}; free some") from error
        raise StoreUnavailable(f"the cluster store {path} cannot be used: {error}") from error
