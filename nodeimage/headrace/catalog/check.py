"""Reads a file of the catalog's tables whole, and says what in it is damaged.

Structure and indexes by SQLite's own check, each row by its sum, and what rows cannot show, such as one that is missing
or an older version of itself, by the totals. `python -m headrace.catalog.check FILE` does it in a process of its own,
and prints what it found as a JSON list: a large file would hold a node's loop up (its threads share one interpreter).
"""

import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Final

import msgspec

from headrace.catalog.row_sums import COLUMNS, KEYS, is_summed, row_sum
from headrace.errors import HeadraceError

MOST: Final = 10
"""Of what is told of one file."""
SMALL_BYTES: Final = 4 << 20
"""Up to here a file is read in a thread, within some tenths of a second."""
_NICE: Final = 10
_running: Final[set["subprocess.Popen[bytes]"]] = set()


def damage_in(path: Path) -> list[str]:
    """[blocking] What is damaged in a file of the tables, one line each; nothing where all of it checks.

    A file of a format without sums is checked in its structure alone. Raises OSError.
    """
    path.stat()
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
    try:
        connection.execute("BEGIN")
        found = [f"structure: {line}" for (line,) in connection.execute(f"PRAGMA integrity_check({MOST})")]
        if found == ["structure: ok"]:
            found = []
        if is_summed(connection):
            totals = {name: (total, filled) for name, total, filled in connection.execute("SELECT * FROM digests")}
            for table in COLUMNS:
                found += _damage_of(connection, table, totals.get(table))
    except (sqlite3.Error, UnicodeDecodeError) as error:
        return [f"it cannot be read: {error}"]
    finally:
        connection.close()
    return found[:MOST]


def _damage_of(connection: sqlite3.Connection, table: str, told: tuple[int, int] | None) -> list[str]:
    if told is None:
        return [f"{table}: it has no total"]
    total, filled = told
    found: list[str] = []
    columns = ", ".join(f'"{column}"' for column in COLUMNS[table])
    sums = 0
    try:
        for stored, *row in connection.execute(f"SELECT sum, {columns} FROM {table}"):
            if stored is None and not filled:
                continue
            if stored != row_sum(table, row):
                found.append(f"{table}: the row {row[: KEYS.get(table, 1)]} is not what was written")
                if len(found) == MOST:
                    return found
            elif stored is not None:
                sums += stored
    except (sqlite3.Error, UnicodeDecodeError) as error:
        return [*found, f"{table}: it cannot be read: {error}"]
    if not found and sums != total:
        found.append(f"{table}: rows are missing, or are older than the others")
    return found


def damage(path: Path) -> list[str]:
    """[blocking] The same, in a process of its own where the file is large, which `end_checks` ends.

    Raises OSError, and HeadraceError where the check came to no end.
    """
    if path.stat().st_size <= SMALL_BYTES:
        return damage_in(path)
    command = [sys.executable, "-m", "headrace.catalog.check", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        _running.add(process)
        try:
            found, said = process.communicate()
        finally:
            _running.discard(process)
    try:
        return msgspec.json.decode(found, type=list[str])
    except msgspec.DecodeError as error:
        told = said.decode(errors="replace")[-500:]
        raise HeadraceError(f"{path} could not be checked, exit code {process.returncode}: {told}") from error


def end_checks() -> None:
    """End the processes of checks that are under way, which then raise HeadraceError: the node stops."""
    for process in list(_running):
        process.kill()


def main() -> None:
    """The helper process."""
    os.nice(_NICE)
    sys.stdout.write(msgspec.json.encode(damage_in(Path(sys.argv[1]))).decode())


if __name__ == "__main__":
    main()
