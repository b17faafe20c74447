"""Restores what one node has written to the cluster store, if the store is set back to a time before that.

1. The node's registration. A store that was set back has an older one (another run, another address), or none. A
   removed node has none either, but removals leave a trace (records.RemovedNodes), and end the node.
2. That containers were deleted. Their replicas are gone everywhere, so no node could lead what an old copy brings back.
3. The counters of ids. A node that has seen a higher counter than the store's raises it beyond what it has seen, so
   that no id is handed out twice.

Crash behaviour: the next run, or the other nodes, write everything again. This module knows nothing of containers:
replicas themselves take care not to act on old records (store.lineage).
"""

import asyncio
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, Protocol

import structlog
from msgspec import structs

from headrace.base.errors import FolderRefused, HeadraceError
from headrace.base.ids import ContainerId, NodeId
from headrace.base.levels import Level
from headrace.store import container_records, records
from headrace.store.protocol import StoreCall
from headrace.store.records import NodeRecord

log = structlog.get_logger()

AGAIN_S: Final = 1.0
FELL_S: Final = 30.0
"""Seconds after the store was set back within which a missing registration counts as lost with it."""


class _View(Protocol):
    @property
    def nodes(self) -> Mapping[NodeId, NodeRecord]: ...

    @property
    def counters(self) -> Mapping[str, int]: ...

    @property
    def highest(self) -> Mapping[str, int]: ...

    @property
    def undeleted(self) -> set[ContainerId]: ...

    @property
    def fell_at(self) -> float: ...

    def refresh(self) -> None: ...


class Registration:
    """One run's registration. Belongs to the event loop."""

    def __init__(
        self,
        record: NodeRecord,
        *,
        view: _View,
        store: StoreCall,
        folder_level: Callable[[], int],
        full: Callable[[], bool],
        removed: Callable[[str], None],
    ) -> None:
        """`folder_level`: the highest feature level that the node's folder has seen. `full`: whether the node has
        hardly any room. `removed`: called once, with the reason, when this run no longer has a place in the cluster."""
        self._record = record
        self._view = view
        self._store = store
        self._folder_level = folder_level
        self._full = full
        self._removed = removed
        self._loop = asyncio.get_running_loop()
        self._answered: set[uuid.UUID] = set()
        """Other runs that this one has replaced in the store. Two runs alive at once must not replace each other
        forever."""
        self._fell_at = view.fell_at
        self._over = False
        self._task: asyncio.Task[None] | None = None

    def look(self) -> None:
        """Check the view, which has changed, and restore what is missing."""
        if (self._task is None or self._task.done()) and not self._over and self._is_due():
            self._task = self._loop.create_task(self._restore(), name="registration")

    async def close(self) -> None:
        """Stop restoring."""
        self._over = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _is_due(self) -> bool:
        return self._is_lost() or bool(self._behind()) or bool(self._view.undeleted)

    def _is_lost(self) -> bool:
        own = self._view.nodes.get(self._record.node_id)
        if own is None or self._view.fell_at > self._fell_at:
            return True
        return own.run != self._record.run and own.run not in self._answered

    def _behind(self) -> dict[str, int]:
        """The highest values seen of the counters that are lower now."""
        highest, counters = self._view.highest, self._view.counters
        return {key: most for key, most in highest.items() if counters.get(key, 0) < most}

    async def _restore(self) -> None:
        while not self._over and self._is_due():
            try:
                if self._is_lost():
                    await self._restore_registration()
                if undeleted := sorted(self._view.undeleted):
                    await self._store(partial(container_records.delete_again, containers=undeleted))
                    self._view.undeleted.difference_update(undeleted)
                    log.warning("deleted again, as the cluster store was set back", containers=undeleted)
                if behind := self._behind():
                    await self._store(partial(records.raise_counters, seen=behind))
                    log.warning("counters of ids are raised again, as the cluster store was set back", behind=behind)
            except FolderRefused as error:
                self._end(str(error))
                return
            except HeadraceError as error:
                log.warning("this node's registration could not be restored yet", reason=str(error))
            except Exception:
                log.exception("restoring this node's registration failed")
            self._view.refresh()
            await asyncio.sleep(AGAIN_S)

    async def _restore_registration(self) -> None:
        """Restore the registration. Raises FolderRefused if the node was removed from the cluster."""
        record, fell_at = self._record, self._view.fell_at
        own = self._view.nodes.get(record.node_id)
        lost_by_fall = self._loop.time() - fell_at < FELL_S
        if own is None and not lost_by_fall and self._folder_level() < Level.FENCED:
            raise FolderRefused(f"node {record.node_id} was removed from the cluster")
        wanted = structs.replace(record, full=self._full())
        await self._store(lambda store: records.put_back_node(store, wanted))
        self._fell_at = fell_at
        if own is not None:
            self._answered.add(own.run)
        log.warning("this node is registered again, as the cluster store was set back", node=record.node_id)

    def _end(self, reason: str) -> None:
        self._over = True
        self._removed(reason)
