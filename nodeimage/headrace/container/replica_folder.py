"""What a replica's folder says of itself: the file `replica.json` beside the chunks.

    {"format": uuid, "seen": epoch, "led": epoch, "history": [[epoch, position], ...], "boot": id, "unsynced": bool,
     "held": position, "record": json}

A checksum stands before these (headrace.base.sealed_json). `format`, the incarnation, is made with the folder
(invariant 5): a folder that was lost and made again is another replica. `seen` is the highest epoch that the replica
has heard of, written before it answers in that epoch (invariant 4). `led` is the last epoch in which it was leader: no
later run of the process writes in that epoch again. `history` is written before the first frame of an epoch.
`replica.json.room` is where the file is written the next time: a replica on a full disk must go on following whoever
leads.

A replica that is damaged at a start is set aside, as the folder's name with `.damaged` behind it, until another leads:
by the record others have it too, but all of them may be damaged, as on a disk that lost what it said it had synced.
Everything here blocks.
"""

import itertools
import os
import shutil
import uuid
from contextlib import suppress
from pathlib import Path

import msgspec
import structlog

from headrace.base.errors import CorruptLog, HeadraceError, OutOfDescriptors, StorageFull
from headrace.base.ids import ContainerId, Epoch, Position
from headrace.base.machine import boot_id
from headrace.base.sealed_json import seal, unseal
from headrace.container.history import History
from headrace.log.descriptors import listing, put_off_without_descriptors
from headrace.log.files import (
    OpenFile,
    is_lost,
    lost_as_corrupt_log,
    rewrite_file,
    sync_folder,
    synced_folder,
    write_back,
)
from headrace.log.synced_mark import keep_mark
from headrace.store.records import ContainerRecord

log = structlog.get_logger()

_NAME = "replica.json"
_REMOVED = ".removed"
_DAMAGED = ".damaged"


class ReplicaFile(msgspec.Struct, frozen=True):
    """The file's content."""

    format: str
    seen: Epoch = Epoch(0)
    led: Epoch = Epoch(0)
    history: History = ()
    boot: str = ""
    """Of a replica that is not synced, or was not and has not been since: the start of the machine in whose page cache
    its newest frames may lie."""
    unsynced: bool = False
    """A sync of its files failed. What of them was not on the disk then, the page cache calls clean ("fsyncgate")."""
    held: Position = Position(0)
    """Up to where its log went then, at least; 0: nobody knows. What the cache calls clean it may have let go since."""
    record: str = ""
    """The container's last known record, as JSON: the cluster store can be rebuilt from these."""


_files = msgspec.json.Decoder(ReplicaFile)
_records = msgspec.json.Decoder(ContainerRecord)


def decode_record(kept: str) -> ContainerRecord:
    """A record as a replica's folder keeps it. Raises msgspec.DecodeError for what `read` does not let pass."""
    return _records.decode(kept)


def prepare(folder: Path, *, unmarked: str = "") -> ReplicaFile:
    """The replica in `folder`; made, empty, where there is none. Raises CorruptLog, StorageFull.

    `unmarked`: the incarnation of a folder with chunks that was written before replicas had one of their own.
    """
    found = read(folder)
    if found is None:
        folder.mkdir(parents=True, exist_ok=True)
        old = unmarked and any(path.suffix == ".chunk" for path in listing(folder))
        found = ReplicaFile(format=unmarked if old else str(uuid.uuid4()))
        try:
            write(folder, found)
        except StorageFull:
            with suppress(OSError):  # there is something in it
                folder.rmdir()
            raise
        sync_folder(folder.parent)
    return found


def after_page_cache(folder: Path, state: ReplicaFile) -> ReplicaFile:
    """The state of a replica that is not synced (durability: memory), or was not when it was written.

    A process that dies loses nothing of the page cache; a machine does. So after another start of the machine the
    replica counts as another incarnation, and joins anew (invariant 5).
    """
    with put_off_without_descriptors(folder):
        boot = boot_id()
    if state.boot == boot:
        return state
    state = msgspec.structs.replace(state, boot=boot, format=str(uuid.uuid4()) if state.boot else state.format)
    write(folder, state)
    return state


def as_another(folder: Path, state: ReplicaFile) -> ReplicaFile:
    """The state of a replica that has lost what it had acknowledged: another incarnation (invariant 5)."""
    state = msgspec.structs.replace(state, format=str(uuid.uuid4()))
    write(folder, state)
    return state


def all_as_others(folder: Path) -> int:
    """Have all replicas among those in `folder` count as others, as it was put back to an older copy: what they have
    acknowledged since is not here any more. How many there are.
    """
    changed = 0
    for container in sorted(listed(folder)):
        state = read(folder / str(container))
        if state is not None:
            as_another(folder / str(container), state)
            changed += 1
    return changed


def left_clean(folder: Path, state: ReplicaFile, *, held: Position) -> None:
    """Sync what was not, and say so: the next start finds all of it, on whatever start of the machine. Nothing of a
    folder that is removed at the same time. `held`: see `note_unsynced`."""
    if not (folder / _NAME).exists():  # the disk went away before
        return
    try:
        _leave_clean(folder, state, held=held)
    except FileNotFoundError:
        if folder.exists():
            raise


