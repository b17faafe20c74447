"""The catalog's folder: the live SQLite file, its snapshots, and which of them a start uses.

    catalog.sqlite (-wal, -shm)          the live file
    catalog.suspect                      a mark: damage was met, the next start restores a snapshot
    snapshot-<applied position>.sqlite   the two newest
    catalog.damaged                      the last live file that was set aside

A snapshot is written beside, checked to the last row (check.py), synced and renamed, so that one with its final name
was whole then; it is checked again when it is used, or given to another node. One that is ahead of the live file is
used instead of it: the log may have been trimmed to it, or begin at it. Blocking.
"""

import contextlib
import os
import re
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import structlog

from headrace.catalog import check
from headrace.catalog.row_sums import Tables
from headrace.catalog.sqlite_errors import TablesDamaged, is_damage
from headrace.catalog.tables import APPLICATION_ID, FORMAT, applied, bring_up, open_tables
from headrace.errors import HeadraceError, NewerFormat
from headrace.ids import Position
from headrace.log.files import is_lost

log = structlog.get_logger(__name__)

KEPT = 2
_LIVE = "catalog.sqlite"
_SUSPECT = "catalog.suspect"
_NAME = re.compile(r"snapshot-(\d{20})\.sqlite")


def live_file(folder: Path) -> Path:
    """The live SQLite file."""
    return folder / _LIVE


