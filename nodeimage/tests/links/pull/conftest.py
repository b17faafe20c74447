"""A target that is a whole node in the test's own loop, and a source that the test plays."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headrace.catalog.policy import StreamPolicy
from headrace.catalog.streams import CreateStream
from headrace.node import Node
from headrace.node.parts import NodeParts
from headrace.partitions.lookups import now
from kit.played_source import PlayedSource
from kit.pulling import STREAM, Copies, Pulling, options


@pytest.fixture
async def target(tmp_path: Path) -> AsyncIterator[NodeParts]:
    """The parts of a node that is a cluster of its own, with an empty stream."""
    node = Node(options(tmp_path / "target"))
    await node.start()
    try:
        await node.parts.catalog.submit(CreateStream(STREAM, StreamPolicy(), now()))
        yield node.parts
    finally:
        await node.stop()


@pytest.fixture
async def source() -> PlayedSource:
    return PlayedSource()


@pytest.fixture
async def pull(target: NodeParts) -> AsyncIterator[Pulling]:
    """Starts to pull from a source; all links end with the test."""
    pulling = Pulling(target)
    yield pulling
    for puller in pulling.made:
        await puller.close()


@pytest.fixture
def copies(target: NodeParts) -> Copies:
    return Copies(target)
