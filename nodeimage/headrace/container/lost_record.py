"""A container's record from what its replicas' folders say, where the cluster store has lost it (DESIGN section 3).

Each replica keeps its container's last known record. Of a container's replicas the one with the highest (epoch of its
last frame, end) has everything that was ever acknowledged, whatever the records say of in-sync sets: a member of the
set had it, and whoever is ahead of that member in this order has all that it has (as in an election). It leads, at an
epoch above all that any replica has seen; those that hold exactly the same are in sync with it, the others catch up.
The record descends from all that the replicas know (store.lineage), so none of them takes the store for an old copy.
Those that went on by an old copy of the store, while others went on by the newest, may have written in epochs that were
others' too, and histories do not tell these apart: what they know is given up in the record, and they begin anew.

Only while nobody leads the container: what is found must not grow meanwhile.
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
    """A replica as its folder tells it."""

    node: NodeId
    format: uuid.UUID
    seen: Epoch
    record: ContainerRecord
    last_epoch: Epoch
    end: int
    history: History = ()
    folder: Path = Path()


AS_IT_LIES: Final = LogOptions(chunk_bytes=0, heed_mark=False)
"""To open a log that nobody is about to write to: none of its files is made larger, as the disk may be full."""

_replicas = msgspec.msgpack.Decoder(list[FoundReplica], dec_hook=lambda _type, text: Path(text))


def told(found: Sequence[FoundReplica]) -> bytes:
    """As another node is told of them."""
    return msgspec.msgpack.encode(found, enc_hook=str)


def heard(payload: bytes | memoryview) -> list[FoundReplica]:
    """As `told` by another node, whose folders they are in."""
    return _replicas.decode(payload)


def found_replica(folder: Path, node: NodeId, *, opened: tuple[Position, History] | None = None) -> FoundReplica | None:
    """[blocking] What a folder says; None: its container was deleted. `opened`: the end of its log and its history, of
    one moment, where that is open already: from another moment's history what is cut might pass for a later epoch's.

    Raises CorruptLog where that cannot be read, or there is no record.
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
    """The one that has everything that was acknowledged."""
    return max(_that_count(found), key=lambda each: (each.last_epoch, each.end))


def _that_count(found: Sequence[FoundReplica]) -> Sequence[FoundReplica]:
    """Those that may have what nobody else has. Where the store was set back and went on, who led by the old copy may
    have frames of a later epoch: but none of them was committed as long as one that counts as in sync there stands
    still, as it knows better. All, where the lines that parted have both gone on.
    """
    replicas = {(each.node, each.format): each for each in found}
    counting = [
        each
        for each in found
        if not any(
            (member := replicas.get(pair)) is not None and _parted(each.record, member.record)
            for pair in each.record.in_sync
        )
    ]
    # Where there are none, nobody has committed anything since: what was committed is on all members of each set. Most
    # copies are kept then.
    return counting or max((_of_line(each, found) for each in found), key=len)


def _of_line(one: FoundReplica, found: Sequence[FoundReplica]) -> Sequence[FoundReplica]:
    return [each for each in found if not _parted(one.record, each.record)]


def _parted(one: ContainerRecord, other: ContainerRecord) -> bool:
    """Whether both were changed since they were the same."""
    return not descends_from(one, other) and not descends_from(other, one)


def unheard(found: Sequence[FoundReplica]) -> set[NodeId]:
    """The nodes that were in sync by the newest record that is known, and of which no replica was found. Pure."""
    newest = max(_that_count(found), key=lambda each: each.record.epoch).record
    return {node for node, _ in newest.in_sync} - {each.node for each in found}


def recovered_record(found: Sequence[FoundReplica]) -> ContainerRecord:
    """The record of a container, from all replicas of it that were found. Pure."""
    best = ahead(found)
    lost = [each for each in found if _parted(each.record, best.record)]
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


def volumes_told(containers: Sequence[ContainerRecord]) -> list[VolumeRecord]:
    """The volumes of these containers, as far as their records tell of them. Pure."""
    told = {}
    for name in sorted({each.volume for each in containers}):
        of_it = [each for each in containers if each.volume == name]
        replicas = max(each.wanted for each in of_it)
        least = max(each.min_in_sync for each in of_it)
        told[name] = VolumeRecord(name, replicas=replicas, min_in_sync=min(least, replicas))
    return list(told.values())
