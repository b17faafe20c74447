"""Two clusters and the copying between them: Headrace with a link, Kafka with MirrorMaker 2.

Headrace has three nodes on each side. Kafka has one broker, which need not replicate, in Kafka's favour; or three, with
three replicas of everything. Nothing is copied before `begin`.
"""

import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from bench import jars
from bench.admin_calls import admin
from bench.servers import HEAP, HeadraceServer, KafkaServer, Process, Server

NODES = 3
STREAM = "/default"
"""The stream of topics named without one, so that stock clients use the same topic name on both sides."""
MIRROR_MAKER = """\
clusters=source,target
source.bootstrap.servers={source}
target.bootstrap.servers={target}
source->target.enabled=true
source->target.topics={topics}
replication.factor={replicas}
checkpoints.topic.replication.factor={replicas}
heartbeats.topic.replication.factor={replicas}
offset-syncs.topic.replication.factor={replicas}
offset.storage.replication.factor={replicas}
status.storage.replication.factor={replicas}
config.storage.replication.factor={replicas}
refresh.topics.interval.seconds=5
"""
"""Kafka's own connect-mirror-maker.properties, with our addresses, topics and number of replicas. Only the last line
differs from its defaults (ten minutes): otherwise new topics would not be found before the measurement ends.
"""


class Pair(Protocol):
    """A source and a target, and the copying of topics whose names begin with `link`."""

    name: str
    source: Server
    target: Server

    def start(self, *, timeout_s: float = 120.0) -> float:
        """Start both clusters; return the seconds that it took."""

    def kill(self) -> None:
        """Kill everything."""

    def begin(self) -> None:
        """Start to copy: the link, or the process, exists when this returns, but may not have copied a record yet."""

    def copy_of(self, topic: str) -> str:
        """Return the name of a topic's copy at the target."""

    @property
    def pids(self) -> list[int]:
        """The processes of both clusters, and of the copying."""


class _Both:
    """The common part of both pairs."""

    def __init__(self, source: Server, target: Server) -> None:
        self.source, self.target = source, target

    def start(self, *, timeout_s: float = 120.0) -> float:
        return self.source.start(timeout_s=timeout_s) + self.target.start(timeout_s=timeout_s)

    def kill(self) -> None:
        self.source.kill()
        self.target.kill()

    @property
    def pids(self) -> list[int]:
        return self.source.pids + self.target.pids


class HeadracePair(_Both):
    """Two clusters of three nodes; the target's nodes pull."""

    name = "headrace"

    def __init__(self, folder: Path, *, nodes: int = NODES, python: str = sys.executable) -> None:
        super().__init__(
            HeadraceServer(folder / "source", nodes=nodes, python=python),
            HeadraceServer(folder / "target", nodes=nodes, python=python),
        )

    def begin(self) -> None:
        self.link(["link*"])

    def link(self, topics: Sequence[str], *, name: str = "bench", stream: str = STREAM) -> None:
        """Create a link `name` between streams of the same path."""
        fields = {"name": name, "source": self.source.addresses, "source_stream": stream, "stream": stream}
        self.target_admin("link.create", topics=list(topics), **fields)

    def target_admin(self, method: str, **params: object) -> Any:
        """Call one of Headrace's own admin methods at the target."""
        return admin(self.target.addresses[0], method, **params)

    def copy_of(self, topic: str) -> str:
        return topic


class KafkaPair(_Both):
    """One or three brokers on each side, and one MirrorMaker 2 (connect-mirror-maker) with its own heap."""

    name = "kafka"

    def __init__(self, folder: Path, *, brokers: int = 1) -> None:
        super().__init__(KafkaServer(folder / "source", nodes=brokers), KafkaServer(folder / "target", nodes=brokers))
        self._folder = folder
        self._replicas = min(brokers, NODES)
        self._mirror: Process | None = None

    def begin(self) -> None:
        properties = self._folder / "mirror-maker.properties"
        text = MIRROR_MAKER.format(
            source=self.source.bootstrap, target=self.target.bootstrap, topics="link.*", replicas=self._replicas
        )
        properties.write_text(text)
        common = ["-cp", jars.mirror_maker_classpath(), "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        java = shutil.which("java") or "java"
        command = [java, *HEAP, *common, "org.apache.kafka.connect.mirror.MirrorMaker", str(properties)]
        self._mirror = Process(command, self._folder / "mirror-maker.log")
        self._mirror.spawn()

    def kill(self) -> None:
        if self._mirror is not None:
            self._mirror.end(signal.SIGKILL, 10.0)
        super().kill()

    @property
    def pids(self) -> list[int]:
        mirror = [] if self._mirror is None or self._mirror.running is None else [self._mirror.running.pid]
        return super().pids + mirror

    def copy_of(self, topic: str) -> str:
        return f"source.{topic}"


def make(name: str, folder: Path, *, brokers: int = 1, python: str = sys.executable) -> Pair:
    """Return the pair `name` on fresh data in `folder`, with `brokers` of Kafka on each side. `python`: runs nodes of
    Headrace. Raises ValueError for another name.
    """
    match name:
        case "kafka":
            return KafkaPair(folder, brokers=brokers)
        case "headrace":
            return HeadracePair(folder, python=python)
    raise ValueError(f"no pair named {name!r}; there are kafka and headrace")
