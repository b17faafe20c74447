"""The catalog's folder: the live SQLite file, its snapshots, and the choice between them at a start.

    catalog.sqlite (-wal, -shm)          the live file
    catalog.suspect                      a mark: damage was found, so the next start restores a snapshot
    snapshot-<applied position>.sqlite   the two newest snapshots
    catalog.damaged                      the live file that was set aside last
    *.tmp (-journal)                     unfinished files, which a start removes

A snapshot is written under a temporary name, checked to the last row (table_check.py), synced and renamed, so that a
file with its final name was undamaged then; it is checked again when it is used, or given to another node. A snapshot
that is ahead of the live file is used instead of it: the log may have been trimmed to it, or begin at it. No file is
ever held in memory as a whole. All functions block.
"""

import contextlib
import errno
import os
import re
import shutil
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog
from crc32c import crc32c

from headrace.base.errors import HeadraceError, NewerFormat
from headrace.base.ids import Position
from headrace.log.descriptors import listing
from headrace.log.files import OpenFile, is_lost
from headrace.tables.live_copy import Room, copy_live, plenty, sync, unlink_all
from headrace.tables.row_checksums import APPLICATION_ID, FORMAT, Tables
from headrace.tables.schema import Schema
from headrace.tables.sqlite_errors import TablesDamaged, is_damage
from headrace.tables.table_check import damage, damage_in, is_small
from headrace.tables.transactions import applied

log = structlog.get_logger(__name__)

KEPT = 2
"""Number of snapshots that are kept."""
_LIVE = "catalog.sqlite"
_SUSPECT = "catalog.suspect"
_NAME = re.compile(r"snapshot-(\d{20})\.sqlite")
_READ_BYTES: Final = 1 << 20
_STEP: Final = 50_000
"""Instructions of SQLite's virtual machine between two checks whether to stop."""
_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EXDEV, errno.EMLINK})


def live_file(folder: Path) -> Path:
    """The path of the live SQLite file."""
    return folder / _LIVE


def is_live_small(folder: Path) -> bool:
    """Whether the live file is so small that it is checked in place; True if there is none at the moment."""
    try:
        return is_small(live_file(folder))
    except OSError:
        return True


def open_newest(folder: Path, schema: Schema, *, sums: bool = True) -> Tables:
    """Open the live tables; missing or damaged ones are restored from the newest snapshot, or created empty without
    one.

    Small tables are checked to the last row; larger ones, which would delay the start, have to be checked later by the
    caller. `sums`: see `Schema.open`. Raises FolderRefused for a newer format, OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for torn in listing(folder):
        if ".tmp" in torn.name:  # SQLite's journals too
            torn.unlink(missing_ok=True)
    suspect = (folder / _SUSPECT).exists()
    reason = "damage was found before the last stop" if suspect else ""
    if not suspect and live_file(folder).exists():
        connection = None
        try:
            connection = schema.open(live_file(folder), sums=sums)
            at = applied(connection)
            if is_small(live_file(folder)):
                _raise_damage(damage_in(live_file(folder)))
        except sqlite3.DatabaseError as error:
            if connection is not None:
                connection.close()
            if not is_damage(error):
                raise
            log.error("catalog_damaged", folder=str(folder), error=str(error))
            reason = str(error)
        else:
            ahead = [path for path, position in _by_position(folder) if position > at]
            if not any(map(_is_undamaged, ahead)):
                return connection
            # The live file lost unsynced changes in a power failure, or the process ended before replacing it.
            log.warning("catalog_behind_snapshot", folder=str(folder), applied=at, snapshot=ahead[-1].name)
            connection.close()
    return restore(folder, schema, sums=sums, reason=reason)


def applied_in(folder: Path, schema: Schema) -> Position:
    """The applied position of the tables that a start would use; everything below it was committed. Raises as
    `open_newest`."""
    connection = open_newest(folder, schema, sums=False)
    try:
        return applied(connection)
    finally:
        connection.close()


def restore(folder: Path, schema: Schema, *, sums: bool = True, reason: str = "") -> Tables:
    """Set the live file aside, and open tables from the newest undamaged snapshot, or empty ones without any.

    `reason`: the damage of the live file, if there is any. Raises NewerFormat, with nothing changed, if a newer version
    wrote a snapshot.
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
        sync(fresh)
        if not _is_undamaged(fresh):
            log.error("catalog_snapshot_damaged", snapshot=snapshot.name)
            continue
        fresh.rename(live_file(folder))
        log.info("catalog_restored", snapshot=snapshot.name)
        break
    connection = schema.open(live_file(folder), sums=sums)
    sync(folder)
    (folder / _SUSPECT).unlink(missing_ok=True)
    connection.restored = reason
    return connection


