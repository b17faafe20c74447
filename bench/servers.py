"""The two servers under test behind one Protocol: start, stop, addresses, memory.

A server is one node or a cluster of several, on loopback, on free ports, in its own folder.
"""

import errno
import os
import random
import resource
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil
from bench import jars, wire
from bench.admin_calls import admin
from bench.certificates import PRINCIPAL_RULE, Certificates

ANONYMOUS = "ANONYMOUS"
"""The user of clients that do not authenticate, on both servers."""
PORTS = (20_000, 32_000)
"""Range of the servers' ports, below the ports of outgoing connections."""

HEAP = ("-Xmx1g", "-Xms1g")
"""The heap options that kafka-server-start.sh sets."""
JVM = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
"""The JVM options that kafka-run-class.sh sets."""
KAFKA_PROPERTIES = """\
process.roles={roles}
node.id={node}
controller.quorum.voters={voters}
listeners={listeners}
advertised.listeners={advertised}
inter.broker.listener.name=PLAINTEXT
controller.listener.names=CONTROLLER
log.dirs={logs}
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
num.partitions=1
num.recovery.threads.per.data.dir=2
offsets.topic.replication.factor={replicas}
share.coordinator.state.topic.replication.factor={replicas}
share.coordinator.state.topic.min.isr={in_sync}
transaction.state.log.replication.factor={replicas}
transaction.state.log.min.isr={in_sync}
default.replication.factor={replicas}
min.insync.replicas={in_sync}
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
group.initial.rebalance.delay.ms=0
"""
"""Kafka's own server.properties, with our ports and folder, and the replicas that the cluster's size allows. Only the
last line differs from Kafka's default (3 s), in Kafka's favour: ConsumerPerformance joins a group, and would wait that
long for its first record.
"""

CLUSTER = "headraceBenchmarkQ0001"
"""Kafka's cluster id: any 22 characters of base 64."""


class Server(Protocol):
    """A server under test: one node or a cluster of them, numbered from 0.

    `start` may be called again after `stop`, on the same data.
    """

    name: str

    def start(self, *, timeout_s: float = 120.0) -> float:
        """Start every node; return the seconds until each one lists all. Raises RuntimeError, TimeoutError."""

    def stop(self, *, timeout_s: float = 120.0) -> None:
        """Stop all nodes cleanly (SIGTERM), or kill them after `timeout_s`."""

    def kill(self) -> None:
        """Kill all nodes (SIGKILL)."""

    def clear(self) -> None:
        """Kill all nodes and delete their data, so that the next start is like the first."""

    def kill_node(self, index: int) -> None:
        """Kill one node (SIGKILL)."""

    def start_node(self, index: int) -> None:
        """Start a killed node again; do not wait for it."""

    def add_node(self) -> int:
        """Start one more node that the cluster has not had before; do not wait for it. Returns its index."""

    def node_folder(self, index: int) -> Path:
        """Return where a node stores records."""

    def enforce_rights(self) -> None:
        """Have a started server with `rights` check them: from now on only clients of the plain listener may do
        everything.
        """

    @property
    def bootstrap(self) -> str:
        """host:port of the nodes, separated by commas."""

    @property
    def addresses(self) -> list[str]:
        """host:port of each node."""

    @property
    def tls_bootstrap(self) -> str:
        """host:port of the nodes' listeners with TLS, separated by commas; only if the server has such listeners."""

    @property
    def certificates(self) -> Certificates:
        """The certificates of the listeners with TLS."""

    @property
    def pids(self) -> list[int]:
        """The processes of running nodes."""

    @property
    def folder(self) -> Path: ...


_GIVEN: set[int] = set()


def free_ports(count: int) -> list[int]:
    """Return free ports of loopback outside the range from which the kernel takes ports for connections.

    No port is returned twice in a process: a server's ports are obtained by several calls, and used after the last.
    """
    sockets: list[socket.socket] = []
    try:
        fresh = [port for port in range(*PORTS) if port not in _GIVEN]
        for port in random.sample(fresh, len(fresh)):
            each = socket.socket()
            sockets.append(each)
            try:
                each.bind(("127.0.0.1", port))
            except OSError:
                sockets.pop().close()
            if len(sockets) == count:
                found = [each.getsockname()[1] for each in sockets]
                _GIVEN.update(found)
                return found
        raise RuntimeError(f"loopback has no {count} free ports from {PORTS[0]} to {PORTS[1] - 1}")
    finally:
        for each in sockets:
            each.close()


