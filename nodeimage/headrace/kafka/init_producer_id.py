"""InitProducerId: ids for idempotent producers, in blocks from the cluster store.

A block is taken by compare-and-set before any of its ids is given out, so each id is given out once, whatever crashes.
The next block is taken when half of the present one is left, so that new producers get ids while the store is
unavailable. Transactional producers are refused until transactions are supported.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog

from headrace.base.errors import Code, HeadraceError
from headrace.base.runtime import Runtime
from headrace.kafka.api import Api
from headrace.kafka.authorization import Authorization
from headrace.kafka.connection import Connection
from headrace.security.kafka_acls import AclOperation
from headrace.wire.api_keys import ApiKey, Versions
from headrace.wire.generic_codec import field

log = structlog.get_logger()

BLOCK = 1000
RETRY_S = 5.0


class ProducerIds:
    """Gives out ids one by one, and takes the next block in a thread."""

    def __init__(self, *, runtime: Runtime, block: Callable[[int], range]) -> None:
        """`block` takes the given number of ids; it blocks, and raises StoreUnavailable."""
        self._runtime = runtime
        self._block = block
        self._ids: deque[int] = deque()
        self._lock = asyncio.Lock()
        self._ahead_at = 0.0
        """Loop time from which the next block may be taken ahead of need."""

    async def next(self) -> int:
        """An id that no other producer has. Raises StoreUnavailable if the last block is used up."""
        while not self._ids:
            async with self._lock:
                if not self._ids:
                    await self._take()
        producer_id = self._ids.popleft()
        now = self._runtime.loop.time()
        if len(self._ids) <= BLOCK // 2 and not self._lock.locked() and now >= self._ahead_at:
            self._ahead_at = now + RETRY_S
            self._runtime.spawn(self._take_ahead())
        return producer_id

    async def _take_ahead(self) -> None:
        async with self._lock:
            try:
                await self._take()
            except HeadraceError as error:
                log.warning("the next producer ids cannot be taken yet", left=len(self._ids), reason=str(error))

    async def _take(self) -> None:
        block = await self._runtime.loop.run_in_executor(self._runtime.executor, self._block, BLOCK)
        self._ids.extend(block)
        self._ahead_at = 0.0


class InitProducerIdApi:
    """Answers InitProducerId."""

    def __init__(self, *, producer_ids: ProducerIds, authorization: Authorization) -> None:
        self._producer_ids = producer_ids
        self._authorization = authorization

    @property
    def apis(self) -> Sequence[Api]:
        """The APIs that this module answers."""
        return (Api(ApiKey.INIT_PRODUCER_ID, Versions(0, 4), self.init_producer_id),)

    async def init_producer_id(self, request: Any, session: Connection) -> Mapping[str, object]:
        """InitProducerId."""
        if request.transactional_id is not None:
            return {
                "error_code": int(Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
                "producer_id": -1,
                "producer_epoch": -1,
            }
        if not self._authorization.may(session, AclOperation.IDEMPOTENT_WRITE, api="InitProducerId"):
            refused = int(Code.CLUSTER_AUTHORIZATION_FAILED)
            return {"error_code": refused, "producer_id": -1, "producer_epoch": -1}
        known = field(request, "producer_id", -1)
        epoch = field(request, "producer_epoch", -1)
        if known >= 0 and 0 <= epoch < 0x7FFF - 1:  # KIP-360: the same producer restarts after an error
            return {"error_code": 0, "producer_id": known, "producer_epoch": epoch + 1}
        try:
            return {"error_code": 0, "producer_id": await self._producer_ids.next(), "producer_epoch": 0}
        except HeadraceError as error:
            log.warning("no producer id can be given out", reason=str(error))
            # The only code after which every client retries without looking for a coordinator first.
            return {"error_code": int(Code.COORDINATOR_LOAD_IN_PROGRESS), "producer_id": -1, "producer_epoch": -1}
