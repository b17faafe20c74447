"""The catalog's SQLite file: its schema, opening and upgrading it, and applying commands to it.

    counters       name -> value: `applied` (the position below which all commands are applied), the next numbers; from
                   format 4 on, `totals` of the rows' checksums, in the row `applied` (row_checksums.py)
    streams        number, path, policy, counts
    topics         number, topic id, stream, name, partitions, configs; one row per topic
    partitionlets  id, topic, partition, container, first, end, ...; one open row per partition
    log_starts     only where above 0
    groups, cursors
    going          deleted streams with rows still to delete (0: topics that were deleted singly), see deletions.py
    free_streams   runs of stream numbers that may be assigned again, with their next serials
    retired        containers that take no new partitionlets any more
    links          id, name, stream, config, state
    home_starts    the history of each partition: where each home with a counter above 0 begins
    settled_homes  the home that a partition was last rolled for; without a row: the topic's first home
    pending_homes  per topic the histories that its partitions get when they are settled for its home
    users          names and their groups; credentials: the users' SCRAM credentials (users.py)
    access         access expressions on the cluster, path prefixes, streams, groups; topic_access: on topics
    quotas         limits of users, client ids and addresses
    deaths         this node's own record of partitionlets that lost records, see tables/deaths.py

A deleted topic's partitionlets leave the table: one is alive while its row exists and its log start lies below its
end. `apply` is deterministic: the same commands in the same order give the same rows and outcomes everywhere. The
applied position moves in the same transaction as the rows, so that replay applies each command exactly once. The log
is the truth, hence no sync per commit (WAL, synchronous=NORMAL): a machine that loses power replays a little more.
"""

import sqlite3
from pathlib import Path
from typing import Final, cast

import structlog

from headrace.base.errors import FolderRefused
from headrace.base.wal import WalBound
from headrace.catalog.command import CatalogCommand
from headrace.catalog.commands import decode
from headrace.tables.deaths import make as make_deaths
from headrace.tables.row_checksums import APPLICATION_ID, FORMAT, LATER, Tables, is_summed, totals_in
from headrace.tables.sqlite_errors import NO_TEXT, TablesDamaged, is_damage
from headrace.tables.transactions import applied

log = structlog.get_logger(__name__)

UNSUMMED_FORMAT = 3
"""The newest format without checksums of rows. Files are upgraded from it to FORMAT only once the cluster's feature
level permits checksums."""

WAL_BYTES = 16 << 20
"""Bytes above which the write-ahead log is truncated, as soon as its readers permit it (base/wal.py)."""
_BUSY_S = 30

