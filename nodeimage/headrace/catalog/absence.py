"""Proves that rows are not there, or that no more are than were found.

A row is checked where it is read (row_checksums.py). What its checksum cannot show is that it was not read at all:
its key has changed, in its table or in an index, so that a look-up passes it by, is led astray by it, or ends at it.
But each of these ends beside it. So an absence is proven by reading, and so checking, the rows around the place of what
is missing, in the order of the index that was searched.

Conditions come after the check, or are of the columns that an index is searched by: one on another column would pass
over a row whose damage it looks at. `(SELECT column)` comes after the check of its row, where a bare column does not.
"""

import sqlite3
from collections.abc import Iterable
from functools import cache
from typing import Any, Final

from headrace.tables.sqlite_errors import TablesDamaged

Values = tuple[int | str | bytes, ...]
"""Of the columns of a key."""
NEVER: Final = 1 << 62
"""Above all numbers in the tables."""


class Absence:
    """Proofs on one connection. All raise TablesDamaged, or the sqlite3.DatabaseError of a damaged row."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def prove(self, table: str, key: tuple[str, ...], values: Iterable[Values]) -> None:
        """There are no rows with these values, in the order of an index."""
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
        """Read all from the row before `first` to the row behind `last` (None: to the end), in the order of an index
        whose first columns are `key`; those from one to the other, or the first of them (`most`).

        `id_column`: of a table that rows of the index lead to by it; two that lead to the same one are told. `where`:
        of a partial index.

        A row whose key has changed where it lies is found by no look-up, and leads those for other rows astray; but
        each of these ends beside it, so it is one of the rows that are read here, damaged or out of order.
        """
        the_one_before, from_there, from_the_first = _around(table, key, id_column, where)
        before = self._connection.execute(the_one_before, first).fetchone()
        # From the row before on, or from the very first: no condition is in the way of what lies in between.
        at: tuple[Any, ...] = before or ()
        found: list[tuple[Any, ...]] = []
        width, seen = len(key), False
        for row in self._connection.execute(from_there if before else from_the_first, at):
            if None in row or row < at or (seen and id_column and row == at):
                raise TablesDamaged(f"{table}: the row {row} is not in its place")
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
        """A search in the order of `key` for the first row from `first` on was not led astray, nor the one behind it.

        Reads the row before. One condition is on each column: a comparison of several is asked of each row again, by
        columns that are not checked yet. A row whose first columns are others ends the search for the row before; it
        is told by one that lies before it all the same.
        """
        for level in range(len(key), 0, -1):
            beside, outermost = _beside(table, key, level, "<", where)
            row = self._connection.execute(beside, first[:level]).fetchone()
            if row is not None and (None in row or not row[0] < first[level - 1]):
                raise TablesDamaged(f"{table}: the row {row} is not in its place")
            if row is not None:
                return
            row = self._connection.execute(outermost, first[: level - 1]).fetchone() if level > 1 else None
            if row is not None and (None in row or row < first[level - 1 :]):
                raise TablesDamaged(f"{table}: a row before {first} is not in its place")

    def prove_end(self, table: str, key: tuple[str, ...], last: Values) -> None:
        """A scan up to `last` did not end too early, if it ended at the row that is the last up to there: the same, of
        the row behind."""
        for level in range(len(key), 0, -1):
            beside, outermost = _beside(table, key, level, ">", "")
            row = self._connection.execute(beside, last[:level]).fetchone()
            if row is not None and (None in row or not row[0] > last[level - 1]):
                raise TablesDamaged(f"{table}: the row {row} is not in its place")
            if row is not None:
                return
            row = self._connection.execute(outermost, last[: level - 1]).fetchone() if level > 1 else None
            if row is not None and (None in row or row > last[level - 1 :]):
                raise TablesDamaged(f"{table}: a row behind {last} is not in its place")

    def prove_last(
        self, table: str, key: tuple[str, ...], value: int | str, last: tuple[Any, ...] | None, *, where: str = ""
    ) -> None:
        """Of the rows with `value` in the first column of `key`, the last in its order is `last`: a scan that ended
        there did not end too early. None: there are none."""
        the_last, the_next = _ends(table, key, where)
        row = self._connection.execute(the_last, (value,)).fetchone()
        behind = self._connection.execute(the_next, (value,)).fetchone()
        if row != last or (behind is not None and None in behind):
            raise TablesDamaged(f"{table}: rows behind {last} are not in their places")


@cache
def _around(table: str, key: tuple[str, ...], id_column: str, where: str) -> tuple[str, str, str]:
    """SELECTs of the key before one, and of all keys, with ids, from one on, and from the first on."""
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
    """SELECTs, among the rows with the same first columns, of the row on that `side` of one by the column at `level`,
    and of the outermost of all of them on that side."""
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
    """SELECTs of the last key of those with a value in the first column, and of the one behind them."""
    names = ", ".join(f'"{each}"' for each in key)
    backwards = ", ".join(f'"{each}" DESC' for each in key)
    also = f"{where} AND " if where else ""
    return (
        f'SELECT {names} FROM {table} WHERE {also}"{key[0]}" = ? ORDER BY {backwards} LIMIT 1',
        f'SELECT {names} FROM {table} WHERE {also}"{key[0]}" > ? ORDER BY {names} LIMIT 1',
    )
