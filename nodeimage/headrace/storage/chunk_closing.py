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
AGAIN_S: Final = 600.0
"""So long nobody looks at one that is as it was."""
WORTH_CLOSING: Final = 1024 * 1024
"""Dead bytes in the open chunk for which it is closed early, so that they can be given back."""
WORTH_CLOSING_AT_LIMIT: Final = 64 * 1024
"""The same where the volume is at its size limit, and so takes no records that would fill the chunk. All that a chunk
has is worth it there, however little it is."""


class _Looked(NamedTuple):
    """An open chunk of which too little was dead, and what has to be as it was for that to be so still."""

    log: ContainerLog
    start: int
    end: Position
    streams: frozenset[StreamNumber]
    rules: Mapping[StreamNumber, StreamRetention]
    at_limit: bool
    """Its volume took no records."""
    lives_until: int
    """When the first of its records that are not dead will be, in milliseconds since 1970."""
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
        self._died = 0

    def look_early(self) -> None:
        """Much may have died: look at the open chunks in the next round."""
        self._early_due = 0.0
        self._looked.clear()
        self._died += 1

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
                    self._chunk_gc.look_at(key)

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
        gone = self._looked.keys() - {held.id for held in here}
        for each in gone:
            self._looked.pop(each, None)

    async def _close_early_one(self, held: Held, chunk: Chunk) -> None:
        closing = held.led is not None and held.led.closing
        at_limit = _is_at_limit(held)
        if held.log.end - chunk.start < (1 if closing or at_limit else WORTH_CLOSING):
            return
        if not closing and await self._is_as_it_was(held, chunk):
            return
        died, end = self._died, held.log.end
        shares = await self._inventory.shares(held, chunk)
        if closing and any(share.bytes for share in shares):
            # Nothing is written behind these, and while they stand in an open chunk nothing younger can expire.
            close_open(held, chunk)
            return
        owners = await self._inventory.owners(shares)
        streams = frozenset(stream_of(share.partitionlet) for share in shares)
        rules = await self._catalog.query(lambda reader: reader.streams.retention_of(streams))
        dead, lives_until = _dead(shares, owners, rules, self._runtime.now())
        worth = min(WORTH_CLOSING_AT_LIMIT, sum(share.bytes for share in shares)) if at_limit else WORTH_CLOSING
        if dead >= max(1, worth):
            close_open(held, chunk)
        elif died == self._died:
            again_at = self._runtime.loop.time() + AGAIN_S
            self._looked[held.id] = _Looked(held.log, chunk.start, end, streams, rules, at_limit, lives_until, again_at)

    async def _is_as_it_was(self, held: Held, chunk: Chunk) -> bool:
        """Whether too little of an open chunk is dead still, as far as that is known without looking at it."""
        looked = self._looked.get(held.id)
        if (
            looked is None
            or looked.log is not held.log
            or (looked.start, looked.end, looked.at_limit) != (chunk.start, held.log.end, _is_at_limit(held))
            or self._runtime.now() >= looked.lives_until
            or self._runtime.loop.time() >= looked.again_at
        ):
            return False
        return await self._catalog.query(lambda reader: reader.streams.retention_of(looked.streams)) == looked.rules


def _dead(
    shares: Sequence[Share],
    owners: Mapping[PartitionletId, Owner],
    rules: Mapping[StreamNumber, StreamRetention],
    now: int,
) -> tuple[int, int]:
    """(bytes that are dead, when the first of the others will be, by their time to live)."""
    dead, lives_until = 0, NEVER
    for share in shares:
        owner = owners.get(share.partitionlet)
        rule = rules.get(stream_of(share.partitionlet))
        if owner is None or rule is None or share.last < owner.log_start:
            dead += share.bytes
            continue
        ttl = rule.overrides.get(owner.topic, rule.rule).ttl_ms
        if ttl > 0 and share.max_timestamp + ttl <= now:
            dead += share.bytes
        elif ttl > 0:
            lives_until = min(lives_until, share.max_timestamp + ttl)
    return dead, lives_until


def _is_at_limit(held: Held) -> bool:
    return held.led is not None and bool(held.led.refuses)


def close_open(held: Held, chunk: Chunk) -> None:
    """End the open chunk, if `chunk` still is that."""
    chunks = held.log.chunks()
    if chunks and chunk is chunks[-1] and chunk.end is None:
        held.log.close_open_chunk()
        held.kick()
