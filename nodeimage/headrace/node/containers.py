"""The containers that one node leads: taken up at start-up, created, closed, deleted, and handed over when the node
stops."""

import asyncio
from collections.abc import Callable
from typing import Final

import structlog
from msgspec import structs

from headrace.base.errors import HeadraceError
from headrace.container.leader import Leader
from headrace.container.replicas import Replicas
from headrace.control.controller import Controller
from headrace.node.changes import Changes
from headrace.store import container_records, records
from headrace.store.protocol import ClusterStore, StoreCall
from headrace.store.records import ContainerRecord, NodeRecord
from headrace.store.view import ClusterView

log = structlog.get_logger()

HAND_OVER_S: Final = 5.0
"""Seconds that a stopping node waits until other nodes lead its containers."""
NEW_CONTAINER_S: Final = 10.0
LED_S: Final = 2.0


class NodeContainers:
    """The containers that one node leads."""

    def __init__(
        self,
        *,
        node: NodeRecord,
        view: ClusterView,
        replicas: Replicas,
        controller: Controller,
        store: StoreCall,
        changes: Changes,
        note_stop: Callable[[], None] = lambda: None,
    ) -> None:
        """`note_stop`: [blocking] see DataFolder.stops."""
        self._node = node
        self._view = view
        self._replicas = replicas
        self._controller = controller
        self._store = store
        self._changes = changes
        self._note_stop = note_stop

    # --- at the start

    async def taken_up(self, open_data: Callable[[], list[ContainerRecord]]) -> None:
        """Return when there are containers for new partitions, and this node leads those that it should lead.

        In a new cluster the controller creates the first ones meanwhile. This node does not wait longer than `LED_S` to
        lead a container: others may be usable.
        """
        while not open_data():
            await self._changes.wait()
        try:
            async with asyncio.timeout(LED_S):
                while not self._leads(open_data()):
                    await self._changes.wait()
        except TimeoutError:
            log.warning("serves before it leads all of its containers", node=self._node.node_id)

    def _leads(self, wanted: list[ContainerRecord]) -> bool:
        own = [record for record in wanted if record.leader == self._node.node_id]
        return all(record.container_id in self._replicas.led for record in own)

    # --- requests of the node's other parts

    async def new(self, volume: str = "default") -> Leader:
        """Create a container that this node is the first to lead, and return it once it does."""
        record = await self._controller.create(
            first=self._node.node_id, volume=self._view.volumes.get(volume) or records.VolumeRecord(volume)
        )
        self._view.refresh()
        async with asyncio.timeout(NEW_CONTAINER_S):
            while record.container_id not in self._replicas.led:
                await self._changes.wait()
        return self._replicas.led[record.container_id]

    async def close(self, container: Leader) -> None:
        """Close a container: no new partitionlets are opened in it."""
        await self._set_state(container, "closed")
        # Not before the store has recorded it: otherwise, while the store is unavailable, all containers may be
        # closing, and partitions would roll to and fro.
        container.closing = True

    async def delete(self, container: Leader) -> None:
        """Delete a container: its replicas are removed with all that they hold."""
        await self._set_state(container, "deleted")

    async def _set_state(self, container: Leader, state: str) -> None:
        def changed(present: ContainerRecord) -> ContainerRecord:
            # A node that was suspended may ask for this late: a deleted container stays deleted.
            return present if present.state == "deleted" else structs.replace(present, state=state)

        await self._store(lambda store: container_records.change_container(store, container.id, changed))
        self._view.refresh()

    # --- at the end

    async def hand_over(self) -> None:
        """Have other nodes lead what this node leads, if there are any that can."""
        led = [
            container.id
            for container in self._replicas.led.values()
            if any(member.node != self._node.node_id for member in container.state.in_sync)
        ]
        if not led:
            return
        for container in self._replicas.led.values():
            container.handing_over = container.id in led  # invariant 16
        try:
            await self._store(self._note_stopping)
            async with asyncio.timeout(HAND_OVER_S):
                while any(container in self._replicas.led for container in led) and self._has_successor():
                    await self._changes.wait()
        except (HeadraceError, OSError) as error:  # TimeoutError, too
            log.info("stops before everything is handed over", reason=str(error) or "timeout")
        except Exception:  # the node has to stop and sync all the same
            log.exception("handing over failed")

    def _note_stopping(self, store: ClusterStore) -> None:
        """[blocking] Note in the folder, then in the cluster store, that this node stops.

        The folder comes first: if only the store says so, the folder passes for an older copy at the next start, and
        its replicas count as out of sync. If this call fails, other nodes notice that the process has ended.
        """
        self._note_stop()
        records.set_stopping(store, self._node.node_id, run=self._node.run)

    def _has_successor(self) -> bool:
        heard = self._controller.heard()
        return any(not node.stopping for node in self._view.nodes.values() if node.node_id in heard)
