"""InitProducerId: ids for idempotent producers, in blocks from the cluster store (DESIGN section 6).

A block is taken by compare and set before any of its ids is given out, so an id is given out once, whatever crashes.
Transactional producers are refused until transactions come.
"""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.errors import Code
from headrace.wire.api_keys import ApiKey
from headrace.wire.cold import field

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.listener import Connection

BLOCK = 1000


class ProducerIds:
    """Gives out ids one by one, and fetches the next block in a thread."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._ids = iter(range(0))
        self._lock = asyncio.Lock()

    async def next(self) -> int:
        """An id that nobody else has."""
        async with self._lock:
            producer_id = next(self._ids, None)
            if producer_id is None:
                block = await self._broker.loop.run_in_executor(
                    self._broker.executor, self._broker.producer_block, BLOCK
                )
                self._ids = iter(block)
                producer_id = next(self._ids)
            return producer_id


async def init_producer_id(broker: "Broker", request: Any, _session: "Connection") -> Mapping[str, object]:
    """InitProducerId 0-4."""
    if request.transactional_id is not None:
        return {
            "error_code": int(Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
            "producer_id": -1,
            "producer_epoch": -1,
        }
    known = field(request, "producer_id", -1)
    epoch = field(request, "producer_epoch", -1)
    if known >= 0 and 0 <= epoch < 0x7FFF - 1:  # KIP-360: the same producer starts anew, after an error
        return {"error_code": 0, "producer_id": known, "producer_epoch": epoch + 1}
    return {"error_code": 0, "producer_id": await broker.producer_ids.next(), "producer_epoch": 0}


HANDLERS = {ApiKey.INIT_PRODUCER_ID: init_producer_id}
