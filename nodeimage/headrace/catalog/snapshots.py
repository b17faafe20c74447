"""The catalog's folder: the live SQLite file, its snapshots, and which of them a start uses.

    catalog.sqlite (-wal, -shm)          the live file
    catalog.suspect                      a mark: damage was met, the next start restores a snapshot
    snapshot-<applied position>.sqlite   the two newest
    catalog.damaged                      the last live file that was set aside

A snapshot is written beside, synced, checked and renamed, so that one with its final name is whole. Blocking.
"""

import contextlib
import os
import re
import shutil
import sqlite3
from pathlib import Path

import structlog

from headrace.catalog.tables import APPLICATION_ID, applied, open_tables
from headrace.ids import Position

log = structlog.get_logger(__name__)

KEPT = 2
_LIVE = "catalog.sqlite"
_SUSPECT = "catalog.suspect"
_NAME = re.compile(r"snapshot-(\d{20})\.sqlite")


def live_file(folder: Path) -> Path:
    """The live SQLite file."""
    return folder / _LIVE


def open_newest(folder: Path) -> sqlite3.Connection:
    """The live tables; where they are missing or damaged, from the newest snapshot; where there is none, empty.

    Raises FolderRefused for a newer format, OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for torn in folder.glob("*.tmp"):
        torn.unlink()
    suspect = (folder / _SUSPECT).exists()
    if not suspect and live_file(folder).exists():
        try:
            return open_tables(live_file(folder))
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            log.error("catalog_damaged", folder=str(folder), error=str(error))
    return restore(folder)


def restore(folder: Path) -> sqlite3.Connection:
    """Set the live file aside and start from the newest snapshot that is whole, or from nothing."""
    _set_aside(folder)
    for snapshot in reversed(snapshots(folder)):
        fresh = folder / "restored.tmp"
        shutil.copyfile(snapshot, fresh)
        _sync(fresh)
        if not _is_whole(fresh):
            log.error("catalog_snapshot_damaged", snapshot=snapshot.name)
            continue
        fresh.rename(live_file(folder))
        log.info("catalog_restored", snapshot=snapshot.name)
        break
    connection = open_tables(live_file(folder))
    _sync(folder)
    (folder / _SUSPECT).unlink(missing_ok=True)
    return connection


def suspect(folder: Path) -> None:
    """Leave the mark that the live file must not be trusted at the next start."""
    (folder / _SUSPECT).touch()
    _sync(folder)


def write_snapshot(folder: Path) -> Position:
    """Write a snapshot of the live file as it is now, and drop all but the newest two; the position it holds.

    Reads beside the applying thread without holding it up. On any error (a full disk) what was there stays.
    """
    fresh = folder / "snapshot.tmp"
    fresh.unlink(missing_ok=True)
    try:
        source = sqlite3.connect(live_file(folder), isolation_level=None, timeout=30)
        try:
            source.execute("PRAGMA cache_size=-2048")
            source.execute("VACUUM INTO ?", (str(fresh),))
        finally:
            source.close()
        position = _position(fresh)
        _sync(fresh)
        fresh.rename(folder / f"snapshot-{position:020d}.sqlite")
        _sync(folder)
    except BaseException:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise
    for old in snapshots(folder)[:-KEPT]:
        old.unlink()
    return position


def snapshots(folder: Path) -> list[Path]:
    """The snapshots in order of position."""
    return sorted(path for path in folder.glob("snapshot-*.sqlite") if _NAME.fullmatch(path.name))


def positions(folder: Path) -> list[Position]:
    """The positions of the snapshots, in order."""
    return [Position(int(path.stem.removeprefix("snapshot-"))) for path in snapshots(folder)]


def drop_above(folder: Path, end: Position) -> None:
    """Drop the snapshots of a log that was longer once: what it holds from `end` on by then would be left out."""
    for snapshot, position in zip(snapshots(folder), positions(folder), strict=True):
        if position > end:
            log.error("catalog_snapshot_dropped", snapshot=snapshot.name, end=end)
            snapshot.unlink()


def is_damage(error: sqlite3.DatabaseError) -> bool:
    """Whether an error means that the file itself is bad, and not that the disk is full or the file is locked."""
    name = getattr(error, "sqlite_errorname", "")
    return name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")) or type(error) is sqlite3.DatabaseError


def is_full(error: sqlite3.Error) -> bool:
    """Whether an error means that there is no room on the disk."""
    name = getattr(error, "sqlite_errorname", "")
    return name.startswith("SQLITE_FULL") or (
        # SQLite reports a full disk as a failed write where it extends the WAL or the shared-memory index.
        name in ("SQLITE_IOERR_WRITE", "SQLITE_IOERR_SHMSIZE", "SQLITE_IOERR_TRUNCATE")
    )


def _is_whole(path: Path) -> bool:
    try:
        connection = sqlite3.connect(path, isolation_level=None)
        try:
            (name,) = connection.execute("PRAGMA application_id").fetchone()
            (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            return bool(name == APPLICATION_ID and verdict == "ok")
        finally:
            connection.close()
    except sqlite3.DatabaseError:
        return False


def _position(path: Path) -> Position:
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        return applied(connection)
    finally:
        connection.close()


def _set_aside(folder: Path) -> None:
    """The WAL goes with its file: another file must never meet it."""
    live = live_file(folder)
    if live.exists():
        live.replace(folder / "catalog.damaged")
    for part in ("-wal", "-shm"):
        live.with_name(_LIVE + part).unlink(missing_ok=True)
    _sync(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
