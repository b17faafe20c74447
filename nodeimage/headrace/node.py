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
import resource
import shutil
import signal
import socket
import sys
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import structlog
import uvloop
from msgspec import structs

from headrace.broker.broker import Broker, NodeIdentity, NodeSettings
from headrace.broker.disk_room import DiskRoom, ReservedRoom
from headrace.broker.listener import Connection
from headrace.catalog.commands import CreateStream, StreamPolicy
from headrace.catalog.service import Catalog
from headrace.container.container import Container
from headrace.container.replica import Member
from headrace.errors import FolderRefused, HeadraceError
from headrace.folder import DataFolder
from headrace.ids import ContainerId, Epoch, Millis, NodeId
from headrace.log.container_log import ContainerLog, LogOptions
from headrace.store import records
from headrace.store.records import ContainerRecord, NodeRecord
from headrace.store.sqlite import SqliteStore

log = structlog.get_logger()

READERS = 4
CATALOG_CHUNK_BYTES = 16 * 1024 * 1024
GC_THRESHOLDS = (50_000, 20, 1_000)
"""A request makes some tens of objects that die by reference counts; to look at all others often stalls the loop."""
SWITCH_S = 0.001
"""How long a thread may keep the interpreter while the loop waits for it; Python's default is 5 ms."""
EXIT_REFUSED = 2
LEAST = {
    "chunk_bytes": 64 * 1024,
    "container_bytes": 64 * 1024,
    "partitionlet_bytes": 1024,
    "disk_quota": 0,
    "disk_reserve": 0,
    "rebalance_delay_ms": 0,
}
"""Below these a node would do nothing but make files and rolls."""
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
    parser = argparse.ArgumentParser(
        prog="headrace.node", description="One storage node of an embedded cluster.", allow_abbrev=False
    )
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
    for name, least in LEAST.items():
        if getattr(given, name) < least:
            parser.error(f"--{name.replace('_', '-')} is {getattr(given, name)}; the least is {least}")
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


class Node:
    """The process's parts, from the folder up."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._settings = options.settings
        self._folder = DataFolder.open(options.data)
        self._executor = ThreadPoolExecutor(READERS, thread_name_prefix="reader")
        self._containers: dict[ContainerId, Container] = {}
        self._room = DiskRoom(options.data, self._settings)
        self._reserved_room = ReservedRoom(self._room)
        self.ended = asyncio.Event()

    async def start(self) -> NodeIdentity:
        """Recover and serve. Raises `HeadraceError`, `OSError`."""
        options = self._options
        listening = _listen(options.host, options.port)
        port = int(listening.getsockname()[1])
        loop = asyncio.get_running_loop()
        self._store = await loop.run_in_executor(self._executor, SqliteStore, options.store)
        cluster, record = await loop.run_in_executor(self._executor, self._register, port)
        found = await loop.run_in_executor(self._executor, self._lead_containers, record)
        logs = await asyncio.gather(*(loop.run_in_executor(self._executor, self._open_log, each) for each in found))
        for each, container_log in zip(found, logs, strict=True):
            self._containers[each.container_id] = self._lead(each, record, container_log)
        catalog_id = next(each.container_id for each in found if each.kind == "catalog")
        self.catalog = await Catalog.open(options.data / "catalog", self._containers[catalog_id])
        self.identity = NodeIdentity(
            node_id=record.node_id,
            cluster_id=cluster.cluster_id,
            host=options.host,
            port=port,
            settings=self._settings,
        )
        self.broker = Broker(
            node=self.identity,
            catalog=self.catalog,
            containers=self._containers,
            executor=self._executor,
            producer_block=lambda size: records.next_producer_block(self._store, size),
        )
        self.broker.space.attach(self._new_container, self._close_container, self._delete_container, catalog_id)
        if await self.catalog.query(lambda reader: reader.stream(Broker.default_stream)) is None:
            policy = StreamPolicy(auto_create=True)
            await self.catalog.submit(
                CreateStream(path=Broker.default_stream, policy=policy, now=Millis(self.broker.now()))
            )
        await self.broker.start()
        self._server = await loop.create_server(lambda: Connection(self.broker), sock=listening, backlog=1024)
        return self.identity

    async def stop(self) -> None:
        """Answer what can be answered, sync, and let go of the folder."""
        if hasattr(self, "_server"):
            self._server.close()
        if hasattr(self, "broker"):
            await self.broker.close()
        if hasattr(self, "catalog"):
            await self.catalog.close()
        for container in self._containers.values():
            await container.close()
        self._executor.shutdown()
        if hasattr(self, "_store"):
            self._store.close()
        self._folder.close()

    # --- the cluster store [blocking]

    def _register(self, port: int) -> tuple[records.ClusterRecord, NodeRecord]:
        cluster = records.ensure_cluster(self._store)
        records.ensure_volume(self._store, records.VolumeRecord("default"))
        identity = self._folder.identity()
        if identity is not None:
            self._folder.check_cluster(identity, cluster.cluster_id)
        folder_id = uuid.UUID(identity.folder_id) if identity is not None else uuid.uuid4()
        record = records.register_node(
            self._store,
            node_id=NodeId(identity.node_id) if identity is not None else None,
            format=folder_id,
            run=uuid.uuid4(),
            host=self._options.host,
            port=port,
            failure_host=socket.gethostname(),
        )
        if identity is None:
            self._folder.claim(cluster_id=cluster.cluster_id, node_id=record.node_id, folder_id=str(folder_id))
        return cluster, record

    def _lead_containers(self, node: NodeRecord) -> list[ContainerRecord]:
        """The containers that this node leads, each at an epoch of this run's own; made if it has none yet."""
        every = records.containers(self._store)
        mine = [each for each in every if each.primary == node.node_id and each.state != "deleted"]
        if not any(each.kind == "catalog" for each in mine):
            mine.append(records.create_container(self._store, kind="catalog", primary=node))
        if not any(each.kind == "data" and each.state == "open" for each in mine):
            mine.append(records.create_container(self._store, kind="data", primary=node))
        for each in every:
            if each.state == "deleted" and each.primary == node.node_id:  # a crash may have left its folder
                _remove_folder(self._options.data / "containers" / str(each.container_id))
        return [
            records.change_container(
                self._store, each.container_id, lambda now: structs.replace(now, epoch=Epoch(now.epoch + 1))
            )
            for each in mine
        ]

    def _open_log(self, record: ContainerRecord) -> ContainerLog:
        chunk = self._settings.chunk_bytes
        if record.kind == "catalog":
            chunk = min(chunk, CATALOG_CHUNK_BYTES)
        folder = self._options.data / "containers" / str(record.container_id)
        folder.mkdir(parents=True, exist_ok=True)
        return ContainerLog.open(folder, LogOptions(chunk_bytes=chunk, fsync=self._settings.fsync))

    # --- containers

    def _lead(self, record: ContainerRecord, node: NodeRecord, container_log: ContainerLog) -> Container:
        self._node = node
        container = Container(
            container_id=record.container_id,
            member=Member(node.node_id, str(node.format)),
            epoch=record.epoch,
            container_log=container_log,
            executor=self._executor,
            room=self._reserved_room if record.kind == "catalog" else self._room,
            fatal=self._fatal,
        )
        container.closing = record.state != "open"
        return container

    async def _new_container(self) -> Container:
        loop = asyncio.get_running_loop()
        record = await loop.run_in_executor(
            self._executor, lambda: records.create_container(self._store, kind="data", primary=self._node)
        )
        container_log = await loop.run_in_executor(self._executor, self._open_log, record)
        container = self._containers[record.container_id] = self._lead(record, self._node, container_log)
        return container

    async def _close_container(self, container: Container) -> None:
        await self._set_state(container, "closed")

    async def _delete_container(self, container: Container) -> None:
        await self._set_state(container, "deleted")
        del self._containers[container.id]
        await container.close()
        folder = container.log.folder
        await asyncio.get_running_loop().run_in_executor(self._executor, _remove_folder, folder)

    async def _set_state(self, container: Container, state: str) -> None:
        await asyncio.get_running_loop().run_in_executor(
            self._executor,
            lambda: records.change_container(self._store, container.id, lambda now: structs.replace(now, state=state)),
        )

    def _fatal(self, reason: str) -> NoReturn:
        log.critical("the disk failed, this process ends", reason=reason)
        sys.stderr.flush()
        os._exit(EXIT_DISK_FAILED)


