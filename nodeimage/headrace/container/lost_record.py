"""Recovers a container's record from its replicas' folders after the cluster store has lost it (docs/replication.md).

Each replica saves its container's last known record. Of a container's replicas, the one with the highest (epoch of its
last frame, end) has everything that was ever acknowledged, whatever the records say about in-sync sets: a member of the
set had it, and a replica ahead of that member in this order has all that the member has (as in an election). It becomes
the leader, at an epoch above all that any replica has seen; replicas that hold exactly the same are in sync with it,
the others catch up. The recovered record descends from all that the replicas know (store.lineage), so none of them
mistakes the store for an old copy.

If the store was restored from an old copy, some replicas may have continued from that copy while others continued from
the newest record. Both groups may have written in the same epochs, and histories cannot tell these writes apart. The
recovered record therefore discards what one group has written, and the replicas of that group start again empty.

Valid only while no node leads the container: the replicas found must not grow meanwhile.
"""

import uuid
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from msgspec import structs

from headrace.base.errors import CorruptLog
from headrace.base.ids import Epoch, NodeId, Position
from headrace.container import replica_folder
from headrace.container.history import History, last_epoch
from headrace.log.container_log import ContainerLog, LogOptions
from headrace.store.container_records import descends_from
from headrace.store.lineage import merged
from headrace.store.records import ContainerRecord, VolumeRecord


@dataclass(frozen=True, slots=True)
class FoundReplica:
    """A replica as described by its folder."""

    node: NodeId
    format: uuid.UUID
    """The incarnation of its folder; nothing to do with `format_version`."""
    seen: Epoch
    """The highest epoch that it knows of."""
    record: ContainerRecord
    last_epoch: Epoch
    end: int
    history: History = ()
    folder: Path = Path()


AS_IT_LIES: Final = LogOptions(chunk_bytes=0, enforce_synced_mark=False)
"""Options to open a log that nothing is going to write to: no file is enlarged, since the disk may be full."""

_replicas = msgspec.msgpack.Decoder(list[FoundReplica], dec_hook=lambda _type, text: Path(text))


def encode_found(found: Sequence[FoundReplica]) -> bytes:
    """Encode replicas for another node."""
    return msgspec.msgpack.encode(found, enc_hook=str)


def decode_found(payload: bytes | memoryview) -> list[FoundReplica]:
    """Decode what another node encoded with `encode_found`; the folders are on that node."""
    return _replicas.decode(payload)


def found_replica(folder: Path, node: NodeId, *, opened: tuple[Position, History] | None = None) -> FoundReplica | None:
    """[blocking] Return what a folder says about its replica; None if its container was deleted.

    `opened`: the log's end and the history, both taken at the same moment, if the log is open already. With a history
    from another moment, frames that were cut could pass for frames of a later epoch.

    Raises CorruptLog if the log cannot be read, or if the folder has no record.
    """
    state = replica_folder.read(folder)
    if state is None or not state.record:
        raise CorruptLog(f"{folder} has no record of its container")
    record = replica_folder.decode_record(state.record)
    if record.state == "deleted":
        return None
    if opened is None:
        with closing(ContainerLog.open(folder, AS_IT_LIES)) as log:
            opened = log.end, state.history
    end, history = opened
    return FoundReplica(
        node=node,
        format=uuid.UUID(state.format),
        seen=Epoch(max(state.seen, state.led)),
        record=record,
        last_epoch=last_epoch(history, end),
        end=end,
        history=history,
        folder=folder,
    )


def ahead(found: Sequence[FoundReplica]) -> FoundReplica:
    """Return the replica that has everything that was acknowledged."""
    return max(_authoritative(found), key=lambda each: (each.last_epoch, each.end))


def _authoritative(found: Sequence[FoundReplica]) -> Sequence[FoundReplica]:
    """Return the replicas that may have data that no other replica has.

    If the store was restored to an old copy and continued from there, a leader that the old copy named may have frames
    of a later epoch. As long as one member of that leader's in-sync set knew a newer record and refused to take part,
    none of these frames could be committed. So a replica does not count if a member of its record's in-sync set has a
    diverged record. If no replica counts by this rule, the largest group does.
    """
    replicas = {(each.node, each.format): each for each in found}
    counting = [
        each
        for each in found
        if not any(
            (member := replicas.get(pair)) is not None and _have_diverged(each.record, member.record)
            for pair in each.record.in_sync
        )
    ]
    # If none count, nothing has been committed since the records diverged, and all members of each set have what was
    # committed before. The group with the most replicas is kept.
    return counting or max((_same_line(each, found) for each in found), key=len)


def _same_line(one: FoundReplica, found: Sequence[FoundReplica]) -> Sequence[FoundReplica]:
    """Return the replicas whose records have not diverged from `one`'s."""
    return [each for each in found if not _have_diverged(one.record, each.record)]


def _have_diverged(one: ContainerRecord, other: ContainerRecord) -> bool:
    """Return whether both records were changed after they were last the same."""
    return not descends_from(one, other) and not descends_from(other, one)


def missing_nodes(found: Sequence[FoundReplica]) -> set[NodeId]:
    """Return the nodes that the newest known record has in sync, and of which no replica was found. Pure."""
    newest = max(_authoritative(found), key=lambda each: each.record.epoch).record
    return {node for node, _ in newest.in_sync} - {each.node for each in found}


def recovered_record(found: Sequence[FoundReplica]) -> ContainerRecord:
    """Return a container's record, recovered from all of its replicas that were found. Pure."""
    best = ahead(found)
    lost = [each for each in found if _have_diverged(each.record, best.record)]
    kept = [each for each in found if each not in lost]
    newest = max(kept, key=lambda each: (each.record.epoch, each.node == each.record.leader)).record
    same = [each for each in kept if (each.last_epoch, each.end) == (best.last_epoch, best.end)]
    present = {each.node for each in found}
    replicas = [node for node in newest.replicas if node in present]
    replicas += sorted(each.node for each in same if each.node not in replicas)
    leader = next((each for each in same if each.node == newest.leader), best)
    highest = max([each.seen for each in found] + [each.record.epoch for each in found])
    return structs.replace(
        newest,
        leader=leader.node,
        epoch=Epoch(highest + 1),
        in_sync=tuple((each.node, each.format) for each in same),
        replicas=tuple(replicas),
        changes=merged((each.record.changes for each in kept), (each.record.changes for each in lost)),
    )


def recorded_volumes(containers: Sequence[ContainerRecord]) -> list[VolumeRecord]:
    """Return the volumes of these containers, as far as the containers' records describe them. Pure."""
    told = {}
    for name in sorted({each.volume for each in containers}):
        of_it = [each for each in containers if each.volume == name]
        replicas = max(each.wanted for each in of_it)
        least = max(each.min_in_sync for each in of_it)
        told[name] = VolumeRecord(name, replicas=replicas, min_in_sync=min(least, replicas))
    return list(told.values())
