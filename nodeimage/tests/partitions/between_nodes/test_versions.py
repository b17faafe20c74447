"""A cluster of a node with the previous version of the peer protocol, and one with the next version."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from headrace.base.ids import Millis
from headrace.node import Node
from headrace.peer import handshake
from headrace.peer.messages import PEER_VERSION
from headrace.store.sqlite import SqliteStore
from kit.pair import Pair, append, options, read, until


async def test_two_versions_in_succession_form_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.node.containers.HAND_OVER_S", 0.0)
    monkeypatch.setattr(handshake, "PEER_VERSION", PEER_VERSION - 1)
    SqliteStore(tmp_path / "cluster.sqlite").close()
    older, newer = (Node(options(tmp_path, number, 2)) for number in (1, 2))
    probe = older.probe
    # Answers of the previous version have no clock.
    older.probe = lambda asked: structs.replace(probe(asked), clock=Millis(0))  # type: ignore[method-assign]
    starting = asyncio.create_task(older.start())
    try:
        await until(lambda: hasattr(older, "peers"))
        monkeypatch.setattr(handshake, "PEER_VERSION", PEER_VERSION)
        await asyncio.gather(starting, newer.start())
        assert older.peers._identity.versions == (1, PEER_VERSION - 1)
        assert newer.peers._identity.versions == (1, PEER_VERSION)
        pair = await Pair(older, newer).ready()
        partition = await pair.create("both")
        await pair.first.rolls.roll(partition, to=pair.led(pair.second).id)
        moved = await pair.partition(pair.second, "both")
        await append(moved, b"c")
        expected: list[Any] = [(0, b"a"), (1, b"b"), (2, b"c")]
        assert await read(pair.second, moved) == expected
        assert all(len(each.in_sync) == 2 for each in pair.first.cluster.open_data())
        assert {session.met.version for node in (older, newer) for session in node.peers._sessions} == {
            PEER_VERSION - 1
        }
        assert newer.controller.clocks.agreed() is not None
    finally:
        await newer.stop()
        await older.stop()
