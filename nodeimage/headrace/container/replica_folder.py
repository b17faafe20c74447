"""The state file of a replica: `replica.json`, beside the chunks in the replica's folder.

    {"format": uuid, "seen": epoch, "led": epoch, "history": [[epoch, position], ...], "boot": id, "unsynced": bool,
     "held": position, "record": json}

The file starts with a checksum (headrace.base.sealed_json). `format`, the incarnation, is created with the folder
(invariant 5): a folder that was lost and recreated is another replica. `seen` is the highest epoch that the replica has
heard of, written before it answers in that epoch (invariant 4). `led` is the last epoch in which it was leader: no
later process writes in that epoch again. `history` is written before the first frame of an epoch. `replica.json.room`
is the file into which the next version is written: a replica on a full disk must still be able to follow a new leader.

A replica that is found damaged at a start is set aside: its folder gets the suffix `.damaged` and stays until another
replica leads. According to the record others have the data too, but all of them may be damaged, as on a disk that lost
what it had reported as synced. All functions here block.
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
from headrace.log.synced_mark import raise_mark
from headrace.store.records import ContainerRecord

log = structlog.get_logger()

_NAME = "replica.json"
_REMOVED = ".removed"
_DAMAGED = ".damaged"


class ReplicaFile(msgspec.Struct, frozen=True):
    """The content of `replica.json`."""

    format: str
    seen: Epoch = Epoch(0)
    led: Epoch = Epoch(0)
    history: History = ()
    boot: str = ""
    """Set if the replica is not synced, or was not and has not been synced since: the id of the machine's boot in
    whose page cache its newest frames may be."""
    unsynced: bool = False
    """A sync of its files failed. The page cache marks the data that was not on the disk then as clean ("fsyncgate").
    """
    held: Position = Position(0)
    """Lower bound of the log's end at that time; 0 if unknown. The page cache may since have dropped pages that it
    marks as clean."""
    record: str = ""
    """The container's last known record, as JSON: the cluster store can be rebuilt from these."""


_files = msgspec.json.Decoder(ReplicaFile)
_records = msgspec.json.Decoder(ContainerRecord)


def decode_record(kept: str) -> ContainerRecord:
    """Decode a record as saved in a replica's folder. Raises msgspec.DecodeError, but not for records that `read`
    accepted."""
    return _records.decode(kept)


def prepare(folder: Path, *, unmarked: str = "") -> ReplicaFile:
    """Return the state of the replica in `folder`; create an empty replica if there is none. Raises CorruptLog,
    StorageFull.

    `unmarked`: the incarnation of a folder with chunks that was written before replicas had incarnations of their own.
    """
    found = read(folder)
    if found is None:
        folder.mkdir(parents=True, exist_ok=True)
        old = unmarked and any(path.suffix == ".chunk" for path in listing(folder))
        found = ReplicaFile(format=unmarked if old else str(uuid.uuid4()))
        try:
            write(folder, found)
        except StorageFull:
            with suppress(OSError):  # the folder is not empty
                folder.rmdir()
            raise
        sync_folder(folder.parent)
    return found


def after_page_cache(folder: Path, state: ReplicaFile) -> ReplicaFile:
    """Return the state of a replica that is not synced (durability: memory), or was not when it was written.

    The page cache survives the death of a process, but not of the machine. After a reboot the replica therefore
    counts as another incarnation, and joins again (invariant 5).
    """
    with put_off_without_descriptors(folder):
        boot = boot_id()
    if state.boot == boot:
        return state
    state = msgspec.structs.replace(state, boot=boot, format=str(uuid.uuid4()) if state.boot else state.format)
    write(folder, state)
    return state


def as_another(folder: Path, state: ReplicaFile) -> ReplicaFile:
    """Return the state of a replica that has lost what it had acknowledged: another incarnation (invariant 5)."""
    state = msgspec.structs.replace(state, format=str(uuid.uuid4()))
    write(folder, state)
    return state


def all_as_others(folder: Path) -> int:
    """Give all replicas in `folder` new incarnations; return their number.

    For a folder that was restored from an older copy: what its replicas have acknowledged since is missing.
    """
    changed = 0
    for container in sorted(listed(folder)):
        state = read(folder / str(container))
        if state is not None:
            as_another(folder / str(container), state)
            changed += 1
    return changed


