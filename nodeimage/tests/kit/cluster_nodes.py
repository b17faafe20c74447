"""A cluster of node processes that can be killed, stopped, cut off and broken one by one.

Nodes are known by the numbers 1 to n; their ids come with their folders. Ports are kept over restarts. The state of the
cluster is read from its store's file, not from nodes that may be down.
"""

import contextlib
import functools
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import KafkaError
from headrace.base.ids import NodeId
from headrace.kafka_client.blocking_client import BrokerConnection
from headrace.local.founding import STORE_FILE
from headrace.store import container_records, records
from headrace.store.protocol import ClusterStore
from headrace.store.records import ContainerRecord, LeaseRecord
from headrace.store.sqlite import SqliteStore
from kit.cluster_ways import Ways
from kit.forked import Forked, fork_server
from kit.own_ports import HOST, own_port
from kit.patience import PATIENCE

SCRIPT = Path(__file__).parent / "faulty_node.py"
READY_S = 60.0
END_S = 30.0
POLL_S = 0.05
FREE_S = 0.3
"""Seconds within which a running process has ended its write to the cluster store."""
OPTIONS = ("--chunk-bytes=4194304", "--partitionlet-bytes=2000000", "--disk-reserve=0", "--rebalance-delay-ms=0")


def until(what: str, holds: Callable[[], Any], *, timeout_s: float = 60.0, every_s: float = POLL_S) -> Any:
    """Wait for a result, and return it. Fails with `what` if it never comes."""
    timeout_s *= PATIENCE
    deadline = time.monotonic() + timeout_s
    while not (found := holds()):
        if time.monotonic() > deadline:
            pytest.fail(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(every_s)
    return found


class Node:
    """A node's process, over all its starts."""

    def __init__(self, number: int, folder: Path) -> None:
        self.number = number
        self.folder = folder
        self.data = folder / "data"
        self.faults = folder / "faults"
        self.host = HOST
        self.port = own_port()
        self.peer_port = own_port()
        self.code: Path | None = None
        """The code of another version, if it runs one (old_versions)."""
        self.process: Forked | None = None
        self.stopped = False
        """Whether it is suspended by SIGSTOP."""
        self.node_id = 0
        """Known once the node has been ready."""
        self.faults.mkdir(parents=True)

    @property
    def is_up(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def ready_file(self) -> Path:
        return self.folder / "ready"

    def log(self) -> str:
        """Everything that the node has printed."""
        path = self.folder / "log"
        return path.read_text() if path.exists() else ""

    def send(self, number: signal.Signals) -> None:
        """Send a signal; does nothing for a process that has ended. Returns once SIGSTOP has taken effect."""
        if self.is_up:
            assert self.process is not None
            self.process.send_signal(number)
            self.stopped = number is signal.SIGSTOP or (self.stopped and number is not signal.SIGCONT)
            if number is signal.SIGSTOP:
                until("every thread stands still", lambda: not self.is_up or self._stands_still(), every_s=0.001)

    def _stands_still(self) -> bool:
        """Whether all threads are stopped. A thread within a system call ends it first: it may still get a lock."""
        assert self.process is not None
        tasks = Path(f"/proc/{self.process.pid}/task")
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread or the process ends
            return all((task / "stat").read_text().rpartition(")")[2].split()[0] == "T" for task in tasks.iterdir())
        return False

    def wait(self, timeout_s: float = END_S) -> int:
        """The exit code of its process, once it has ended."""
        assert self.process is not None
        return self.process.wait(timeout_s * PATIENCE)

    @property
    def unsynced(self) -> Path:
        """See faulty_node.py."""
        return self.faults / "unsynced"

    def lose_unsynced(self) -> int:
        """Set files back to their last sync; returns how many writes are lost."""
        by_inode = {path.stat().st_ino: path for path in (self.data / "containers").rglob("*") if path.is_file()}
        gone = 0
        for before in sorted(self.unsynced.iterdir(), reverse=True):
            head, _, content = before.read_bytes().partition(b"\n")
            path = by_inode.get(int(before.name.partition("-")[2]))
            before.unlink()
            if path is not None and head:  # the process may have ended after the record and before the write
                place = json.loads(head)
                with path.open("r+b") as file:
                    file.seek(place["offset"])
                    written = zlib.crc32(file.read(place["length"]))
                    if (written, path.stat().st_size) != (place["crc"], place["end"]):
                        continue  # it was never written; or another file now has this inode
                    file.seek(place["offset"])
                    file.write(content)
                    file.truncate(place["size"])
                gone += 1
        for path in (self.data / "catalog").glob("*-wal"):
            path.unlink()
            path.with_name(path.name.removesuffix("-wal") + "-shm").unlink(missing_ok=True)
        return gone

    @contextlib.contextmanager
    def fault(self, name: str) -> Iterator[None]:
        """A fault of faulty_node.py, on within the context."""
        self.switch(name, True)
        try:
            yield
        finally:
            self.switch(name, False)

    def switch(self, name: str, on: bool) -> None:
        """Turn a fault of faulty_node.py on or off."""
        if on:
            (self.faults / name).touch()
        else:
            (self.faults / name).unlink(missing_ok=True)


class Cluster:
    """Node processes, the network routes between them, and their store."""

    def __init__(self, folder: Path, count: int = 3, options: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self.options = (*OPTIONS, *options)
        self._first = count
        self._closing = contextlib.ExitStack()
        self.on_close: list[Callable[[], None]] = []
        """Functions that release the nodes before they end."""
        self.nodes = {number: Node(number, folder / f"node-{number}") for number in range(1, count + 1)}
        self._last = count
        """The highest number ever assigned: the number of a node that left is not reused, since its folder still
        exists."""
        self.ways = Ways({node.number: node.peer_port for node in self.nodes.values()})
        self.beyond: dict[int, int] = {}
        """By the port of a node of another cluster, the port that leads there (for links to pull from)."""

    @property
    def bootstrap(self) -> str:
        """Addresses of the nodes that are not suspended."""
        return ",".join(f"{HOST}:{node.port}" for node in self.nodes.values() if not node.stopped)

    @functools.cached_property
    def store(self) -> ClusterStore:
        """The cluster store, for inspection."""
        store = SqliteStore(self.folder / STORE_FILE)
        self._closing.callback(store.close)
        return store

    def store_options(self, node: Node) -> list[str]:
        """The options that tell a node where its cluster's store is."""
        return [f"--store={self.folder / STORE_FILE}"]

    # --- processes

    def start(self, *numbers: int) -> None:
        """Start nodes (all that are down, by default), without waiting for it."""
        for number in numbers or sorted(self.nodes):
            node = self.nodes[number]
            if node.is_up:
                continue
            node.ready_file.unlink(missing_ok=True)
            self._write_routes()
            self.ways.up(number)
            script = SCRIPT if node.code is None else node.code / SCRIPT.name
            command = [str(script), str(node.faults), f"--data={node.data}"]
            command += self.store_options(node)
            command += [f"--port={node.port}", f"--peer-port={node.peer_port}"]
            command += [f"--ready-file={node.ready_file}", f"--first-nodes={self._first}"]
            command += [f"--failure-host=host-{number}", *self.options]
            node.process = fork_server(node.code).start(command, node.folder / "log")

    def await_ready(self, *numbers: int, timeout_s: float = READY_S) -> None:
        """Wait until the nodes report that they serve."""
        began = time.monotonic()
        for number in numbers or sorted(self.nodes):
            node = self.nodes[number]

            def ready(node: Node = node) -> bool:
                assert node.is_up, f"node {node.number} ended: {node.log()[-2000:]}"
                return node.ready_file.exists()

            until(f"node {number} is ready", ready, timeout_s=timeout_s)
            node.node_id = int(json.loads(node.ready_file.read_text())["id"])
        print(f"ready after {time.monotonic() - began:.1f} s")

    def add(self) -> Node:
        """Add a node, without starting it."""
        self._last += 1
        number = self._last
        node = self.nodes[number] = Node(number, self.folder / f"node-{number}")
        self.ways.add(number, node.peer_port)
        self._write_routes()
        return node

    def kill(self, *numbers: int) -> None:
        """Send SIGKILL to all of them at once, and wait."""
        for number in numbers:
            self.nodes[number].send(signal.SIGKILL)
        for number in numbers:
            self.nodes[number].wait()
            self.ways.down(number)

    def terminate(self, number: int) -> None:
        """Send SIGTERM, and wait; fails if the node does not end cleanly."""
        node = self.nodes[number]
        node.send(signal.SIGTERM)
        try:
            code = node.wait()
        except subprocess.TimeoutExpired:
            node.send(signal.SIGUSR1)
            until("it shows what it waits for", lambda: "these are all tasks" in node.log())
            waits = [line for line in node.log().splitlines() if line.startswith("task ")]
            pytest.fail("\n".join([f"node {number} does not end", *waits, self.events()]))
        assert code == 0, node.log()[-2000:]
        self.ways.down(number)

    @contextlib.contextmanager
    def paused(self, number: int) -> Iterator[None]:
        """The process is suspended within the context, but not during a write to the cluster store.

        Its lock on the file would stay too, and block all nodes of the machine until the process resumes.
        """
        node = self.nodes[number]
        node.send(signal.SIGSTOP)
        try:
            while not self.store_is_free():
                node.send(signal.SIGCONT)
                time.sleep(POLL_S)
                node.send(signal.SIGSTOP)
            yield
        finally:
            self.nodes[number].send(signal.SIGCONT)

    def watch_power(self) -> None:
        """From their next start on, the nodes record what a power cut would lose."""
        for node in self.nodes.values():
            node.unsynced.mkdir(exist_ok=True)

    def cut_power(self) -> int:
        """All nodes end at once, and lose everything that was not synced; returns how many writes were lost.

        SQLite syncs from C: the catalog's tables lose everything since the last checkpoint of their WAL.
        """
        self.kill(*self.nodes)
        return sum(node.lose_unsynced() for node in self.nodes.values())

    def store_is_free(self) -> bool:
        """Whether the store can be written to within a moment."""
        with contextlib.closing(
            sqlite3.connect(self.folder / STORE_FILE, isolation_level=None, timeout=FREE_S)
        ) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("ROLLBACK")
            except sqlite3.OperationalError:
                return False
        return True

    def wipe(self, number: int) -> None:
        """Delete all data of a node that is down."""
        node = self.nodes[number]
        shutil.rmtree(node.data)
        if node.unsynced.exists():  # the traces of deleted files
            shutil.rmtree(node.unsynced)
            node.unsynced.mkdir()

    def close(self) -> None:
        """End every running process, by force."""
        for each in self.on_close:
            each()
        for node in self.nodes.values():
            node.send(signal.SIGCONT)
            node.send(signal.SIGKILL)
            if node.process is not None:
                node.process.wait()
        self.ways.close()
        self._closing.close()

    def _write_routes(self) -> None:
        for number, node in self.nodes.items():
            routes = {str(port): way for port, way in (self.ways.routes_of(number) | self.beyond).items()}
            temporary = node.faults / "routes.tmp"
            temporary.write_text(json.dumps(routes))
            os.replace(temporary, node.faults / "routes")

    # --- the store

    def copy_store(self) -> Path:
        """A copy of the cluster store as it is now."""
        copy = self.folder / "cluster-copy.sqlite"
        with (
            contextlib.closing(sqlite3.connect(self.folder / STORE_FILE)) as source,
            contextlib.closing(sqlite3.connect(copy)) as target,
        ):
            source.backup(target)
        return copy

    def put_store(self, copy: Path) -> None:
        """Replace the cluster store by that file; all nodes are down."""
        self.store.close()
        del self.store
        for suffix in ("", "-wal", "-shm"):
            (self.folder / (STORE_FILE + suffix)).unlink(missing_ok=True)
        shutil.copy(copy, self.folder / STORE_FILE)

    def recover_store(self) -> str:
        """Run `headrace recover-store` over folders with the layout of `headrace up`; returns its output."""
        whole = self.folder / "as-one"
        whole.mkdir()
        for number, node in self.nodes.items():
            (whole / f"node-{number}").symlink_to(node.data)
        shutil.copy(self.folder / STORE_FILE, whole / STORE_FILE)
        command = [str(Path(sys.executable).with_name("headrace")), "recover-store", "--yes", f"--data={whole}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        self.put_store(whole / STORE_FILE)
        shutil.rmtree(whole)  # symbolic links to folders
        return done.stdout + done.stderr

    # --- what holds

    def number_of(self, node_id: int) -> int:
        """The node that currently has this id."""
        return next(node.number for node in self.nodes.values() if node.node_id == node_id)

    def containers(self) -> list[ContainerRecord]:
        """All container records."""
        return container_records.containers(self.store)

    def lease(self) -> LeaseRecord | None:
        """The controller's lease."""
        found = records.get_lease(self.store)
        return None if found is None else found[0]

    def controller(self) -> int | None:
        """The node that holds the lease."""
        lease = self.lease()
        return (
            None if lease is None else next((n for n, node in self.nodes.items() if node.node_id == lease.node), None)
        )

    def is_full(self, number: int) -> bool:
        """Whether the node has reported that its disk is full."""
        found = records.get_node(self.store, NodeId(self.nodes[number].node_id))
        return found is not None and found.full

    def format(self, number: int, container: int) -> str:
        """The incarnation (`format`) of a replica, according to its folder; "" while it is being created."""
        try:
            found = (self.nodes[number].data / "containers" / str(container) / "replica.json").read_bytes()
        except FileNotFoundError:
            return ""
        return str(json.loads(found)["format"])

    def catalog(self) -> ContainerRecord:
        """The record of the catalog's container."""
        return next(each for each in self.containers() if each.kind == "catalog")

    def missing(self) -> str:
        """Why the cluster is not whole; "" if it is: every container has all of its replicas in sync."""
        live = {node.node_id for node in self.nodes.values() if node.is_up and not node.stopped}
        found = [each for each in self.containers() if each.state != "deleted"]
        if not any(each.kind == "data" for each in found):
            return "no container of data"
        for each in found:
            in_sync = {node for node, _ in each.in_sync}
            if each.leader not in live:
                return f"container {each.container_id} is led by node {each.leader}, which is down"
            if len(in_sync & live) < min(each.wanted, len(live)):
                return f"container {each.container_id} has {sorted(in_sync)} in sync, wanted {each.wanted}"
        return ""

    def await_whole(self, timeout_s: float = 60.0) -> None:
        """Wait until every container has all of its replicas in sync; fails with the reason."""
        why = ["nothing was looked at"]

        def whole() -> bool:
            why[0] = self.missing()
            return not why[0]

        began = time.monotonic()
        while not whole():
            if time.monotonic() > began + timeout_s * PATIENCE:
                pytest.fail(f"not whole after {timeout_s * PATIENCE:.0f} s: {why[0]}\n{self.events()}")
            time.sleep(POLL_S)
        print(f"whole after {time.monotonic() - began:.1f} s")

    def admin(self, method: str, params: dict[str, Any] | None = None, *, node: int | None = None) -> Any:
        """The result of one of Headrace's own admin calls; fails on an error."""
        number = node or next(each.number for each in self.nodes.values() if each.is_up and not each.stopped)
        with BrokerConnection(HOST, self.nodes[number].port, "test", 30.0) as connection:
            try:
                return connection.admin(method, params)
            except KafkaError as error:
                raise AssertionError(f"{method}: {error}") from error

    def events(self) -> str:
        """The leaders, and the last log lines of the nodes, for the report of a failure."""
        told = [f"controller: {self.controller()}, at {time.monotonic():.3f}, {datetime.now(UTC).isoformat()}"]
        for each in self.containers():
            in_sync = [node for node, _ in each.in_sync]
            told.append(
                f"container {each.container_id} ({each.kind}, {each.state}): led by {each.leader} in epoch "
                f"{each.epoch}, in sync {in_sync} of {list(each.replicas)}"
            )
        for number, node in self.nodes.items():
            told += [f"--- node {number} ({node.node_id}), log in {node.folder}", *node.log().splitlines()[-12:]]
        return "\n".join(told)


__all__ = ["Cluster", "Node", "NodeId", "until"]


MakeCluster = Callable[..., Cluster]
"""Starts a cluster; the type of the fixture `make_cluster`."""