def _remove_folder(folder: Path) -> None:
    """[blocking] A deleted container's folder. What cannot be removed now is at the next start."""
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        pass
    except OSError as error:
        log.warning("a deleted container's folder stays", folder=str(folder), error=str(error))


def _listen(host: str, port: int) -> socket.socket:
    """A bound socket. Raises `FolderRefused` with a line that says who has the port."""
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise FolderRefused(f"cannot listen on {host}:{port}: {error.strerror}; choose another with --port") from error
    listening.setblocking(False)
    return listening


async def serve(options: Options) -> int:
    """Run a node until SIGTERM or SIGINT; the exit code."""
    loop = asyncio.get_running_loop()
    node = Node(options)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, node.ended.set)
    try:
        identity = await node.start()
    except BaseException:
        await node.stop()
        raise
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    log.info("ready", node=identity.node_id, address=f"{identity.host}:{identity.port}", pid=os.getpid())
    if options.ready_file is not None:
        _write_ready(options.ready_file, identity)
    ended = loop.create_task(node.ended.wait())
    waited: set[asyncio.Future[Any]] = {ended, node.catalog.failed}
    await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
    failed = node.catalog.failed.done()
    if failed:
        log.critical("the catalog failed, this process ends", error=repr(node.catalog.failed.exception()))
    log.info("stopping", node=identity.node_id)
    ended.cancel()
    await node.stop()
    return EXIT_DISK_FAILED if failed else 0


def _write_ready(path: Path, identity: NodeIdentity) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(
        json.dumps({"id": identity.node_id, "host": identity.host, "port": identity.port, "pid": os.getpid()})
    )
    temporary.rename(path)


def main(arguments: Sequence[str] | None = None) -> int:
    """The process."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    _log_to_stderr()
    sys.setswitchinterval(SWITCH_S)
    try:
        return uvloop.run(serve(options))
    except HeadraceError as error:
        print(f"headrace: {error}", file=sys.stderr)
        return EXIT_REFUSED
    except OSError as error:
        print(f"headrace: cannot start in {options.data}: {error}", file=sys.stderr)
        return EXIT_REFUSED


def _log_to_stderr() -> None:
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            structlog.processors.LogfmtRenderer(key_order=("timestamp", "level", "event")),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


if __name__ == "__main__":
    sys.exit(main())
