"""Checksums of the catalog's rows and of its tables: the writing connection, and what every reading one checks.

    sum (a column of each table)   CRC-32C of the table's name and of the row's other columns, as a msgpack array
    totals (a column of counters)  in the row `applied`: by table the total of the sums of its rows, but for that row.
                                   It moves in the transaction that moves them, as the applied position does, and is so
                                   written with no statement and no page of its own

A row is checked wherever it is read: each connection has views, in its own temporary schema, of the tables' names,
whose condition is that the sum fits. So a SELECT of a table's name reads checked rows alone, and statements that write
name `main.<table>`; `Tables.insert`, `update` and `delete` make them. An update or deletion checks what it is about to
change, so that a sum is never made anew over damage. Functions that these statements call, and a temporary trigger for
deletions, move the total by what is done to the sums; nothing of all this but the two columns lies in the file, and a
foreign connection can read it.

What no row shows is seen by the total alone: a row that is missing, or that is an older version of itself (check.py).

A file of format 3 has no sums: it is read and written as before, until `add_sums` (from Level.FENCED on) makes it one
of format 4. Its rows then get their sums by `fill_some`, a piece at a time; a row that has none passes until that is
over.
"""

import contextlib
import hashlib
import sqlite3
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import msgspec
from crc32c import crc32c

from headrace.base.ids import Position
from headrace.base.wal import WalBound
from headrace.tables.deaths import Deaths
from headrace.tables.sqlite_errors import TablesDamaged

COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "counters": ("name", "value", "totals"),
    "streams": ("number", "path", "policy", "created", "next_serial", "topics", "partitions"),
    "topics": (
        "number", "topic_id", "stream", "name", "partitions", "configs", "created", "own_retention",
        "home_counter", "home_cluster", "home_origin",
    ),
    "partitionlets": (
        "id", "topic", "partition", "container", "first", "end", "leader_epoch", "container_epoch", "state", "epochs",
        "cut",
    ),
    "log_starts": ("topic", "partition", "offset"),
    "groups": (
        "name", "generation", "protocol_type", "protocol", "leader", "member_ids", "members", "state", "changed",
    ),
    "cursors": ("group", "topic", "partition", "offset", "leader_epoch", "metadata", "committed_at"),
    "retired": ("container",),
    "links": ("id", "name", "stream", "config", "state", "created"),
    "home_starts": ("topic", "partition", "counter", "cluster", "offset"),
    "settled_homes": ("topic", "partition", "counter", "cluster"),
    "pending_homes": ("topic", "lists"),
    "going": ("number", "next_serial"),
    "free_streams": ("turn", "first", "count", "next_serial"),
    "users": ("name", "groups", "created"),
    "credentials": ("user", "mechanism", "salt", "stored_key", "server_key", "iterations"),
    "access": ("kind", "object", "permission", "expression"),
    "topic_access": ("topic", "permission", "expression"),
    "quotas": ("entity", "key", "value"),
}  # fmt: skip
"""Of each table, without its sum, in the order of the schema."""
LATER: Final = ("users", "credentials", "access", "topic_access", "quotas")
"""Tables that a file of feature level 1 lacks, and gets when it is opened. They are empty before level 2."""
KEYS: Final[Mapping[str, int]] = {
    "log_starts": 2, "cursors": 3, "home_starts": 4, "settled_homes": 2,
    "credentials": 2, "access": 3, "topic_access": 2, "quotas": 2,
}  # fmt: skip
"""How many of a table's first columns are its primary key, where that is not one."""
SUMMED_FORMAT: Final = 4
"""The first format whose rows have sums."""
FORMAT: Final = SUMMED_FORMAT
"""The newest, in user_version. A newer one is refused, an older one brought up to it."""
APPLICATION_ID: Final = 0x48524143
"""'HRAC' in the file's header, so that `file` and we know one."""
SHAPE: Final = 2645111490
"""Of the tables in SUMMED_FORMAT (shape_of)."""
GRID: Final = 1 << 20
"""Every so many bytes of the log, at the same commands on every node, the totals are noted, to be compared."""
MARKS: Final = 64

