"""Opens partitionlets in containers that this node leads, for the nodes that drive their rolls.

A partitionlet's open frame may be requested twice, by two drivers at once, or late, when the partition has continued
elsewhere: it is written once, and never behind the partitionlet's seal. This is decided by the container's log, which
contains all frames of earlier leaders once this node serves (invariant 8), and, for this node's own frames that are not
written yet, by `_under_way`.

A request that arrives after the roll chose another target finds its container deleted, since a roll chooses another
target only in that case. A node that has not heard of the deletion writes the frame in vain: the catalog records no
partitionlet but the intended one.
"""

import asyncio

import msgspec
from msgspec import structs

from headrace.base.errors import Code, KafkaError, StorageFull
from headrace.base.ids import Epoch, PartitionletId
from headrace.base.runtime import Runtime
from headrace.catalog.catalog import Catalog
from headrace.catalog.reader import Reader
from headrace.catalog.rows import OPEN, SEALED, PartitionletRow
from headrace.container.commit_wait import committed_to
from headrace.container.leader import Leader
from headrace.log.frames import FrameType
from headrace.partitions.rolls.frames import Open

SERVES_S = 1.5
"""Seconds to wait until a container that was just taken over serves; the driver of the roll retries after that."""

Key = tuple[Leader, PartitionletId]


class AlreadySealed(KafkaError):
    """The partitionlet was opened and sealed again in its container, so the roll that opens it is over.

    `epoch`: the container's epoch when it was opened, if the log contains it. With it the roll can be recorded again,
    in case the catalog has lost the command (invariant 15); a catalog that has the roll refuses the repeat.
    """

    def __init__(self, partitionlet: int, epoch: Epoch | None = None) -> None:
        super().__init__(Code.INVALID_REQUEST, f"partitionlet {partitionlet} has been opened, and is sealed")
        self.epoch = epoch


class Opening:
    """Opens partitionlets on one node."""

    def __init__(self, *, runtime: Runtime, catalog: Catalog) -> None:
        self._runtime = runtime
        self._catalog = catalog
        self._under_way: dict[Key, asyncio.Task[Epoch]] = {}

    async def open(self, container: Leader, opening: Open) -> Epoch:
        """Open a partitionlet unless it is open already; returns the container's epoch at its opening, once committed.

        Raises `AlreadySealed`; KafkaError LEADER_NOT_AVAILABLE, NOT_LEADER_OR_FOLLOWER, and KAFKA_STORAGE_ERROR while
        the disk is full.
        """
        key = (container, PartitionletId(opening.partitionlet))
        task = self._under_way.get(key)
        if task is None:
            task = self._under_way[key] = self._runtime.spawn(self._open(container, opening))
            task.add_done_callback(lambda _: self._under_way.pop(key))
        return await asyncio.shield(task)

    async def _open(self, container: Leader, opening: Open) -> Epoch:
        await committed_to(container, container.state.epoch_start, timeout_s=SERVES_S)
        partitionlet = PartitionletId(opening.partitionlet)
        known = await self._catalog.query(lambda reader: _row(reader, opening))
        if known is not None and known.state == OPEN:  # a late request: the partitionlet may have records already
            return known.container_epoch
        if known is not None and known.state == SEALED:
            raise AlreadySealed(partitionlet)
        found = await self._runtime.loop.run_in_executor(
            self._runtime.executor,
            lambda: [(f.type, f.epoch, f.first) for f in container.log.controls_of(partitionlet)],
        )
        opened = [(Epoch(epoch), first) for kind, epoch, first in found if kind == FrameType.OPEN]
        if any(kind == FrameType.SEAL for kind, _, _ in found):
            raise AlreadySealed(partitionlet, opened[-1][0] if opened else None)
        # An open frame with another first offset is void: the seal before it was lost and written again (invariant 15),
        # and nothing was written to the partitionlet in between.
        if opened and opened[-1][1] == opening.first:
            await container.all_committed()
            return opened[-1][0]
        epoch = container.epoch
        payload = msgspec.msgpack.encode([structs.replace(opening, container_epoch=epoch)])
        try:
            await container.append_control(
                FrameType.OPEN,
                payload,
                partitionlet=partitionlet,
                first=opening.first,
                last=opening.first - 1,
                from_reserve=True,  # a chosen target is final: if it is full, the partition rolls away from it later
            )
        except StorageFull as full:
            raise KafkaError(Code.KAFKA_STORAGE_ERROR, str(full)) from full
        return epoch


def _row(reader: Reader, opening: Open) -> PartitionletRow | None:
    """[blocking] The catalog's row of the partitionlet to open; None if there is none."""
    topic = reader.topics.by_id(opening.topic_id)
    rows = reader.chains.chain(topic.number, opening.partition) if topic is not None else []
    return next((row for row in rows if row.id == opening.partitionlet), None)