def rebuild(
    folder: Path,
    connection: Tables,
    snapshot: Path | None,
    replay: Callable[[Tables], None],
    schema: Schema,
    *,
    sums: bool,
    keep: Position | None = None,
    room: Room = plenty,
    stop: threading.Event | None = None,
) -> Tables:
    """Replace the live file by a new one, built from a snapshot (None: from empty tables) and by `replay`.

    `keep`: the snapshot is another node's, at that position, and replaces this node's snapshots, since the fault that
    made this node apply commands differently may also have affected those. The live file, open as `connection`, is set
    aside; readers see it until they open the file again. Raises HeadraceError for a damaged snapshot, StorageFull,
    OSError, sqlite3.Error, and the errors of `replay`; the tables are unchanged then, unless `connection` is closed.
    """
    fresh = folder / "rebuilt.tmp"
    unlink_all(fresh)
    try:
        if snapshot is not None:
            if found := damage(snapshot, stop=stop):
                raise HeadraceError(f"the snapshot of the catalog is damaged, ask for it again: {'; '.join(found)}")
            room(snapshot.stat().st_size)
            shutil.copyfile(snapshot, fresh)
        made = schema.open(fresh, sums=sums)
        try:
            while made.fill_some():
                pass
            replay(made)
        finally:
            made.close()  # which also moves the WAL into the file
        if found := damage(fresh, stop=stop):
            raise HeadraceError(f"the catalog's tables could not be rebuilt: {'; '.join(found)}")
        sync(fresh)
        if snapshot is not None and keep is not None:
            _keep_only(folder, snapshot, keep)
        connection.close()
        _set_aside(folder)
        fresh.rename(live_file(folder))
        sync(folder)
    except BaseException:
        with contextlib.suppress(OSError):
            unlink_all(fresh)
        raise
    (folder / _SUSPECT).unlink(missing_ok=True)
    return schema.open(live_file(folder), sums=sums)


def _keep_only(folder: Path, snapshot: Path, position: Position) -> None:
    """Make a snapshot from elsewhere the folder's only one. At any interruption the folder still has a snapshot."""
    linked, kept = folder / "installed.tmp", path_of(folder, position)
    linked.unlink(missing_ok=True)
    _link(snapshot, linked)
    sync(linked)
    linked.rename(kept)
    sync(folder)
    for other in snapshots(folder):
        if other != kept:
            other.unlink()


def check_live(folder: Path, *, room: Room = plenty, stop: threading.Event | None = None) -> None:
    """Check the live file to the last row; a large one through a copy, since a long read would keep its WAL from being
    reset.

    Raises TablesDamaged; StorageFull, OSError, sqlite3.Error if there was no room for the copy, or the check could not
    be done, such as when `stop` was set meanwhile.
    """
    live = live_file(folder)
    if is_small(live):
        _raise_damage(damage_in(live, stop=stop))
        return
    copy = folder / "checked.tmp"
    try:
        copy_live(live, copy, room=room, stop=stop)
        _raise_damage(damage(copy, stop=stop))
    finally:
        unlink_all(copy)


def suspect(folder: Path) -> None:
    """Leave the mark that tells the next start not to trust the live file."""
    (folder / _SUSPECT).touch()
    sync(folder)