def left_clean(folder: Path, state: ReplicaFile, *, held: Position) -> None:
    """Sync what was not synced and record that, so that the next start finds all of it even after a reboot.

    Does nothing if the folder is removed at the same time. `held`: see `note_unsynced`.
    """
    if not (folder / _NAME).exists():  # the disk has gone already
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
    """Record that a sync of the files failed; the process is about to end.

    If frames are synced as they are written, the next start rewrites only what no mark proves (log/recovery.py) and
    nothing is recorded; otherwise it has to rewrite the whole replica.

    `held`: the position up to which the log must then still reach, or 0.
    """
    try:
        current = read(folder)
        if current is not None and current.boot and not current.unsynced:
            write(folder, msgspec.structs.replace(current, unsynced=True, held=held))
    except (OSError, HeadraceError) as error:
        log.error("a failed sync could not be recorded", folder=str(folder), error=str(error))


def sync_files(folder: Path) -> None:
    """Sync all that was written to the replica before. Its log may be open, and may grow and shrink meanwhile.

    Raises OSError: then `note_unsynced` is to be called, and the process must end (invariant 13). Raises
    OutOfDescriptors: the whole sync has to be repeated.
    """
    for path in (path for path in listing(folder) if path.is_file()):
        try:
            file = OpenFile.open(path, os.O_RDONLY)
        except FileNotFoundError:
            continue  # renamed or replaced: the code that did that syncs the file
        os.fsync(file.fd)
    sync_folder(folder)


def written_back(folder: Path, state: ReplicaFile) -> ReplicaFile:
    """Return the state of a replica after a failed sync, with its files rewritten; called before its log is opened.

    Every file but `replica.json` is overwritten with its own content, so that a sync has an effect, and synced. Raises
    SyncFailed, CorruptLog.

    The files may hold less than when the sync failed, and an unsynced log has no mark that would show it. A mark is
    therefore written: if the log ends before it, the replica has lost what it had acknowledged (LostTail).
    """
    with lost_as_corrupt_log():
        for path in (path for path in listing(folder) if path.is_file() and path.name != _NAME):
            write_back(path)
        if state.held:
            raise_mark(folder, state.held)
    state = msgspec.structs.replace(state, unsynced=False, held=Position(0))
    write(folder, state)
    return state


def read(folder: Path) -> ReplicaFile | None:
    """Return the folder's state; None if it contains no replica. Raises CorruptLog."""
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
    except (msgspec.DecodeError, ValueError) as error:  # a version without checksums may have written it
        raise CorruptLog(f"{folder / _NAME} cannot be read: {error}. Restore it, or remove the folder.") from error
    return found


def write(folder: Path, state: ReplicaFile) -> None:
    """Write the state durably and atomically. Works on a full disk too, except the first time: raises StorageFull."""
    rewrite_file(folder / _NAME, seal(msgspec.json.encode(state)))


def remove(folder: Path) -> None:
    """Remove a replica atomically, even if the process crashes.

    Chunks without their replica.json would pass for a replica of an old version, whose history is unknown.
    """
    _remove(folder)
    drop_aside(folder)


def _remove(folder: Path) -> None:
    for number in itertools.count():
        aside = folder.with_name(f"{folder.name}.{number}{_REMOVED}")
        shutil.rmtree(aside, ignore_errors=True)
        if not aside.exists():  # otherwise the disk cannot remove some of its files
            break
    try:
        with synced_folder(folder.parent):
            folder.rename(aside)
    except FileNotFoundError:
        return
    shutil.rmtree(aside, ignore_errors=True)


def set_aside(folder: Path) -> None:
    """Make room for a replacement of a damaged replica, which is kept aside.

    If one has been set aside before, that one has more data: it stays, and this one is removed.
    """
    if has_aside(folder):
        _remove(folder)
        return
    with synced_folder(folder.parent):
        folder.rename(_aside_of(folder))


def has_aside(folder: Path) -> bool:
    """Return whether a damaged replica is kept beside this one."""
    return _aside_of(folder).exists()


def drop_aside(folder: Path) -> None:
    """Remove a damaged replica kept aside: another replica has all of its data, or its space is needed."""
    aside = _aside_of(folder)
    shutil.rmtree(aside, ignore_errors=True)
    if aside.exists():  # files that the disk cannot remove must not block the next folder of this name
        try:
            _remove(aside)
        except (OSError, HeadraceError) as error:
            log.warning("the rest of a damaged replica could not be removed", folder=str(aside), error=str(error))


def _aside_of(folder: Path) -> Path:
    return folder.with_name(folder.name + _DAMAGED)


def listed(folder: Path) -> set[ContainerId]:
    """Return the containers that have a replica in `folder`."""
    if not folder.exists():
        return set()
    return {ContainerId(int(each.name)) for each in listing(folder) if each.name.isdecimal()}


def sweep(folder: Path) -> None:
    """At a start, complete the removals in `folder` that a crash interrupted."""
    if folder.exists():
        for aside in listing(folder):
            if aside.name.endswith(_REMOVED):
                shutil.rmtree(aside, ignore_errors=True)
