"""Closing of chunks: full chunks, and open chunks early if enough of them is dead, so that dead bytes can be freed.

Every replica closes its own chunks, and only below its committed position, so in normal operation a truncation never
reaches a closed chunk. A chunk that cannot be closed does not delay the others.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from headrace.base.ids import ContainerId, PartitionletId, Position, StreamNumber, stream_of
from headrace.base.runtime import Runtime
from headrace.catalog.catalog import Catalog
from headrace.catalog.rows import Owner, StreamRetention
from headrace.log.container_log import Chunk, ContainerLog
from headrace.log.reading import NEVER
from headrace.storage.chunk_gc import ChunkGc
from headrace.storage.chunk_inventory import FAILURES, ChunkInventory, Held
from headrace.storage.retention_rules import Share

EARLY_EVERY_S = 20.0
"""Seconds between two checks of open chunks for dead bytes; a chunk is read only if it has grown, or something in it
may have died."""
AGAIN_S: Final = 60.0
"""Seconds after which an open chunk is scanned again if some of its records had expired at the last scan, but too few
of them: records that were added since may have expired."""
WORTH_CLOSING: Final = 1024 * 1024
"""Dead bytes for which an open chunk is closed early, so that they can be freed."""
WORTH_CLOSING_AT_LIMIT: Final = 64 * 1024
"""Dead bytes for which an open chunk is closed early while the volume is at its size limit: no more records arrive to
fill the chunk. A chunk that is entirely dead is closed at any size then."""


class _Scan(NamedTuple):
    """The last scan of an open chunk, with the facts that must change before another scan can find more."""

    log: ContainerLog
    start: int
    rules: Mapping[StreamNumber, StreamRetention]
    lives_until: int
    """When the first of the chunk's live records will expire, in milliseconds since 1970."""
    again_at: float


