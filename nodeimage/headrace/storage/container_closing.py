"""Closes containers that are large, and deletes closed ones without live records. Leaders only.

A closed container accepts no new partitionlets. Its open partitionlets are rolled to other containers: busy partitions
at their next batch, idle ones a few at a time. The container is deleted once it has been closed for `REST_S`, within
which everything arrives that nodes placed in it before they knew of the closing, and once the catalog neither allows
new placements in it nor needs it any longer. A roll whose target is deleted nevertheless chooses another one
(partitions/rolls/steps.py).
"""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

import structlog

from headrace.base.errors import HeadraceError
from headrace.base.ids import ContainerId, PartitionletId
from headrace.base.runtime import Runtime
from headrace.catalog.catalog import Catalog
from headrace.catalog.chains import RetireContainer
from headrace.catalog.reader import Reader
from headrace.catalog.rows import OPEN, Owner, PartitionletRow
from headrace.container.leader import Leader
from headrace.partitions.cluster_client import ClusterClient
from headrace.partitions.partitions import Partitions
from headrace.partitions.rolls.rolls import Rolls
from headrace.partitions.topics import Topic, Topics
from headrace.storage.chunk_closing import close_open
from headrace.storage.chunk_inventory import FAILURES, ChunkInventory, Held

log = structlog.get_logger()

MAX_CHUNKS: Final = 60
"""Number of chunks at which a container closes, so that finding an offset is a search over few footers."""
ROLLS_AT_ONCE: Final = 256
ROLLS_S: Final = 5.0
"""Seconds that a round waits for the rolls that it started; they continue afterwards."""
REST_S = 10.0
"""Seconds between the closing and the deletion of a container, within which everything meant for it arrives."""


class ContainerChanges(Protocol):
    """Changes containers in the cluster store. Failures raise HeadraceError."""

    async def new(self, volume: str, /) -> object:
        """Create a container for a volume."""

    async def close(self, container: Leader, /) -> None:
        """Let a container accept no new partitionlets."""

    async def delete(self, container: Leader, /) -> None:
        """Delete a container with all of its replicas."""


class ContainerClosing:
    """Closes and deletes containers that this node leads."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        catalog: Catalog,
        cluster: ClusterClient,
        topics: Topics,
        partitions: Partitions,
        rolls: Rolls,
        changes: ContainerChanges,
        container_bytes: int,
        inventory: ChunkInventory,
        wake: Callable[[], None],
    ) -> None:
        """`container_bytes`: the size at which a container closes; `wake`: begins another round soon."""
        self._runtime = runtime
        self._catalog = catalog
        self._cluster = cluster
        self._topics = topics
        self._partitions = partitions
        self._rolls = rolls
        self._changes = changes
        self._container_bytes = container_bytes
        self._inventory = inventory
        self._wake = wake
        self._closed_at: dict[ContainerId, float] = {}
        """The loop time since which this node, as the leader, has known that a container is closed."""
        self._failing: dict[ContainerId, str] = {}
        """Full containers that cannot be closed, and why."""

    def left(self, container: ContainerId) -> None:
        """Note that this node no longer leads a container."""
        self._closed_at.pop(container, None)
        self._failing.pop(container, None)

    async def close_full(self) -> None:
        """Close containers that are large or have many chunks; at least one open container remains."""
        failed: set[str] = set()
        for container in self._inventory.led():
            if container.closing or not container.serves or container.volume in failed:
                continue
            if (
                container.log.end - container.log.start >= self._container_bytes
                or len(container.log.chunks()) >= MAX_CHUNKS
            ):
                try:
                    await self._close_one(container)
                except FAILURES as error:
                    failed.add(container.volume)  # the next one of the volume would take as long to fail
                    if self._failing.get(container.id) != str(error):
                        self._failing[container.id] = str(error)
                        log.warning("a full container cannot be closed", container=container.id, error=str(error))

    async def _close_one(self, container: Leader) -> None:
        if not self._has_other(container):
            await self._changes.new(container.volume)
        await self._changes.close(container)
        self._failing.pop(container.id, None)
        self._closed_at[container.id] = self._runtime.loop.time()
        log.info("container closed", container=container.id)

    def _has_other(self, container: Leader) -> bool:
        """Whether no new container is needed: this node drains, or already leads another one with room."""
        cluster = self._cluster
        node = cluster.node(cluster.node_id)
        others = [each for each in cluster.open_data(volume=container.volume) if each.container_id != container.id]
        if node is not None and node.draining and others:
            return True
        for each in others:
            led = cluster.replicas.led.get(each.container_id)
            if led is not None and led.log.end - led.log.start < self._container_bytes // 2:
                return True
        return False

    async def delete_empty(self) -> None:
        """Roll partitions out of closed containers, and delete containers that nobody needs."""
        for held in self._inventory.data():
            container = held.led
            if container is not None and container.closing and container.serves:
                self._closed_at.setdefault(container.id, self._runtime.loop.time())
                if len(container.log.chunks()) <= 1:
                    try:
                        await self._delete_if_empty(held, container)
                    except FAILURES as error:
                        self._inventory.failed((container.id, container.log.start), error)

    async def _delete_if_empty(self, held: Held, container: Leader) -> None:
        rows = await self._catalog.query(lambda reader: reader.chains.open_in(container.id, limit=ROLLS_AT_ONCE))
        if rows:
            await self._roll_away(rows)
            if len(rows) == ROLLS_AT_ONCE:
                self._wake()
                return
        closed_at = self._closed_at.get(container.id)  # None: this node ceased to lead it meanwhile
        if closed_at is None or self._runtime.loop.time() < closed_at + REST_S:
            return
        chunks = [chunk for chunk in container.log.chunks() if chunk.end is not None or container.log.end > chunk.start]
        if chunks and not chunks[-1].body.closed:
            close_open(held, chunks[-1])
            return
        here = {share.partitionlet for chunk in chunks for share in await self._inventory.shares(held, chunk)}
        # Once this is applied, all earlier placements in the container are applied, and there are no later ones.
        await self._catalog.submit(RetireContainer(container.id))
        if await self._catalog.query(lambda reader: _is_needed(reader, container.id, here)):
            return
        if self._cluster.replicas.led.get(container.id) is not container:
            return
        log.info("container deleted", container=container.id)
        await self._changes.delete(container)
        self._closed_at.pop(container.id, None)

    async def _roll_away(self, rows: list[PartitionletRow]) -> None:
        owners = await self._catalog.query(lambda reader: reader.chains.owners([row.id for row in rows]))
        rolls = [
            self._runtime.spawn(self._roll_one(row, owner))
            for row in rows
            if row.state == OPEN and (owner := owners.get(row.id)) is not None
        ]
        if rolls:
            await asyncio.wait(rolls, timeout=ROLLS_S)

    async def _roll_one(self, row: PartitionletRow, owner: Owner) -> None:
        (topic,) = await self._topics.resolve_ids([owner.topic_id])
        if not isinstance(topic, Topic):
            return
        try:
            partition = await self._partitions.leader(topic, row.partition)
            await self._rolls.wait_for_roll(partition)
        except HeadraceError as error:
            log.info("a partition was not rolled", topic=topic.name, reason=str(error))


def _is_needed(reader: Reader, container: ContainerId, here: set[PartitionletId]) -> bool:
    """[blocking] Whether a partitionlet lives, opens or is about to open in a container; `here`: the partitionlets with
    frames in it."""
    return bool(
        reader.chains.open_in(container, limit=1)
        or reader.chains.owners(here)
        or any(row.container == container for row in reader.chains.intended())
    )
