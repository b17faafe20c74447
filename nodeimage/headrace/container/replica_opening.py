"""What a start makes of a replica's folder: it is opened as it is, goes on as another incarnation, or begins anew (14).

    its log opens                          the replica that it was
    its log ends before what was synced    keeps the rest, as another incarnation: it may be all that there is
    its log is damaged                     where others are in sync, by the record, another replica begins, empty; the
                                           damaged one is kept beside it until another leads. Else it is an error

Everything here blocks.
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
    """`log`: its options are those that it was kept with. `aside`: a damaged replica is kept beside it."""

    state: ReplicaFile
    log: ContainerLog
    aside: bool


def open_folder(
    container: ContainerId, folder: Path, options: LogOptions, *, replaceable: bool, unmarked: str = ""
) -> Opened:
    """The replica in `folder`, or an empty one. `replaceable`: others have the data. `unmarked`: see
    replica_folder.prepare.

    Raises CorruptLog where it is damaged and not replaceable, StorageFull, SyncFailed.
    """
    try:
        state = _state(folder, options, unmarked=unmarked)
        options = _as_kept(state, options)
        try:
            opened = ContainerLog.open(folder, options)
        except LostTail as error:
            log.error("a replica has lost what it had synced, and is in sync no more", container=container,
                      error=str(error))  # fmt: skip
            state = replica_folder.as_another(folder, state)
            ContainerLog.forget_mark(folder)
            opened = ContainerLog.open(folder, options)
        return Opened(state, opened, replica_folder.has_aside(folder))
    except CorruptLog as error:
        if not replaceable:
            raise
        log.error("a damaged replica is fetched anew", container=container, error=str(error))
    replica_folder.set_aside(folder)
    try:
        return open_empty(folder, options)
    except OutOfDescriptors:  # what is kept beside takes none
        raise
    except StorageFull:
        replica_folder.drop_aside(folder)
        return open_empty(folder, options)


def open_empty(folder: Path, options: LogOptions) -> Opened:
    """Another replica in `folder`, where there is none. Raises StorageFull."""
    state = _state(folder, options)
    return Opened(state, ContainerLog.open(folder, _as_kept(state, options)), replica_folder.has_aside(folder))


def _as_kept(state: ReplicaFile, options: LogOptions) -> LogOptions:
    """What was not synced is synced only once it has been noted up to where it goes (LocalReplica.set_durability)."""
    return replace(options, fsync=options.fsync and not state.boot)


def _state(folder: Path, options: LogOptions, *, unmarked: str = "") -> ReplicaFile:
    """What counts is whether the replica was synced, which may be other than how it is to be kept."""
    state = replica_folder.prepare(folder, unmarked=unmarked)
    if state.unsynced:
        log.warning("a sync failed here before: all is written and synced again", folder=str(folder))
        state = replica_folder.written_back(folder, state)
    if options.fsync and not state.boot:
        return state
    return replica_folder.after_page_cache(folder, state)
