"""One storage node as a process: `python -m headrace.node`.

Responsible for putting the parts together in the right order (folder, cluster store, containers, catalog, listener),
for saying when it is ready, and for stopping cleanly on SIGTERM. Exit codes: 0 stopped, 2 refused to start (one line
on stderr says why), 70 the disk failed (invariant 13).
"""

import argparse
import asyncio
import gc
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import structlog

from headrace.broker.broker import Broker, NodeIdentity, NodeSettings
from headrace.broker.listener import Connection
from headrace.broker.space import DiskRoom
from headrace.catalog.commands import CreateStream, StreamPolicy
from headrace.catalog.service import Catalog
from headrace.container.container import Container
from headrace.container.replica import Member
from headrace.errors import FolderRefused, HeadraceError
from headrace.folder import DataFolder, new_folder_id
from headrace.ids import ContainerId, Epoch, Millis, NodeId
from headrace.log.container_log import ContainerLog, LogOptions
from headrace.store.protocol import ClusterStore, VersionConflict
from headrace.store.records import (
    ContainerRecord,
    NodeRecord,
)
from headrace.store.sqlite import SqliteStore

log = structlog.get_logger()

READERS = 4
CATALOG_CHUNK_BYTES = 16 * 1024 * 1024
EXIT_REFUSED = 2
EXIT_DISK_FAILED = 70


@dataclass(frozen=True, slots=True)
class Options:
    """The command line."""

    data: Path
    store: Path
    host: str
    port: int
    ready_file: Path | None
    settings: NodeSettings


def parse(arguments: Sequence[str]) -> Options:
    """The options in `arguments`; exits with usage where they are wrong."""
    parser = argparse.ArgumentParser(prog="headrace.node", description="One storage node of an embedded cluster.")
    parser.add_argument("--data", type=Path, required=True, help="this node's folder")
    parser.add_argument("--store", type=Path, required=True, help="the cluster store's SQLite file")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--ready-file", type=Path, help="written as JSON once the node serves")
    defaults = NodeSettings()
    for name, what in (
        ("chunk-bytes", "size of a chunk file"),
        ("container-bytes", "size at which a container closes"),
        ("partitionlet-bytes", "size at which a partition rolls"),
        ("disk-quota", "most bytes that this node keeps; 0: no limit"),
        ("disk-reserve", "bytes of the disk that new chunks leave free"),
        ("rebalance-delay-ms", "how long a group's first rebalance waits for members"),
    ):
        parser.add_argument(f"--{name}", type=int, default=getattr(defaults, name.replace("-", "_")), help=what)
    parser.add_argument("--no-fsync", action="store_true", help="acknowledge from the page cache (durability: memory)")
    given = parser.parse_args(arguments)
    return Options(
        data=given.data,
        store=given.store,
        host=given.host,
        port=given.port,
        ready_file=given.ready_file,
        settings=NodeSettings(
            chunk_bytes=given.chunk_bytes,
            container_bytes=given.container_bytes,
            partitionlet_bytes=given.partitionlet_bytes,
            disk_quota=given.disk_quota,
            disk_reserve=given.disk_reserve,
            rebalance_delay_ms=given.rebalance_delay_ms,
            fsync=not given.no_fsync,
        ),
    )
