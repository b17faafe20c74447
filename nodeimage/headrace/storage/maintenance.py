"""Maintenance of the node's disk: chunk closing, expiry, chunk garbage collection, regrouping, container closing, and
the limits of volumes.

One task runs all steps, every few seconds and whenever another part wakes it; no topic has a timer of its own. Disk
work runs in threads, regrouping in a helper process of low priority. Every replica of this node is covered: each
closes, collects and regroups its chunks independently, by the catalog that its node has applied. Only a container's
leader moves log starts, appends, or closes and deletes the container.

Order matters (invariant 12): a committed command moves the log start first (expiry.py), and the bytes are freed
afterwards (chunk_gc.py). What a later reader needs of a chunk is appended again before the chunk is dropped. A step
that fails, or a damaged chunk, does not delay the others.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from headrace.base.ids import ContainerId
from headrace.base.runtime import Runtime
from headrace.catalog.catalog import Catalog
from headrace.container.leader import Leader
from headrace.container.listeners import ReplicaListener
from headrace.log.chunk import Body
from headrace.log.container_log import ContainerLog
from headrace.log.writing import Spare
from headrace.partitions.cluster_client import ClusterClient, ClusterTime
from headrace.partitions.cluster_layout import NodeSettings
from headrace.partitions.partitions import Partitions
from headrace.partitions.reads.remote_reads import RemoteReads
from headrace.partitions.rolls.rolls import Rolls
from headrace.partitions.topics import Topics
from headrace.storage.chunk_closing import ChunkClosing
from headrace.storage.chunk_gc import ChunkGc
from headrace.storage.chunk_inventory import FAILURES, ChunkInventory, ChunkKey
from headrace.storage.container_closing import ContainerChanges, ContainerClosing
from headrace.storage.expiry import Expiry
from headrace.storage.regroup import Regrouping
from headrace.storage.scrub import Scrub
from headrace.storage.volume_limits import VolumeLimits

log = structlog.get_logger()

EVERY_S = 5.0
REPLICAS_A_ROUND: Final = 500
"""Limit of replicas with which a routine round runs every `EVERY_S` seconds; with more replicas rounds are rarer in
proportion, since each round checks all of them."""


class Maintenance(ReplicaListener):
    """The one task that maintains the disk space of all replicas of this node."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        catalog: Catalog,
        cluster: ClusterClient,
        cluster_time: ClusterTime,
        settings: NodeSettings,
        topics: Topics,
        partitions: Partitions,
        rolls: Rolls,
        remote_reads: RemoteReads,
        scrub: Scrub,
        volume_limits: VolumeLimits,
        changes: ContainerChanges,
        catalog_id: ContainerId,
        mark: Path | None = None,
        regroup_enabled: bool = True,
    ) -> None:
        """`changes`: creates, closes and deletes containers; `catalog_id`: the catalog's container, which has no
        records; `mark`: the file that keeps what garbage collection has searched, for the next start."""
        self._runtime = runtime
        self._cluster = cluster
        self._volume_limits = volume_limits
        self._regroup_enabled = regroup_enabled
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._round_lock = asyncio.Lock()
        self._inventory = ChunkInventory(
            runtime=runtime, catalog=catalog, cluster=cluster, catalog_id=catalog_id, suspect=scrub.suspect
        )
        self._chunk_gc = ChunkGc(runtime=runtime, catalog=catalog, inventory=self._inventory, mark=mark)
        catalog.on_dead_records(self._chunk_gc.died)
        self._chunk_closing = ChunkClosing(
            runtime=runtime, catalog=catalog, inventory=self._inventory, chunk_gc=self._chunk_gc
        )
        self._container_closing = ContainerClosing(
            runtime=runtime,
            catalog=catalog,
            cluster=cluster,
            topics=topics,
            partitions=partitions,
            rolls=rolls,
            changes=changes,
            container_bytes=settings.container_bytes,
            inventory=self._inventory,
            wake=self._wake.set,
        )
        self._expiry = Expiry(
            runtime=runtime,
            catalog=catalog,
            cluster=cluster,
            cluster_time=cluster_time,
            remote_reads=remote_reads,
            inventory=self._inventory,
        )
        self._regrouping = Regrouping(runtime=runtime, disk_reserve=settings.disk_reserve, done=self._chunk_regrouped)

    # --- notifications

    def container_led(self, _container: Leader) -> None:
        """See ReplicaListener."""
        self._wake.set()

    def container_left(self, container: Leader) -> None:
        """See ReplicaListener."""
        self._container_closing.left(container.id)

    def chunk_full(self, _container: ContainerId) -> None:
        """See ReplicaListener."""
        self._wake.set()

    def chunk_waits(self, _container: ContainerId) -> None:
        """See ReplicaListener."""
        self._wake.set()

    def records_freed(self) -> None:
        """Note that records have died: they lost their owner, or lie below their partition's log start. Check chunks
        soon."""
        self._chunk_closing.look_early()
        self._wake.set()

    def rows_replaced(self) -> None:
        """Note that all rows may have been replaced, so any records may have died."""
        self._chunk_gc.anything_died()
        self.records_freed()

    # --- queries

    @property
    def catalog_id(self) -> ContainerId:
        """The catalog's container."""
        return self._inventory.catalog_id

    @property
    def regrouped(self) -> int:
        """Chunks regrouped since the start."""
        return self._regrouping.regrouped

    @property
    def dropped(self) -> int:
        """Whole chunks dropped since the start."""
        return self._chunk_gc.dropped

    @property
    def chunk_looks(self) -> int:
        """Chunks searched for dead bytes since the start, as a whole or for single partitionlets."""
        return self._chunk_gc.looks + self._chunk_gc.searches

    @property
    def freed_bytes(self) -> int:
        """Bytes freed since the start."""
        return self._chunk_gc.freed_bytes

    def open_containers(self) -> list[Leader]:
        """The containers that this node leads and that accept new partitionlets."""
        return [container for container in self._inventory.led() if not container.closing]

    # --- life

    def start(self) -> None:
        """Start the task."""
        self._cluster.replicas.add_replica_listener(self)
        self._task = self._runtime.spawn(self._run())

    async def load(self) -> None:
        """Load what the previous process has searched. Must be called before `start`."""
        await self._chunk_gc.load()

    async def close(self) -> None:
        """Stop the task; a regrouping process is ended, and its work is redone later."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._regrouping.close()

    async def pass_now(self) -> None:
        """Run one round at once: for an admin who has just deleted something, and for tests."""
        await self._round()

    def _chunk_regrouped(self, key: ChunkKey) -> None:
        """Note that a chunk's dead bytes are contiguous now, so that more of them can be freed."""
        self._chunk_gc.regrouped(key)
        self._wake.set()

    # --- the task

    async def _run(self) -> None:
        passed = 0
        while True:
            try:
                async with asyncio.timeout(EVERY_S):
                    await self._wake.wait()
            except TimeoutError:
                passed += 1
                if passed * REPLICAS_A_ROUND < self._cluster.replicas.count:
                    await self._steps(("check volume limits", self._volume_limits.step))
                    continue
            self._wake.clear()
            passed = 0
            await self._round()

    async def _round(self) -> None:
        await self._steps(
            ("check volume limits", self._volume_limits.step),
            ("close chunks", self._chunk_closing.close_full),
            ("close containers", self._container_closing.close_full),
            ("expire records", self._expiry.step),
            ("free chunks", self._chunk_gc.step),
            ("close chunks early", self._chunk_closing.close_early),
            ("delete containers", self._container_closing.delete_empty),
            ("expire committed offsets", self._expiry.expire_committed_offsets),
            ("clean up after deleted topics", self._expiry.forget_deleted),
            ("regroup", self._regroup),
            ("release what is no longer needed", self._forget_gone),
        )

    async def _steps(self, *steps: tuple[str, Callable[[], Awaitable[object]]]) -> None:
        async with self._round_lock:
            for name, step in steps:
                try:
                    await step()
                except FAILURES as error:
                    log.warning("a maintenance step failed, and will be retried", step=name, error=str(error))
                except Exception:
                    # A programming error must not end the one task that frees disk space.
                    log.exception("a maintenance step failed unexpectedly, and will be retried", step=name)

    async def _regroup(self) -> None:
        if self._regroup_enabled:
            await self._regrouping.step(self._inventory.data())

    async def _forget_gone(self) -> None:
        """Forget chunks that are gone, whose notes would keep their files open; and in closed containers, to which only
        seals are still written, release batches in memory and large spare chunks."""
        here: dict[ChunkKey, Body] = {}
        rested: list[tuple[ContainerLog, list[Spare]]] = []
        for held in self._inventory.held():
            chunks = held.log.chunks()
            here |= {(held.id, chunk.start): chunk.body for chunk in chunks}
            record = self._cluster.record(held.id)
            if record is not None and record.state == "closed" and all(chunk.body.closed for chunk in chunks):
                held.log.forget_tail()
                if held.led is not None:
                    held.led.forget_recent()
                if spares := held.log.use_small_chunks():
                    rested.append((held.log, spares))
        self._inventory.keep(here)
        self._regrouping.forget(lambda key: key not in here)
        if rested:
            await self._inventory.blocking(partial(_shrink_spares, rested))


def _shrink_spares(rested: Sequence[tuple[ContainerLog, Sequence[Spare]]]) -> None:
    """[blocking] Replace large spare chunks by small ones, for the seals of idle partitions, so that seals find room on
    a full disk too.

    Raises StorageFull; logs that lack a spare chunk make room for one themselves.
    """
    for _, spares in rested:
        for spare in spares:
            spare.drop()
    for container_log, _ in rested:
        container_log.make_spare()
