"""Who is probed."""

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from headrace.control.prober import Prober
from headrace.ids import NodeId
from headrace.peer.session import PeerUnreachable
from headrace.store.records import NodeRecord

OWN = NodeId(1)


class View:
    def __init__(self, *nodes: NodeRecord) -> None:
        self.nodes = {node.node_id: node for node in nodes}


class Silence:
    """Nobody answers."""

    def __init__(self) -> None:
        self.ports: set[int] = set()
        self._asked = asyncio.Event()

    async def call(self, address: tuple[str, int], message: Any, *, timeout_s: float) -> Any:
        self.ports.add(address[1])
        self._asked.set()
        raise PeerUnreachable(f"{address} refuses connections")

    async def until_asked(self, port: int) -> None:
        async with asyncio.timeout(100):
            while port not in self.ports:
                await self._asked.wait()
                self._asked.clear()


def node(number: int, *, peer_port: int) -> NodeRecord:
    return NodeRecord(NodeId(number), UUID(int=number), UUID(int=number), "h", 9092, peer_port=peer_port)


async def test_a_round_that_begins_within_a_rounding_error_is_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    view, peers = View(node(1, peer_port=1), node(2, peer_port=2)), Silence()
    prober = Prober(own=OWN, view=view, peers=peers, changed=lambda: None)
    try:
        monkeypatch.setattr(prober, "is_in_doubt", lambda: False)
        now = prober._loop.time()
        monkeypatch.setattr(prober, "_loop", SimpleNamespace(time=lambda: now))
        for since, pause in ((0.25, 0.75), (1.0, 1.0), (2.0 - 1e-7, 1.0), (2.0 - 1e-3, 1e-3)):
            prober._origin = now - since
            assert prober._pause(NodeId(2)) == pytest.approx(pause, abs=1e-6)
            assert now + prober._pause(NodeId(2)) > now
    finally:
        await prober.close()


async def test_a_node_that_has_not_been_up_yet_is_not_missed() -> None:
    view, peers = View(node(1, peer_port=1), node(2, peer_port=2), node(3, peer_port=0)), Silence()
    prober = Prober(own=OWN, view=view, peers=peers, changed=lambda: None)
    try:
        await peers.until_asked(2)
        assert set(prober.sights()) == {2}
        view.nodes[NodeId(3)] = node(3, peer_port=3)
        prober.nodes_changed()
        assert set(prober.sights()) == {2, 3}
        await peers.until_asked(3)
        assert 0 not in peers.ports
    finally:
        await prober.close()
