"""The catalog's folder: the live SQLite file, its snapshots, and which of them a start uses.

    catalog.sqlite (-wal, -shm)          the live file
    catalog.suspect                      a mark: damage was met, the next start restores a snapshot
    snapshot-<applied position>.sqlite   the two newest
    catalog.damaged                      the last live file that was set aside
    *.tmp (-journal)                     on its way to be one of these; a start removes it

A snapshot is written beside, synced and renamed, so that one with its final name was whole then; it is checked when it
is used. One that is ahead of the live file is used instead of it: the log may have been trimmed to it, or begin at it.
Nothing of it is ever held in memory as a whole. Blocking.
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

from headrace.catalog.tables import APPLICATION_ID, FORMAT, applied, bring_up, open_tables
from headrace.errors import HeadraceError, NewerFormat, StorageFull
from headrace.ids import Position
from headrace.log import descriptors
from headrace.log.descriptors import listing
from headrace.log.files import OpenFile, is_lost

log = structlog.get_logger(__name__)

KEPT = 2
_LIVE = "catalog.sqlite"
_SUSPECT = "catalog.suspect"
_DAMAGE = ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_IOERR_CORRUPTFS", "SQLITE_IOERR_READ", "SQLITE_IOERR_SHORT_READ")
"""Errors of SQLite for what a file holds. CORRUPTFS is a sector that the disk cannot read (EIO)."""
_UNOPENED = ("SQLITE_CANTOPEN", "SQLITE_IOERR_SHMOPEN")
_NAME = re.compile(r"snapshot-(\d{20})\.sqlite")
_READ_BYTES: Final = 1 << 20

_STEP: Final = 50_000
"""Instructions of SQLite's machine between two rests while a snapshot is written: about 2 ms of the CPU."""
_REST_S: Final = 0.0005
_STEPS_A_SYNC: Final = 128
"""Some 40 MiB. More would keep the disk from syncing what producers wait for when the whole file is synced at the end.
"""
_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EXDEV, errno.EMLINK})

Room = Callable[[int], None]
"""[blocking] Raises StorageFull where the disk has no room for so many bytes more."""


def plenty(_length: int) -> None:
    """The `Room` of a disk that nobody looks after."""


def live_file(folder: Path) -> Path:
    """The live SQLite file."""
    return folder / _LIVE


