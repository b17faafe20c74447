"""Reads a file of the catalog's tables whole, and says what in it is damaged.

Structure and indexes by SQLite's own check, each row by its sum, and what rows cannot show, such as one that is missing
or an older version of itself, by the totals. `python -m headrace.tables.table_check FILE` does it in a process of its
own, and prints what it found as a JSON list: a large file would hold a node's loop up (its threads share one
interpreter).
"""

import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

import msgspec

from headrace.log.descriptors import put_off_without_descriptors
from headrace.tables.row_checksums import COLUMNS, KEYS, LATER, is_summed, row_sum, totals_in
from headrace.tables.sqlite_errors import TablesDamaged, is_damage

MOST: Final = 10
"""Of what is told of one file."""
SMALL_BYTES: Final = 4 << 20
"""Up to here a file is read in a thread, within some tenths of a second."""
_NICE: Final = 10
_LOOK_S: Final = 0.2
"""Between two looks at whether a check is to end."""
_STEP: Final = 50_000
"""Instructions of SQLite's machine between two such looks."""
_UNTOLD: Final = (
    "SQLITE_CANTOPEN",
    "SQLITE_INTERRUPT",
    "SQLITE_BUSY",
    "SQLITE_LOCKED",
    "SQLITE_NOMEM",
    "SQLITE_FULL",
    "SQLITE_IOERR",
)
"""Errors that say nothing of what the file holds, unless they are damage (sqlite_errors)."""
_lists: Final = msgspec.json.Decoder(list[str])


def is_small(path: Path) -> bool:
    """Whether the file is checked where one is. Raises OSError."""
    return path.stat().st_size <= SMALL_BYTES


def damage_in(path: Path, *, stop: threading.Event | None = None) -> list[str]:
    """[blocking] What is damaged in a file of the tables, one line each; nothing where all of it checks.

    A file of a format without sums is checked in its structure alone. Raises OSError, and sqlite3.Error where that
    could not be found out: no file descriptor is left, or `stop` was set meanwhile.
    """
    path.stat()
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
    try:
        if stop is not None:
            connection.set_progress_handler(stop.is_set, _STEP)
        connection.execute("BEGIN")
        found = [f"structure: {line}" for (line,) in connection.execute(f"PRAGMA integrity_check({MOST})")]
        if found == ["structure: ok"]:
            found = []
        if is_summed(connection):
            totals, unfilled = _totals_in(connection)
            for table in COLUMNS:
                total = None if totals is None else totals.get(table, 0 if table in LATER else -1)
                if not total and table in LATER and not _has(connection, table):
                    continue
                found += _damage_of(connection, table, total, unfilled)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        return [_told(error)]
    finally:
        connection.close()
    return found[:MOST]


def _told(error: sqlite3.Error | UnicodeDecodeError) -> str:
    """What an error says of the file. Raises it where that is nothing."""
    name = getattr(error, "sqlite_errorname", "")
    if name.startswith(_UNTOLD) and not (isinstance(error, sqlite3.Error) and is_damage(error)):
        raise error
    return f"it cannot be read: {error}"


def _has(connection: sqlite3.Connection, table: str) -> bool:
    found = connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)).fetchone()
    return found is not None


def _totals_in(connection: sqlite3.Connection) -> tuple[dict[str, int] | None, list[str]]:
    """None where the row that has them is damaged, which is told as any other."""
    try:
        return totals_in(connection)
    except TablesDamaged:
        return None, []


def _damage_of(connection: sqlite3.Connection, table: str, total: int | None, unfilled: list[str]) -> list[str]:
    found: list[str] = []
    columns = ", ".join(f'"{column}"' for column in COLUMNS[table])
    sums = 0
    try:
        for stored, *row in connection.execute(f"SELECT sum, {columns} FROM {table}"):
            if stored is None and table in unfilled:
                continue
            if stored != row_sum(table, row):
                found.append(f"{table}: the row {row[: KEYS.get(table, 1)]} is not what was written")
                if len(found) == MOST:
                    return found
            elif stored is not None and (table != "counters" or row[0] != "applied"):
                sums += stored
    except (sqlite3.Error, UnicodeDecodeError) as error:
        return [*found, f"{table}: {_told(error)}"]
    if not found and total is not None and sums != total:
        found.append(f"{table}: rows are missing, or are older than the others")
    return found


def damage(path: Path, *, stop: threading.Event | None = None) -> list[str]:
    """[blocking] The same, in a process of its own where the file is large. Raises as `damage_in`,
    and OutOfDescriptors."""
    if is_small(path):
        return damage_in(path, stop=stop)
    command = [sys.executable, "-m", "headrace.tables.table_check", str(path)]
    with put_off_without_descriptors(path):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with process:
        try:
            found, said = _outputs(process, stop)
        except BaseException:
            process.kill()
            raise
    try:
        return _lists.decode(found)
    except msgspec.DecodeError as error:
        told = said.decode(errors="replace")[-500:]
        raise sqlite3.OperationalError(
            f"{path} could not be checked, exit code {process.returncode}: {told}"
        ) from error


def _outputs(process: "subprocess.Popen[bytes]", stop: threading.Event | None) -> tuple[bytes, bytes]:
    while True:
        try:
            return process.communicate(timeout=None if stop is None else _LOOK_S)
        except subprocess.TimeoutExpired:
            if stop is not None and stop.is_set():
                process.kill()


def main() -> None:
    """The helper process."""
    os.nice(_NICE)
    sys.stdout.write(msgspec.json.encode(damage_in(Path(sys.argv[1]))).decode())


if __name__ == "__main__":
    main()
