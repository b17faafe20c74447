"""Garbage collection of chunks: the step that frees bytes. Closed chunks without live records are dropped; dead bytes
are punched out of the others.

Every replica collects its own chunks, by the catalog of its own node: what is dead there is dead by a committed command
(invariant 12). A catalog may lag behind the containers, and tables that a snapshot replaced may be older than they
were: partitionlets that it does not know yet are not dead. Before a chunk is dropped, the leader appends again what a
later reader needs of it, the state of idempotent producers; a follower keeps the chunk until that frame has arrived.

The work follows what died (dead_records.py): partitionlets that lost records are looked for in the chunks of their
containers, by ids; a chunk is looked at whole where it is not known what of it died, such as one of a replica that is
being made. What has been looked for is kept over a restart (gc_mark.py). Once a minute at most one chunk is looked at
whole all the same, one after the other, so that nothing which slipped through stays for ever.
"""

import asyncio
from collections.abc import Collection, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from headrace.base.errors import CorruptLog
from headrace.base.ids import ContainerId, PartitionletId
from headrace.base.runtime import Runtime
from headrace.catalog.catalog import Catalog
from headrace.catalog.rows import Owner
from headrace.log.container_log import Chunk
from headrace.log.frames import FrameType
from headrace.partitions.partitions import read_tail
from headrace.partitions.rolls.frames import carried
from headrace.storage import gc_mark
from headrace.storage.chunk_inventory import FAILURES, ChunkInventory, ChunkKey, Held
from headrace.storage.dead_records import ContainerDeaths, DeadRecords, Sought, joined
from headrace.storage.producer_retention import is_carried_on, is_sealed_in
from headrace.storage.retention_rules import Share, gone
from headrace.tables.deaths import UNKNOWN, Died

log = structlog.get_logger()

WORTH_PUNCHING: Final = 1024 * 1024
"""Dead bytes for which a closed chunk's share of a partition is given back in part."""
AGAIN_S: Final = 30.0
"""How long a chunk is left alone that has to wait for its container's leader."""
CHECK_S: Final = 60.0
CHECK_SHARE: Final = 1000
"""Between two chunks that are looked at although nothing is known to have died in them: so many seconds at least, and
so many times what the last one took."""


