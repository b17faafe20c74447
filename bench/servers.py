"""The two servers under test behind one Protocol: start, stop, where to reach it, how much memory it holds.

Each starts on loopback, on free ports, in a folder of its own. Knows nothing of scenarios.
"""

import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import psutil
from bench import jars, wire

HEAP = ("-Xmx1g", "-Xms1g")
"""What kafka-server-start.sh sets."""
JVM = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
"""What kafka-run-class.sh sets."""
KAFKA_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
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
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
group.initial.rebalance.delay.ms=0
"""
"""The server.properties that Kafka ships, with our ports and folder. Only the last line is not Kafka's default (3 s),
in Kafka's favour: ConsumerPerformance joins a group, and would wait that long before its first record."""


CLUSTER = "headraceBenchmarkQ0001"
"""Any 22 characters of base 64 will do as Kafka's cluster id."""


class Server(Protocol):
    """A server under test. `start` may be called again after `stop`, on the same data."""

    name: str
    bootstrap: str

    def start(self, *, timeout_s: float = 120.0) -> float:
        """Starts it; returns the seconds until it answered Metadata. Raises RuntimeError, TimeoutError."""

    def stop(self, *, timeout_s: float = 120.0) -> None:
        """Ends it in its clean way (SIGTERM), the hard way after `timeout_s`."""

    def kill(self) -> None:
        """Ends it at once (SIGKILL)."""

    def clear(self) -> None:
        """Ends it and removes everything that it stored, so that the next start is the first."""

    @property
    def pid(self) -> int: ...

    @property
    def folder(self) -> Path: ...


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def resident_bytes(pid: int) -> int:
    """Resident memory of a process and all its children, bytes. Raises psutil.NoSuchProcess."""
    process = psutil.Process(pid)
    return sum(each.memory_info().rss for each in (process, *process.children(recursive=True)))


def cpu_seconds(pid: int) -> float:
    """CPU time that a process and its living children have used, seconds."""
    process = psutil.Process(pid)
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return float(sum(each.user + each.system for each in times))


def stored_bytes(folder: Path) -> int:
    """Bytes that the files of a folder take on the disk (blocks, not lengths)."""
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def _allow_files(pid: int) -> None:
    """Lets a server open as many files as it may: Kafka keeps at least one per partition."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (hard, hard))


@dataclass(slots=True)
class _Process:
    """A server's process: starts it, waits for it, ends it; its output goes to a file."""

    command: list[str]
    output: Path
    running: subprocess.Popen[bytes] | None = None

    def spawn(self) -> None:
        with self.output.open("ab") as output:
            self.running = subprocess.Popen(self.command, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
        _allow_files(self.running.pid)

    def alive(self) -> bool:
        return self.running is not None and self.running.poll() is None

    @property
    def pid(self) -> int:
        if self.running is None:
            raise RuntimeError(f"{self.command[0]} was not started")
        return self.running.pid

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


def _start(process: _Process, bootstrap: str, timeout_s: float) -> float:
    began = time.perf_counter()
    process.spawn()
    try:
        wire.wait_for_answer(bootstrap, alive=process.alive, timeout_s=timeout_s)
    except BaseException as error:
        process.end(signal.SIGKILL, 10.0)
        if isinstance(error, RuntimeError | TimeoutError):
            raise type(error)(f"{error}\n{process.tail()}") from error
        raise
    return time.perf_counter() - began


@dataclass(slots=True)
class KafkaServer:
    """One Apache Kafka broker and controller (KRaft), its own defaults, 1 GiB of heap."""

    folder: Path
    heap: tuple[str, ...] = HEAP
    settings: dict[str, str] = field(default_factory=dict)
    """Over the defaults: for tests only, never for a measurement."""
    name: str = "kafka"
    bootstrap: str = ""
    _process: _Process = field(init=False)
    _format: list[str] = field(init=False)

    def __post_init__(self) -> None:
        port, controller = free_ports(2)
        self.bootstrap = f"127.0.0.1:{port}"
        self.folder.mkdir(parents=True, exist_ok=True)
        properties = self.folder / "server.properties"
        text = KAFKA_PROPERTIES.format(port=port, controller=controller, logs=self.folder / "logs")
        properties.write_text(text + "".join(f"{key}={value}\n" for key, value in self.settings.items()))
        java = shutil.which("java") or "java"
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        common = ["-cp", jars.kafka_classpath(), quiet]
        self._format = [java, *common, "kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(properties)]
        command = [java, *self.heap, *JVM, *common, "kafka.Kafka", str(properties)]
        self._process = _Process(command, self.folder / "kafka.log")
        self._prepare()

    def _prepare(self) -> None:
        if not (self.folder / "logs" / "meta.properties").exists():
            subprocess.run(self._format, check=True, capture_output=True, timeout=120)

    def start(self, *, timeout_s: float = 120.0) -> float:
        return _start(self._process, self.bootstrap, timeout_s)

    def stop(self, *, timeout_s: float = 120.0) -> None:
        self._process.end(signal.SIGTERM, timeout_s)

    def kill(self) -> None:
        self._process.end(signal.SIGKILL, 10.0)

    def clear(self) -> None:
        self.kill()
        shutil.rmtree(self.folder / "logs", ignore_errors=True)
        self._prepare()

    @property
    def pid(self) -> int:
        return self._process.pid


@dataclass(slots=True)
class HeadraceServer:
    """One storage node of a cluster of its own."""

    folder: Path
    prefix: tuple[str, ...] = (sys.executable,)
    """What runs Python: a profiler's command goes here."""
    name: str = "headrace"
    bootstrap: str = ""
    _process: _Process = field(init=False)

    def __post_init__(self) -> None:
        (port,) = free_ports(1)
        self.bootstrap = f"127.0.0.1:{port}"
        self.folder.mkdir(parents=True, exist_ok=True)
        where = ["--data", f"{self.folder}/node-1", "--store", f"{self.folder}/cluster.sqlite"]
        listen = ["--host", "127.0.0.1", "--port", str(port), "--ready-file", f"{self.folder}/ready"]
        groups = ["--rebalance-delay-ms", "0"]  # as in KAFKA_PROPERTIES
        self._process = _Process(
            [*self.prefix, "-m", "headrace.node", *where, *listen, *groups], self.folder / "node.log"
        )

    def start(self, *, timeout_s: float = 120.0) -> float:
        return _start(self._process, self.bootstrap, timeout_s)

    def stop(self, *, timeout_s: float = 120.0) -> None:
        self._process.end(signal.SIGTERM, timeout_s)

    def kill(self) -> None:
        self._process.end(signal.SIGKILL, 10.0)

    def clear(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)

    @property
    def pid(self) -> int:
        return self._process.pid


def make(name: str, folder: Path) -> Server:
    """The server of that name on fresh or present data in `folder`. Raises ValueError for another name."""
    match name:
        case "kafka":
            return KafkaServer(folder)
        case "headrace":
            return HeadraceServer(folder)
    raise ValueError(f"no server named {name!r}; there are kafka and headrace")
