"""The catalog's folder: the live SQLite file, its snapshots, and which of them a start uses.

    catalog.sqlite (-wal, -shm)          the live file
    catalog.suspect                      a mark: damage was met, the next start restores a snapshot
    snapshot-<applied position>.sqlite   the two newest
    catalog.damaged                      the last live file that was set aside
    *.tmp (-journal)                     on its way to be one of these; a start removes it

A snapshot is written beside, checked to the last row (check.py), synced and renamed, so that one with its final name
was whole then; it is checked again when it is used, or given to another node. One that is ahead of the live file is
used instead of it: the log may have been trimmed to it, or begin at it. Nothing of it is ever held in memory as a
whole. Blocking.
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
_LIVE = "catalog.sqlite"
_SUSPECT = "catalog.suspect"
_NAME = re.compile(r"snapshot-(\d{20})\.sqlite")
_READ_BYTES: Final = 1 << 20
_STEP: Final = 50_000
"""Instructions of SQLite's machine between two looks at whether a check is to end."""
_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EXDEV, errno.EMLINK})


def live_file(folder: Path) -> Path:
    """The live SQLite file."""
    return folder / _LIVE


def is_live_small(folder: Path) -> bool:
    """Whether the live file is checked where it lies; True where there is none just now."""
    try:
        return is_small(live_file(folder))
    except OSError:
        return True


def open_newest(folder: Path, schema: Schema, *, sums: bool = True) -> Tables:
    """The live tables; where they are missing or damaged, from the newest snapshot; where there is none, empty.

    Small ones are checked to the last row, so that a start takes no longer for it; larger ones by who goes on with
    them. `sums`: see `Schema.open`. Raises FolderRefused for a newer format, OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for torn in listing(folder):
        if ".tmp" in torn.name:  # SQLite's journals too
            torn.unlink(missing_ok=True)
    suspect = (folder / _SUSPECT).exists()
    reason = "damage was met before the last stop" if suspect else ""
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
            if not any(map(_is_whole, ahead)):
                return connection
            # The live file lost what was not synced when the power went, or was to be replaced when the process ended.
            log.warning("catalog_behind_snapshot", folder=str(folder), applied=at, snapshot=ahead[-1].name)
            connection.close()
    return restore(folder, schema, sums=sums, reason=reason)


def applied_in(folder: Path, schema: Schema) -> Position:
    """The applied position of the tables that a start would use: all below was committed. Raises as `open_newest`."""
    connection = open_newest(folder, schema, sums=False)
    try:
        return applied(connection)
    finally:
        connection.close()


def restore(folder: Path, schema: Schema, *, sums: bool = True, reason: str = "") -> Tables:
    """Set the live file aside and start from the newest snapshot that is whole, or from nothing.

    `reason`: what is damaged in it, if anything is. Raises NewerFormat, with all as it was, where a newer version wrote
    that.
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
        if not _is_whole(fresh):
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
    """Put another file in the live one's place, made of a snapshot (None: of nothing) and what `replay` does to it.

    `keep`: the snapshot is another node's, at that position, and becomes the only one here: what applied its commands
    in another way than the others may have written those before. The live one, open as `connection`, is set aside.
    Readers see it until they open the file again. Raises HeadraceError for a snapshot that is damaged, StorageFull,
    OSError, sqlite3.Error, and what `replay` raises; the tables are as they were then, unless `connection` is closed.
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
            made.close()  # and the WAL goes into the file
        if found := damage(fresh, stop=stop):
            raise HeadraceError(f"the catalog's tables could not be made anew: {'; '.join(found)}")
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
    """Have a snapshot that lies elsewhere be the folder's only one; whenever that ends, there is one."""
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
    """Check the live file to the last row, a large one by way of a copy: reading it at once would hold its WAL up.

    Raises TablesDamaged; StorageFull, OSError, sqlite3.Error where there was no room for the copy, or it could not be
    looked at, as where `stop` was set meanwhile.
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
    """Leave the mark that the live file must not be trusted at the next start."""
    (folder / _SUSPECT).touch()
    sync(folder)


def write_snapshot(folder: Path, *, room: Room = plenty, stop: threading.Event | None = None) -> Position:
    """Write a snapshot of the live file as it is now, and drop all but the newest two; the position it holds.

    Reads beside the applying thread without holding it up, rests in between, and ends early where `stop` is set. On any
    error (a full disk) what was there stays. Raises TablesDamaged where the live file is, StorageFull where `room` says
    so, OSError, sqlite3.Error.
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
    """Replace the rows of the live file, open as `connection`, by those of another replica's snapshot, in one go.

    The connection to go on with: another one where the live file is `damaged`, or its rows have sums, which those of
    the snapshot are yet to get. Readers see the old rows or the new ones, in tables of this version. The snapshot is
    kept as this folder's only one: the log begins at it. Raises HeadraceError for a file that is damaged or not at
    `position`, FolderRefused for a newer format, StorageFull, OSError and sqlite3.Error (a full disk, or `stop` was
    set); the rows are as they were then.
    """
    check(snapshot, position, stop=stop)
    fresh = folder / "installed.tmp"
    kept = path_of(folder, position)
    room(room_to_install(folder, snapshot.stat().st_size))
    fresh.unlink(missing_ok=True)
    try:
        _link(snapshot, fresh)
        anew = damaged or (_format(fresh) < FORMAT and (sums or connection.summed))
        if not anew:
            # Before anybody sees it, and while nothing has changed if there is no room.
            _bring_up(fresh, schema, sums=sums)
        sync(fresh)
        fresh.rename(kept)
        sync(folder)
        drop_above(folder, position)
        source = _reading(kept)
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
            kept.unlink(missing_ok=True)
        raise
    for old in snapshots(folder):
        if old != kept:
            old.unlink()
    return connection


