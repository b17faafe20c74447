"""The records that a plan puts into the cluster store: several at a time, the most important first.

A put whose outcome is unknown is repeated until the record has another version, and nothing else is put for that
container meanwhile. A put that fails or hangs does not hold up the others.

Puts that wait here were decided a moment ago, from what was known then: the next plan decides again, and replaces them
(`begin`). Puts in progress continue.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Final, NamedTuple

import structlog

from headrace.base.ids import ContainerId, NodeId
from headrace.base.levels import Level
from headrace.control.changes import PutContainer
from headrace.control.events import Events
from headrace.store import container_records
from headrace.store.protocol import StoreCall, StoreUnavailable, VersionConflict
from headrace.store.view import ClusterView

log = structlog.get_logger()

PUTS_AT_ONCE: Final = 16
"""The maximum number of puts in progress at the same time."""


class _UnknownOutcome(NamedTuple):
    """A put whose outcome is unknown."""

    change: PutContainer
    former: NodeId | None
    """The leader before the put."""


class PutQueue:
    """The puts of one controller."""

    def __init__(
        self,
        *,
        view: ClusterView,
        store_call: StoreCall,
        events: Events,
        may_put: Callable[[], bool],
        changed: Callable[[], None],
        spawn: Callable[[Coroutine[Any, Any, None], str], None],
        appointed: Callable[[PutContainer, NodeId], None] = lambda _change, _former: None,
    ) -> None:
        """`may_put`: whether this node still holds the lease. `changed`: called if a plan was based on an old version
        of a record. `spawn`: starts a task that ends with the controller. `appointed`: called with each change of
        leader that was put, and the former leader."""
        self._view = view
        self._store_call = store_call
        self._events = events
        self._may_put = may_put
        self._changed = changed
        self._spawn = spawn
        self._appointed = appointed
        self._waiting: deque[PutContainer] = deque()
        self._under_way: set[ContainerId] = set()
        self._unknown: dict[ContainerId, _UnknownOutcome] = {}
        self._workers = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def is_unsure(self) -> bool:
        """Whether the outcome of some put is unknown."""
        return bool(self._unknown)

    def forget(self) -> None:
        """Drop all puts: this node has become or ceased to be the controller."""
        self._waiting.clear()
        self._unknown.clear()

    def begin(self) -> None:
        """A plan begins: drop the waiting puts, and first repeat those whose outcome is unknown."""
        self._waiting.clear()
        for unsure in self._unknown.values():
            self._add(unsure.change)

    def put(self, change: PutContainer) -> None:
        """Put a record after those that wait, unless a put is in progress or unknown for its container."""
        container = change.record.container_id
        if container not in self._unknown and container not in self._under_way:
            traced = self._view.may(Level.FENCED)
            self._add(replace(change, record=container_records.stamped(change.record, traced=traced)))

    async def rest(self, timeout_s: float) -> None:
        """Wait until all puts are done, at most `timeout_s` seconds."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            pass

    def _add(self, change: PutContainer) -> None:
        if change.record.container_id in self._under_way:
            return
        self._waiting.append(change)
        if self._workers < PUTS_AT_ONCE:
            self._workers += 1
            self._idle.clear()
            self._spawn(self._work(), "put containers")

    async def _work(self) -> None:
        try:
            while self._waiting and self._may_put():
                change = self._waiting.popleft()
                container = change.record.container_id
                self._under_way.add(container)
                try:
                    await self._put(change)
                finally:
                    self._under_way.discard(container)
        finally:
            self._workers -= 1
            if not self._workers:
                self._idle.set()

    async def _put(self, change: PutContainer) -> None:
        container = change.record.container_id
        known = self._view.containers.get(container)
        if self._view.versions.get(container) != change.version:
            unsure = self._unknown.pop(container, None)
            if unsure is not None and known == change.record:
                self._report(change, unsure.former)
            self._changed()
            return
        former = None if known is None else known.leader
        try:
            version = await self._store_call(
                lambda store: container_records.put_container(store, change.record, change.version)
            )
        except StoreUnavailable as error:
            # The put may have been stored, or may still be. The record's next version will show that.
            self._unknown[container] = _UnknownOutcome(change, former)
            log.warning("a container's record could not be put", container=container, reason=str(error))
            return
        except VersionConflict:
            # An earlier put was stored, or another node was faster: the view will show which.
            self._view.refresh()
            return
        except Exception:  # the outcome is just as unknown
            self._unknown[container] = _UnknownOutcome(change, former)
            log.exception("putting a container's record failed unexpectedly", container=container)
            return
        self._unknown.pop(container, None)
        self._report(change, former)
        self._view.put_seen(change.record, version)

    def _report(self, change: PutContainer, former: NodeId | None) -> None:
        record = change.record
        kind = "primary" if former is not None and former != record.leader else "replicas"
        if change.is_balance:
            self._events.balance_moves += 1
        elif kind == "primary" and change.is_planned:
            self._events.hand_overs += 1
        elif kind == "primary":
            self._events.failovers += 1
        self._events.add(kind, change.reason, container=record.container_id, node=record.leader)
        if former is not None and former != record.leader:
            self._appointed(change, former)