_encode = msgspec.msgpack.Encoder().encode
_decode_totals = msgspec.msgpack.Decoder(tuple[dict[str, int], list[str]]).decode
_SEEDS: Final = {table: crc32c(table.encode() + b"\0") for table in COLUMNS}

Sql = int | str | bytes | None
Parameters = Sequence[Sql]


class Mark(NamedTuple):
    """What all tables come to at a position of the log; the same on every node that has applied as much."""

    position: Position
    digest: str


def row_sum(table: str, row: Sequence[Any]) -> int:
    """The checksum of a row without its sum."""
    return crc32c(_encode(row), _SEEDS[table])


def is_summed(connection: sqlite3.Connection) -> bool:
    """Whether rows have sums: by the format and by the schema, of which one alone may be wrong. Raises
    TablesDamaged."""
    (format,) = connection.execute("PRAGMA user_version").fetchone()
    (told,) = connection.execute(
        "SELECT count(*) FROM pragma_table_info('counters', 'main') WHERE name = 'totals'"
    ).fetchone()
    if bool(told) != (format >= SUMMED_FORMAT):
        raise TablesDamaged(f"the file says that its format is {format}, and its schema is another's")
    return bool(told)


def prepare(connection: sqlite3.Connection) -> bool:
    """Have a connection check the rows that it reads; False: they have no sums yet. Raises TablesDamaged."""
    if not is_summed(connection):
        return False
    if shape_of(connection) != SHAPE:
        raise TablesDamaged("the schema's tables are not those that were made")
    _, unfilled = totals_in(connection)
    for table, columns in COLUMNS.items():
        connection.create_function(f"{table}_ok", len(columns) + 1, _checking(table, passes_none=table in unfilled))
        connection.execute(
            f"CREATE TEMP VIEW IF NOT EXISTS {table} AS SELECT {_listed(columns)} FROM main.{table} "
            # A scalar subquery is looked at last, when all else has chosen the row.
            f"WHERE (SELECT {table}_ok(sum, {_listed(columns)}))"
        )
    return True


def shape_of(connection: sqlite3.Connection) -> int:
    """A checksum over names, types and keys of all columns: a key that is an integer no more is found by nobody."""
    found = connection.execute(
        'SELECT m.name, i.name, i.type, i."notnull", i.pk FROM main.sqlite_master m '
        "JOIN pragma_table_info(m.name, 'main') i WHERE m.type = 'table' ORDER BY m.name, i.cid"
    )
    return crc32c(_encode([row for row in found if row[0] in COLUMNS]))


def totals_in(connection: sqlite3.Connection) -> tuple[dict[str, int], list[str]]:
    """Of a file with sums: by table their total, and the tables of which some rows have none yet. Raises
    TablesDamaged."""
    row = connection.execute("SELECT name, value, totals, sum FROM main.counters WHERE name = 'applied'").fetchone()
    if row is None or row[-1] != row_sum("counters", row[:-1]):
        raise TablesDamaged("counters: the row of the applied position is not what was written")
    return _decode_totals(row[2])


