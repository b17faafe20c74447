"""A running node for the tests that talk to one.

`cluster` is one node for all tests of a run: use topics of your own (`cluster.topic()`), never stop it. `new_cluster`
starts nodes for one test alone, with options of `python -m headrace.node`, to be stopped, killed and filled at will.
"""

import asyncio
import itertools
import os
import signal
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import settings

from headrace.kafka_client.blocking_client import BrokerConnection
from headrace.local.cluster import Started, StartOptions, start
from headrace.local.processes import resident_bytes
from kit.certificates import Certificates, certificates
from kit.own_ports import own_port
from kit.tls_listeners import TlsListeners

__all__ = ["certificates"]

settings.register_profile("headrace", deadline=None)  # an example takes as long as the machine has other things to do
settings.load_profile("headrace")


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Nodes run on uvloop. Folders whose code runs on asyncio's own loop too say so themselves."""
    return {"uvloop": uvloop.new_event_loop}


class EmbeddedCluster:
    """One node as `headrace up` starts it. Restarts keep port, data and options."""

    def __init__(self, data: Path, node_options: tuple[str, ...]) -> None:
        self.data = data
        self.host = "127.0.0.1"
        self.port = own_port()
        self.node_options = node_options
        self._serial = itertools.count()
        self._run = uuid.uuid4().hex[:6]
        self._started: Started | None = None

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        return self._running().cluster.nodes[0].pid

    @property
    def is_up(self) -> bool:
        return self._started is not None

    def start(self) -> None:
        """Starts the node and waits until it serves; the node's last lines are in the error of one that does not."""
        assert self._started is None, "it runs already"
        options = StartOptions(port=self.port, node_options=self.node_options)
        self._started = start(self.data, options, progress=lambda _: None)

    def stop(self) -> None:
        """SIGTERM, and waits; fails when the node had to be killed or did not end cleanly."""
        started = self._take()
        assert started.stop() == (), self.log()
        assert not started.check()

    def kill(self) -> None:
        """SIGKILL, and waits."""
        started = self._take()
        os.kill(started.cluster.nodes[0].pid, signal.SIGKILL)
        for child in started.children.values():
            child.wait()

    def restart(self) -> None:
        self.stop()
        self.start()

    def admin(self, method: str, params: Mapping[str, Any] | None = None) -> Any:
        """The result of one of Headrace's own admin calls; fails on an error."""
        with BrokerConnection(self.host, self.port, "test", 30.0) as connection:
            return connection.admin(method, params)

    def stream(self, **policy: Any) -> str:
        """Makes a stream of this test's own and gives its path."""
        path = f"/test/{self._run}-{next(self._serial)}"
        self.admin("stream.create", {"path": path, "policy": policy})
        return path

    def topic(self, stream: str = "/default") -> str:
        """The full name of a topic that no other test uses. The stream makes it on first use."""
        return f"{stream}:test-{self._run}-{next(self._serial)}"

    def resident_bytes(self) -> int:
        size = resident_bytes(self._running().cluster.nodes[0])
        assert size is not None, self.log()
        return size

    def log(self) -> str:
        """All that the node has printed."""
        path = self.data / "logs" / "node-1.log"
        return path.read_text() if path.exists() else ""

    def _running(self) -> Started:
        assert self._started is not None, "it does not run"
        return self._started

    def _take(self) -> Started:
        started, self._started = self._running(), None
        return started


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    """One node for the whole run; leave it running."""
    shared = EmbeddedCluster(tmp_path_factory.mktemp("cluster"), ("--rebalance-delay-ms=0",))
    shared.start()
    yield shared
    if shared.is_up:
        shared.stop()


@pytest.fixture(scope="session")
def tls_listeners(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> TlsListeners:
    """Those of `secured`; leave their files as they are."""
    return TlsListeners(tmp_path_factory.mktemp("tls"), certificates)


@pytest.fixture
def listeners(tmp_path: Path, certificates: Certificates) -> TlsListeners:
    """Listeners with TLS of one test alone, for a node that it starts."""
    folder = tmp_path / "tls"
    folder.mkdir()
    return TlsListeners(folder, certificates)


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory, tls_listeners: TlsListeners) -> Iterator[EmbeddedCluster]:
    """One node with listeners with TLS for the whole run; leave it running."""
    options = ("--rebalance-delay-ms=0", f"--listeners={tls_listeners.file}")
    shared = EmbeddedCluster(tmp_path_factory.mktemp("secured"), options)
    shared.start()
    yield shared
    if shared.is_up:
        shared.stop()


@pytest.fixture
def new_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., EmbeddedCluster]]:
    """Starts nodes for one test: `new_cluster("--partitionlet-bytes=1048576")`. What still runs is killed after it."""
    made: list[EmbeddedCluster] = []

    def make(*node_options: str, data: Path | None = None) -> EmbeddedCluster:
        each = EmbeddedCluster(data or tmp_path_factory.mktemp("cluster"), node_options)
        each.start()
        made.append(each)
        return each

    yield make
    for each in made:
        if each.is_up:
            each.kill()
