"""Garbage collection of chunks, the step that frees bytes: drops closed chunks without live records, and punches dead
bytes out of the others.

Every replica collects its own chunks, by the catalog of its own node: records are dead because of a committed command
(invariant 12). A catalog may lag behind the containers, and tables restored from a snapshot may be older than before:
partitionlets that the catalog does not know yet are not dead. Before a chunk is dropped, the leader appends again what
later readers need of it, the state of idempotent producers; a follower keeps the chunk until that frame has arrived.

The work is proportional to what died (dead_records.py): partitionlets that lost records are searched for, by id, in the
chunks of their containers. A chunk is scanned as a whole if it is not known what in it died, as for a replica that is
being built. The progress of the search is stored for the next start (gc_mark.py). In addition one chunk after the other
is scanned, at most one per minute, so that dead bytes that were missed do not stay forever.
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
from headrace.tables.deaths import UNKNOWN, DeathReport

log = structlog.get_logger()

WORTH_PUNCHING: Final = 1024 * 1024
"""Bytes that punching a closed chunk must free if the dead parts of partly live shares are to be punched too."""
AGAIN_S: Final = 30.0
"""Seconds for which a chunk that has to wait for its container's leader is left alone."""
CHECK_S: Final = 60.0
CHECK_SHARE: Final = 1000
"""The minimum pause between two routine scans, as a multiple of the last scan's duration; it is at least `CHECK_S`
seconds."""


