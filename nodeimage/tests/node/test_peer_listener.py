"""Nodes of one cluster with `--peer-tls`: they serve, their certificates change, and their status reports that."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.node import Node, Options
from headrace.node.peer_listener import PeerListener, read
from headrace.node.peer_secrets import SecretsRefused, id_of
from headrace.partitions.cluster_layout import NodeSettings
from headrace.peer.messages import Probe
from headrace.peer.session import PeerUnreachable
from headrace.security.peer_tls import PeerTlsMode
from headrace.security.tls_server import TlsRefused
from headrace.store.sqlite import SqliteStore
from kit.node_certificates import Authority, put, trust
from kit.patience import PATIENCE

AUTHORITY, OTHER = Authority(), Authority("other")
ACCEPT, REQUIRE = PeerTlsMode.ACCEPT, PeerTlsMode.REQUIRE


@asynccontextmanager
async def cluster(folder: Path, *modes: PeerTlsMode | None) -> AsyncIterator[list[Node]]:
    """Serving nodes with these modes of TLS between them; None: without TLS."""
    SqliteStore(folder / "cluster.sqlite").close()
    made = [
        Node(
            Options(
                data=folder / f"node-{number}",
                store=folder / "cluster.sqlite",
                host="127.0.0.1",
                port=0,
                ready_file=None,
                settings=NodeSettings(chunk_bytes=1 << 20, disk_reserve=0, fsync=False),
                first_nodes=len(modes),
                failure_host=f"host-{number}",
                peer_tls=None if mode is None else AUTHORITY.node(folder / f"tls-{number}", f"node-{number}"),
                peer_tls_mode=mode or REQUIRE,
                peer_secrets=folder / f"peer-secrets-{number}",
            )
        )
        for number, mode in enumerate(modes, 1)
    ]
    await asyncio.gather(*(node.start() for node in made))
    try:
        yield made
    finally:
        await asyncio.gather(*(node.stop() for node in made))


async def until(check: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(20 * PATIENCE):
        while not await check():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def peer_status(node: Node) -> Any:
    """The status of listener `peer`."""
    found = await node.parts.status.status()
    return next(each for each in found["listeners"] if each["name"] == "peer")


async def probes(node: Node, other: Node) -> None:
    """Probe over an existing connection, or a new one."""
    address = node.view.nodes[other.identity.node_id].peer_address
    await node.peers.call(address, Probe(), timeout_s=20)


async def replicates(nodes: list[Node]) -> None:
    """Wait until all replicas of all containers are in sync."""

    async def in_sync() -> bool:
        found = [node.view.containers.values() for node in nodes]
        return all(each and all(len(one.in_sync) == len(nodes) for one in each) for each in found)

    await until(in_sync)


def look(nodes: list[Node]) -> None:
    for node in nodes:
        assert node._peer_listener is not None
        assert node._peer_listener.look()


async def test_nodes_replicate_over_tls_while_their_authority_changes(tmp_path: Path) -> None:
    async with cluster(tmp_path, REQUIRE, REQUIRE, REQUIRE) as nodes:
        await replicates(nodes)
        for step in (
            lambda folder: trust(folder, AUTHORITY, OTHER),
            lambda folder: OTHER.node(folder, trusted=[AUTHORITY]),
            lambda folder: trust(folder, OTHER),
        ):
            for number, node in enumerate(nodes, 1):
                step(tmp_path / f"tls-{number}")
                look([node])
                for other in nodes:
                    session = await node.peers.open(
                        nodes[0].view.nodes[other.identity.node_id].peer_address, 20 * PATIENCE
                    )
                    session.close()
        shown = [await peer_status(node) for node in nodes]
        assert [(each["protocol"], each["failed_handshakes_since_start"]) for each in shown] == [("SSL", 0)] * 3
        assert shown[0]["port"] == nodes[0].view.nodes[nodes[0].identity.node_id].peer_port
        put(tmp_path / "tls-1" / "tls.crt", b"no certificate")
        await nodes[0]._listeners.look()
        assert "holds no certificate in PEM" in (await peer_status(nodes[0]))["problem"]
        for other in nodes[1:]:
            await probes(nodes[0], other)


async def test_nodes_get_tls_one_after_the_other(tmp_path: Path) -> None:
    async with cluster(tmp_path, None, ACCEPT, ACCEPT) as nodes:
        await replicates(nodes)
        assert (await peer_status(nodes[0]))["protocol"] == "PLAINTEXT"
        await probes(nodes[1], nodes[0])
        await nodes[1]._listeners.look()
        shown = await peer_status(nodes[1])
        assert shown["protocol"] == "SSL, PLAINTEXT"
        address = nodes[0].view.nodes[nodes[0].identity.node_id].peer_address
        assert f"{address[0]}:{address[1]}" in shown["problem"]
        assert "may not use TLS" in shown["problem"]
        assert len(nodes[1].peers.spoken_plainly()) == 1  # TLS is used with the third node


async def test_a_node_without_tls_is_kept_out_of_a_cluster_that_requires_it(tmp_path: Path) -> None:
    async with cluster(tmp_path, REQUIRE, REQUIRE) as nodes:
        await replicates(nodes)
        address = nodes[1].view.nodes[nodes[0].identity.node_id].peer_address
        nodes[1].peers._tls = None
        with pytest.raises(PeerUnreachable):
            await nodes[1].peers.open(address, 20 * PATIENCE)


async def test_the_secret_of_a_cluster_changes_while_it_serves(tmp_path: Path) -> None:
    """The nodes change one after the other, by way of accepting both secrets; existing connections stay open."""
    async with cluster(tmp_path, REQUIRE, REQUIRE) as nodes:
        await replicates(nodes)
        record = nodes[0].view.cluster
        assert record is not None
        lasting = [await node.peers.open(address_of(nodes, other), 20) for node in nodes for other in nodes]
        seen = [(await peer_status(nodes[0]))["secrets"]]
        new, newer = "ab" * 16, "cd" * 20
        for lines in ([new, record.secret], [new], [newer, new], [newer]):
            for number, node in enumerate(nodes, 1):
                put(tmp_path / f"peer-secrets-{number}", "\n".join(lines).encode())
                await node._listeners.look()
                for one in nodes:
                    for other in nodes:
                        (await one.peers.open(address_of(nodes, other), 20 * PATIENCE)).close()
            shown = [(await peer_status(each))["secrets"] for each in nodes]
            assert shown[0] == shown[1]
            seen.append(shown[0])
        assert seen == [
            id_of(record.secret),
            f"{id_of(new)} {id_of(record.secret)}",
            id_of(new),
            f"{id_of(newer)} {id_of(new)}",
            id_of(newer),
        ]
        assert not any(session.is_closed for session in lasting)
        put(tmp_path / "peer-secrets-1", b"password1")
        await nodes[0]._listeners.look()
        told = await peer_status(nodes[0])
        assert "is not one secret, or two" in told["problem"]
        assert "password1" not in str(told)
        (await nodes[0].peers.open(address_of(nodes, nodes[1]), 20 * PATIENCE)).close()
        put(tmp_path / "peer-secrets-1", record.secret.encode())
        await nodes[0]._listeners.look()
        with pytest.raises(PeerUnreachable, match="another secret"):
            await nodes[0].peers.open(address_of(nodes, nodes[1]), 20 * PATIENCE)


def address_of(nodes: list[Node], node: Node) -> tuple[str, int]:
    return nodes[0].view.nodes[node.identity.node_id].peer_address


def test_what_cannot_be_used_names_the_option(tmp_path: Path) -> None:
    assert read(None, REQUIRE) is None
    with pytest.raises(TlsRefused, match=rf"--peer-tls {tmp_path}: {tmp_path}/tls.crt cannot be read: No such file"):
        read(tmp_path, REQUIRE)
    (tmp_path / "secrets").write_text("hush")
    with pytest.raises(SecretsRefused, match=rf"--peer-secrets {tmp_path}/secrets is not one secret") as caught:
        read(None, REQUIRE, tmp_path / "secrets")
    assert "hush" not in str(caught.value)


def test_many_plain_nodes_are_told_of_shortly(tmp_path: Path) -> None:
    class Client:
        def spoken_plainly(self) -> dict[tuple[str, int], str]:
            return {("10.0.0.1", number): "no TLS" for number in range(5)}

    listener = read(AUTHORITY.node(tmp_path / "node"), ACCEPT)
    assert isinstance(listener, PeerListener)
    assert listener.shown()["port"] == 0
    client: Any = Client()
    server: Any = None
    listener.serves(server, client, secret="")
    listener.report(changed=False, now=time.time() - 30 * 86_400)
    assert listener.problem == (
        "nodes are contacted without TLS: 10.0.0.1:0 (no TLS), 10.0.0.1:1 (no TLS), 10.0.0.1:2 (no TLS) and 2 more"
    )