def _format(file: Path) -> int:
    connection = _reading(file)
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
    """Bytes that a snapshot of `size` bytes takes when it is installed: it goes through the WAL into the live file."""
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
    """Drop the snapshots of a log that was longer once: what it holds from `end` on by then would be left out."""
    for snapshot, position in _by_position(folder):
        if position > end:
            log.error("catalog_snapshot_dropped", snapshot=snapshot.name, end=end)
            snapshot.unlink()


def _by_position(folder: Path) -> list[tuple[Path, Position]]:
    return [(path, position_of(path)) for path in snapshots(folder)]


def check(snapshot: Path, position: Position, *, stop: threading.Event | None = None) -> None:
    """Look at a snapshot before it is given to another replica, and at one that came from another.

    Raises HeadraceError where it is damaged or not at `position`, NewerFormat where a newer version wrote it, and
    sqlite3.Error where it could not be looked at, as where `stop` was set meanwhile.
    """
    _refuse_newer(snapshot, stop)
    if not _is_whole(snapshot, stop):
        raise HeadraceError(f"the snapshot of the catalog at {position} is damaged; ask for it again")
    if (at := _position(snapshot)) != position:
        raise HeadraceError(f"the snapshot of the catalog is at {at}, and should be at {position}")


def _refuse_newer(snapshot: Path, stop: threading.Event | None = None) -> None:
    """Raises NewerFormat for a snapshot that a newer version wrote; nothing for one that is damaged."""
    try:
        connection = _reading(snapshot)
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
        return  # who reads on meets it again
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        return
    if verdict == "ok":
        raise NewerFormat(
            f"the snapshot of the catalog has format {found}; this version reads {FORMAT}: use a newer headrace"
        )


def _is_whole(path: Path, stop: threading.Event | None = None) -> bool:
    """Raises sqlite3.Error where that could not be found out: who has no file descriptor left has no damage."""
    try:
        connection = _reading(path)
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
            found.append("it is no catalog")
    if found:
        log.error("catalog_snapshot_checked", snapshot=path.name, damage=found)
    return not found


def _raise_damage(found: list[str]) -> None:
    if found:
        raise TablesDamaged("; ".join(found))


def _position(path: Path) -> Position:
    connection = _reading(path)
    try:
        return applied(connection)
    finally:
        connection.close()


def _reading(path: Path) -> sqlite3.Connection:
    """Makes no file where there is none."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)


def _set_aside(folder: Path) -> None:
    """The WAL goes with its file: another file must never meet it."""
    live = live_file(folder)
    if live.exists():
        live.replace(folder / "catalog.damaged")
    for part in ("-wal", "-shm"):
        live.with_name(_LIVE + part).unlink(missing_ok=True)
    sync(folder)


def _link(source: Path, target: Path) -> None:
    """Give a file another name; where the file system has no links, a copy of it."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        shutil.copyfile(source, target)
