"""Lets the tests of this folder share `pair.py`, and starts its nodes."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headrace.node import Node
from headrace.store.sqlite import SqliteStore
from kit.pair import Pair, Start, options


@pytest.fixture
async def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Start]:
    """Starts two nodes; replicas on both, or each container on one of them."""
    running: list[Node] = []
    monkeypatch.setattr("headrace.node.containers.HAND_OVER_S", 0.0)  # nobody is left to take over

    async def started(replicas: int) -> Pair:
        SqliteStore(tmp_path / "cluster.sqlite").close()
        nodes = [Node(options(tmp_path, number, replicas)) for number in (1, 2)]
        running.extend(nodes)
        if replicas == 2:
            await asyncio.gather(*(node.start() for node in nodes))
        else:
            for node in nodes:
                await node.start()
        return await Pair(*nodes).ready()

    yield started
    for node in reversed(running):
        await node.stop()