def write_snapshot(folder: Path, *, room: Room = plenty, stop: threading.Event | None = None) -> Position:
    """Write a snapshot of the live file's present state, drop all but the newest two, and return its position.

    Reads alongside the applying thread without blocking it, with pauses, and ends early if `stop` is set. After any
    error (such as a full disk) the existing snapshots stay. Raises TablesDamaged if the live file is damaged,
    StorageFull as `room` does, OSError, sqlite3.Error.
    """
    fresh = folder / "snapshot.tmp"
    try:
        copy_live(live_file(folder), fresh, room=room, stop=stop)
        _raise_damage(damage(fresh, stop=stop))
        position = _position(fresh)
        sync(fresh)
        fresh.rename(path_of(folder, position))
        sync(folder)
    except BaseException:
        with contextlib.suppress(OSError):
            unlink_all(fresh)
        raise
    for old in snapshots(folder)[:-KEPT]:
        old.unlink()
    return position


def install(
    folder: Path,
    connection: Tables,
    snapshot: Path,
    position: Position,
    schema: Schema,
    *,
    sums: bool = True,
    damaged: bool = False,
    room: Room = plenty,
    stop: threading.Event | None = None,
) -> Tables:
    """Replace the rows of the live file, open as `connection`, by those of another replica's snapshot, atomically.

    Returns the connection to continue with: a new one if the live file is `damaged`, or if its rows have sums, or are
    to have them, that the snapshot's rows lack. Readers see either the old rows or the new ones, in tables of this
    version. The snapshot is kept as this folder's only one, as the log begins at it. Raises HeadraceError for a file
    that is damaged or not at `position`, FolderRefused for a newer format, StorageFull, OSError and sqlite3.Error (a
    full disk, or `stop` was set); the rows are unchanged then, unless `connection` is closed: the next start takes
    those of the snapshot, which is kept.
    """
    check(snapshot, position, stop=stop)
    before = connection
    fresh = folder / "installed.tmp"
    kept = path_of(folder, position)
    room(room_to_install(folder, snapshot.stat().st_size))
    fresh.unlink(missing_ok=True)
    try:
        _link(snapshot, fresh)
        anew = damaged or (_format(fresh) < FORMAT and (sums or connection.summed))
        if not anew:
            # The snapshot is upgraded before anything else: no reader sees it yet, and nothing changes if there is no
            # room.
            _bring_up(fresh, schema, sums=sums)
        sync(fresh)
        fresh.rename(kept)
        sync(folder)
        drop_above(folder, position)
        source = _open_read_only(kept)
        try:
            if anew:
                with_sums = sums or connection.summed
                connection = rebuild(folder, connection, kept, lambda _made: None, schema, sums=with_sums, stop=stop)
            else:
                source.backup(connection)
                schema.bring_up(connection, sums=sums)
        finally:
            source.close()
    except BaseException:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
            if not before.is_closed:  # else there may be no live file
                kept.unlink(missing_ok=True)
        raise
    for old in snapshots(folder):
        if old != kept:
            old.unlink()
    return connection


def _format(file: Path) -> int:
    connection = _open_read_only(file)
    try:
        (found,) = connection.execute("PRAGMA user_version").fetchone()
    finally:
        connection.close()
    return int(found)


def _bring_up(snapshot: Path, schema: Schema, *, sums: bool) -> None:
    connection = sqlite3.connect(snapshot, isolation_level=None, factory=Tables)
    try:
        schema.bring_up(connection, sums=sums)
    finally:
        connection.close()


def room_to_install(folder: Path, size: int) -> int:
    """Bytes of disk space that installing a snapshot of `size` bytes takes: it goes through the WAL into the live
    file."""
    live = live_file(folder)
    return size + max(0, size - (live.stat().st_size if live.exists() else 0))


