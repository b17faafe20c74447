"""A node with the objects that the operator creates for its pod: the operator's own client, a StreamUser's, and
strangers.

The node, the operator's calls and the clients' properties from a StreamUser's Secret are real; the API server is not,
and the pod's folders are below the test's folder.
"""

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvloop
from confluent_kafka import Consumer, KafkaError, Producer

from headrace.kafka_client.blocking_client import Access, BrokerConnection
from headrace.kafka_client.errors import SourceRefuses
from headrace.node import Node
from headrace.security.certificate_authority import Authority
from headrace.security.client_security import of_security, security_of
from headrace_operator.admin import Admin
from headrace_operator.builders import authorities
from headrace_operator.builders.authorities import decoded
from headrace_operator.builders.names import OPERATOR_PORT
from headrace_operator.engine import Key
from headrace_operator.kinds.stream import Streams
from headrace_operator.kinds.users import Users
from headrace_operator.routes import Destination, Routes
from kit.own_ports import own_port
from kit.parts import options
from kit.patience import PATIENCE

from .fake_cluster import NS, World

KEY = Key("StreamCluster", NS, "c")
REF = {"clusterRef": {"name": "c"}}
API_VERSIONS = bytes.fromhex("0000000a 0012 0000 00000001 ffff")
"""A request ApiVersions, version 0."""
MACHINES_PORT = 9300
MACHINES = {
    "name": "machines",
    "port": MACHINES_PORT,
    "protocol": "SSL",
    "clientCa": {"secretRef": {"name": "company"}},
}
LIMIT_S = 30.0 * PATIENCE


COMPANY, OTHER = (Authority.create(name, days=30, now=time.time()) for name in ("company", "other"))


def give(world: World, authority: Authority) -> None:
    """Create a user's Secret with an authority of clients."""
    data = authorities.encoded({"ca.crt": authority.pair.certificate})
    meta = {"name": "company", "namespace": NS}
    world.api.put({"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": data})


class Here(Routes):
    """The operator's routes, redirected to ports of this machine."""

    def __init__(self, of: Routes, port: int) -> None:
        super().__init__()
        self._of = of
        self._port = port

    def way(self, address: str) -> Destination:
        asked = self._of.way(address)
        assert asked.address.endswith(f":{OPERATOR_PORT}"), "in clear"
        return replace(asked, address=f"localhost:{self._port}")