class ChunkClosing:
    """Closes the chunks of this node's replicas."""

    def __init__(self, *, runtime: Runtime, catalog: Catalog, inventory: ChunkInventory, chunk_gc: ChunkGc) -> None:
        self._runtime = runtime
        self._catalog = catalog
        self._inventory = inventory
        self._chunk_gc = chunk_gc
        self._early_due = 0.0
        self._scans: dict[ContainerId, _Scan] = {}
        """The last scan of each open chunk. A chunk may hold a hundred thousand idle topics, which should cost
        something only if something changes."""
        self._oldest: dict[ContainerId, tuple[ContainerLog, int, Position, Mapping[StreamNumber, int]]] = {}
        """By container, the open chunk's log, start and end, and what `ChunkInventory.oldest` found in it."""

    def look_early(self) -> None:
        """Check the open chunks in the next round, since many records may have died."""
        self._early_due = 0.0

    async def close_full(self) -> None:
        """Close the full chunks."""
        for held in self._inventory.held():
            for chunk in held.log.chunks_to_close(held.committed):
                key = (held.id, chunk.start)
                try:
                    await self._inventory.blocking(lambda held=held, chunk=chunk: held.log.close_chunk(chunk))  # type: ignore[misc]
                except FAILURES as error:
                    self._inventory.failed(key, error)
                else:
                    self._inventory.done(key)
                    self._chunk_gc.closed(key)

    async def close_early(self) -> None:
        """Close open chunks of which enough is dead."""
        if self._runtime.loop.time() < self._early_due:
            return
        self._early_due = self._runtime.loop.time() + EARLY_EVERY_S
        here = self._inventory.data()
        for held in here:
            chunks = held.log.chunks()
            if chunks and chunks[-1].end is None:
                try:
                    await self._close_early_one(held, chunks[-1])
                except FAILURES as error:
                    self._inventory.failed((held.id, chunks[-1].start), error)
                else:
                    self._inventory.done((held.id, chunks[-1].start))
        gone = (self._scans.keys() | self._oldest.keys()) - {held.id for held in here}
        for each in gone:
            self._scans.pop(each, None)
            self._oldest.pop(each, None)

    async def _close_early_one(self, held: Held, chunk: Chunk) -> None:
        closing = held.led is not None and held.led.closing
        at_limit = _is_at_limit(held)
        if held.log.end - chunk.start < (1 if closing or at_limit else WORTH_CLOSING):
            return
        if closing:
            if any(share.bytes for share in await self._inventory.shares(held, chunk)):
                # Nothing more is written to this container, and while these records are in an open chunk, nothing
                # younger can expire.
                close_open(held, chunk)
            return
        dead = self._chunk_gc.dead_in_open(held, chunk)
        if dead is None or await self._may_expire(held, chunk):
            dead = await self._scan(held, chunk)
        if dead and dead >= (WORTH_CLOSING_AT_LIMIT if at_limit else WORTH_CLOSING):
            close_open(held, chunk)
        elif dead and at_limit:
            shares = await self._inventory.shares(held, chunk)
            if dead >= sum(share.bytes for share in shares):
                close_open(held, chunk)

    async def _scan(self, held: Held, chunk: Chunk) -> int:
        """Scan a whole open chunk; returns its dead bytes."""
        again_at = self._runtime.loop.time() + AGAIN_S
        shares = await self._inventory.shares(held, chunk)
        owners = await self._inventory.owners(shares)
        streams = frozenset(stream_of(share.partitionlet) for share in shares)
        rules = await self._catalog.query(lambda reader: reader.streams.retention_of(streams))
        gone, expired, lives_until = _dead(shares, owners, rules, self._runtime.now())
        self._chunk_gc.looked_at_open(held, chunk, gone)
        self._scans[held.id] = _Scan(held.log, chunk.start, rules, lives_until, again_at)
        return gone + expired

    async def _may_expire(self, held: Held, chunk: Chunk) -> bool:
        """Whether records of an open chunk may have expired since its last scan. Cheap if none can have."""
        oldest = await self._oldest_in(held, chunk)
        if not oldest:
            return False
        streams = frozenset(oldest)
        rules = await self._catalog.query(lambda reader: reader.streams.retention_of(streams))
        now = self._runtime.now()
        if not any(_outlives(rules, stream, newest, now) for stream, newest in oldest.items()):
            return False
        looked = self._scans.get(held.id)
        return (
            looked is None
            or looked.log is not held.log
            or looked.start != chunk.start
            or looked.rules != {stream: rule for stream, rule in rules.items() if stream in looked.rules}
            or now >= looked.lives_until
            or self._runtime.loop.time() >= looked.again_at
        )

    async def _oldest_in(self, held: Held, chunk: Chunk) -> Mapping[StreamNumber, int] | None:
        """As ChunkInventory.oldest, but read again only if something was written since."""
        end = held.log.end
        known = self._oldest.get(held.id)
        if known is not None and known[0] is held.log and known[1:3] == (chunk.start, end):
            return known[3]
        oldest = await self._inventory.oldest(held, chunk)
        if oldest is not None:
            self._oldest[held.id] = (held.log, chunk.start, end, oldest)
        return oldest


def _outlives(rules: Mapping[StreamNumber, StreamRetention], stream: StreamNumber, oldest: int, now: int) -> bool:
    rule = rules.get(stream)
    every = () if rule is None else (rule.rule, *rule.overrides.values())
    return any(each.ttl_ms > 0 and oldest + each.ttl_ms <= now for each in every)


def _dead(
    shares: Sequence[Share],
    owners: Mapping[PartitionletId, Owner],
    rules: Mapping[StreamNumber, StreamRetention],
    now: int,
) -> tuple[int, int, int]:
    """(bytes without an owner, expired bytes, the time at which the first of the other records will expire)."""
    gone, expired, lives_until = 0, 0, NEVER
    for share in shares:
        owner = owners.get(share.partitionlet)
        rule = rules.get(stream_of(share.partitionlet))
        if owner is None or rule is None or share.last < owner.log_start:
            gone += share.bytes
            continue
        ttl = rule.overrides.get(owner.topic, rule.rule).ttl_ms
        if ttl > 0 and share.max_timestamp + ttl <= now:
            expired += share.bytes
        elif ttl > 0 and share.bytes:
            lives_until = min(lives_until, share.max_timestamp + ttl)
    return gone, expired, lives_until


def _is_at_limit(held: Held) -> bool:
    return held.led is not None and bool(held.led.refuses)


def close_open(held: Held, chunk: Chunk) -> None:
    """Close the open chunk early, if `chunk` is still the open one."""
    chunks = held.log.chunks()
    if chunks and chunk is chunks[-1] and chunk.end is None:
        held.log.close_open_chunk()
        held.kick()