class Tables(sqlite3.Connection):
    """The connection that writes. One thread at a time; a file of format 3 it writes without sums."""

    wal: WalBound
    summed = False
    """The rows have sums, and those that are written get them."""
    filled = True
    """No row is left without one."""
    restored = ""
    """Why these were made anew when they were opened; empty: they are as they were left."""
    tolerates = False
    """A command that meets damage is refused, and others are applied: nobody has tables without it."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.deaths = Deaths(self)
        """Of partitionlets, for whoever gives their bytes back."""

    def begin(self) -> None:
        """Learn what the file has; again, after it was replaced by another."""
        self.deaths.begin()
        self.totals: dict[str, int] = {}
        """By table, as committed."""
        self.moved: dict[str, int] = {}
        """By table, by how much the transaction under way has moved that."""
        self.marks: deque[Mark] = deque(maxlen=MARKS)
        self._new_marks: list[Mark] = []
        self.applied = Position(0)
        """As committed: up to where the commands are applied that these rows come of."""
        self._was: dict[str, list[int | None]] = {table: [] for table in COLUMNS}
        """By table, the sums that a statement under way puts others in place of; they give NULL."""
        self._unfilled: list[str] = []
        self._after: Parameters = ()
        self.sizes: dict[bytes, tuple[int, int]] = {}
        """(number, partitions) of topics as the tables have them: what commits of offsets have read and checked."""
        summed = prepare(self)
        (at,) = self.execute("SELECT max(value) FROM counters WHERE name = 'applied'").fetchone()
        self.applied = Position(at or 0)
        if not summed:
            return
        totals, self._unfilled = totals_in(self)
        self.totals = dict.fromkeys(COLUMNS, 0) | totals
        self.filled = not self._unfilled
        self.summed = True
        for table, columns in COLUMNS.items():
            self.create_function(f"{table}_sum", len(columns) + 1, self._summing(table))
            self.create_function(f"{table}_was", 1, self._was[table].append)  # of C, as rows of commits go by it
            self.create_function(f"{table}_gone", 1, self._leaving(table))
            self.execute(
                f"CREATE TEMP TRIGGER IF NOT EXISTS {table}_delete AFTER DELETE ON main.{table} "
                f"BEGIN SELECT {table}_gone(OLD.sum); END"
            )

    def _summing(self, table: str) -> Callable[..., int]:
        seed = _SEEDS[table]

        def summed(before: int | None, *row: Sql) -> int:
            after = crc32c(_encode(row), seed)
            self._move(table, after - (before or 0))
            return after

        return summed

    def _leaving(self, table: str) -> Callable[[int | None], None]:
        return lambda before: self._move(table, -(before or 0))

    def _move(self, table: str, by: int) -> None:
        self.moved[table] = self.moved.get(table, 0) + by

    # --- reading

    def rows(self, table: str, where: str, *parameters: Sql) -> list[tuple[Any, ...]]:
        """Checked rows, their columns in the order of COLUMNS, for what every commit of offsets asks: a SELECT has
        SQLite call back for each. A sum may follow them. Raises TablesDamaged."""
        found = self.execute(_select(table, where, summed=self.summed), parameters).fetchall()
        if self.summed:
            seed = _SEEDS[table]
            for row in found:
                if crc32c(_encode(row[:-1]), seed) != row[-1] and (row[-1] is not None or self.filled):
                    raise TablesDamaged(f"{table}: the row {row[: KEYS.get(table, 1)]} is not what was written")
        return found

    # --- writing

    def insert(self, table: str, rows: Iterable[Parameters], *, upsert: bool = False, ignore: bool = False) -> None:
        """Add rows, whose values are in the order of COLUMNS; what an `upsert` meets gets the values of the row."""
        statement = _insert(table, summed=self.summed, upsert=upsert, ignore=ignore)
        if not self.summed:
            self.executemany(statement, rows)
            return
        seed = _SEEDS[table]
        listed = [*rows]
        sums = [crc32c(_encode(row), seed) for row in listed]
        was = self._was[table]
        was.clear()
        self.executemany(statement, [(*row, each) for row, each in zip(listed, sums, strict=True)])
        self._move(table, sum(sums) - sum(filter(None, was)))

    def update(self, table: str, changes: Mapping[str, str], where: str, *parameters: Sql) -> int:
        """Change rows, and how many. `changes`: column -> SQL expression; parameters are numbered (?1, ?2)."""
        statement = _update(table, tuple(changes.items()), where, summed=self.summed)
        return self.execute(statement, parameters).rowcount

    def delete(self, table: str, where: str, *parameters: Sql) -> int:
        """Remove rows, and how many. Parameters are numbered."""
        return self.execute(_delete(table, where, summed=self.summed), parameters).rowcount

    def delete_rows(self, table: str, rows: Iterable[Sequence[Sql]]) -> None:
        """Remove rows that were read, and so checked, in this transaction; by their first columns."""
        count = KEYS.get(table, 1)
        self.executemany(_delete_by_key(table), [row[:count] for row in rows])

    def put_counter(self, name: str, value: int) -> None:
        """Set a counter, be it there or not."""
        self.insert("counters", [(name, value, None) if self.summed else (name, value)], upsert=True)

    # --- transactions and totals

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Change rows in one transaction, which is committed at the end; on any error nothing has changed."""
        self.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):  # SQLite itself rolls back on some errors
                self.execute("ROLLBACK")
            self.rolled_back()
            raise

    def keep(self, applied: Position) -> None:
        """Before a COMMIT: write that all up to `applied` is applied, and what the tables come to."""
        self.deaths.keep()
        if not self.summed:
            self.put_counter("applied", applied)
            return
        totals = {table: total + self.moved.get(table, 0) for table, total in self.totals.items()}
        row = ("applied", applied, _encode((totals, self._unfilled)))
        self.execute(_KEEP, (*row, crc32c(_encode(row), _SEEDS["counters"])))

    def committed(self, applied: Position) -> None:
        """After a COMMIT, of what is applied up to `applied`."""
        self.applied = applied
        self.deaths.committed()
        for table, by in self.moved.items():
            self.totals[table] += by
        self.moved = {}
        self.marks.extend(self._new_marks)
        self._new_marks.clear()

    def rolled_back(self) -> None:
        """After a ROLLBACK: nothing has moved."""
        self.moved = {}
        self.deaths.rolled_back()
        self.sizes.clear()
        self._new_marks.clear()

    def mark(self, position: Position) -> None:
        """All up to `position` is applied, in a transaction that may go on."""
        if self.filled:
            self._new_marks.append(Mark(position, self._digest()))

    def now(self) -> Mark:
        """As committed."""
        return Mark(self.applied, self._digest())

    def _digest(self) -> str:
        totals = {table: self.totals.get(table, 0) + self.moved.get(table, 0) for table in COLUMNS}
        # A node that does not have these yet comes to the same while they are empty.
        later = [(table, totals.pop(table)) for table in LATER]
        known = [*totals.values(), *(each for each in later if each[1])]
        return hashlib.blake2b(_encode(known), digest_size=16).hexdigest()

    # --- the rows of a file that had no sums

    def add_sums(self) -> None:
        """Make a file of format 3 one of format 4, at once. Rows are without sums until `fill_some` has no more."""
        with self.transaction():
            self.execute("ALTER TABLE main.counters ADD COLUMN totals BLOB")
            for table in COLUMNS:
                self.execute(f"ALTER TABLE main.{table} ADD COLUMN sum INTEGER")
            row = ("applied", self.applied, _encode((dict.fromkeys(COLUMNS, 0), list(COLUMNS))))
            self.execute(_KEEP, (*row, row_sum("counters", row)))
            self.execute(f"PRAGMA user_version={SUMMED_FORMAT}")
        self.begin()

    def fill_some(self, rows: int = 1000) -> bool:
        """Give some rows their sums; whether there may be more without one."""
        if not self._unfilled:
            return False
        unfilled = self._unfilled
        table = unfilled[0]
        columns = COLUMNS[table]
        keys = columns[: KEYS.get(table, 1)]
        marks = ", ".join(f"?{number}" for number in range(1, len(keys) + 1))
        after = f"({_listed(keys)}) > ({marks}) AND" if self._after else ""
        found = self.execute(
            f"SELECT {_listed(columns)} FROM main.{table} WHERE {after} sum IS NULL ORDER BY {_listed(keys)} "
            f"LIMIT {rows}",
            self._after,
        ).fetchall()
        chosen = " AND ".join(f'"{key}" = ?' for key in keys)
        sums = [row_sum(table, row) for row in found]
        done = len(found) < rows
        try:
            with self.transaction():
                self.executemany(
                    f"UPDATE main.{table} SET sum = ? WHERE {chosen}",
                    [(each, *row[: len(keys)]) for each, row in zip(sums, found, strict=True)],
                )
                self._move(table, sum(sums))
                self._unfilled = unfilled[1:] if done else unfilled
                self.keep(self.applied)
        except BaseException:
            self._unfilled = unfilled
            raise
        self.committed(self.applied)
        self.wal.written()
        self._after = found[-1][: len(keys)] if found and not done else ()
        if done:
            self.filled = not self._unfilled
            prepare(self)
        return not self.filled


