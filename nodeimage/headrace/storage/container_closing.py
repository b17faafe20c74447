"""Closes containers that are large, and deletes closed ones in which nothing lives. Leaders only.

A closed container takes no new partitionlet: what is open in it is rolled away, the busy partitions at their next
batch, the idle ones a few at a time. It is deleted when it has been closed for `REST_S`, so that what was placed there
by nodes that did not know it yet has arrived, the catalog lets nothing more be placed there, and has nothing that needs
it. A roll whose target is deleted all the same takes another one (roll_steps.py).
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import structlog

from headrace.base.errors import HeadraceError
from headrace.base.ids import ContainerId, PartitionletId
from headrace.catalog.commands import RetireContainer
from headrace.catalog.reader import Reader
from headrace.catalog.rows import OPEN, Owner, PartitionletRow
from headrace.container.leader import Container
from headrace.partitions.topics import Topic
from headrace.storage.chunk_closing import close_open
from headrace.storage.chunk_inventory import FAILURES, Held, Upkeep

if TYPE_CHECKING:
    from headrace.kafka.dispatch import Broker

log = structlog.get_logger()

MOST_CHUNKS: Final = 60
"""A container closes with this many: finding an offset is a search over few footers."""
ROLLS_AT_ONCE: Final = 256
ROLLS_S: Final = 5.0
"""How long a round waits for the rolls that it began; they go on afterwards."""
REST_S = 10.0
"""How long a container has been closed before it is deleted: what was meant for it has arrived by then."""

ContainerStep = Callable[[Container], Awaitable[None]]


class ContainerClosing:
    """One node's."""

    def __init__(self, broker: "Broker", upkeep: Upkeep, *, wake: Callable[[], None]) -> None:
        """`wake`: begin another round soon."""
        self._broker = broker
        self._upkeep = upkeep
        self._wake = wake
        self._closed_at: dict[ContainerId, float] = {}
        """Since when this node has known, as their leader, that containers are closed."""
        self._failing: dict[ContainerId, str] = {}
        """Full containers that cannot be closed, and why."""

    def attach(
        self, new_container: Callable[[str], Awaitable[object]], close: ContainerStep, delete: ContainerStep
    ) -> None:
        """How containers are made, closed and deleted in the cluster store."""
        self._new_container = new_container
        self._close = close
        self._delete = delete

    def left(self, container: ContainerId) -> None:
        """This node leads a container no more."""
        self._closed_at.pop(container, None)
        self._failing.pop(container, None)

    async def close_full(self) -> None:
        """A container that is large or of many chunks takes no new partitionlets; there is always one that does."""
        most = self._broker.node.settings.container_bytes
        failed: set[str] = set()
        for container in self._upkeep.led():
            if container.closing or not container.serves or container.volume in failed:
                continue
            if container.log.end - container.log.start >= most or len(container.log.chunks()) >= MOST_CHUNKS:
                try:
                    await self._close_one(container)
                except FAILURES as error:
                    failed.add(container.volume)  # the next one of it would take as long to fail
                    if self._failing.get(container.id) != str(error):
                        self._failing[container.id] = str(error)
                        log.warning("a full container cannot be closed", container=container.id, error=str(error))

    async def _close_one(self, container: Container) -> None:
        if not self._has_other(container):
            await self._new_container(container.volume)
        await self._close(container)
        self._failing.pop(container.id, None)
        self._closed_at[container.id] = self._broker.loop.time()
        log.info("container closed", container=container.id)

    def _has_other(self, container: Container) -> bool:
        """Whether there is no need of another: this node drains, or leads one already that is fresh."""
        cluster = self._broker.cluster
        node = cluster.node(cluster.node_id)
        others = [each for each in cluster.open_data(volume=container.volume) if each.container_id != container.id]
        if node is not None and node.draining and others:
            return True
        most = self._broker.node.settings.container_bytes
        for each in others:
            led = self._broker.containers.get(each.container_id)
            if led is not None and led.log.end - led.log.start < most // 2:
                return True
        return False

    async def delete_empty(self) -> None:
        """Roll partitions out of closed containers, and delete those that nobody needs."""
        for held in self._upkeep.data():
            container = held.led
            if container is not None and container.closing and container.serves:
                self._closed_at.setdefault(container.id, self._broker.loop.time())
                if len(container.log.chunks()) <= 1:
                    try:
                        await self._delete_if_empty(held, container)
                    except FAILURES as error:
                        self._upkeep.failed((container.id, container.log.start), error)

    async def _delete_if_empty(self, held: Held, container: Container) -> None:
        rows = await self._broker.catalog.query(lambda reader: reader.open_in(container.id, limit=ROLLS_AT_ONCE))
        if rows:
            await self._roll_away(rows)
            if len(rows) == ROLLS_AT_ONCE:
                self._wake()
                return
        closed_at = self._closed_at.get(container.id)  # None: this node has ceased to lead it meanwhile
        if closed_at is None or self._broker.loop.time() < closed_at + REST_S:
            return
        chunks = [chunk for chunk in container.log.chunks() if chunk.end is not None or container.log.end > chunk.start]
        if chunks and not chunks[-1].body.closed:
            close_open(held, chunks[-1])
            return
        here = {share.partitionlet for chunk in chunks for share in await self._upkeep.shares(held, chunk)}
        # What was placed here before is applied when it is, and nothing is placed here afterwards.
        await self._broker.catalog.submit(RetireContainer(container.id))
        if await self._broker.catalog.query(lambda reader: _is_needed(reader, container.id, here)):
            return
        if self._broker.containers.get(container.id) is not container:
            return
        log.info("container deleted", container=container.id)
        await self._delete(container)
        self._closed_at.pop(container.id, None)

    async def _roll_away(self, rows: list[PartitionletRow]) -> None:
        owners = await self._broker.catalog.query(lambda reader: reader.owners([row.id for row in rows]))
        rolls = [
            self._broker.spawn(self._roll_one(row, owner))
            for row in rows
            if row.state == OPEN and (owner := owners.get(row.id)) is not None
        ]
        if rolls:
            await asyncio.wait(rolls, timeout=ROLLS_S)

    async def _roll_one(self, row: PartitionletRow, owner: Owner) -> None:
        (topic,) = await self._broker.topics.resolve_ids([owner.topic_id])
        if not isinstance(topic, Topic):
            return
        try:
            partition = await self._broker.partitions.leader(topic, row.partition)
            await self._broker.rolls.settle(partition)
        except HeadraceError as error:
            log.info("a partition was not rolled", topic=topic.name, reason=str(error))


def _is_needed(reader: Reader, container: ContainerId, here: set[PartitionletId]) -> bool:
    """[blocking] Whether a partitionlet lives, opens or is about to open in a container; `here`: those with frames."""
    return bool(
        reader.open_in(container, limit=1)
        or reader.owners(here)
        or any(row.container == container for row in reader.intended())
    )