def open_newest(folder: Path, *, sums: bool = True) -> Tables:
    """The live tables; where they are missing or damaged, from the newest snapshot; where there is none, empty.

    Small ones are checked to the last row, so that a start takes no longer for it; larger ones by who goes on with
    them. `sums`: see `open_tables`. Raises FolderRefused for a newer format, OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for torn in folder.glob("*.tmp"):
        torn.unlink()
    suspect = (folder / _SUSPECT).exists()
    if not suspect and live_file(folder).exists():
        connection = None
        try:
            connection = open_tables(live_file(folder), sums=sums)
            at = applied(connection)
            if live_file(folder).stat().st_size <= check.SMALL_BYTES:
                _raise_damage(check.damage_in(live_file(folder)))
        except sqlite3.DatabaseError as error:
            if connection is not None:
                connection.close()
            if not is_damage(error):
                raise
            log.error("catalog_damaged", folder=str(folder), error=str(error))
        else:
            ahead = [path for path, position in _by_position(folder) if position > at]
            if not any(map(_is_whole, ahead)):
                return connection
            # The live file lost what was not synced when the power went, or was to be replaced when the process ended.
            log.warning("catalog_behind_snapshot", folder=str(folder), applied=at, snapshot=ahead[-1].name)
            connection.close()
    return restore(folder, sums=sums)


def applied_in(folder: Path) -> Position:
    """The applied position of the tables that a start would use: all below was committed. Raises as `open_newest`."""
    connection = open_newest(folder, sums=False)
    try:
        return applied(connection)
    finally:
        connection.close()


def restore(folder: Path, *, sums: bool = True) -> Tables:
    """Set the live file aside and start from the newest snapshot that is whole, or from nothing.

    Raises NewerFormat, with all as it was, where a newer version wrote that.
    """
    for snapshot in snapshots(folder):
        _refuse_newer(snapshot)
    _set_aside(folder)
    for snapshot in reversed(snapshots(folder)):
        fresh = folder / "restored.tmp"
        try:
            shutil.copyfile(snapshot, fresh)
        except OSError as error:
            if not is_lost(error):
                raise
            log.error("catalog_snapshot_damaged", snapshot=snapshot.name, error=str(error))
            continue
        _sync(fresh)
        if not _is_whole(fresh):
            log.error("catalog_snapshot_damaged", snapshot=snapshot.name)
            continue
        fresh.rename(live_file(folder))
        log.info("catalog_restored", snapshot=snapshot.name)
        break
    connection = open_tables(live_file(folder), sums=sums)
    _sync(folder)
    (folder / _SUSPECT).unlink(missing_ok=True)
    return connection


def rebuild(
    folder: Path, connection: Tables, snapshot: Path | None, replay: Callable[[Tables], None], *, sums: bool
) -> Tables:
    """Put another file in the live one's place, made of a snapshot (None: of nothing) and what `replay` does to it.

    The live one, open as `connection`, is set aside. Readers see it until they open the file again. Raises
    HeadraceError for a snapshot that is damaged, OSError, sqlite3.Error, and what `replay` raises; all is as it was
    then, unless `connection` is closed.
    """
    fresh = folder / "rebuilt.tmp"
    _unlink_all(fresh)
    try:
        if snapshot is not None:
            if found := check.damage(snapshot):
                raise HeadraceError(f"the snapshot of the catalog is damaged, ask for it again: {'; '.join(found)}")
            shutil.copyfile(snapshot, fresh)
        made = open_tables(fresh, sums=sums)
        try:
            while made.fill_some():
                pass
            replay(made)
        finally:
            made.close()  # and the WAL goes into the file
        if found := check.damage(fresh):
            raise HeadraceError(f"the catalog's tables could not be made anew: {'; '.join(found)}")
        _sync(fresh)
        connection.close()
        _set_aside(folder)
        fresh.rename(live_file(folder))
        _sync(folder)
    except BaseException:
        with contextlib.suppress(OSError):
            _unlink_all(fresh)
        raise
    (folder / _SUSPECT).unlink(missing_ok=True)
    return open_tables(live_file(folder), sums=sums)


def check_live(folder: Path) -> None:
    """Check the live file to the last row, a large one by way of a copy: reading it at once would hold its WAL up.

    Raises TablesDamaged, OSError, sqlite3.Error (no room for the copy), HeadraceError.
    """
    live = live_file(folder)
    if live.stat().st_size <= check.SMALL_BYTES:
        _raise_damage(check.damage_in(live))
        return
    copy = folder / "checked.tmp"
    try:
        _copy_live(folder, copy)
        _raise_damage(check.damage(copy))
    finally:
        copy.unlink(missing_ok=True)


def suspect(folder: Path) -> None:
    """Leave the mark that the live file must not be trusted at the next start."""
    (folder / _SUSPECT).touch()
    _sync(folder)


def write_snapshot(folder: Path) -> Position:
    """Write a snapshot of the live file as it is now, and drop all but the newest two; the position it holds.

    Reads beside the applying thread without holding it up. On any error (a full disk) what was there stays. Raises
    TablesDamaged where the live file is.
    """
    fresh = folder / "snapshot.tmp"
    try:
        _copy_live(folder, fresh)
        _raise_damage(check.damage(fresh))
        position = _position(fresh)
        _sync(fresh)
        fresh.rename(path_of(folder, position))
        _sync(folder)
    except BaseException:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise
    for old in snapshots(folder)[:-KEPT]:
        old.unlink()
    return position


def install(
    folder: Path, connection: Tables, snapshot: Path, position: Position, *, sums: bool = True, damaged: bool = False
) -> Tables:
    """Replace the rows of the live file, open as `connection`, by those of another replica's snapshot, in one go.

    The connection to go on with: another one where the live file is `damaged`, or its rows have sums, which those of
    the snapshot are yet to get. Readers see the old rows or the new ones. The snapshot is kept as this folder's only
    one: the log begins at it. Raises HeadraceError for a file that is damaged or not at `position`, FolderRefused for a
    newer format, OSError and sqlite3.Error (a full disk); the rows are as they were then.
    """
    _check(snapshot, position)
    fresh = folder / "installed.tmp"
    kept = path_of(folder, position)
    try:
        shutil.copyfile(snapshot, fresh)
        _sync(fresh)
        fresh.rename(kept)
        _sync(folder)
        drop_above(folder, position)
        source = sqlite3.connect(f"{kept.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
        try:
            (format,) = source.execute("PRAGMA user_version").fetchone()
            if damaged or (format < FORMAT and (sums or connection.summed)):
                connection = rebuild(folder, connection, kept, lambda _made: None, sums=sums or connection.summed)
            else:
                source.backup(connection)
                bring_up(connection, sums=sums)
        finally:
            source.close()
    except BaseException:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
            kept.unlink(missing_ok=True)
        raise
    for old in snapshots(folder):
        if old != kept:
            old.unlink()
    return connection


def newest_whole(folder: Path) -> Path | None:
    """The newest snapshot that another replica can install, if there is one. Those that are damaged are removed.

    Raises NewerFormat where a newer version wrote one.
    """
    for snapshot in reversed(snapshots(folder)):
        try:
            _check(snapshot, position_of(snapshot))
        except NewerFormat:
            raise
        except HeadraceError as error:
            log.error("catalog_snapshot_damaged", snapshot=snapshot.name, error=str(error))
            snapshot.unlink()
        else:
            return snapshot
    return None


def snapshots(folder: Path) -> list[Path]:
    """The snapshots in order of position."""
    return sorted(path for path in folder.glob("snapshot-*.sqlite") if _NAME.fullmatch(path.name))


def positions(folder: Path) -> list[Position]:
    """The positions of the snapshots, in order."""
    return list(map(position_of, snapshots(folder)))


def position_of(snapshot: Path) -> Position:
    """The position of a snapshot, by its name."""
    return Position(int(snapshot.stem.removeprefix("snapshot-")))


def path_of(folder: Path, position: Position) -> Path:
    """The file of the snapshot at `position`."""
    return folder / f"snapshot-{position:020d}.sqlite"


def drop_above(folder: Path, end: Position) -> None:
    """Drop the snapshots of a log that was longer once: what it holds from `end` on by then would be left out."""
    for snapshot, position in _by_position(folder):
        if position > end:
            log.error("catalog_snapshot_dropped", snapshot=snapshot.name, end=end)
            snapshot.unlink()


def _by_position(folder: Path) -> list[tuple[Path, Position]]:
    return [(path, position_of(path)) for path in snapshots(folder)]


def _check(snapshot: Path, position: Position) -> None:
    if not _is_whole(snapshot):
        raise HeadraceError(f"the snapshot of the catalog at {position} is damaged; ask for it again")
    connection = sqlite3.connect(snapshot, isolation_level=None)
    try:
        (found,) = connection.execute("PRAGMA user_version").fetchone()
        if found > FORMAT:
            raise _newer(found)
        if (at := applied(connection)) != position:
            raise HeadraceError(f"the snapshot of the catalog is at {at}, and should be at {position}")
    except sqlite3.DatabaseError as error:
        raise HeadraceError(f"the snapshot of the catalog at {position} cannot be read: {error}") from error
    finally:
        connection.close()


def _newer(found: int) -> NewerFormat:
    return NewerFormat(
        f"the snapshot of the catalog has format {found}; this version reads {FORMAT}: use a newer headrace"
    )


def _refuse_newer(snapshot: Path) -> None:
    """Raises NewerFormat for a snapshot that a newer version wrote; nothing for one that is damaged."""
    try:
        connection = sqlite3.connect(snapshot, isolation_level=None)
        try:
            (kind,) = connection.execute("PRAGMA application_id").fetchone()
            (found,) = connection.execute("PRAGMA user_version").fetchone()
            (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        finally:
            connection.close()
    except (sqlite3.DatabaseError, UnicodeDecodeError):
        return  # restore meets it again
    if kind == APPLICATION_ID and verdict == "ok" and found > FORMAT:
        raise _newer(found)


def _is_whole(path: Path) -> bool:
    try:
        connection = sqlite3.connect(path, isolation_level=None)
        try:
            (name,) = connection.execute("PRAGMA application_id").fetchone()
        finally:
            connection.close()
        found = check.damage(path)
    except (sqlite3.DatabaseError, HeadraceError) as error:
        found = [str(error)]
    else:
        if name != APPLICATION_ID:
            found.append("it is no catalog")
    if found:
        log.error("catalog_snapshot_checked", snapshot=path.name, damage=found)
    return not found


def _copy_live(folder: Path, copy: Path) -> None:
    copy.unlink(missing_ok=True)
    source = sqlite3.connect(live_file(folder), isolation_level=None, timeout=30)
    try:
        source.execute("PRAGMA cache_size=-2048")
        source.execute("VACUUM INTO ?", (str(copy),))
    finally:
        source.close()


def _raise_damage(found: list[str]) -> None:
    if found:
        raise TablesDamaged("; ".join(found))


def _unlink_all(path: Path) -> None:
    for part in ("", "-wal", "-shm"):
        path.with_name(path.name + part).unlink(missing_ok=True)


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
