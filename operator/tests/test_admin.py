"""Admin calls over real sockets, to a node with scripted answers."""

import asyncio
import struct
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from headrace.base.errors import Code, KafkaError
from headrace.wire.admin_call import decode_admin_request, encode_admin_response
from headrace_operator import admin as admin_module
from headrace_operator.admin import Admin, Unreachable
from headrace_operator.routes import Routes


class Node:
    def __init__(self) -> None:
        self.connections = 0
        self.hang_up = False
        self.others = asyncio.Event()
        """Set once the other nodes, which this one asks, answer."""

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self.address

    def close(self) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                (length,) = struct.unpack(">i", await reader.readexactly(4))
                request = await reader.readexactly(length)
                _, _, correlation, name = struct.unpack_from(">hhih", request)
                method, params = decode_admin_request(request[10 + name :])
                if method == "ask others":
                    await self.others.wait()
                refused = method == "refuse"
                body = encode_admin_response(
                    {"method": method, **params},
                    error=int(Code.POLICY_VIOLATION) if refused else 0,
                    message="no" if refused else None,
                )
                answer = struct.pack(">i", correlation) + body
                writer.write(struct.pack(">i", len(answer)) + answer)
                await writer.drain()
                if self.hang_up:
                    break
        except asyncio.IncompleteReadError:
            pass
        writer.close()


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    made = Node()
    await made.start()
    yield made
    made.close()


@pytest.fixture
async def admin() -> AsyncIterator[Admin]:
    made = Admin()
    yield made
    await made.close()


async def test_calls_share_a_connection_and_refusals_are_errors(admin: Admin, node: Node) -> None:
    assert await admin.call(node.address, "x", {"a": 1}) == {"method": "x", "a": 1}
    with pytest.raises(KafkaError, match="no") as refused:
        await admin.call(node.address, "refuse")
    assert refused.value.code is Code.POLICY_VIOLATION
    assert await admin.call(node.address, "y") == {"method": "y"}
    assert node.connections == 1


async def test_a_connection_that_the_node_has_ended_is_made_anew(admin: Admin, node: Node) -> None:
    node.hang_up = True
    for _ in range(3):
        assert await admin.call(node.address, "x") == {"method": "x"}
    assert node.connections == 3


async def test_a_cluster_that_does_not_answer_is_left_in_peace_for_a_moment(
    admin: Admin, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.close()
    with pytest.raises(Unreachable):
        await admin.call(node.address, "x")
    monkeypatch.setattr(admin_module, "FAIL_FAST_S", 100.0)
    monkeypatch.setattr(admin_module, "BrokerConnection", None)  # nobody is asked
    for _ in range(100):
        with pytest.raises(Unreachable):
            await admin.call(node.address, "x")


async def test_others_that_a_node_asks_in_vain_say_nothing_of_the_node(admin: Admin, node: Node) -> None:
    with pytest.raises(Unreachable, match="does not answer ask others"):
        await admin.call(node.address, "ask others", patience_s=0.2)
    assert await admin.call(node.address, "x") == {"method": "x"}
    node.others.set()
    assert await admin.call(node.address, "ask others", {"a": 1}, patience_s=20.0) == {"method": "ask others", "a": 1}
    with pytest.raises(KafkaError, match="no"):
        await admin.call(node.address, "refuse", patience_s=20.0)


async def test_a_node_that_is_silent_over_a_kept_connection_is_not_waited_for_twice(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_module, "CALL_S", 0.2)
    admin = Admin()
    try:
        await admin.call(node.address, "look")
        with pytest.raises(Unreachable):
            await admin.call(node.address, "ask others")
        assert node.connections == 1
    finally:
        await admin.close()
        node.others.set()


async def test_calls_that_hang_hold_no_other_question_up(node: Node) -> None:
    admin = Admin()
    hanging = [asyncio.create_task(admin.call(node.address, "ask others")) for _ in range(2 * admin_module.THREADS)]
    try:
        async with asyncio.timeout(5):
            assert (await admin.call(node.address, "look", patience_s=4.0))["method"] == "look"
    finally:
        node.others.set()
        await asyncio.gather(*hanging)
        await admin.close()


class Answering:
    """A connection that accepts every call."""

    address = "c-0:9092"

    def admin(self, method: str, params: object) -> object:
        return {}


def test_the_log_has_what_a_cluster_was_told_to_change_and_no_secret() -> None:
    with capture_logs() as logged:
        for method, params in (
            ("stream.show", {"path": "/s"}),
            ("balance", {}),
            ("balance", {"paused": True}),
            ("stream.create", {"path": "/s", "ttl": "7d"}),
            ("link.create", {"name": "l", "properties": {"sasl.password": "open-sesame"}}),
        ):
            admin_module._admin(Answering(), method, params)  # type: ignore[arg-type]
    assert [(each["method"], each["of"]) for each in logged] == [
        ("balance", "c-0:9092"),
        ("stream.create", "c-0:9092"),
        ("link.create", "c-0:9092"),
    ]
    assert logged[1]["path"] == "/s"
    assert "open-sesame" not in str(logged)


@pytest.mark.parametrize("method", ["user.create", "user.passwd"])
async def test_a_password_is_told_nobody_in_clear(node: Node, method: str) -> None:
    admin = Admin()
    with pytest.raises(Unreachable, match=r"no password is sent to .* in clear text"):
        await admin.call(node.address, method, {"name": "alice", "password": "secret"})
    assert node.connections == 0
    await admin.close()


async def test_a_cluster_whose_proofs_are_not_known_is_not_asked() -> None:
    routes = Routes()
    routes.close("ns", "c", "no Secret yet")
    admin = Admin(routes)
    for patience_s in (None, 1.0):
        with pytest.raises(Unreachable, match="no Secret yet"):
            await admin.call("c-bootstrap.ns.svc:9092", "cluster.status", patience_s=patience_s)
    await admin.close()
