"""A server's limits of calls, its admission of sessions, and its end."""

import asyncio
import uuid
from typing import Any, ClassVar

import pytest

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import ContainerId, NodeId
from headrace.peer.messages import (
    PEER_VERSION,
    Message,
    Prepare,
    Prepared,
    Probe,
    ProbeAnswer,
    Request,
    RollAway,
    Rolled,
    Submit,
)
from headrace.peer.reports import NodeLoad
from headrace.peer.server import MAX_UNDER_WAY
from headrace.peer.session import PeerUnreachable, Session
from kit.peer import Gate, roll, submitted


async def test_a_handler_knows_who_calls(nodes: Any) -> None:
    async def prepare(message: Prepare, payload: memoryview, session: Session) -> Message:
        return Prepared(f"{session.node} {session.met.version}")

    server = await nodes.server({Prepare: prepare})
    answer, _ = await nodes.client(node=7).call(server.address, Prepare(ContainerId(1), "data"), timeout_s=5)
    assert answer.format == f"7 {PEER_VERSION}"


class Later(Request[Rolled], frozen=True):
    """A call from a future version."""

    answer: ClassVar[type[Message]] = Rolled


@pytest.mark.parametrize("message", [Later(), roll(1)])
async def test_a_call_that_is_not_known_is_refused_and_the_session_goes_on(
    nodes: Any, lines: list[Any], message: Request[Rolled]
) -> None:
    server, client = await nodes.server({Submit: submitted}), nodes.client()
    await client.call(server.address, Submit(), timeout_s=5)
    with pytest.raises(KafkaError, match=type(message).__name__) as caught:
        await client.call(server.address, message, timeout_s=5)
    assert caught.value.code is Code.UNSUPPORTED_VERSION
    await client.call(server.address, Submit(), timeout_s=5)
    (line,) = lines
    assert line["event"] == "call refused"
    assert line["peer"].startswith("127.0.0.1:")


async def test_a_session_with_many_calls_under_way_is_not_read_from_until_some_are_answered(nodes: Any) -> None:
    gate = Gate()
    server, client = await nodes.server({RollAway: gate}), nodes.client()
    calls = [asyncio.ensure_future(client.call(server.address, roll(i), timeout_s=60)) for i in range(600)]
    await gate.until(MAX_UNDER_WAY)
    with pytest.raises(PeerUnreachable):  # gives more calls time to begin, if they could
        await client.call(server.address, roll(1), timeout_s=0.1)
    assert gate.begun == MAX_UNDER_WAY
    gate.opened.set()
    assert [answer.count for answer, _ in await asyncio.gather(*calls)] == list(range(600))


async def test_a_probe_is_answered_while_a_node_is_busy_with_as_many_calls_as_it_takes(
    nodes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the node would be taken for dead while the calls last."""
    monkeypatch.setattr("headrace.peer.server.MAX_ALL_UNDER_WAY", MAX_UNDER_WAY)

    async def probed(message: Probe, payload: memoryview, session: Session) -> Message:
        return ProbeAnswer(
            node=NodeId(1), run=uuid.UUID(int=1), replicas=[], load=NodeLoad(), reaches_store=True, ready=True
        )

    gate = Gate()
    server, client = await nodes.server({RollAway: gate, Probe: probed}), nodes.client()
    calls = [asyncio.ensure_future(client.call(server.address, roll(i), timeout_s=60)) for i in range(300)]
    await gate.until(MAX_UNDER_WAY)
    answer, _ = await client.call(server.address, Probe(), timeout_s=20)
    assert answer.ready
    assert gate.begun == MAX_UNDER_WAY
    with pytest.raises(KafkaError, match="calls under way"):
        await nodes.client(node=7).call(server.address, roll(1), timeout_s=20)
    for call in calls:
        call.cancel()
    gate.opened.set()


async def test_closing_the_server_ends_its_sessions_and_waits_for_handlers(nodes: Any) -> None:
    gate = Gate()
    server, client = await nodes.server({RollAway: gate}), nodes.client()
    call = asyncio.ensure_future(client.call(server.address, roll(1), timeout_s=60))
    await gate.until(1)
    closing = asyncio.ensure_future(server.close(grace_s=60))
    with pytest.raises(PeerUnreachable):
        await call
    assert not closing.done()
    gate.opened.set()
    await asyncio.wait_for(closing, 20)
    assert gate.ended == 1


async def test_closing_the_server_cancels_handlers_that_take_too_long(nodes: Any) -> None:
    gate = Gate()
    server, client = await nodes.server({RollAway: gate}), nodes.client()
    call = asyncio.ensure_future(client.call(server.address, roll(1), timeout_s=60))
    await gate.until(1)
    await asyncio.wait_for(server.close(grace_s=0.01), 20)
    assert gate.cancelled == 1
    with pytest.raises(PeerUnreachable):
        await call