def resident_bytes(pids: Sequence[int]) -> int:
    """Return the resident memory of processes and all their children, in bytes. Raises psutil.NoSuchProcess."""
    return sum(each.memory_info().rss for each in _with_children(pids))


def cpu_seconds(pids: Sequence[int]) -> float:
    """Return the CPU time of processes and their living children, in seconds."""
    times = [each.cpu_times() for each in _with_children(pids)]
    return float(sum(each.user + each.system for each in times))


def _with_children(pids: Sequence[int]) -> Iterator[psutil.Process]:
    for pid in pids:
        process = psutil.Process(pid)
        yield process
        yield from process.children(recursive=True)


def stored_bytes(folder: Path) -> int:
    """Return the bytes written in the files of a folder; preallocated and punched ranges do not count."""
    return sum(_written(path) for path in folder.rglob("*") if path.is_file())


def _written(path: Path) -> int:
    written = at = 0
    with path.open("rb") as file:
        while True:
            try:
                begin = os.lseek(file.fileno(), at, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:  # only a hole from there on
                    return written
                raise
            at = os.lseek(file.fileno(), begin, os.SEEK_HOLE)
            written += at - begin


def _allow_files(pid: int) -> None:
    """Let a server open as many files as the hard limit allows: Kafka keeps at least one per partition open."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (hard, hard))


@dataclass(slots=True)
class Process:
    """A server's process: starts it, ends it; its output goes to a file."""

    command: list[str]
    output: Path
    environment: dict[str, str] | None = None
    """None for this process's own environment."""
    running: subprocess.Popen[bytes] | None = None

    def spawn(self) -> None:
        self.output.parent.mkdir(parents=True, exist_ok=True)
        with self.output.open("ab") as output:
            self.running = subprocess.Popen(
                self.command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=self.environment
            )
        _allow_files(self.running.pid)

    def alive(self) -> bool:
        return self.running is not None and self.running.poll() is None

    def tell(self, how: signal.Signals) -> None:
        if self.running is not None:
            self.running.send_signal(how)

    def end(self, how: signal.Signals, timeout_s: float) -> None:
        if self.running is None:
            return
        self.running.send_signal(how)
        try:
            self.running.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.running.kill()
            self.running.wait()
        self.running = None

    def tail(self, count: int = 30) -> str:
        lines = self.output.read_text(errors="replace").splitlines() if self.output.exists() else []
        return "\n".join(lines[-count:])


class _Nodes:
    """The common part of both servers: nodes that are started, killed and stopped, each a process."""

    def __init__(self, folder: Path, ports: Sequence[int], *, tls: bool = False, rights: bool = False) -> None:
        self.folder = folder
        self._rights = rights
        self.addresses = [f"127.0.0.1:{port}" for port in ports]
        self._tls_ports = free_ports(len(ports)) if tls else []
        if tls:
            self.certificates = Certificates.make(folder.with_name(f"{folder.name}-certificates"))
        self._processes = [self._process(index, port) for index, port in enumerate(ports)]

    @property
    def bootstrap(self) -> str:
        return ",".join(self.addresses)

    @property
    def tls_bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self._tls_ports)

    @property
    def pids(self) -> list[int]:
        return [each.running.pid for each in self._processes if each.running is not None]

    def start(self, *, timeout_s: float = 120.0) -> float:
        began = time.perf_counter()
        for each in self._processes:
            each.spawn()
        try:
            for address, process in zip(self.addresses, self._processes, strict=True):
                wire.wait_for_answer(address, brokers=len(self._processes), alive=process.alive, timeout_s=timeout_s)
        except BaseException as error:
            self.kill()
            if isinstance(error, RuntimeError | TimeoutError):
                tails = "\n".join(each.tail() for each in self._processes)
                raise type(error)(f"{error}\n{tails}") from error
            raise
        return time.perf_counter() - began

    def stop(self, *, timeout_s: float = 120.0) -> None:
        for each in self._processes[1:]:
            each.tell(signal.SIGTERM)
        for each in self._processes:
            each.end(signal.SIGTERM, timeout_s)

    def kill(self) -> None:
        for each in self._processes:
            each.end(signal.SIGKILL, 10.0)

    def kill_node(self, index: int) -> None:
        self._processes[index].end(signal.SIGKILL, 10.0)

    def start_node(self, index: int) -> None:
        self._processes[index].spawn()

    def add_node(self) -> int:
        index = len(self._processes)
        (port,) = free_ports(1)
        self._processes.append(self._process(index, port))
        self.addresses.append(f"127.0.0.1:{port}")
        self._prepare()
        self._processes[index].spawn()
        return index

    def _process(self, index: int, port: int) -> Process:
        """Return a node's process, not started."""
        raise NotImplementedError

    def _prepare(self) -> None:
        """Do what a node needs before its first start."""