_RETIRED = "CREATE TABLE retired(container INTEGER PRIMARY KEY);"
_LINKS = """
ALTER TABLE topics ADD COLUMN home_counter INTEGER;
ALTER TABLE topics ADD COLUMN home_cluster TEXT;
ALTER TABLE topics ADD COLUMN home_origin TEXT;
CREATE INDEX topics_with_home ON topics(stream, name) WHERE home_cluster IS NOT NULL;
CREATE TABLE links(
  id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, stream INTEGER NOT NULL, config BLOB NOT NULL,
  state TEXT NOT NULL, created INTEGER NOT NULL);
CREATE INDEX links_by_stream ON links(stream);
CREATE TABLE home_starts(
  topic INTEGER NOT NULL, partition INTEGER NOT NULL, counter INTEGER NOT NULL, cluster TEXT NOT NULL,
  "offset" INTEGER NOT NULL, PRIMARY KEY(topic, partition, counter, cluster)) WITHOUT ROWID;
CREATE TABLE settled_homes(
  topic INTEGER NOT NULL, partition INTEGER NOT NULL, counter INTEGER NOT NULL, cluster TEXT NOT NULL,
  PRIMARY KEY(topic, partition)) WITHOUT ROWID;
ALTER TABLE partitionlets ADD COLUMN cut INTEGER;
CREATE TABLE pending_homes(topic INTEGER PRIMARY KEY, lists BLOB NOT NULL);
INSERT INTO counters VALUES ('next_link', 1);
"""
_SCHEMA = f"""
CREATE TABLE counters(name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO counters VALUES ('applied', 0), ('next_stream', 1), ('next_topic', 1);
CREATE TABLE streams(
  number INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE, policy BLOB NOT NULL, created INTEGER NOT NULL,
  next_serial INTEGER NOT NULL, topics INTEGER NOT NULL, partitions INTEGER NOT NULL);
CREATE TABLE topics(
  number INTEGER PRIMARY KEY, topic_id BLOB NOT NULL UNIQUE, stream INTEGER NOT NULL, name TEXT NOT NULL,
  partitions INTEGER NOT NULL, configs BLOB, created INTEGER NOT NULL, own_retention INTEGER NOT NULL);
CREATE UNIQUE INDEX topics_by_name ON topics(stream, name);
CREATE INDEX topics_own_retention ON topics(stream) WHERE own_retention = 1;
CREATE TABLE partitionlets(
  id INTEGER PRIMARY KEY, topic INTEGER NOT NULL, partition INTEGER NOT NULL, container INTEGER NOT NULL,
  first INTEGER NOT NULL, "end" INTEGER NOT NULL, leader_epoch INTEGER NOT NULL, container_epoch INTEGER NOT NULL,
  state INTEGER NOT NULL, epochs BLOB);
CREATE INDEX chains ON partitionlets(topic, state, partition);
CREATE TABLE log_starts(
  topic INTEGER NOT NULL, partition INTEGER NOT NULL, "offset" INTEGER NOT NULL,
  PRIMARY KEY(topic, partition)) WITHOUT ROWID;
CREATE TABLE groups(
  name TEXT PRIMARY KEY, generation INTEGER NOT NULL, protocol_type TEXT NOT NULL, protocol TEXT NOT NULL,
  leader TEXT NOT NULL, member_ids BLOB NOT NULL, members BLOB NOT NULL, state TEXT NOT NULL,
  changed INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE cursors(
  "group" TEXT NOT NULL, topic INTEGER NOT NULL, partition INTEGER NOT NULL, "offset" INTEGER NOT NULL,
  leader_epoch INTEGER NOT NULL, metadata TEXT NOT NULL, committed_at INTEGER NOT NULL,
  PRIMARY KEY("group", topic, partition)) WITHOUT ROWID;
CREATE INDEX cursors_by_topic ON cursors(topic);
{_RETIRED}
{_LINKS}
"""

_LEVEL_1_TABLES = """
CREATE TABLE IF NOT EXISTS main.going(number INTEGER PRIMARY KEY, next_serial INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS main.free_streams(
  turn INTEGER PRIMARY KEY, first INTEGER NOT NULL, count INTEGER NOT NULL, next_serial INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS main.free_streams_by_number ON free_streams(first);
"""
"""The tables of feature level 1. They are empty until the log reaches that level, so they do not disturb versions that
do not know them. A file whose rows have checksums has them already. `main` is needed since a connection that checks
rows has views with the tables' names."""
_LEVEL_2_TABLES = """
CREATE TABLE IF NOT EXISTS main.users(
  name TEXT PRIMARY KEY, groups BLOB NOT NULL, created INTEGER NOT NULL{sum}) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS main.credentials(
  user TEXT NOT NULL, mechanism TEXT NOT NULL, salt BLOB NOT NULL, stored_key BLOB NOT NULL,
  server_key BLOB NOT NULL, iterations INTEGER NOT NULL{sum}, PRIMARY KEY(user, mechanism)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS main.access(
  kind TEXT NOT NULL, object TEXT NOT NULL, permission TEXT NOT NULL, expression TEXT NOT NULL{sum},
  PRIMARY KEY(kind, object, permission)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS main.topic_access(
  topic INTEGER NOT NULL, permission TEXT NOT NULL, expression TEXT NOT NULL{sum},
  PRIMARY KEY(topic, permission)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS main.quotas(
  entity TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL{sum}, PRIMARY KEY(entity, key)) WITHOUT ROWID;
"""
"""The tables of feature level 2, also empty until then; but a file whose rows have checksums may lack them."""
_INDEXES = """
CREATE INDEX IF NOT EXISTS main.partitionlets_by_container ON partitionlets(container, state);
CREATE INDEX IF NOT EXISTS main.partitionlets_intended ON partitionlets(id) WHERE first < 0;
CREATE INDEX IF NOT EXISTS main.topics_moved ON topics(number) WHERE home_counter > 0;
"""
"""Indexes that were added without a new format, since SQLite maintains them in versions that do not know them, too.
Tables of 0.1.0 get them when they are opened, at some 2 s for a million partitionlets.

The condition is not `WHERE state = 0`: with a partial index on a column that statements compare with a parameter,
SQLite recompiles these statements at each execution, as the parameter may make the index usable."""