def _checking(table: str, *, passes_none: bool) -> Callable[..., int]:
    seed = _SEEDS[table]

    def check(found: int | None, *row: Sql) -> int:
        if found != crc32c(_encode(row), seed) and not (found is None and passes_none):
            raise TablesDamaged(table)  # SQLite ends the statement, and says that a function failed
        return 1

    return check


def _listed(columns: Iterable[str]) -> str:
    return ", ".join(f'"{column}"' for column in columns)


def _columns(table: str, *, summed: bool) -> tuple[str, ...]:
    if summed:
        return (*COLUMNS[table], "sum")
    return tuple(column for column in COLUMNS[table] if column != "totals")


@cache
def _select(table: str, where: str, *, summed: bool) -> str:
    columns = _columns(table, summed=summed)
    return f"SELECT {_listed(columns)} FROM main.{table} WHERE {where}"


@cache
def _insert(table: str, *, summed: bool, upsert: bool, ignore: bool) -> str:
    columns = _columns(table, summed=summed)
    marks = ", ".join("?" * len(columns))
    conflict = ""
    if upsert:
        sets = {each: f'excluded."{each}"' for each in columns[KEYS.get(table, 1) :]}
        if summed:
            sets["sum"] = f"coalesce({table}_was(main.{table}.sum), excluded.sum)"
        conflict = " ON CONFLICT DO UPDATE SET " + ", ".join(f'"{each}" = {value}' for each, value in sets.items())
    elif ignore and summed:
        conflict = f" ON CONFLICT DO UPDATE SET sum = coalesce({table}_was(excluded.sum), main.{table}.sum)"
    elif ignore:
        conflict = " ON CONFLICT DO NOTHING"
    return f"INSERT INTO main.{table}({_listed(columns)}) VALUES ({marks}){conflict}"


