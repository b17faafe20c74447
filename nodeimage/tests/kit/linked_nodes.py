"""Clusters of one node each in the test's own loop, for tests of links between them."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from headrace.node import Node, Options
from headrace.partitions.cluster_layout import NodeSettings
from headrace.wire import generic_codec
from headrace.wire.api_keys import ApiKey
from kit.fake_source import FakeSource
from kit.one_node import OneNode


@pytest.fixture(scope="session")
def schemas() -> None:
    """Loads the schemas beforehand: the first use takes seconds on a busy machine."""
    for version in range(5):
        generic_codec.prepare(ApiKey.API_VERSIONS, version)


StartCluster = Callable[[str], Awaitable[OneNode]]


@pytest.fixture
async def start_cluster(tmp_path: Path, schemas: None) -> AsyncIterator[StartCluster]:
    """Starts clusters of one node each, by name; stopped at the end."""
    running: list[Node] = []

    async def started(name: str) -> OneNode:
        folder = tmp_path / name
        folder.mkdir()
        node = Node(
            Options(
                data=folder / "node-1",
                store=folder / "cluster.sqlite",
                host="127.0.0.1",
                port=0,
                ready_file=None,
                settings=NodeSettings(chunk_bytes=1 << 20, disk_reserve=0, fsync=False),
            )
        )
        running.append(node)
        await node.start()
        return OneNode(node)

    yield started
    for node in running:
        await node.stop()


@pytest.fixture
async def south(start_cluster: StartCluster) -> OneNode:
    """A cluster of one node, with a stream /s."""
    node = await start_cluster("south")
    await node.admin("stream.create", path="/s")
    return node


@pytest.fixture
def north(south: OneNode) -> FakeSource:
    """A simulated source."""
    return FakeSource("north")
