"""Proofs that rows do not exist, or that there are no more rows than were found.

A row is checked when it is read (row_checksums.py). Its checksum cannot reveal that the row was not read at all because
its key was damaged, in its table or in an index, so that a look-up skips the row, is misled by it, or ends at it. But
every such look-up ends next to the damaged row. So an absence is proven by reading, and thereby checking, the rows
around the place of the missing one, in the order of the index that was searched.

Conditions in these statements are either evaluated after the check, or concern the columns by which an index is
searched: a condition on another column might skip a row because of the very damage to be found. `(SELECT column)` is
evaluated after the check of its row, whereas a bare column is not.
"""

import sqlite3
from collections.abc import Iterable
from functools import cache
from typing import Any, Final

from headrace.tables.sqlite_errors import TablesDamaged

Values = tuple[int | str | bytes, ...]
"""Values of a key's columns."""
NEVER: Final = 1 << 62
"""A number above all numbers in the tables."""


class Absence:
    """Proofs on one connection. All raise TablesDamaged, or the sqlite3.DatabaseError of a damaged row."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def prove(self, table: str, key: tuple[str, ...], values: Iterable[Values]) -> None:
        """Prove that there are no rows with these values of `key`, the first columns of an index."""
        for values_of_one in values:
            if len(key) > 1:
                self.prove_start(table, key, values_of_one)
                self.prove_end(table, key, values_of_one)
            elif self.read_around(table, key, values_of_one, values_of_one):
                raise TablesDamaged(f"{table}: the row {values_of_one} is not in its place")

    def read_around(
        self,
        table: str,
        key: tuple[str, ...],
        first: Values,
        last: Values | None,
        *,
        id_column: str = "",
        where: str = "",
        most: int | None = None,
    ) -> list[tuple[Any, ...]]:
        """Read all rows from the one before `first` to the one after `last` (None: to the end), in the order of an
        index whose first columns are `key`. Returns those from `first` to `last`, or the first `most` of them.

        `id_column`: the column by which the index leads to rows of the table; two entries that lead to the same row are
        detected as damage. `where`: the condition of a partial index.

        A row whose key has changed in place is found by no look-up, and misleads look-ups of other rows; but each of
        these ends next to it, so the damaged row is among the rows read here, and is detected by its checksum or its
        order.
        """
        select_before, select_from, select_all = _around(table, key, id_column, where)
        before = self._connection.execute(select_before, first).fetchone()
        # The scan starts at the row before, or at the very first row, so that no condition hides rows in between.
        at: tuple[Any, ...] = before or ()
        found: list[tuple[Any, ...]] = []
        width, seen = len(key), False
        for row in self._connection.execute(select_from if before else select_all, at):
            if None in row or row < at or (seen and id_column and row == at):
                raise TablesDamaged(f"{table}: the row {row} is in the wrong place")
            place = row[:width]
            if (last is not None and place > last) or len(found) == most:
                break
            at, seen = row, True
            if place >= first:
                found.append(row)
        if before is not None and before >= first:
            raise TablesDamaged(f"{table}: the row {before} is not in its place")
        return found

    def prove_start(self, table: str, key: tuple[str, ...], first: Values, *, where: str = "") -> None:
        """Prove that a search in the order of `key` for the first row from `first` on was not misled, nor the search
        for the row after that.

        Reads the row before. Each column has a condition of its own, since SQLite evaluates a comparison of several
        columns again for each row, with columns that are not checked yet. A row whose first columns are damaged ends
        the search for the row before; then the outermost row lies before `first` although no row before was found.
        """
        for level in range(len(key), 0, -1):
            beside, outermost = _beside(table, key, level, "<", where)
            row = self._connection.execute(beside, first[:level]).fetchone()
            if row is not None and (None in row or not row[0] < first[level - 1]):
                raise TablesDamaged(f"{table}: the row {row} is in the wrong place")
            if row is not None:
                return
            row = self._connection.execute(outermost, first[: level - 1]).fetchone() if level > 1 else None
            if row is not None and (None in row or row < first[level - 1 :]):
                raise TablesDamaged(f"{table}: a row before {first} is in the wrong place")

    def prove_end(self, table: str, key: tuple[str, ...], last: Values) -> None:
        """Prove, given that a scan ended at the last row up to `last`, that it did not end too early: as `prove_start`,
        with the row after."""
        for level in range(len(key), 0, -1):
            beside, outermost = _beside(table, key, level, ">", "")
            row = self._connection.execute(beside, last[:level]).fetchone()
            if row is not None and (None in row or not row[0] > last[level - 1]):
                raise TablesDamaged(f"{table}: the row {row} is in the wrong place")
            if row is not None:
                return
            row = self._connection.execute(outermost, last[: level - 1]).fetchone() if level > 1 else None
            if row is not None and (None in row or row > last[level - 1 :]):
                raise TablesDamaged(f"{table}: a row after {last} is in the wrong place")

    def prove_last(
        self, table: str, key: tuple[str, ...], value: int | str, last: tuple[Any, ...] | None, *, where: str = ""
    ) -> None:
        """Prove that `last` is the last row, in the order of `key`, of those with `value` in the first column, so that
        a scan that ended there did not end too early; None: that there are no such rows."""
        select_last, select_next = _ends(table, key, where)
        row = self._connection.execute(select_last, (value,)).fetchone()
        behind = self._connection.execute(select_next, (value,)).fetchone()
        if row != last or (behind is not None and None in behind):
            raise TablesDamaged(f"{table}: rows after {last} are missing or in the wrong place")


@cache
def _around(table: str, key: tuple[str, ...], id_column: str, where: str) -> tuple[str, str, str]:
    """SELECT statements: the key before a given one; all keys with ids from a given one on; all keys with ids."""
    names = ", ".join(f'"{each}"' for each in key)
    backwards = ", ".join(f'"{each}" DESC' for each in key)
    marks = ", ".join("?" * len(key))
    listed, order = (f'{names}, "{id_column}"', f'{names}, "{id_column}"') if id_column else (names, names)
    only, also = (f"WHERE {where} ", f"{where} AND ") if where else ("", "")
    return (
        f"SELECT {names} FROM {table} WHERE {also}({names}) < ({marks}) ORDER BY {backwards} LIMIT 1",
        f"SELECT {listed} FROM {table} WHERE {also}({names}) >= ({marks}) ORDER BY {order}",
        f"SELECT {listed} FROM {table} {only}ORDER BY {order}",
    )


@cache
def _beside(table: str, key: tuple[str, ...], level: int, side: str, where: str) -> tuple[str, str]:
    """SELECT statements among the rows with the same first columns: the next row on that `side` of a value of the
    column at `level`, and the outermost row on that side."""
    names = [f'"{each}"' for each in key]
    conditions = [*([where] if where else ()), *(f"{name} = ?" for name in names[: level - 1])]
    rest = names[level - 1 :]
    forwards, backwards = ", ".join(rest), ", ".join(f"{name} DESC" for name in rest)
    near, far = (backwards, forwards) if side == "<" else (forwards, backwards)
    beside = " AND ".join([*conditions, f"{rest[0]} {side} ?"])
    of_all = f"WHERE {' AND '.join(conditions)} " if conditions else ""
    return (
        f"SELECT {forwards} FROM {table} WHERE {beside} ORDER BY {near} LIMIT 1",
        f"SELECT {forwards} FROM {table} {of_all}ORDER BY {far} LIMIT 1",
    )


@cache
def _ends(table: str, key: tuple[str, ...], where: str) -> tuple[str, str]:
    """SELECT statements: the last key with a given value in the first column, and the key after it."""
    names = ", ".join(f'"{each}"' for each in key)
    backwards = ", ".join(f'"{each}" DESC' for each in key)
    also = f"{where} AND " if where else ""
    return (
        f'SELECT {names} FROM {table} WHERE {also}"{key[0]}" = ? ORDER BY {backwards} LIMIT 1',
        f'SELECT {names} FROM {table} WHERE {also}"{key[0]}" > ? ORDER BY {names} LIMIT 1',
    )