class ChunkGc:
    """Frees dead bytes: drops and punches this node's closed chunks."""

    def __init__(
        self, *, runtime: Runtime, catalog: Catalog, inventory: ChunkInventory, mark: Path | None = None
    ) -> None:
        """`mark`: the file that is kept over a restart; None: none is."""
        self._runtime = runtime
        self._catalog = catalog
        self._inventory = inventory
        self._mark = mark
        self._is_stored_of = UNKNOWN
        self._not_stored = False
        self._is_unknown = False
        """The rows were replaced before anything was loaded."""
        self._dead = DeadRecords()
        self._deaths = UNKNOWN
        """The count of the tables, of which all has been told here."""
        self._regrouped: set[ChunkKey] = set()
        self._postponed: dict[ChunkKey, float] = {}
        """Chunks that wait for their container's leader, and when they are looked at again."""
        self._checked: ChunkKey = (ContainerId(-1), -1)
        self._check_at = runtime.loop.time() + CHECK_S
        self.freed_bytes = 0
        self.dropped = 0
        """Whole chunks."""
        self.looks = 0
        """Chunks that were looked at whole."""
        self.searches = 0
        """Chunks in which partitionlets were looked for."""

    # --- what died

    async def load(self) -> None:
        """Take up what the process before has looked for. Before `died` is told anything."""
        catalog = self._catalog
        if self._deaths == UNKNOWN:
            self._deaths = catalog.died_at_open.total
        raw: bytes | None = None
        try:
            if self._mark is not None and (path := self._mark):
                raw = await self._inventory.blocking(lambda: gc_mark.load(path))
            known = None if raw is None else self._dead.decode(raw)
        except (CorruptLog, OSError) as error:
            log.warning("all chunks are looked at again", reason=str(error))
            known = None
        before = catalog.deaths_at_open
        if known is None or before == UNKNOWN or before > known or self._is_unknown:
            self._dead.forget()  # what died in between is not known
            return
        self._is_stored_of = known
        self._dead.died(catalog.died_at_open.pairs)

    def died(self, died: Died) -> None:
        """Partitionlets lost records."""
        self._deaths = died.total
        self._dead.died(died.pairs)

    def anything_died(self) -> None:
        """Any records may have died, anywhere."""
        self._deaths = self._catalog.deaths
        self._is_unknown = True
        self._dead.everything()

    def closed(self, key: ChunkKey) -> None:
        """A chunk was closed."""
        known = self._dead.get(key[0])
        if known is not None and key[1] < known.looked_until:  # after younger ones: what died since may be in it
            known.look_at(key[1])

    def regrouped(self, key: ChunkKey) -> None:
        """A chunk was regrouped: its dead bytes lie together now, so that more of them can be freed."""
        self._regrouped.add(key)

    def dead_in_open(self, held: Held, chunk: Chunk) -> int | None:
        """Bytes of an open chunk that have lost their owner; None: it has to be looked at whole."""
        known = self._dead.of(held.id, held.log)
        known.opened(chunk.start)
        return known.open_dead

    def looked_at_open(self, held: Held, chunk: Chunk, dead: int) -> None:
        """An open chunk was looked at whole, as `dead_in_open` asked for; so much of it is dead."""
        known = self._dead.of(held.id, held.log)
        if known.open_start == chunk.start:
            known.open_dead = dead

    # --- the step

    async def step(self) -> None:
        """Look at the chunks in which something has died."""
        now = self._runtime.loop.time()
        held_here = self._inventory.data()
        for (container, start), due in list(self._postponed.items()):
            if due <= now:
                del self._postponed[container, start]
                if (known := self._dead.get(container)) is not None:
                    known.look_at(start)
        known_of = [(held, self._dead.of(held.id, held.log)) for held in held_here]
        self._dead.keep({held.id for held in held_here})
        await self._store()
        for held, known in known_of:
            # What a leader has behind where it began, this process has written.
            known.goes_on(end=held.log.end if held.led is None else held.led.opened_at, current=held.is_current)
            await self._look_in(held, known)
        await self._check_one(held_here)
        await self._store()

    async def _look_in(self, held: Held, known: ContainerDeaths) -> None:
        now = self._runtime.loop.time()
        sought = known.take_sought(now)
        try:
            for chunk in held.log.closed_chunks():
                assert chunk.end is not None
                is_new = chunk.end > known.looked_until
                ids = joined(sought, known.recent) if is_new else sought
                if (
                    ids is None
                    or chunk.start in known.unseen
                    or (is_new and not known.is_known(chunk.start))
                    or self._has_dead_regrouped(held, chunk)
                ):
                    known.looks_at(chunk.start)
                    await self._attempt(held, known, chunk, self._collect(held, chunk))
                elif ids:
                    await self._attempt(held, known, chunk, self._collect_some(held, chunk, ids))
                if is_new:
                    known.closed(chunk.end, now)
            await self._look_in_open(held, known, sought)
        except BaseException:
            known.seek_again(sought)
            raise

    def _has_dead_regrouped(self, held: Held, chunk: Chunk) -> bool:
        key = (held.id, chunk.start)
        if key not in self._regrouped:
            return False
        self._regrouped.discard(key)
        return bool(chunk.body.dead)

    async def _attempt(
        self, held: Held, known: ContainerDeaths, chunk: Chunk, collection: Coroutine[Any, Any, None]
    ) -> None:
        key = (held.id, chunk.start)
        try:
            await collection
        except FAILURES as error:
            known.look_at(chunk.start)
            self._inventory.failed(key, error)
        else:
            self._inventory.done(key)

    async def _look_in_open(self, held: Held, known: ContainerDeaths, sought: Sought) -> None:
        """Count what died of the open chunk."""
        chunks = held.log.chunks()
        if not chunks or chunks[-1].end is not None:
            return
        chunk = chunks[-1]
        known.opened(chunk.start)
        recent = known.recent
        if recent is None or sought is None:
            known.open_dead = None
        elif sought and known.open_dead is not None:
            shares = await self._inventory.shares_of(held, chunk, recent)
            owners = await self._inventory.owners(shares) if shares else {}
            known.open_dead = sum(share.bytes for share in shares if _is_dead(share, owners))

    async def _check_one(self, here: Iterable[Held]) -> None:
        """Look at the next chunk in turn."""
        now = self._runtime.loop.time()
        if now < self._check_at:
            return
        chunks = {(held.id, chunk.start): (held, chunk) for held in here for chunk in held.log.closed_chunks()}
        if not chunks:
            self._check_at = now + CHECK_S
            return
        following = [key for key in chunks if key > self._checked]
        self._checked = key = min(following or chunks)
        held, chunk = chunks[key]
        await self._attempt(held, self._dead.of(held.id, held.log), chunk, self._collect(held, chunk))
        ended = self._runtime.loop.time()
        self._check_at = ended + max(CHECK_S, CHECK_SHARE * (ended - now))

    async def _store(self) -> None:
        """Keep for a later start what is known now, if that is something else than before."""
        path = self._mark
        if path is None or not (self._dead.changed or self._is_stored_of != self._deaths):
            return
        postponed: dict[ContainerId, list[int]] = {}
        for container, start in self._postponed:
            postponed.setdefault(container, []).append(start)
        content, deaths = self._dead.encode(self._deaths, postponed), self._deaths
        self._dead.changed = False
        try:
            await self._inventory.blocking(lambda: gc_mark.store(path, content))
        except FAILURES as error:
            self._dead.changed = True
            if not self._not_stored:
                log.warning("what chunks were looked at is not kept", error=str(error))
            self._not_stored = True
        else:
            self._is_stored_of = deaths
            self._not_stored = False

    # --- one chunk

    async def _collect(self, held: Held, chunk: Chunk) -> None:
        """Look at all of a chunk."""
        if chunk.end is None or chunk.end > held.committed:  # of a log that has just been opened
            self._look_later(held, chunk)
            return
        self.looks += 1
        blocking = self._inventory.blocking
        shares = await self._inventory.shares(held, chunk)
        owners = await self._inventory.fates(shares)
        if owners is None:
            self._look_later(held, chunk)
            return
        dead, whole = await blocking(lambda: gone(shares, owners=owners))
        if whole:
            await self._drop(held, chunk, shares, owners)
        else:
            await self._punch(held, chunk, shares, owners, dead)

    async def _collect_some(self, held: Held, chunk: Chunk, partitionlets: Collection[PartitionletId]) -> None:
        """Look at what a chunk holds of these alone."""
        if chunk.end is None or chunk.end > held.committed:
            self._look_later(held, chunk)
            return
        self.searches += 1
        shares = await self._inventory.shares_of(held, chunk, partitionlets)
        if not shares:
            return
        owners = await self._inventory.fates(shares)
        if owners is None:
            self._look_later(held, chunk)
            return
        dead, _ = gone(shares, owners=owners)
        if not dead and chunk.punched:
            return
        if await self._inventory.blocking(lambda: held.log.lives(chunk, dead)):
            await self._punch(held, chunk, shares, owners, dead)
        else:
            await self._collect(held, chunk)

    def _look_later(self, held: Held, chunk: Chunk) -> None:
        self._dead.of(held.id, held.log).look_at(chunk.start)

    async def _drop(
        self, held: Held, chunk: Chunk, shares: Collection[Share], owners: Mapping[PartitionletId, Owner]
    ) -> None:
        if await self._carry_on(held, chunk, [share.partitionlet for share in shares], owners):
            self._postpone(held, chunk)
            return
        size = chunk.body.frames_end
        await self._inventory.blocking(lambda: held.log.drop_chunk(chunk))
        self._inventory.forget((held.id, chunk.start))
        self.freed_bytes += size
        self.dropped += 1
        log.info("chunk dropped", container=held.id, chunk=chunk.start)

    async def _punch(
        self,
        held: Held,
        chunk: Chunk,
        shares: Collection[Share],
        owners: Mapping[PartitionletId, Owner],
        dead: Mapping[int, int],
    ) -> None:
        blocking = self._inventory.blocking
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


def _is_dead(share: Share, owners: Mapping[PartitionletId, Owner]) -> bool:
    owner = owners.get(share.partitionlet)
    return owner is None or share.last < owner.log_start