class KafkaServer(_Nodes):
    """Apache Kafka: nodes that are broker and controller (KRaft), with default settings, 1 GiB of heap each.

    Three and more nodes keep three replicas, at least two in sync. `settings`: override the defaults, for tests only,
    never for a measurement.
    """

    name = "kafka"

    def __init__(
        self,
        folder: Path,
        *,
        nodes: int = 1,
        heap: tuple[str, ...] = HEAP,
        settings: Mapping[str, str] | None = None,
        tls: bool = False,
        rights: bool = False,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        both = free_ports(2 * nodes)
        ports, self._controllers = both[:nodes], both[nodes:]
        self._heap = heap
        self._settings = dict(settings or {})
        self._formats: list[tuple[Path, list[str]]] = []
        super().__init__(folder, ports, tls=tls, rights=rights)
        self._prepare()

    def node_folder(self, index: int) -> Path:
        return self.folder / f"logs-{index}"

    def _process(self, index: int, port: int) -> Process:
        """Return a broker, which is also a controller if it is one of the first."""
        first = len(self._controllers)
        listeners, roles = f"PLAINTEXT://127.0.0.1:{port}", "broker"
        if index < first:
            listeners, roles = f"{listeners},CONTROLLER://127.0.0.1:{self._controllers[index]}", "broker,controller"
        advertised = f"PLAINTEXT://127.0.0.1:{port}"
        settings = dict(self._settings)
        if self._tls_ports:
            tls = f",SSL://127.0.0.1:{self._tls_ports[index]}"
            listeners, advertised = listeners + tls, advertised + tls
            settings |= {
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SSL:SSL",
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(self.certificates.both),
            }
        if self._rights:
            settings |= {
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": f"User:{ANONYMOUS}",
                "listener.name.ssl.ssl.client.auth": "required",
                "listener.name.ssl.ssl.principal.mapping.rules": PRINCIPAL_RULE,
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(self.certificates.authority),
            }
        logs, properties = self.node_folder(index), self.folder / f"server-{index}.properties"
        text = KAFKA_PROPERTIES.format(
            roles=roles,
            node=index + 1,
            voters=",".join(f"{number + 1}@127.0.0.1:{port}" for number, port in enumerate(self._controllers)),
            listeners=listeners,
            advertised=advertised,
            logs=logs,
            replicas=min(3, first),
            in_sync=2 if first >= 3 else 1,
        )
        properties.write_text(text + "".join(f"{key}={value}\n" for key, value in settings.items()))
        java = shutil.which("java") or "java"
        common = ["-cp", jars.kafka_classpath(), "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        tool = [java, *common, "kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(properties)]
        self._formats.append((logs, tool))
        return Process([java, *self._heap, *JVM, *common, "kafka.Kafka", str(properties)], self._output(index))

    def enforce_rights(self) -> None:
        """Nothing to do: brokers have an authorizer since their start."""

    def _output(self, index: int) -> Path:
        return self.folder / f"kafka-{index}.log"

    def _prepare(self) -> None:
        for logs, tool in self._formats:
            if not (logs / "meta.properties").exists():
                subprocess.run(tool, check=True, capture_output=True, timeout=120)

    def clear(self) -> None:
        self.kill()
        for logs, _ in self._formats:
            shutil.rmtree(logs, ignore_errors=True)
        self._prepare()


def _with_bytecode(python: str) -> dict[str, str]:
    """Return an environment in which Headrace runs like a pip installation: from bytecode, not source.

    The bytecode is in a folder of the benchmark, so that a checkout stays unchanged. With another Python than this one,
    the Headrace installed there is used.
    """
    environment = _environment(python)
    subprocess.run([python, "-c", "import headrace.node.process"], env=environment, check=True, timeout=120)
    return environment


def _environment(python: str) -> dict[str, str]:
    left_out = {"PYTHONDONTWRITEBYTECODE", *(() if python == sys.executable else ("PYTHONPATH",))}
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    return {**kept, "PYTHONPYCACHEPREFIX": str(jars.WORK / "bytecode")}


def build_of(python: str) -> str:
    """Return whether that Python's Headrace is `compiled` or `pure`."""
    command = [python, "-c", "from headrace.base.build import build; print(build())"]
    return subprocess.run(
        command, env=_environment(python), capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()


class HeadraceServer(_Nodes):
    """Storage nodes of one cluster, each as if on its own host; three keep three replicas.

    `shards`: this many nodes instead, which share a host like those of one pod. `python`: of the environment with the
    Headrace to run.
    """

    name = "headrace"

    def __init__(
        self,
        folder: Path,
        *,
        nodes: int = 1,
        shards: int | None = None,
        python: str = sys.executable,
        tls: bool = False,
        rights: bool = False,
    ) -> None:
        self._first = nodes if shards is None else shards
        self._is_one_pod = shards is not None
        self._python = python
        self._environment = _with_bytecode(python)
        super().__init__(folder, free_ports(self._first), tls=tls, rights=rights)

    def node_folder(self, index: int) -> Path:
        return self.folder / f"node-{index + 1}" / "containers"

    def _process(self, index: int, port: int) -> Process:
        folder, number = self.folder, index + 1
        where = ["--data", f"{folder}/node-{number}", "--store", f"{folder}/cluster.sqlite"]
        listen = ["--host", "127.0.0.1", "--port", str(port), "--ready-file", f"{folder}/ready-{number}"]
        host = "host-1" if self._is_one_pod else f"host-{number}"
        first = ["--first-nodes", str(self._first), "--failure-host", host]
        groups = ["--rebalance-delay-ms", "0"]  # as in KAFKA_PROPERTIES
        if self._tls_ports:
            listeners = self.certificates.authority.with_name(f"listeners-{number}.toml")
            listeners.write_text(
                f'[[listener]]\nname = "tls"\nport = {self._tls_ports[index]}\nprotocol = "SSL"\n'
                f'certificate = "{self.certificates.certificate}"\nkey = "{self.certificates.key}"\n'
                + (
                    f'client_auth = "required"\nclient_ca = "{self.certificates.authority}"\n'
                    f"principal_mapping_rules = '{PRINCIPAL_RULE}'\n"
                    if self._rights
                    else ""
                )
            )
            listen += ["--listeners", str(listeners)]
        command = [self._python, "-m", "headrace.node", *where, *listen, *first, *groups]
        return Process(command, folder / f"node-{number}.log", self._environment)

    def enforce_rights(self) -> None:
        """Turn security on, for an administrator with a password, as it requires, and for ANONYMOUS."""
        address = self.addresses[0]
        admin(address, "user.create", name="root", password=secrets.token_hex(16))
        admins = {"object": "cluster", "permission": "admin", "expression": f"u:root | u:{ANONYMOUS}"}
        admin(address, "access.set", items=[admins])
        admin(address, "security.on")

    def clear(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def make(
    name: str,
    folder: Path,
    *,
    nodes: int = 1,
    shards: int | None = None,
    tls: bool = False,
    rights: bool = False,
    python: str = sys.executable,
) -> Server:
    """Return the server `name` on fresh or present data in `folder`. `tls`: its nodes also have listeners with TLS.
    `rights`: these require a certificate, and rights can be checked; see Server.enforce_rights. `shards`: number of
    Headrace nodes that share a host, instead of `nodes`. `python`: runs nodes of Headrace. Raises ValueError for
    another name.
    """
    match name:
        case "kafka":
            return KafkaServer(folder, nodes=nodes, tls=tls, rights=rights)
        case "headrace":
            return HeadraceServer(folder, nodes=nodes, shards=shards, tls=tls, rights=rights, python=python)
    raise ValueError(f"no server named {name!r}; there are kafka and headrace")
