"""Volumes with a size limit: how much their containers hold, and which refuse records because the limit is exceeded.

A container counts once, however many replicas it has, with the bytes of its leader's files; preallocated but unused
room does not count. Every node checks the containers that it leads every few seconds, so a volume may exceed its limit
by what was written meanwhile. Records are then refused with a storage error, upon which clients retry; reads continue,
and so do writes once time to live, deletes or a higher limit have made room.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

import structlog

from headrace.base.errors import HeadraceError
from headrace.base.ids import ContainerId
from headrace.base.runtime import Runtime
from headrace.partitions.cluster_client import ClusterClient
from headrace.peer.messages import HeldBytes
from headrace.storage.disk_usage import bytes_on_disk
from headrace.store.records import NodeRecord

log = structlog.get_logger()

ASK_S: Final = 1.0
"""Seconds to wait for a node's answer; after that, its last answer counts."""


class VolumeLimits:
    """Measures what volumes hold. `step` sets `Leader.refuses` of the containers that this node leads."""

    def __init__(self, *, runtime: Runtime, cluster: ClusterClient, catalog_id: ContainerId) -> None:
        """`catalog_id`: the catalog's container, to which no limit applies."""
        self._runtime = runtime
        self._cluster = cluster
        self._catalog_id = catalog_id
        self._known: dict[ContainerId, int] = {}
        """By container, the last known size, which still counts for nodes that do not answer."""

    async def step(self) -> None:
        """Measure the volumes that have a limit, and let containers refuse records or accept them again."""
        view = self._cluster.view
        limited = {name: each.size_limit for name, each in view.volumes.items() if each.size_limit}
        held = await self.by_volume() if limited else {}
        for container in self._cluster.replicas.led.values():
            if container.id == self._catalog_id:
                continue
            size, limit = held.get(container.volume, 0), limited.get(container.volume, 0)
            over = bool(limit) and size >= limit
            if over != bool(container.refuses):
                log.info("volume limit", container=container.id, volume=container.volume, refuses=over)
            container.refuses = f"volume {container.volume!r} holds {size} bytes, and may hold {limit}" if over else ""

    async def by_volume(self) -> Mapping[str, int]:
        """The bytes that each volume holds."""
        here, *there = await asyncio.gather(self.led_here(), *(self._led_by(node) for node in self._others()))
        for found in (here, *there):
            self._known.update(found)
        containers = self._cluster.view.containers
        kept = {id_ for id_, record in containers.items() if record.kind == "data" and record.state != "deleted"}
        self._known = {id_: size for id_, size in self._known.items() if id_ in kept}
        held: dict[str, int] = {}
        for id_, size in self._known.items():
            volume = containers[id_].volume
            held[volume] = held.get(volume, 0) + size
        return held

    async def led_here(self) -> dict[ContainerId, int]:
        """The bytes of each container that this node leads."""
        on_disk = await bytes_on_disk(self._runtime, self._cluster.replicas)
        return {
            container.id: max(0, on_disk.get(container.id, 0) - container.log.unused_bytes)
            for container in self._cluster.replicas.led.values()
        }

    def _others(self) -> list[NodeRecord]:
        return [node for node in self._cluster.nodes() if node.node_id != self._cluster.node_id]

    async def _led_by(self, node: NodeRecord) -> dict[ContainerId, int]:
        try:
            answer, _ = await self._cluster.ask(node, HeldBytes(), timeout_s=ASK_S)
        except HeadraceError:
            return {}
        return dict(answer.items)
