"""Nodes for storage tests: `new_node` starts them in the test's own loop, `connect` opens clients."""

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.partitions.cluster_layout import NodeSettings
from kit.parts import append, ask, broker, node
from kit.storage import MIB, Client, Running

__all__ = ["append", "ask", "broker", "node"]

NewNode = Callable[..., Awaitable[Running]]


@pytest.fixture
async def new_node(tmp_path: Path) -> AsyncIterator[NewNode]:
    """`await new_node(folder=None, **settings)`; small chunks and no fsync unless told. Stopped at the end."""
    made: list[Running] = []
    serial = itertools.count()

    async def make(folder: Path | None = None, **settings: Any) -> Running:
        given = {"chunk_bytes": MIB, "disk_reserve": 0, "fsync": False, "rebalance_delay_ms": 0, **settings}
        running = Running(folder or tmp_path / f"node-{next(serial)}", NodeSettings(**given))
        running.folder.mkdir(parents=True, exist_ok=True)
        await running.start()
        made.append(running)
        return running

    yield make
    for running in made:
        if not running.node._executor._shutdown:
            await running.stop()


@pytest.fixture
def connect() -> Iterator[Callable[[int], Client]]:
    """Clients of nodes, closed at the end."""
    made: list[Client] = []

    def to(port: int) -> Client:
        made.append(Client(port))
        return made[-1]

    yield to
    for client in made:
        client.close()
