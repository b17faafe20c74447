"""Reads a whole file of the catalog's tables, and reports damage.

SQLite's own check covers structure and indexes, sums cover each row, and totals reveal what rows cannot show: a row
that is missing, or an older version of itself. `python -m headrace.tables.table_check FILE` does the check in a
separate process, and prints the damage as a JSON list: in the node's process a large file would block the loop, as all
threads share one interpreter.
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

MAX_FAULTS: Final = 10
"""Limit of reported faults of one file."""
SMALL_BYTES: Final = 4 << 20
"""Size up to which a file is checked in a thread, which takes some tenths of a second."""
_NICE: Final = 10
_POLL_S: Final = 0.2
"""Seconds between two checks whether to stop the process."""
_STEP: Final = 50_000
"""Instructions of SQLite's virtual machine between two checks whether to stop."""
_INCONCLUSIVE: Final = (
    "SQLITE_CANTOPEN",
    "SQLITE_INTERRUPT",
    "SQLITE_BUSY",
    "SQLITE_LOCKED",
    "SQLITE_NOMEM",
    "SQLITE_FULL",
    "SQLITE_IOERR",
)
"""Errors that say nothing about the file's contents, unless they count as damage (sqlite_errors)."""
_lists: Final = msgspec.json.Decoder(list[str])


def is_small(path: Path) -> bool:
    """Whether a file is so small that it is checked in the node's own process. Raises OSError."""
    return path.stat().st_size <= SMALL_BYTES


def damage_in(path: Path, *, stop: threading.Event | None = None) -> list[str]:
    """[blocking] The damage of a file of the tables, one line per fault; empty if there is none.

    A file of a format without sums is only checked for its structure. Raises OSError, and sqlite3.Error if the check
    could not be done: no file descriptor is left, or `stop` was set meanwhile.
    """
    path.stat()
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
    try:
        if stop is not None:
            connection.set_progress_handler(stop.is_set, _STEP)
        connection.execute("BEGIN")
        found = [f"structure: {line}" for (line,) in connection.execute(f"PRAGMA integrity_check({MAX_FAULTS})")]
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
        return [_damage_from(error)]
    finally:
        connection.close()
    return found[:MAX_FAULTS]


def _damage_from(error: sqlite3.Error | UnicodeDecodeError) -> str:
    """The damage that an error reveals. Raises the error itself if it says nothing about the file's contents."""
    name = getattr(error, "sqlite_errorname", "")
    if name.startswith(_INCONCLUSIVE) and not (isinstance(error, sqlite3.Error) and is_damage(error)):
        raise error
    return f"it cannot be read: {error}"


def _has(connection: sqlite3.Connection, table: str) -> bool:
    found = connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)).fetchone()
    return found is not None


def _totals_in(connection: sqlite3.Connection) -> tuple[dict[str, int] | None, list[str]]:
    """As row_checksums.totals_in, but with None for totals whose row is damaged; that row is reported like any
    other."""
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
                if len(found) == MAX_FAULTS:
                    return found
            elif stored is not None and (table != "counters" or row[0] != "applied"):
                sums += stored
    except (sqlite3.Error, UnicodeDecodeError) as error:
        return [*found, f"{table}: {_damage_from(error)}"]
    if not found and total is not None and sums != total:
        found.append(f"{table}: rows are missing, or are older than the others")
    return found


def damage(path: Path, *, stop: threading.Event | None = None) -> list[str]:
    """[blocking] As `damage_in`, but in a separate process for a large file. Raises as `damage_in`, and
    OutOfDescriptors."""
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
            return process.communicate(timeout=None if stop is None else _POLL_S)
        except subprocess.TimeoutExpired:
            if stop is not None and stop.is_set():
                process.kill()


def main() -> None:
    """Check the file named on the command line, in a process of low priority."""
    os.nice(_NICE)
    sys.stdout.write(msgspec.json.encode(damage_in(Path(sys.argv[1]))).decode())


if __name__ == "__main__":
    main()
