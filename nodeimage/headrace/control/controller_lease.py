"""The controller's lease: which node is the controller, and when another may become it.

The lease is a record that its holder renews twice a second. The other nodes judge by their own monotonic clocks whether
renewals continue. The lease only keeps two controllers from interfering with each other: a node that believes it holds
the lease may be wrong, and every change that a controller makes is a compare-and-set.
"""

import asyncio
import uuid
from collections.abc import Callable
from typing import Final

import structlog
from msgspec import structs

from headrace.base.errors import HeadraceError
from headrace.base.ids import NodeId
from headrace.control.observations import ProbeResult
from headrace.store import records
from headrace.store.protocol import StoreCall, StoreUnavailable, VersionConflict
from headrace.store.records import NOBODY, LeaseRecord
from headrace.store.view import ClusterView

log = structlog.get_logger()

RENEW_S: Final = 0.5
"""Seconds between two renewals."""
GIVE_BACK_TRIES: Final = 3
"""Attempts to give the lease back before it is left to expire."""
RETRY_S: Final = 0.05
"""Shortest pause, in seconds, between two steps of the holder."""
TAKE_S: Final = 2.0
"""Seconds without a visible renewal after which the lease is free."""
TAKE_REFUSED_S: Final = 1.0
"""Seconds without a visible renewal after which the lease is free if the holder's host refuses connections: the
holder's process is gone."""
TRUST_S: Final = 1.5
"""Seconds after a renewal for which the holder acts as the controller."""
LOOKED_S: Final = 1.2
"""A view of the store older than this many seconds may lack renewals, and proves nothing about the lease."""
STOOD_STILL_S: Final = 1.0
"""Seconds between two steps that show that this process was suspended."""
HOLD_OFF_S: Final = 2.0
"""Seconds for which a node that gave the lease back does not take it again."""
RELUCTANT_S: Final = 1.0
"""Seconds for which a node that hears too few nodes leaves a free lease to others. If no node takes it by then, none
hears more."""


