"""Opening a partitionlet in a container that this node leads, for whoever drives its roll.

The frame may be asked for twice, by two drivers at once, or late, when the partitionlet has gone on elsewhere: it is
written once, and never behind its seal. What tells is the container's log, which has all that any leader before wrote
once this one serves (invariant 8); of this node's own frames that are not written yet, `_under_way` tells.

One that arrives after another target was chosen finds its container deleted: that alone lets a roll choose another. A
node that has not heard of the deletion writes the frame in vain, since the catalog records no partitionlet but the one
that is intended.
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
"""How long a container that was just taken over is waited for; who asks tries again."""

Key = tuple[Leader, PartitionletId]


class AlreadySealed(KafkaError):
    """The partitionlet was opened and sealed there: the roll that opens it is over.

    `epoch`: of the container when it was opened, where the log tells. A catalog that lost commands (invariant 15) may
    not have that roll, and is told again; one that has it refuses a repeat.
    """

    def __init__(self, partitionlet: int, epoch: Epoch | None = None) -> None:
        super().__init__(Code.INVALID_REQUEST, f"partitionlet {partitionlet} has been opened, and is sealed")
        self.epoch = epoch


class Opening:
    """One node's."""

    def __init__(self, *, runtime: Runtime, catalog: Catalog) -> None:
        self._runtime = runtime
        self._catalog = catalog
        self._under_way: dict[Key, asyncio.Task[Epoch]] = {}

    async def open(self, container: Leader, opening: Open) -> Epoch:
        """Open a partitionlet, or find that it is; the container's epoch at that, once committed.

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
        if known is not None and known.state == OPEN:  # a late one: it may have been written to already
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
        # It begins elsewhere where the seal before it was lost, and sealed again (invariant 15): nobody wrote to it.
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
                from_reserve=True,  # a target stands once it was chosen: the partition leaves it again if it is full
            )
        except StorageFull as full:
            raise KafkaError(Code.KAFKA_STORAGE_ERROR, str(full)) from full
        return epoch


def _row(reader: Reader, opening: Open) -> PartitionletRow | None:
    """[blocking] The catalog's row of what is to be opened."""
    topic = reader.topics.by_id(opening.topic_id)
    rows = reader.chains.chain(topic.number, opening.partition) if topic is not None else []
    return next((row for row in rows if row.id == opening.partitionlet), None)
