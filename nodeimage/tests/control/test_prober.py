"""Which nodes are probed, and when."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import ContainerId, Epoch, NodeId, Position
from headrace.control.prober import Prober
from headrace.peer.messages import ProbeAnswer
from headrace.peer.replica_pages import ReplicaReporter
from headrace.peer.reports import NodeLoad, ReplicaState
from headrace.peer.session import PeerUnreachable
from headrace.store.records import NodeRecord

OWN = NodeId(1)
ALIVE = ProbeAnswer(NodeId(2), UUID(int=2), [], NodeLoad(), True, True)


class View:
    def __init__(self, *nodes: NodeRecord) -> None:
        self.nodes = {node.node_id: node for node in nodes}


class Silence:
    """No node answers."""

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


def state(number: int) -> ReplicaState:
    return ReplicaState(ContainerId(number), "follower", Epoch(1), Epoch(1), Position(0), Position(0))


class Answers:
    """A node that answers or raises what `answer` says; the test lets each answer through."""

    def __init__(self, answer: Callable[[Any], ProbeAnswer]) -> None:
        self.answer = answer
        self.asked: list[Any] = []
        self._free = asyncio.Semaphore(0)

    def let_through(self) -> None:
        self._free.release()

    async def call(self, address: tuple[str, int], message: Any, *, timeout_s: float) -> Any:
        await self._free.acquire()
        self.asked.append(message)
        return self.answer(message), memoryview(b"")


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(100):
        while not what():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_a_node_lives_with_its_first_page_and_is_known_with_its_last() -> None:
    teller = ReplicaReporter(page_bytes=1000)
    for number in range(1, 21):
        teller.note(ContainerId(number), state(number))
    peers = Answers(lambda asked: teller.answer(asked, ALIVE))
    told: dict[int, ReplicaState | None] = {}
    view = View(node(1, peer_port=1), node(2, peer_port=2))
    prober = Prober(
        own=OWN, view=view, peers=peers, changed=lambda: None, told=lambda _node, changes, _whole: told.update(changes)
    )
    try:
        peers.let_through()
        await until(lambda: bool(told))
        result = prober.results()[NodeId(2)]
        assert result.answer is not None
        assert result.partly
        assert 0 < len(told) < 20
        assert prober.heard() == {2}
        for _ in range(10):
            peers.let_through()
        await until(lambda: not prober.results()[NodeId(2)].partly)
        assert told == {number: state(number) for number in range(1, 21)}
        del view.nodes[NodeId(2)]
        prober.nodes_changed()
        assert set(told.values()) == {None}
    finally:
        await prober.close()


async def test_a_node_that_refuses_to_say_how_it_is_is_not_silent() -> None:
    def refused(_asked: Any) -> ProbeAnswer:
        raise KafkaError(Code.MESSAGE_TOO_LARGE, "planted")

    peers = Answers(lambda _asked: ALIVE)
    prober = Prober(own=OWN, view=View(node(1, peer_port=1), node(2, peer_port=2)), peers=peers, changed=lambda: None)
    try:
        peers.let_through()
        await until(lambda: prober.results()[NodeId(2)].answer is not None)
        before = prober.results()[NodeId(2)]
        peers.answer = refused
        prober.look_at(NodeId(2))
        peers.let_through()
        await until(lambda: prober.results()[NodeId(2)].heard_at != before.heard_at)
        after = prober.results()[NodeId(2)]
        assert (after.answer, after.silent_since) == (before.answer, None)
        assert after.told_at == before.told_at, "of its replicas nothing new is known"
    finally:
        await prober.close()


async def test_a_node_that_has_not_been_up_yet_is_not_missed() -> None:
    view, peers = View(node(1, peer_port=1), node(2, peer_port=2), node(3, peer_port=0)), Silence()
    prober = Prober(own=OWN, view=view, peers=peers, changed=lambda: None)
    try:
        await peers.until_asked(2)
        assert set(prober.results()) == {2}
        view.nodes[NodeId(3)] = node(3, peer_port=3)
        prober.nodes_changed()
        assert set(prober.results()) == {2, 3}
        await peers.until_asked(3)
        assert 0 not in peers.ports
    finally:
        await prober.close()