class ControllerLease:
    """Takes, renews and gives back the lease. `changed` is called when this node becomes or ceases to be the
    controller."""

    def __init__(
        self,
        *,
        own: NodeId,
        run: uuid.UUID,
        view: ClusterView,
        store_call: StoreCall,
        probe_result: Callable[[NodeId], ProbeResult | None],
        changed: Callable[[bool], None],
        reluctant: Callable[[], bool] = lambda: False,
    ) -> None:
        """`reluctant` returns whether this node should leave the lease to others at present."""
        self._own = own
        self._run = run
        self._view = view
        self._store_call = store_call
        self._probe_result = probe_result
        self._changed = changed
        self._reluctant = reluctant
        self._free_since: float | None = None
        self._loop = asyncio.get_running_loop()
        self._held: LeaseRecord | None = None
        self._version: int | None = None
        self._renewed_at = float("-inf")
        self._seen: LeaseRecord | None = None
        self._seen_at = self._stepped_at = self._loop.time()
        self._hold_off_until = float("-inf")
        self._wake = asyncio.Event()
        self.taken_at = float("-inf")

    @property
    def term(self) -> int:
        """The term of the lease that this node holds or saw last; 0 if there was none."""
        lease = self._held or self._view.lease
        return 0 if lease is None else lease.term

    def is_held(self) -> bool:
        """Return whether this node may act as the controller now.

        A node that is stopping may not: what it knows of the hand-over of its own containers would be lost with it.
        """
        return self._held is not None and not self._is_leaving() and self._loop.time() - self._renewed_at < TRUST_S

    def lease_changed(self) -> None:
        """The view shows a changed lease, or changed nodes."""
        self._wake.set()

    async def keep(self) -> None:
        """Take the lease whenever it is free, and renew it while it is held. Runs until cancelled."""
        while True:
            try:
                await self._step()
            except StoreUnavailable as error:
                log.debug("the lease could not be written", reason=str(error))
            except HeadraceError as error:
                log.error("the lease cannot be used", reason=str(error))
            except Exception:  # without this task there may never be a controller again
                log.exception("a step of the controller's lease failed unexpectedly")
            try:
                async with asyncio.timeout(self._pause()):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()

    async def give_back(self, *, hold_off_s: float = HOLD_OFF_S) -> None:
        """Give the lease back, so that another node can take it at once; this node does not take it for
        `hold_off_s`."""
        self._hold_off_until = self._loop.time() + hold_off_s
        if self._held is None:
            return
        self._drop()
        try:
            for _ in range(GIVE_BACK_TRIES):
                if await self._free():
                    break
        except StoreUnavailable as error:
            log.info("the lease is left to expire", reason=str(error))
        except Exception:
            log.exception("the lease could not be given back, and is left to expire")
        self._view.refresh()

    async def _free(self) -> bool:
        """Free the lease; return whether it no longer belongs to this node.

        A renewal may have been in flight, so the lease is read again first.
        """
        found = await self._store_call(records.get_lease)
        if found is None or (found[0].node, found[0].run) != (self._own, self._run):
            return True
        lease, version = found
        free = structs.replace(lease, node=NOBODY, renewal=lease.renewal + 1)
        try:
            await self._store_call(lambda store: records.put_lease(store, free, version))
        except VersionConflict:
            return False
        return True

    # --- steps

    def _pause(self) -> float:
        if self._held is not None:
            return max(self._renewed_at + RENEW_S - self._loop.time(), RETRY_S)
        return RENEW_S / 2

    async def _step(self) -> None:
        now = self._loop.time()
        lease = self._view.lease
        # While this process was suspended it could not see renewals, so that time does not count.
        if lease != self._seen or now - self._stepped_at > STOOD_STILL_S:
            self._seen, self._seen_at = lease, now
        self._stepped_at = now
        leaving = self._is_leaving()
        if self._held is not None:
            await (self.give_back() if leaving else self._renew(self._held, now))
            return
        if leaving or now < self._hold_off_until:
            return
        if not self._is_free(lease, now):
            self._free_since = None
            return
        if self._free_since is None:
            self._free_since = now
        if now - self._free_since >= RELUCTANT_S or not self._reluctant():
            await self._take(lease, self._view.lease_version, now)

    def _is_leaving(self) -> bool:
        own = self._view.nodes.get(self._own)
        return own is None or own.run != self._run or own.stopping

    def _is_free(self, lease: LeaseRecord | None, now: float) -> bool:
        if lease is None or lease.node == self._own:
            return True
        holder = self._view.nodes.get(lease.node)
        if holder is None or holder.run != lease.run:
            return True
        if now - self._view.reachable_at > LOOKED_S:
            self._seen_at = now
            return False
        result = self._probe_result(lease.node)
        gone = result is not None and result.refused_twice
        return now - self._seen_at >= (TAKE_REFUSED_S if gone else TAKE_S)

    async def _take(self, lease: LeaseRecord | None, version: int | None, now: float) -> None:
        wanted = LeaseRecord(self._own, self._run, 1 if lease is None else lease.term + 1)
        try:
            taken = await self._store_call(lambda store: records.put_lease(store, wanted, version))
        except VersionConflict:
            self._view.refresh()
            return
        except StoreUnavailable:
            landed = await self._stored_version(wanted)
            if landed is None:
                return
            taken = landed
        self._held, self._version, self._renewed_at, self.taken_at = wanted, taken, now, now
        log.info("this node is the controller", term=wanted.term)
        self._changed(True)

    async def _renew(self, held: LeaseRecord, now: float) -> None:
        if now - self._renewed_at < RENEW_S:
            return
        wanted = structs.replace(held, renewal=held.renewal + 1)
        version = self._version
        try:
            renewed = await self._store_call(lambda store: records.put_lease(store, wanted, version))
        except VersionConflict:
            landed = await self._stored_version(wanted)  # an earlier put may have been stored
            if landed is None:
                self._drop()
                return
            renewed = landed
        if self._held is held:  # not given back meanwhile
            self._held, self._version, self._renewed_at = wanted, renewed, now

    async def _stored_version(self, wanted: LeaseRecord) -> int | None:
        """Return the version of `wanted` if the store holds it although the put failed; otherwise None."""
        found = await self._store_call(records.get_lease)
        return found[1] if found is not None and found[0] == wanted else None

    def _drop(self) -> None:
        if self._held is None:
            return
        self._held = None
        log.info("this node is no longer the controller")
        self._changed(False)
