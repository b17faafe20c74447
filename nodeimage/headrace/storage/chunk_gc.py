"""Garbage collection of chunks: the step that frees bytes. Closed chunks without live records are dropped; dead bytes
are punched out of the others.

Every replica collects its own chunks, by the catalog of its own node: what is dead there is dead by a committed command
(invariant 12). A catalog may lag behind the containers, and tables that a snapshot replaced may be older than they
were: partitionlets that it does not know yet are not dead. Before a chunk is dropped, the leader appends again what a
later reader needs of it, the state of idempotent producers; a follower keeps the chunk until that frame has arrived.
"""

import asyncio
from collections.abc import Collection, Mapping
from typing import Final

import msgspec
import structlog

from headrace.base.ids import PartitionletId, StreamNumber
from headrace.base.runtime import Runtime
from headrace.catalog.catalog import Catalog
from headrace.catalog.rows import Owner
from headrace.log.container_log import Chunk
from headrace.log.frames import FrameType
from headrace.partitions.partitions import read_tail
from headrace.partitions.rolls.frames import carried
from headrace.storage.chunk_inventory import FAILURES, ChunkInventory, ChunkKey, Held
from headrace.storage.producer_retention import is_carried_on, is_sealed_in
from headrace.storage.retention_rules import gone

log = structlog.get_logger()

WORTH_PUNCHING: Final = 1024 * 1024
"""Dead bytes for which a closed chunk's share of a partition is given back in part."""
AGAIN_S: Final = 30.0
"""How long a chunk is left alone that has to wait for its container's leader."""