def open_newest(folder: Path) -> sqlite3.Connection:
    """The live tables; where they are missing or damaged, from the newest snapshot; where there is none, empty.

    Raises FolderRefused for a newer format, OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for torn in listing(folder):
        if ".tmp" in torn.name:  # SQLite's journals too
            torn.unlink(missing_ok=True)
    suspect = (folder / _SUSPECT).exists()
    if not suspect and live_file(folder).exists():
        try:
            connection = open_tables(live_file(folder))
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            log.error("catalog_damaged", folder=str(folder), error=str(error))
        else:
            at = applied(connection)
            ahead = [path for path, position in _by_position(folder) if position > at]
            if not any(map(_is_whole, ahead)):
                return connection
            # The live file lost what was not synced when the power went, or was to be replaced when the process ended.
            log.warning("catalog_behind_snapshot", folder=str(folder), applied=at, snapshot=ahead[-1].name)
            connection.close()
    return restore(folder)


def applied_in(folder: Path) -> Position:
    """The applied position of the tables that a start would use: all below was committed. Raises as `open_newest`."""
    connection = open_newest(folder)
    try:
        return applied(connection)
    finally:
        connection.close()


def restore(folder: Path) -> sqlite3.Connection:
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
    connection = open_tables(live_file(folder))
    _sync(folder)
    (folder / _SUSPECT).unlink(missing_ok=True)
    return connection


def suspect(folder: Path) -> None:
    """Leave the mark that the live file must not be trusted at the next start."""
    (folder / _SUSPECT).touch()
    _sync(folder)


def write_snapshot(folder: Path, *, room: Room = plenty, stop: threading.Event | None = None) -> Position:
    """Write a snapshot of the live file as it is now, and drop all but the newest two; the position it holds.

    Reads beside the applying thread without holding it up, rests in between, and ends early where `stop` is set. On any
    error (a full disk) what was there stays. Raises StorageFull where `room` says so, OSError, sqlite3.Error.
    """
    fresh = folder / "snapshot.tmp"
    journal = fresh.with_name("snapshot.tmp-journal")
    for left in (fresh, journal):
        left.unlink(missing_ok=True)
    try:
        source = sqlite3.connect(live_file(folder), isolation_level=None, timeout=30)
        try:
            source.execute("PRAGMA cache_size=-2048")
            room(_packed_bytes(source))
            rests = _Rests(fresh, room, threading.Event() if stop is None else stop)
            source.set_progress_handler(rests, _STEP)
            try:
                source.execute("VACUUM INTO ?", (str(fresh),))
            except sqlite3.OperationalError:
                if rests.failure is not None:
                    raise rests.failure from None
                raise
        finally:
            source.close()
        position = _position(fresh)
        _sync(fresh)
        fresh.rename(path_of(folder, position))
        _sync(folder)
    except BaseException:
        for left in (fresh, journal):
            with contextlib.suppress(OSError):
                left.unlink(missing_ok=True)
        raise
    for old in snapshots(folder)[:-KEPT]:
        old.unlink()
    return position


class _Rests:
    """Called by SQLite while it writes a file: leaves the CPU and the disk to others; whether it is to end."""

    def __init__(self, writes: Path, room: Room, stop: threading.Event) -> None:
        self.failure: StorageFull | OSError | None = None
        self._writes = writes
        self._room = room
        self._stop = stop
        self._steps = 0

    def __call__(self) -> bool:
        self._steps += 1
        if self._steps % _STEPS_A_SYNC == 0:
            try:
                self._room(0)  # others write too
                _sync(self._writes)
            except (StorageFull, OSError) as error:  # SQLite would say no more than that it was interrupted
                self.failure = error
                return True
        return self._stop.wait(_REST_S)


def _packed_bytes(connection: sqlite3.Connection) -> int:
    """What a snapshot of the tables takes at most: their pages without those that are free."""
    pages, free, size = (
        connection.execute(f"PRAGMA {each}").fetchone()[0] for each in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)


def install(
    folder: Path, connection: sqlite3.Connection, snapshot: Path, position: Position, *, room: Room = plenty
) -> None:
    """Replace the rows of the live file, open as `connection`, by those of another replica's snapshot, in one go.

    Readers see the old rows or the new ones, in tables of this version. The snapshot is kept as this folder's only one:
    the log begins at it.
    Raises HeadraceError for a file that is damaged or not at `position`, FolderRefused for a newer format, StorageFull,
    OSError and sqlite3.Error (a full disk); the rows are as they were then.
    """
    check(snapshot, position)
    fresh = folder / "installed.tmp"
    kept = path_of(folder, position)
    room(room_to_install(folder, snapshot.stat().st_size))
    fresh.unlink(missing_ok=True)
    try:
        _link(snapshot, fresh)
        _bring_up(fresh)  # before anybody sees it, and while nothing has changed if there is no room for it
        _sync(fresh)
        fresh.rename(kept)
        _sync(folder)
        drop_above(folder, position)
        source = _reading(kept)
        try:
            source.backup(connection)
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


def _bring_up(snapshot: Path) -> None:
    connection = sqlite3.connect(snapshot, isolation_level=None)
    try:
        bring_up(connection)
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


def is_damage(error: sqlite3.DatabaseError) -> bool:
    """Whether an error means that the file itself is bad, and not that the disk is full or the file is locked."""
    name = getattr(error, "sqlite_errorname", "")
    return name.startswith(_DAMAGE) or type(error) is sqlite3.DatabaseError


def cannot_open(error: sqlite3.Error) -> bool:
    """Whether SQLite could not open a file, for whatever reason."""
    return getattr(error, "sqlite_errorname", "").startswith(_UNOPENED)


def is_full(error: sqlite3.Error) -> bool:
    """[blocking] Whether an error means that there is no room on the disk, or no file descriptor."""
    name = getattr(error, "sqlite_errorname", "")
    if cannot_open(error):
        return descriptors.are_lacking()
    return name.startswith("SQLITE_FULL") or (
        # SQLite reports a full disk as a failed write where it extends the WAL or the shared-memory index.
        name in ("SQLITE_IOERR_WRITE", "SQLITE_IOERR_SHMSIZE", "SQLITE_IOERR_TRUNCATE")
    )


def _by_position(folder: Path) -> list[tuple[Path, Position]]:
    return [(path, position_of(path)) for path in snapshots(folder)]


def check(snapshot: Path, position: Position, *, stop: threading.Event | None = None) -> None:
    """Look at a snapshot before it is given to another replica, and at one that came from another.

    Raises HeadraceError where it is damaged or not at `position`, NewerFormat where a newer version wrote it, and
    sqlite3.Error where it could not be looked at, as where `stop` was set meanwhile.
    """
    if not _is_whole(snapshot, stop):
        raise HeadraceError(f"the snapshot of the catalog at {position} is damaged; ask for it again")
    connection = _reading(snapshot)
    try:
        (found,) = connection.execute("PRAGMA user_version").fetchone()
        if found > FORMAT:
            raise NewerFormat(
                f"the snapshot of the catalog has format {found}; this version reads {FORMAT}: use a newer headrace"
            )
        if (at := applied(connection)) != position:
            raise HeadraceError(f"the snapshot of the catalog is at {at}, and should be at {position}")
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        raise HeadraceError(f"the snapshot of the catalog at {position} cannot be read: {error}") from error
    finally:
        connection.close()


def _refuse_newer(snapshot: Path) -> None:
    """Raises NewerFormat for a snapshot that a newer version wrote; nothing for one that is damaged."""
    try:
        check(snapshot, position_of(snapshot))
    except NewerFormat:
        raise
    except HeadraceError:
        pass  # restore meets it again


def _is_whole(path: Path, stop: threading.Event | None = None) -> bool:
    """Raises sqlite3.Error where that could not be found out: who has no file descriptor left has no damage."""
    try:
        connection = _reading(path)
        try:
            if stop is not None:
                connection.set_progress_handler(stop.is_set, _STEP)
            (name,) = connection.execute("PRAGMA application_id").fetchone()
            (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            return bool(name == APPLICATION_ID and verdict == "ok")
        finally:
            connection.close()
    except sqlite3.DatabaseError as error:
        if not is_damage(error):  # such as one for want of descriptors: nobody knows
            raise
        return False


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
    _sync(folder)


def _link(source: Path, target: Path) -> None:
    """Give a file another name; where the file system has no links, a copy of it."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        shutil.copyfile(source, target)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
