"""Closing chunks: full ones, and early the open one where enough of it is dead, so that it can be given back.

Every replica closes its own, and only below what is committed there: a cut never meets a closed chunk in normal life.
"""

from typing import TYPE_CHECKING, Final

import structlog

from headrace.broker.giving_back import GivingBack
from headrace.broker.upkeep import Held, Upkeep
from headrace.errors import StorageFull
from headrace.ids import stream_of
from headrace.log.container_log import Chunk

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

log = structlog.get_logger()

EARLY_EVERY_S = 20.0
"""How often the open chunk is looked at for dead bytes."""
WORTH_CLOSING: Final = 1024 * 1024
"""Dead bytes in the open chunk for which it is closed early, so that they can be given back."""


class ChunkClosing:
    """One node's."""

    def __init__(self, broker: "Broker", upkeep: Upkeep, giving_back: GivingBack) -> None:
        self._broker = broker
        self._upkeep = upkeep
        self._giving_back = giving_back
        self._early_due = 0.0

    def look_early(self) -> None:
        """Much may have died: look at the open chunks in the next round."""
        self._early_due = 0.0

    async def close_full(self) -> None:
        """Close the chunks that are full."""
        for held in self._upkeep.held():
            for chunk in held.log.chunks_to_close(held.committed):
                try:
                    await self._upkeep.blocking(lambda held=held, chunk=chunk: held.log.close_chunk(chunk))  # type: ignore[misc]
                except StorageFull as full:
                    log.warning("a chunk stays open", container=held.id, reason=str(full))
                    break
                self._giving_back.look_at((held.id, chunk.start))

    async def close_early(self) -> None:
        """Close open chunks of which enough is dead."""
        if self._broker.loop.time() < self._early_due:
            return
        self._early_due = self._broker.loop.time() + EARLY_EVERY_S
        for held in self._upkeep.data():
            await self._close_early_one(held)

    async def _close_early_one(self, held: Held) -> None:
        chunks = held.log.chunks()
        if not chunks or chunks[-1].body.closed or chunks[-1].end is not None:
            return
        chunk = chunks[-1]
        closing = held.led is not None and held.led.closing
        if held.log.end - chunk.start < (1 if closing else WORTH_CLOSING):
            return
        shares = await self._upkeep.shares(held, chunk)
        if closing and any(share.bytes for share in shares):
            # Nothing is written behind these, and while they stand in an open chunk nothing younger can expire.
            close_open(held, chunk)
            return
        owners = await self._upkeep.owners(shares)
        streams = {stream_of(share.partitionlet) for share in shares}
        rules = await self._broker.catalog.query(lambda reader: reader.retention(streams))
        now = self._broker.now()
        dead = 0
        for share in shares:
            owner = owners.get(share.partitionlet)
            rule = rules.get(stream_of(share.partitionlet))
            if owner is None or rule is None:
                dead += share.bytes
                continue
            ttl = rule.overrides.get(owner.topic, rule.rule).ttl_ms
            if share.last < owner.log_start or (ttl > 0 and share.max_timestamp + ttl <= now):
                dead += share.bytes
        if dead >= WORTH_CLOSING:
            close_open(held, chunk)


def close_open(held: Held, chunk: Chunk) -> None:
    """End the open chunk, if `chunk` still is that."""
    chunks = held.log.chunks()
    if chunks and chunk is chunks[-1] and chunk.end is None:
        held.log.close_open_chunk()
        held.kick()