@cache
def _update(table: str, changes: tuple[tuple[str, str], ...], where: str, *, summed: bool) -> str:
    changed = dict(changes)
    assert changed.keys() <= set(COLUMNS[table]), changes
    assigned = ", ".join(f'"{column}" = {expression}' for column, expression in changes)
    if not summed:
        return f"UPDATE main.{table} SET {assigned} WHERE {where}"
    after = ", ".join(changed.get(column, f'"{column}"') for column in COLUMNS[table])
    return f"UPDATE main.{table} SET {assigned}, sum = {table}_sum(sum, {after}) WHERE ({where}) AND {_checked(table)}"


@cache
def _delete(table: str, where: str, *, summed: bool) -> str:
    return f"DELETE FROM main.{table} WHERE ({where})" + (f" AND {_checked(table)}" if summed else "")


@cache
def _delete_by_key(table: str) -> str:
    chosen = " AND ".join(f'"{key}" = ?' for key in COLUMNS[table][: KEYS.get(table, 1)])
    return f"DELETE FROM main.{table} WHERE {chosen}"


def _checked(table: str) -> str:
    columns = ", ".join(f'main.{table}."{column}"' for column in COLUMNS[table])
    return f"(SELECT {table}_ok(main.{table}.sum, {columns}))"


_KEEP: Final = "UPDATE main.counters SET value = ?2, totals = ?3, sum = ?4 WHERE name = ?1"
"""The row of the applied position is in no total."""