def summed(file: OpenFile) -> tuple[int, int]:
    """The length of a file in bytes, and its CRC-32C."""
    at = crc = 0
    while piece := os.pread(file.fd, _READ_BYTES, at):
        at += len(piece)
        crc = crc32c(piece, crc)
    return at, crc


def snapshots(folder: Path) -> list[Path]:
    """The snapshots in order of position."""
    return sorted(path for path in listing(folder) if _NAME.fullmatch(path.name)) if folder.exists() else []


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
    """Drop snapshots above `end`, where the log ends after it has lost commands: tables restored from them would skip
    new commands after `end`."""
    for snapshot, position in _by_position(folder):
        if position > end:
            log.error("catalog_snapshot_dropped", snapshot=snapshot.name, end=end)
            snapshot.unlink()


def _by_position(folder: Path) -> list[tuple[Path, Position]]:
    return [(path, position_of(path)) for path in snapshots(folder)]


def check(snapshot: Path, position: Position, *, stop: threading.Event | None = None) -> None:
    """Check a snapshot that is to be given to another replica, or was received from one.

    Raises HeadraceError if it is damaged or not at `position`, NewerFormat if a newer version wrote it, and
    sqlite3.Error if it could not be checked, such as when `stop` was set meanwhile.
    """
    _refuse_newer(snapshot, stop)
    if not _is_undamaged(snapshot, stop):
        raise HeadraceError(f"the snapshot of the catalog at {position} is damaged; ask for it again")
    if (at := _position(snapshot)) != position:
        raise HeadraceError(f"the snapshot of the catalog is at {at}, and should be at {position}")


def _refuse_newer(snapshot: Path, stop: threading.Event | None = None) -> None:
    """Raise NewerFormat for a snapshot that a newer version wrote, but not for a damaged one."""
    try:
        connection = _open_read_only(snapshot)
        try:
            (kind,) = connection.execute("PRAGMA application_id").fetchone()
            (found,) = connection.execute("PRAGMA user_version").fetchone()
            if kind != APPLICATION_ID or found <= FORMAT:
                return
            if stop is not None:
                connection.set_progress_handler(stop.is_set, _STEP)
            (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        finally:
            connection.close()
    except UnicodeDecodeError:
        return  # a later check reports this damage
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        return
    if verdict == "ok":
        raise NewerFormat(
            f"the snapshot of the catalog has format {found}; this version reads {FORMAT}: use a newer headrace"
        )


def _is_undamaged(path: Path, stop: threading.Event | None = None) -> bool:
    """Whether a file is an undamaged catalog; damage is logged. Raises sqlite3.Error if that could not be determined,
    such as without a free file descriptor."""
    try:
        connection = _open_read_only(path)
        try:
            (name,) = connection.execute("PRAGMA application_id").fetchone()
        finally:
            connection.close()
        found = damage(path, stop=stop)
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        if isinstance(error, sqlite3.DatabaseError) and not is_damage(error):
            raise
        found = [str(error)]
    else:
        if name != APPLICATION_ID:
            found.append("it is not a catalog")
    if found:
        log.error("catalog_snapshot_checked", snapshot=path.name, damage=found)
    return not found


def _raise_damage(found: list[str]) -> None:
    if found:
        raise TablesDamaged("; ".join(found))


def _position(path: Path) -> Position:
    connection = _open_read_only(path)
    try:
        return applied(connection)
    finally:
        connection.close()


def _open_read_only(path: Path) -> sqlite3.Connection:
    """Open a read-only connection, which does not create a missing file."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)


def _set_aside(folder: Path) -> None:
    """Move the live file away, and remove its WAL, which must never be applied to another file."""
    live = live_file(folder)
    if live.exists():
        live.replace(folder / "catalog.damaged")
    for part in ("-wal", "-shm"):
        live.with_name(_LIVE + part).unlink(missing_ok=True)
    sync(folder)


def _link(source: Path, target: Path) -> None:
    """Link a file under another name, or copy it if the file system has no links."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        shutil.copyfile(source, target)