class ChunkGc:
    """Frees dead bytes: drops and punches the closed chunks of this node's replicas."""

    def __init__(
        self, *, runtime: Runtime, catalog: Catalog, inventory: ChunkInventory, mark: Path | None = None
    ) -> None:
        """`mark`: the file in which progress is stored for the next start; None: progress is not stored."""
        self._runtime = runtime
        self._catalog = catalog
        self._inventory = inventory
        self._mark = mark
        self._stored_deaths = UNKNOWN
        self._store_failed = False
        self._rows_were_replaced = False
        """Whether the rows were replaced before the mark was loaded."""
        self._dead = DeadRecords()
        self._deaths = UNKNOWN
        """The tables' count of deaths up to which all deaths have been reported here."""
        self._regrouped: set[ChunkKey] = set()
        self._postponed: dict[ChunkKey, float] = {}
        """Chunks that wait for their container's leader, and when they are tried again."""
        self._checked: ChunkKey = (ContainerId(-1), -1)
        self._check_at = runtime.loop.time() + CHECK_S
        self.freed_bytes = 0
        self.dropped = 0
        """Whole chunks that were dropped."""
        self.looks = 0
        """Chunks that were scanned as a whole."""
        self.searches = 0
        """Chunks in which single partitionlets were searched for."""

    # --- what died

    async def load(self) -> None:
        """Load the progress of the previous process. Must be called before the first `died`."""
        catalog = self._catalog
        if self._deaths == UNKNOWN:
            self._deaths = catalog.death_report_at_open.total
        raw: bytes | None = None
        try:
            if self._mark is not None and (path := self._mark):
                raw = await self._inventory.blocking(lambda: gc_mark.load(path))
            known = None if raw is None else self._dead.decode(raw)
        except (CorruptLog, OSError) as error:
            log.warning("garbage collection lost its progress: it examines all chunks again", reason=str(error))
            known = None
        before = catalog.deaths_at_open
        if known is None or before == UNKNOWN or before > known or self._rows_were_replaced:
            self._dead.forget()  # deaths in between are not known
            return
        self._stored_deaths = known
        self._dead.died(catalog.death_report_at_open.pairs)

    def died(self, died: DeathReport) -> None:
        """Note that partitionlets lost records."""
        self._deaths = died.total
        self._dead.died(died.pairs)

    def anything_died(self) -> None:
        """Note that any records may have died, in any chunk."""
        self._deaths = self._catalog.deaths
        self._rows_were_replaced = True
        self._dead.all_died()

    def closed(self, key: ChunkKey) -> None:
        """Note that a chunk was closed."""
        known = self._dead.get(key[0])
        if known is not None and key[1] < known.looked_until:  # closed late: records in it may have died
            known.require_scan(key[1])

    def regrouped(self, key: ChunkKey) -> None:
        """Note that a chunk was regrouped: its dead bytes are contiguous now, so more of them can be freed."""
        self._regrouped.add(key)

    def dead_in_open(self, held: Held, chunk: Chunk) -> int | None:
        """Bytes of an open chunk whose partitionlets have lost their owner; None: the chunk has to be scanned."""
        known = self._dead.of(held.id, held.log)
        known.opened(chunk.start)
        return known.open_dead

    def looked_at_open(self, held: Held, chunk: Chunk, dead: int) -> None:
        """Note the result of the scan of an open chunk for which `dead_in_open` asked: its dead bytes."""
        known = self._dead.of(held.id, held.log)
        if known.open_start == chunk.start:
            known.open_dead = dead

    # --- the step

    async def step(self) -> None:
        """Collect the chunks in which something has died."""
        now = self._runtime.loop.time()
        replicas = self._inventory.data()
        for (container, start), due in list(self._postponed.items()):
            if due <= now:
                del self._postponed[container, start]
                if (known := self._dead.get(container)) is not None:
                    known.require_scan(start)
        states = [(held, self._dead.of(held.id, held.log)) for held in replicas]
        self._dead.keep({held.id for held in replicas})
        await self._store()
        for held, known in states:
            # What a leader has beyond the position at which it began was written by this process.
            known.note_current(end=held.log.end if held.led is None else held.led.opened_at, current=held.is_current)
            await self._collect_container(held, known)
        await self._check_one(replicas)
        await self._store()

    async def _collect_container(self, held: Held, known: ContainerDeaths) -> None:
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
                    known.begin_scan(chunk.start)
                    await self._attempt(held, known, chunk, self._collect(held, chunk))
                elif ids:
                    await self._attempt(held, known, chunk, self._collect_some(held, chunk, ids))
                if is_new:
                    known.closed(chunk.end, now)
            await self._count_open(held, known, sought)
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
            known.require_scan(chunk.start)
            self._inventory.failed(key, error)
        else:
            self._inventory.done(key)

    async def _count_open(self, held: Held, known: ContainerDeaths, sought: Sought) -> None:
        """Count the dead bytes of the open chunk."""
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
        """Scan the next chunk in turn, if it is time."""
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
        """Store the progress for the next start, if it has changed."""
        path = self._mark
        if path is None or not (self._dead.changed or self._stored_deaths != self._deaths):
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
            if not self._store_failed:
                log.warning("the progress of garbage collection could not be stored", error=str(error))
            self._store_failed = True
        else:
            self._stored_deaths = deaths
            self._store_failed = False

    # --- one chunk

    async def _collect(self, held: Held, chunk: Chunk) -> None:
        """Scan a whole chunk, and free what is dead in it."""
        if chunk.end is None or chunk.end > held.committed:  # the log has just been opened
            self._postpone_scan(held, chunk)
            return
        self.looks += 1
        blocking = self._inventory.blocking
        shares = await self._inventory.shares(held, chunk)
        owners = await self._inventory.fates(shares)
        if owners is None:
            self._postpone_scan(held, chunk)
            return
        dead, whole = await blocking(lambda: gone(shares, owners=owners))
        if whole:
            await self._drop(held, chunk, shares, owners)
        else:
            await self._punch(held, chunk, shares, owners, dead)

    async def _collect_some(self, held: Held, chunk: Chunk, partitionlets: Collection[PartitionletId]) -> None:
        """Free what is dead of these partitionlets in a chunk."""
        if chunk.end is None or chunk.end > held.committed:
            self._postpone_scan(held, chunk)
            return
        self.searches += 1
        shares = await self._inventory.shares_of(held, chunk, partitionlets)
        if not shares:
            return
        owners = await self._inventory.fates(shares)
        if owners is None:
            self._postpone_scan(held, chunk)
            return
        dead, _ = gone(shares, owners=owners)
        if not dead and chunk.punched:
            return
        if await self._inventory.blocking(lambda: held.log.lives(chunk, dead)):
            await self._punch(held, chunk, shares, owners, dead)
        else:
            await self._collect(held, chunk)

    def _postpone_scan(self, held: Held, chunk: Chunk) -> None:
        self._dead.of(held.id, held.log).require_scan(chunk.start)

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
        # A partly live share is worth punching, and recording, only if that frees many bytes.
        freed = await blocking(lambda: held.log.punchable(chunk, newly))
        live = {share.partitionlet for share in shares if share.first < newly.get(share.partitionlet, -1) <= share.last}
        if freed < WORTH_PUNCHING and live:
            newly = {partitionlet: kept for partitionlet, kept in newly.items() if partitionlet not in live}
            freed = await blocking(lambda: held.log.punchable(chunk, newly))
        if freed:
            touched = [share.partitionlet for share in shares if share.partitionlet in newly]
            unsafe = await self._carry_on(held, chunk, touched, owners)
            if unsafe:
                self._postpone(held, chunk)
                newly = {partitionlet: kept for partitionlet, kept in newly.items() if partitionlet not in unsafe}
                freed = await blocking(lambda: held.log.punchable(chunk, newly))
        if freed or not chunk.punched:  # not punched: a crash may have hit between the record and the punching
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
        """Make sure that the producer state of open partitionlets in a chunk is also known from later frames.

        The leader appends such state again. Returns the partitionlets whose state would be lost: those led by another
        node, and those that are sealed in this chunk and whose roll is not over.
        """
        led = held.led

        def missing_state() -> tuple[set[PartitionletId], list[tuple[PartitionletId, bytes]]]:
            lost: set[PartitionletId] = set()
            to_append = []
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
                        to_append.append((partitionlet, msgspec.msgpack.encode(carried(tail.producers))))
            return lost, to_append

        lost, to_append = await self._inventory.blocking(missing_state)
        if led is not None and to_append:
            await asyncio.gather(
                *(
                    led.append_control(FrameType.PRODUCERS, payload, partitionlet=partitionlet, from_reserve=True)
                    for partitionlet, payload in to_append
                )
            )
        return lost


def _is_dead(share: Share, owners: Mapping[PartitionletId, Owner]) -> bool:
    owner = owners.get(share.partitionlet)
    return owner is None or share.last < owner.log_start