class Running:
    """The node, on its own loop in a thread."""

    def __init__(self, folder: Path, world: World) -> None:
        self.ports = {"internal": own_port(), "operator": own_port(), "machines": own_port()}
        self._folder, self._world = folder, world
        self.mount()
        text = str(world.api.one("ConfigMap", "c-listeners")["data"]["shard-0.toml"])
        for known, port in ((OPERATOR_PORT, self.ports["operator"]), (MACHINES_PORT, self.ports["machines"])):
            text = text.replace(f"port = {known}\n", f"port = {port}\n")
        text = text.replace("/etc/headrace", str(folder))
        (folder / "shard-0.toml").write_text(text)
        told = replace(
            options(folder),
            host="localhost",
            port=self.ports["internal"],
            listeners_file=folder / "shard-0.toml",
            bootstrap_admin=folder / "operator" / "admin.toml",
            secure=True,
        )
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._node: Node | None = None
        asyncio.run_coroutine_threadsafe(self._start(told), self._loop).result(LIMIT_S)

    def mount(self) -> None:
        """Update a mounted Secret like the kubelet."""
        for name, where in (("c-server", "server"), ("c-operator", "operator")):
            (self._folder / where).mkdir(exist_ok=True)
            for entry, value in decoded(self._world.api.one("Secret", name)).items():
                (self._folder / where / entry).write_text(value)

    def look(self) -> None:
        """Check the files, as nodes do every ten seconds."""
        assert self._node is not None
        asyncio.run_coroutine_threadsafe(self._node._listeners.look(), self._loop).result(LIMIT_S)

    async def _start(self, told: Any) -> None:
        self._node = Node(told)
        await self._node.start()

    def close(self) -> None:
        if self._node is not None:
            asyncio.run_coroutine_threadsafe(self._node.stop(), self._loop).result(LIMIT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def secure() -> World:
    """The objects of a cluster with security, before there is a node."""

    async def made() -> World:
        world = World()
        give(world, COMPANY)
        spec = {"nodes": 1, "security": {"enabled": True}, "listeners": {"additional": [MACHINES]}}
        world.declare("StreamCluster", "c", spec)
        await world.once(KEY)
        world.cluster.converge()
        await world.once(KEY)
        return world

    return asyncio.run(made())


@pytest.fixture
def running(tmp_path: Path, secure: World) -> Iterator[Running]:
    node = Running(tmp_path, secure)
    yield node
    node.close()


def client(folder: Path, held: dict[str, str], node: Running, **more: Any) -> dict[str, Any]:
    """Return librdkafka's properties, as in a pod that mounts the Secret."""
    folder.mkdir(exist_ok=True)
    for name, value in held.items():
        (folder / name).write_text(value)
    lines = held["client.properties"].replace("/etc/headrace/user", str(folder)).splitlines()
    found: dict[str, Any] = dict(line.split("=", 1) for line in lines)
    assert found["bootstrap.servers"] == "c-bootstrap.ns.svc:9092"
    return {**found, "bootstrap.servers": f"localhost:{node.ports['internal']}", **more}


def test_users_that_are_declared_come_in_and_others_do_not(tmp_path: Path, secure: World, running: Running) -> None:
    async def declared() -> None:
        admin = Admin(Here(secure.routes, running.ports["operator"]))
        common: Any = {"kube": secure.kube, "admin": admin, "reporter": secure.reporter, "cache": secure.cache}
        users, streams = Users(**common, index=secure.index), Streams(**common, index=secure.index)
        shown = await admin.call("c-bootstrap.ns.svc:9092", "security.show")
        assert shown["on"]
        quotas = {"producerByteRate": 100_000_000}
        for name, spec in (("alice", {"groups": ["sensors"], "quotas": quotas}), ("bob", {})):
            key = secure.declare("StreamUser", name, {**REF, **spec})
            secure.watch()
            await users.reconcile(key, secure.cache.get(key))
            assert secure.condition("StreamUser", name)[:2] == ("True", "Ready")
        permissions = {"produce": "g:sensors", "consume": "u:alice | u:carol", "topic": "u:alice"}
        key = secure.declare("Stream", "plant", {**REF, "path": "/plant", "permissions": permissions})
        for _ in range(2):
            secure.watch()
            await streams.reconcile(key, secure.cache.get(key))
        assert secure.condition("Stream", "plant")[:2] == ("True", "Ready")
        state, reason, message = secure.condition("Stream", "plant", "Permitted")
        assert (state, reason) == ("False", "UnknownNames")
        assert "user carol" in message
        told = await admin.call("c-bootstrap.ns.svc:9092", "access.explain", {"user": "alice", "object": "/plant"})
        assert {each["permission"] for each in told if each["allowed"]} == {"produce", "consume", "topic"}
        await admin.close()

    asyncio.run(declared())
    alice, bob = (decoded(secure.api.one("Secret", name)) for name in ("alice", "bob"))
    failed: list[Any] = []
    producer = Producer(client(tmp_path / "alice", alice, running))
    producer.produce("/plant:pumps", b"12 bar", on_delivery=lambda error, _: failed.append(error))
    assert producer.flush(LIMIT_S) == 0
    assert failed == [None]
    told = client(tmp_path / "alice", alice, running, **{"group.id": "readers", "auto.offset.reset": "earliest"})
    consumer = Consumer(told)
    consumer.subscribe(["/plant:pumps"])
    record = consumer.poll(LIMIT_S)
    assert record is not None
    assert record.value() == b"12 bar"
    consumer.close()

    refused: list[Any] = []
    producer = Producer(client(tmp_path / "bob", bob, running))
    producer.produce("/plant:pumps", b"0 bar", on_delivery=lambda error, _: refused.append(error.code()))
    producer.flush(LIMIT_S)
    assert refused == [KafkaError.TOPIC_AUTHORIZATION_FAILED]

    wrong = client(tmp_path / "bob", bob, running, **{"sasl.password": "not bob's password"})
    access = Access(security_of(of_security(wrong)))
    with pytest.raises(SourceRefuses, match="authentication failed"):
        BrokerConnection("localhost", running.ports["internal"], timeout_s=LIMIT_S, access=access)
    with pytest.raises(ConnectionError):
        BrokerConnection("localhost", running.ports["internal"], timeout_s=LIMIT_S).admin("cluster.status")


def test_a_user_that_shall_have_a_certificate_only_loses_its_password(
    tmp_path: Path, secure: World, running: Running
) -> None:
    def declared(**fields: Any) -> dict[str, str]:
        """Return the content of the user's Secret after a reconcile."""

        async def reconciled() -> None:
            admin = Admin(Here(secure.routes, running.ports["operator"]))
            common: Any = {"kube": secure.kube, "admin": admin, "reporter": secure.reporter, "cache": secure.cache}
            key = secure.declare("StreamUser", "bob", {**REF, **fields})
            secure.watch()
            await Users(**common, index=secure.index).reconcile(key, secure.cache.get(key))
            await admin.close()

        asyncio.run(reconciled())
        assert secure.condition("StreamUser", "bob")[:2] == ("True", "Ready")
        return decoded(secure.api.one("Secret", "bob"))

    former = client(tmp_path / "bob", declared(), running)
    access = Access(security_of(of_security(former)))
    BrokerConnection("localhost", running.ports["internal"], timeout_s=LIMIT_S, access=access).close()
    assert "password" not in declared(authentication={"tls": {}})
    with pytest.raises(SourceRefuses, match="authentication failed"):
        BrokerConnection("localhost", running.ports["internal"], timeout_s=LIMIT_S, access=access)


def test_the_operator_alone_is_administrator(secure: World, running: Running) -> None:
    async def shown() -> Any:
        admin = Admin(Here(secure.routes, running.ports["operator"]))
        found = await admin.call("c-0.c-nodes.ns.svc:9092", "security.show", patience_s=LIMIT_S)
        await admin.close()
        return found

    found = asyncio.run(shown())
    assert (found["on"], found["administrators"]) == (True, "u:headrace-operator")


def test_certificates_of_a_given_authority_come_in_and_no_others(
    tmp_path: Path, secure: World, running: Running
) -> None:
    """And those of another authority as soon as it is provided, while the node runs."""
    own = Authority.of(authorities.read(secure.api.one("Secret", "c-clients-ca")).current)

    def comes_in(authority: Authority, name: str = "press-7") -> bool:
        """Return whether a client with a certificate of the authority gets an answer."""
        shown = authority.issue(name, days=1, now=time.time(), client=True)
        (tmp_path / "client.pem").write_text(shown.key + shown.certificate)
        context = ssl.create_default_context(cadata=decoded(secure.api.one("Secret", "c-ca"))["ca.crt"])
        context.load_cert_chain(tmp_path / "client.pem")
        plain = socket.create_connection(("localhost", running.ports["machines"]), timeout=LIMIT_S)
        try:
            with context.wrap_socket(plain, server_hostname="localhost") as connection:
                connection.sendall(API_VERSIONS)
                return len(connection.recv(4)) == 4  # with TLS 1.3 a client learns of a refusal at its first read
        except OSError:
            return False

    assert comes_in(COMPANY)
    assert not comes_in(own)
    assert not comes_in(OTHER)
    give(secure, OTHER)
    asyncio.run(secure.once(KEY))
    running.mount()
    running.look()
    assert comes_in(OTHER)
    assert not comes_in(COMPANY)
    assert not comes_in(OTHER, "headrace-operator")