_UPGRADES = {1: _RETIRED, 2: _LINKS}
"""By format, the statements that upgrade it to the next format."""


FILLED_AT_ONCE = 50
"""Number of pieces of rows that get checksums before the tables are used: at most a second of work."""


def open_tables(path: Path, *, sums: bool = True) -> Tables:
    """Open a connection that can apply commands, to be used by one thread at a time; creates the file if it is missing.

    `sums`: whether to add checksums to rows; without it rows have checksums only if the file has them already. Raises
    FolderRefused for a newer format, sqlite3.DatabaseError for a damaged file or one that is not a catalog.
    """
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=_BUSY_S, factory=Tables)
    connection.wal = WalBound(connection, path, most_bytes=WAL_BYTES, busy_ms=_BUSY_S * 1000)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute("PRAGMA cache_size=-4096")
        connection.execute("PRAGMA secure_delete=OFF")
        connection.execute("PRAGMA journal_size_limit=67108864")
        (found,) = connection.execute("PRAGMA user_version").fetchone()
        if found > FORMAT:
            raise FolderRefused(f"{path} has format {found}; this version reads {FORMAT}: use a newer headrace")
        if found == 0 and connection.execute("SELECT count(*) FROM sqlite_master").fetchone() != (0,):
            raise TablesDamaged(f"{path} has no format, but is not empty")
        if found == 0:
            connection.executescript(
                f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA application_id={APPLICATION_ID};"
                f"PRAGMA user_version={UNSUMMED_FORMAT}; COMMIT;"
            )
        bring_up(connection, sums=sums)
        applied(connection)
    except UnicodeDecodeError as error:
        connection.close()
        raise TablesDamaged(NO_TEXT) from error
    except BaseException:
        connection.close()
        raise
    return connection


def bring_up(connection: Tables, *, sums: bool) -> None:
    """Upgrade tables of an older format to this one, and create missing tables and indexes. Existing rows get their
    checksums piece by piece (`Tables.fill_some`): the first pieces at once, which is all of a small catalog."""
    summed = is_summed(connection)
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    if found < UNSUMMED_FORMAT:
        steps = "".join(_UPGRADES[step] for step in range(found, UNSUMMED_FORMAT))
        connection.executescript(f"BEGIN IMMEDIATE; {steps} PRAGMA user_version={UNSUMMED_FORMAT}; COMMIT;")
    if not summed:
        connection.executescript(_LEVEL_1_TABLES)
    _add_later(connection, summed=summed)
    for index in filter(None, map(str.strip, _INDEXES.split(";"))):
        try:
            connection.execute(index)
        except sqlite3.OperationalError as error:  # such as a full disk: queries are slower until a later opening
            if is_damage(error):
                raise
            log.warning("catalog_index_not_made", error=str(error))
    make_deaths(connection)
    connection.begin()
    if sums and not connection.summed:
        connection.add_sums()
        for _ in range(FILLED_AT_ONCE):
            if not connection.fill_some():
                break


def _add_later(connection: Tables, *, summed: bool) -> None:
    """Create the tables that a file of an older version lacks. Raises TablesDamaged if the file had them before."""
    there = {name for (name,) in connection.execute("SELECT name FROM main.sqlite_master WHERE type = 'table'")}
    missing = [table for table in LATER if table not in there]
    if not missing:
        return
    if summed:
        totals, _ = totals_in(connection)
        if any(totals.get(table) for table in missing):
            raise TablesDamaged(f"{', '.join(missing)}: tables are missing")
    sum_column = ", sum INTEGER" if summed else ""
    connection.executescript(f"BEGIN IMMEDIATE; {_LEVEL_2_TABLES.format(sum=sum_column)} COMMIT;")


class CatalogSchema:
    """The schema of the catalog's tables (tables.schema.Schema)."""

    decode = staticmethod(decode)
    open = staticmethod(open_tables)
    bring_up = staticmethod(bring_up)

    def apply(self, connection: Tables, command: object) -> object:
        """Apply a command to the rows, and return its outcome."""
        command = cast(CatalogCommand[object], command)
        if command.changes_topics:
            connection.sizes.clear()
        return command.apply(connection)


SCHEMA: Final = CatalogSchema()
