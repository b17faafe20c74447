"""Rows of a catalog's tables that differ from what was written, and what must hold then.

A value changes in the file like a bit flipped on a disk: behind the back of the node and of its checksums. From then on
the value may not be returned to anybody, no snapshot may contain it, and in the end every node's tables are whole
again.
"""

import random
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.tables import snapshots
from headrace.tables.row_checksums import COLUMNS, KEYS, is_summed, totals_in
from headrace.tables.table_check import damage_in
from simulation.broker_side import data_folder
from simulation.faults import Fault

if TYPE_CHECKING:
    from simulation.cluster import Cluster
    from simulation.node import Node

_OFTEN = ("cursors", "cursors", "partitionlets", "partitionlets", "partitionlets", "groups", "topics", "streams")

_KINDS = {"damage tables": 1, "damage tables live": 3}


def draw_tables(chance: random.Random, *, begin: float, length: float) -> list[Fault]:
    """In some runs, values in the tables of some nodes change."""
    if chance.random() < 0.6:
        return []
    kinds = chance.choices(list(_KINDS), list(_KINDS.values()), k=chance.randint(1, 4))
    return [
        Fault(begin + chance.random() * length, kind, chance.choice((0.1, 1.0, 4.0)), chance.random()) for kind in kinds
    ]


def folder_of(node: "Node") -> Path:
    """The folder of a node's tables."""
    return data_folder(node) / "catalog"


def change_row(node: "Node", chance: random.Random) -> str:
    """Change a row of a node's tables; returns what was done, "" if nothing."""
    path = snapshots.live_file(folder_of(node))
    if not path.exists():
        return ""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        if not is_summed(connection) or totals_in(connection)[1]:
            return ""
        table = chance.choice((*_OFTEN, *COLUMNS))
        columns = COLUMNS[table]
        keys = ", ".join(f'"{each}"' for each in columns[: KEYS.get(table, 1)])
        rows = connection.execute(f"SELECT * FROM {table} ORDER BY {keys}").fetchall()
        if not rows:
            return ""
        row = chance.choice(rows)
        column = chance.randrange(len(columns) + 1)  # its checksum, too
        value = _other(row[column], chance)
        if not _keeps_its_place(connection, table, rows, row, column, value):
            column = len(columns)
            value = _other(row[column], chance)
        name = (*columns, "sum")[column]
        where = " AND ".join(f'"{each}" = ?' for each in columns[: KEYS.get(table, 1)])
        connection.execute(f'UPDATE {table} SET "{name}" = ? WHERE {where}', (value, *row[: KEYS.get(table, 1)]))
    except sqlite3.DatabaseError:  # it was damaged before, or such a row exists already
        return ""
    finally:
        connection.close()
    return f"{name} of {table} {row[: KEYS.get(table, 1)]} is {value!r}, and was {row[column]!r}"


def _keeps_its_place(
    connection: sqlite3.Connection, table: str, rows: list[Any], row: Any, column: int, value: Any
) -> bool:
    """Whether an UPDATE leaves the row in its place: a flipped bit moves no row, but SQLite might."""
    columns = COLUMNS[table]
    orders = [columns[: KEYS.get(table, 1)]]
    for (index,) in connection.execute(f"SELECT name FROM pragma_index_list('{table}')").fetchall():
        listed = connection.execute(f"SELECT name FROM pragma_index_info('{index}') ORDER BY seqno").fetchall()
        orders.append(tuple(name for (name,) in listed))
    changed = (*row[:column], value, *row[column + 1 :])
    for order in orders:
        if column == len(columns) or columns[column] not in order:
            continue
        at = [columns.index(each) for each in order]

        def key(each: Any, at: list[int] = at) -> tuple[Any, ...]:
            return tuple(each[number] for number in at)

        try:
            if any((key(each) < key(row)) != (key(each) < key(changed)) for each in rows if each is not row):
                return False
        except TypeError:  # other types, or NULL, are stored in another place
            return False
    return True


def _other(value: Any, chance: random.Random) -> Any:
    match value:
        case int():
            return value ^ 1 << chance.randrange(20)
        case str() if value:
            return chr(ord(value[0]) ^ 1) + value[1:]
        case bytes() if value:
            return bytes([value[0] ^ 1 << chance.randrange(8)]) + value[1:]
    return 7


class TableChecks:
    """The observer of the nodes' files. It uses the catalog's own check, which has separate tests."""

    def __init__(self, cluster: "Cluster") -> None:
        self._cluster = cluster
        self._checked: set[tuple[str, int, int]] = set()
        self.changed = 0
        """The number of rows changed."""

    def look(self, node: "Node") -> None:
        """No snapshot contains values that were not written, wherever it came from."""
        if not self.changed:
            return
        for path in snapshots.snapshots(folder_of(node)):
            stat = path.stat()
            if (known := (str(path), stat.st_ino, stat.st_mtime_ns)) not in self._checked:
                self._checked.add(known)
                if found := damage_in(path):
                    self._cluster.checks.fail(f"the snapshot {path.name} of node {node.number} is damaged: {found}")

    def missing(self) -> str:
        """The node whose tables are not whole."""
        for node in self._cluster.nodes if self.changed else ():
            if node.upper is None or not node.upper.is_ready:
                return f"node {node.number} does not serve"
            found = [node.upper.catalog.damage] if node.upper.catalog.damage else []
            if found := found or damage_in(snapshots.live_file(folder_of(node))):
                return f"the tables of node {node.number} are damaged: {found}"
        return ""