class ChunkGc:
    """Frees dead bytes: drops and punches this node's closed chunks."""

    def __init__(self, *, runtime: Runtime, catalog: Catalog, inventory: ChunkInventory) -> None:
        self._runtime = runtime
        self._catalog = catalog
        self._inventory = inventory
        self._anywhere = True
        """Something may have died in any chunk."""
        self._dead_in: set[StreamNumber] = set()
        """Streams of which records died."""
        self._dead_topics: set[bytes] = set()
        """Topics, by id, of which records died."""
        self._unseen: set[ChunkKey] = set()
        """Closed chunks that nobody has looked at for dead bytes, or that could not be looked at."""
        self._postponed: dict[ChunkKey, float] = {}
        """Chunks that wait for their container's leader, and when they are looked at again."""
        self.freed_bytes = 0
        self.dropped = 0
        """Whole chunks."""

    def died(self, *, streams: Collection[StreamNumber] = (), topics: Collection[bytes] = ()) -> None:
        """Records of these streams or topics died; without either, records died somewhere."""
        self._dead_in.update(streams)
        self._dead_topics.update(topics)
        self._anywhere |= not streams and not topics

    def look_at(self, key: ChunkKey) -> None:
        """A chunk was closed or regrouped: more of it may be freed."""
        self._unseen.add(key)

    async def step(self) -> None:
        """Look at the chunks in which something may have died."""
        now = self._runtime.loop.time()
        for key in [key for key, due in self._postponed.items() if due <= now]:
            del self._postponed[key]
            self._unseen.add(key)
        anywhere, self._anywhere = self._anywhere, False
        dead_in, self._dead_in = self._dead_in, set()
        dead_topics, self._dead_topics = self._dead_topics, set()
        unseen, self._unseen = self._unseen, set()
        try:
            if dead_topics:
                topics = await self._catalog.query(lambda reader: reader.topics.by_ids(dead_topics))
                dead_in.update(topic.stream_number for topic in topics.values())
            for held in self._inventory.data():
                for chunk in held.log.closed_chunks():
                    key = (held.id, chunk.start)
                    if not anywhere and key not in unseen:
                        oldest = await self._inventory.oldest(held, chunk)
                        if oldest is None or dead_in.isdisjoint(oldest):
                            continue
                    try:
                        await self._collect(held, chunk)
                    except FAILURES as error:
                        self._unseen.add(key)
                        self._inventory.failed(key, error)
                    else:
                        self._inventory.done(key)
        except BaseException:
            self._anywhere |= anywhere
            self._dead_in |= dead_in
            self._dead_topics |= dead_topics
            self._unseen |= unseen
            raise

    async def _collect(self, held: Held, chunk: Chunk) -> None:
        if chunk.end is None or chunk.end > held.committed:  # of a log that has just been opened
            self._unseen.add((held.id, chunk.start))
            return
        blocking = self._inventory.blocking
        shares = await self._inventory.shares(held, chunk)
        owners = await self._inventory.fates(shares)
        if owners is None:
            self._unseen.add((held.id, chunk.start))
            return
        dead, whole = await blocking(lambda: gone(shares, owners=owners))
        if whole:
            if await self._carry_on(held, chunk, [share.partitionlet for share in shares], owners):
                self._postpone(held, chunk)
                return
            size = chunk.body.frames_end
            await blocking(lambda: held.log.drop_chunk(chunk))
            self._inventory.forget((held.id, chunk.start))
            self.freed_bytes += size
            self.dropped += 1
            log.info("chunk dropped", container=held.id, chunk=chunk.start)
            return
        newly = dead
        # A share of which some live on is worth the record of it only where it gives back much.
        freed = await blocking(lambda: held.log.punchable(chunk, newly))
        live = {share.partitionlet for share in shares if share.first < newly.get(share.partitionlet, -1) <= share.last}
        if freed < WORTH_PUNCHING and live:
            newly = {partitionlet: kept for partitionlet, kept in newly.items() if partitionlet not in live}
            freed = await blocking(lambda: held.log.punchable(chunk, newly))
        if freed:
            touched = [share.partitionlet for share in shares if share.partitionlet in newly]
            kept_back = await self._carry_on(held, chunk, touched, owners)
            if kept_back:
                self._postpone(held, chunk)
                newly = {partitionlet: kept for partitionlet, kept in newly.items() if partitionlet not in kept_back}
                freed = await blocking(lambda: held.log.punchable(chunk, newly))
        if freed or not chunk.punched:  # not punched: a crash may have come between the record of it and the bytes
            self.freed_bytes += await blocking(lambda: held.log.punch(chunk, newly if freed else {}))

    def _postpone(self, held: Held, chunk: Chunk) -> None:
        self._postponed[held.id, chunk.start] = self._runtime.loop.time() + AGAIN_S

    async def _carry_on(
        self,
        held: Held,
        chunk: Chunk,
        partitionlets: Collection[PartitionletId],
        owners: Mapping[PartitionletId, Owner],
    ) -> set[PartitionletId]:
        """See that what open partitionlets know of their producers from a chunk is known behind it too.

        The leader appends it anew. Those whose state would be lost: where another node leads, and of partitionlets that
        are sealed in this chunk, whose roll is not over.
        """
        led = held.led

        def wanting() -> tuple[set[PartitionletId], list[tuple[PartitionletId, bytes]]]:
            lost: set[PartitionletId] = set()
            anew = []
            for partitionlet in partitionlets:
                owner = owners.get(partitionlet)
                if owner is None or owner.end >= 0:
                    continue
                if is_sealed_in(chunk, partitionlet):
                    lost.add(partitionlet)
                elif not is_carried_on(held, chunk, partitionlet):
                    if led is None:
                        lost.add(partitionlet)
                    else:
                        tail = read_tail(led, partitionlet, max(owner.first, owner.log_start))
                        anew.append((partitionlet, msgspec.msgpack.encode(carried(tail.producers))))
            return lost, anew

        lost, anew = await self._inventory.blocking(wanting)
        if led is not None and anew:
            await asyncio.gather(
                *(
                    led.append_control(FrameType.PRODUCERS, payload, partitionlet=partitionlet, from_reserve=True)
                    for partitionlet, payload in anew
                )
            )
        return lost
