"""Closing chunks: full ones, and early the open one where enough of it is dead, so that it can be given back.

Every replica closes its own, and only below what is committed there: a cut never meets a closed chunk in normal life.
A chunk that cannot be closed keeps no other waiting.
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
"""How often the open chunk is looked at for dead bytes, where it has grown or something of it may have died."""
AGAIN_S: Final = 60.0
"""So long nobody looks whole at one of which some had outlived its time, and too little: what came since may have."""
WORTH_CLOSING: Final = 1024 * 1024
"""Dead bytes in the open chunk for which it is closed early, so that they can be given back."""
WORTH_CLOSING_AT_LIMIT: Final = 64 * 1024
"""The same where the volume is at its size limit, and so takes no records that would fill the chunk. All that a chunk
has is worth it there, however little it is."""


class _Looked(NamedTuple):
    """When an open chunk was looked at whole, and what of it would have to be otherwise for another look to tell more
    than is known."""

    log: ContainerLog
    start: int
    rules: Mapping[StreamNumber, StreamRetention]
    lives_until: int
    """When the first of its records that were not dead will be, in milliseconds since 1970."""
    again_at: float


class ChunkClosing:
    """Closes this node's chunks."""

    def __init__(self, *, runtime: Runtime, catalog: Catalog, inventory: ChunkInventory, chunk_gc: ChunkGc) -> None:
        self._runtime = runtime
        self._catalog = catalog
        self._inventory = inventory
        self._chunk_gc = chunk_gc
        self._early_due = 0.0
        self._looked: dict[ContainerId, _Looked] = {}
        """A chunk may hold a hundred thousand idle topics, which cost something only where something happens."""
        self._oldest: dict[ContainerId, tuple[ContainerLog, int, Position, Mapping[StreamNumber, int]]] = {}
        """Of an open chunk that begins and ended there: how old the records of each stream are at most."""

    def look_early(self) -> None:
        """Much may have died: look at the open chunks in the next round."""
        self._early_due = 0.0

    async def close_full(self) -> None:
        """Close the chunks that are full."""
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
        gone = (self._looked.keys() | self._oldest.keys()) - {held.id for held in here}
        for each in gone:
            self._looked.pop(each, None)
            self._oldest.pop(each, None)

    async def _close_early_one(self, held: Held, chunk: Chunk) -> None:
        closing = held.led is not None and held.led.closing
        at_limit = _is_at_limit(held)
        if held.log.end - chunk.start < (1 if closing or at_limit else WORTH_CLOSING):
            return
        if closing:
            if any(share.bytes for share in await self._inventory.shares(held, chunk)):
                # Nothing is written behind these, and while they stand in an open chunk nothing younger can expire.
                close_open(held, chunk)
            return
        dead = self._chunk_gc.dead_in_open(held, chunk)
        if dead is None or await self._may_expire(held, chunk):
            dead = await self._look(held, chunk)
        if dead and dead >= (WORTH_CLOSING_AT_LIMIT if at_limit else WORTH_CLOSING):
            close_open(held, chunk)
        elif dead and at_limit:
            shares = await self._inventory.shares(held, chunk)
            if dead >= sum(share.bytes for share in shares):
                close_open(held, chunk)

    async def _look(self, held: Held, chunk: Chunk) -> int:
        """Look at all of an open chunk; bytes of it that are dead."""
        again_at = self._runtime.loop.time() + AGAIN_S
        shares = await self._inventory.shares(held, chunk)
        owners = await self._inventory.owners(shares)
        streams = frozenset(stream_of(share.partitionlet) for share in shares)
        rules = await self._catalog.query(lambda reader: reader.streams.retention_of(streams))
        gone, expired, lives_until = _dead(shares, owners, rules, self._runtime.now())
        self._chunk_gc.looked_at_open(held, chunk, gone)
        self._looked[held.id] = _Looked(held.log, chunk.start, rules, lives_until, again_at)
        return gone + expired

    async def _may_expire(self, held: Held, chunk: Chunk) -> bool:
        """Whether some of an open chunk may have outlived a rule since it was looked at whole. Costs little where
        nothing can have."""
        oldest = await self._oldest_in(held, chunk)
        if not oldest:
            return False
        streams = frozenset(oldest)
        rules = await self._catalog.query(lambda reader: reader.streams.retention_of(streams))
        now = self._runtime.now()
        if not any(_outlives(rules, stream, newest, now) for stream, newest in oldest.items()):
            return False
        looked = self._looked.get(held.id)
        return (
            looked is None
            or looked.log is not held.log
            or looked.start != chunk.start
            or looked.rules != {stream: rule for stream, rule in rules.items() if stream in looked.rules}
            or now >= looked.lives_until
            or self._runtime.loop.time() >= looked.again_at
        )

    async def _oldest_in(self, held: Held, chunk: Chunk) -> Mapping[StreamNumber, int] | None:
        """See ChunkInventory.oldest; read again only where something was written since."""
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
    """(bytes that have no owner, bytes that have outlived their time, when the first of the others will have)."""
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
    """End the open chunk, if `chunk` still is that."""
    chunks = held.log.chunks()
    if chunks and chunk is chunks[-1] and chunk.end is None:
        held.log.close_open_chunk()
        held.kick()
