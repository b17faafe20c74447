"""How a replica's folder is opened at a start (invariant 14): as it is, as another incarnation, or as an empty one.

    its log opens                          the same replica as before
    its log ends before what was synced    keeps the rest, as another incarnation: it may be the only copy
    its log is damaged                     if the record has others in sync, an empty replica replaces it, and the
                                           damaged one is kept beside it until another leads; otherwise an error

All functions here block.
"""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import structlog

from headrace.base.errors import CorruptLog, LostTail, OutOfDescriptors, StorageFull
from headrace.base.ids import ContainerId
from headrace.container import replica_folder
from headrace.container.replica_folder import ReplicaFile
from headrace.log.container_log import ContainerLog, LogOptions

log = structlog.get_logger()


class Opened(NamedTuple):
    """An opened replica.

    `log`: opened as synced or unsynced, as it was so far; the requested options may differ. `aside`: a damaged replica
    is kept beside it.
    """

    state: ReplicaFile
    log: ContainerLog
    aside: bool


def open_folder(
    container: ContainerId, folder: Path, options: LogOptions, *, replaceable: bool, unmarked: str = ""
) -> Opened:
    """Open the replica in `folder`, or create an empty one.

    `replaceable`: others have the data. `unmarked`: see replica_folder.prepare.

    Raises CorruptLog if the replica is damaged and not replaceable, StorageFull, SyncFailed.
    """
    try:
        state = _state(folder, options, unmarked=unmarked)
        options = _as_kept(state, options)
        try:
            opened = ContainerLog.open(folder, options)
        except LostTail as error:
            log.error("a replica has lost what it had synced, and is no longer in sync", container=container,
                      error=str(error))  # fmt: skip
            state = replica_folder.as_another(folder, state)
            ContainerLog.accept_loss(folder)
            opened = ContainerLog.open(folder, options)
        return Opened(state, opened, replica_folder.has_aside(folder))
    except CorruptLog as error:
        if not replaceable:
            raise
        log.error("a damaged replica is fetched again", container=container, error=str(error))
    replica_folder.set_aside(folder)
    try:
        return open_empty(folder, options)
    except OutOfDescriptors:  # removing the replica kept aside would not free descriptors
        raise
    except StorageFull:
        replica_folder.drop_aside(folder)
        return open_empty(folder, options)


def open_empty(folder: Path, options: LogOptions) -> Opened:
    """Create an empty replica in `folder`, where there is none. Raises StorageFull."""
    state = _state(folder, options)
    return Opened(state, ContainerLog.open(folder, _as_kept(state, options)), replica_folder.has_aside(folder))


def _as_kept(state: ReplicaFile, options: LogOptions) -> LogOptions:
    """Return the options with which to open the log: one that was not synced so far stays so for now.

    It is synced only after its end has been recorded (LocalReplica.set_durability).
    """
    return replace(options, fsync=options.fsync and not state.boot)


def _state(folder: Path, options: LogOptions, *, unmarked: str = "") -> ReplicaFile:
    """Return the state of the replica in `folder`, or of a new one.

    A replica that was not synced so far, whatever `options` say, is another incarnation after a reboot.
    """
    state = replica_folder.prepare(folder, unmarked=unmarked)
    if state.unsynced:
        log.warning("a sync failed here before: all is written and synced again", folder=str(folder))
        state = replica_folder.written_back(folder, state)
    if options.fsync and not state.boot:
        return state
    return replica_folder.after_page_cache(folder, state)
