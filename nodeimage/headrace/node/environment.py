"""What a node provides to its replicas (container.environment.Environment): sizes, room, the store, connections to
other nodes."""

import os
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import NoReturn, TypeVar

import structlog

from headrace.base.errors import NewerFormat
from headrace.base.ids import NodeId
from headrace.container.local_replica import CATALOG
from headrace.container.sync_cycle import Room
from headrace.container.writer_pool import Pool
from headrace.log.container_log import LogOptions
from headrace.metrics.log_times import LogTimes
from headrace.partitions.cluster_layout import NodeSettings
from headrace.peer.client import PeerClient
from headrace.peer.session import Session
from headrace.storage.disk_room import DiskRoom, ReservedRoom
from headrace.store.protocol import ClusterStore, StoreCall
from headrace.store.records import NodeRecord
from headrace.store.view import ClusterView

log = structlog.get_logger()

T = TypeVar("T")

CATALOG_CHUNK_BYTES = 16 * 1024 * 1024
EXIT_REFUSED = 2
EXIT_DISK_FAILED = 70
CONNECT_S = 2.0


class NodeEnvironment:
    """See container.environment.Environment."""

    def __init__(
        self,
        *,
        node_id: NodeId,
        node_format: str,
        executor: Executor,
        writer_pool: Pool,
        view: ClusterView,
        folder: Path,
        settings: NodeSettings,
        disk_room: DiskRoom,
        store: "StoreCall",
        peers: PeerClient,
        times: LogTimes | None = None,
    ) -> None:
        """`times`: where the logs record how long syncs take."""
        self.node_id = node_id
        self.node_format = node_format
        self.executor = executor
        self.writer_pool = writer_pool
        self.view = view
        self.folder = folder
        self._store = store
        self._settings = settings
        self._room = disk_room
        self._reserved_room = ReservedRoom(disk_room)
        self._peers = peers
        self._times = LogTimes() if times is None else times

    def store(self, change: Callable[[ClusterStore], T], /) -> Awaitable[T]:
        """Run a blocking call on the cluster store in a thread."""
        return self._store(change)

    def options(self, kind: str, volume: str) -> LogOptions:
        """The options for a container's log."""
        chunk = self._settings.chunk_bytes
        if kind == CATALOG:
            chunk = min(chunk, CATALOG_CHUNK_BYTES)
        record = self.view.volumes.get(volume)
        fsync = self._settings.fsync and (kind == CATALOG or record is None or record.durability != "memory")
        return LogOptions(chunk_bytes=chunk, fsync=fsync, times=self._times)

    def room(self, kind: str) -> Room:
        """The room that a container may use."""
        return self._reserved_room if kind == CATALOG else self._room

    def fatal(self, reason: str) -> NoReturn:
        """End the process: the disk failed (invariant 13)."""
        log.critical("the disk failed, this process ends", reason=reason)
        sys.stderr.flush()
        os._exit(EXIT_DISK_FAILED)

    def too_new(self, error: NewerFormat) -> NoReturn:
        """End the process: it met something that a newer version wrote, which it may neither skip nor cut off."""
        log.critical("made by a newer version, this process ends", reason=str(error))
        print(f"headrace: {error}", file=sys.stderr, flush=True)
        os._exit(EXIT_REFUSED)

    async def connect(self, node: NodeRecord) -> Session:
        """A new session with another node, for streaming."""
        return await self._peers.open(node.peer_address, CONNECT_S)