def _leave_clean(folder: Path, state: ReplicaFile, *, held: Position) -> None:
    current = read(folder) or state
    try:
        sync_files(folder)
    except OutOfDescriptors as error:  # no sync failed: nothing is lost, unless the machine dies before the next start
        log.warning("a replica is left without a sync", folder=str(folder), reason=str(error))
        return
    except OSError:
        note_unsynced(folder, held=held)
        raise
    write(folder, msgspec.structs.replace(current, boot=""))


def note_unsynced(folder: Path, *, held: Position) -> None:
    """A sync of its files failed, and the process is about to end. Of one that is synced as it is written the start
    writes again what no mark proves (log/recovery.py); another one has to be written again whole.

    `held`: where the log ends that it must still be then, or 0.
    """
    try:
        current = read(folder)
        if current is not None and current.boot and not current.unsynced:
            write(folder, msgspec.structs.replace(current, unsynced=True, held=held))
    except (OSError, HeadraceError) as error:
        log.error("that a sync failed could not be noted", folder=str(folder), error=str(error))


def sync_files(folder: Path) -> None:
    """Sync all that was written to the replica before. Its log may be open, and grow and shrink meanwhile.

    Raises OSError; then `note_unsynced`, and the process must end (invariant 13). `OutOfDescriptors`: it is to be done
    again, all of it.
    """
    for path in (path for path in listing(folder) if path.is_file()):
        try:
            file = OpenFile.open(path, os.O_RDONLY)
        except FileNotFoundError:
            continue  # a file that took another's place, or another name, is synced by who made it so
        os.fsync(file.fd)
    sync_folder(folder)


def written_back(folder: Path, state: ReplicaFile) -> ReplicaFile:
    """The state of a replica whose files a sync has failed on, before its log is opened: all that they hold is written
    over itself, so that a sync does something, and synced. Raises SyncFailed, CorruptLog.

    That may be less than they held when the sync failed. No mark proves that, as of a log that is synced: so one is
    made, and where the log ends before it, it has lost what it had acknowledged (LostTail).
    """
    with lost_as_corrupt_log():
        for path in (path for path in listing(folder) if path.is_file() and path.name != _NAME):
            write_back(path)
        if state.held:
            keep_mark(folder, state.held)
    state = msgspec.structs.replace(state, unsynced=False, held=Position(0))
    write(folder, state)
    return state


def read(folder: Path) -> ReplicaFile | None:
    """What the folder says; None: there is no replica here. Raises CorruptLog."""
    path = folder / _NAME
    try:
        with put_off_without_descriptors(path):
            raw = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        if not is_lost(error):
            raise
        raise CorruptLog(f"{path}: the disk cannot read it: {error.strerror}. Remove the folder.") from error
    try:
        found = _files.decode(unseal(raw))
        uuid.UUID(found.format)
        if found.record:
            decode_record(found.record)
    except (msgspec.DecodeError, ValueError) as error:  # a version that knows no checksum may have written it
        raise CorruptLog(f"{folder / _NAME} cannot be read: {error}. Restore it, or remove the folder.") from error
    return found


def write(folder: Path, state: ReplicaFile) -> None:
    """Durably, all or nothing. On a full disk too, but for the first time: raises StorageFull."""
    rewrite_file(folder / _NAME, seal(msgspec.json.encode(state)))


def remove(folder: Path) -> None:
    """Remove a replica: all of it at once, also over a crash. Chunks without their replica.json would pass for an old
    replica's, whose history nobody knows.
    """
    _remove(folder)
    drop_aside(folder)


def _remove(folder: Path) -> None:
    for number in itertools.count():
        aside = folder.with_name(f"{folder.name}.{number}{_REMOVED}")
        shutil.rmtree(aside, ignore_errors=True)
        if not aside.exists():  # else the disk cannot remove some of what is in it
            break
    try:
        with synced_folder(folder.parent):
            folder.rename(aside)
    except FileNotFoundError:
        return
    shutil.rmtree(aside, ignore_errors=True)


def set_aside(folder: Path) -> None:
    """Another replica takes the place of a damaged one, which is kept; one set aside before has more, and stays."""
    if has_aside(folder):
        _remove(folder)
        return
    with synced_folder(folder.parent):
        folder.rename(_aside_of(folder))


def has_aside(folder: Path) -> bool:
    """Whether a damaged replica is kept beside this one."""
    return _aside_of(folder).exists()


def drop_aside(folder: Path) -> None:
    """Another has all that a damaged replica held, or its room is needed."""
    aside = _aside_of(folder)
    shutil.rmtree(aside, ignore_errors=True)
    if aside.exists():  # what the disk cannot remove must not stand in the way of the next one
        try:
            _remove(aside)
        except (OSError, HeadraceError) as error:
            log.warning("what is left of a damaged replica could not be removed", folder=str(aside), error=str(error))


def _aside_of(folder: Path) -> Path:
    return folder.with_name(folder.name + _DAMAGED)


def listed(folder: Path) -> set[ContainerId]:
    """The containers that have a replica in `folder`."""
    if not folder.exists():
        return set()
    return {ContainerId(int(each.name)) for each in listing(folder) if each.name.isdecimal()}


def sweep(folder: Path) -> None:
    """At a start: end the removals among the replicas in `folder` that a crash cut short."""
    if folder.exists():
        for aside in listing(folder):
            if aside.name.endswith(_REMOVED):
                shutil.rmtree(aside, ignore_errors=True)
