"""Three node processes with the objects that the operator creates for their pods, over an API server: secure from their
first start.
"""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import HeadraceError
from headrace_operator.admin import Admin
from headrace_operator.builders import operator_secret
from headrace_operator.builders.authorities import FORCE, decoded
from headrace_operator.builders.names import OPERATOR_PORT
from headrace_operator.kinds import cluster_security
from headrace_operator.routes import Route
from kit.cluster_nodes import Node, until
from kit.cluster_on_kubernetes import KubernetesCluster
from kit.own_ports import own_port
from kit.toy_api import ToyApi, toy_api

from .fake_cluster import World
from .test_secure_node import KEY, LIMIT_S, Here

SECRETS = {"c-server": "server", "c-peers": "peers", "c-operator": "operator"}


class Pods(KubernetesCluster):
    """Node processes, each with the folders that its pod would have."""

    def __init__(self, folder: Path, api: ToyApi, world: World) -> None:
        folder.mkdir()
        super().__init__(folder, api, 3)
        self.world = world
        self.operator_ports = {number: own_port() for number in self.nodes}
        self.record.write_text(decoded(world.api.one("Secret", "c-cluster-3"))["record"])
        self.mount()

    def mount(self) -> None:
        """Update a mounted Secret like the kubelet."""
        for name, where in SECRETS.items():
            (self.folder / where).mkdir(exist_ok=True)
            for entry, value in decoded(self.world.api.one("Secret", name)).items():
                file = self.folder / where / entry
                new = file.with_name(f"{entry}.new")
                new.write_text(value)
                new.replace(file)

    def store_options(self, node: Node) -> list[str]:
        text = str(self.world.api.one("ConfigMap", "c-listeners")["data"]["shard-0.toml"])
        port = self.operator_ports[node.number]
        text = text.replace("/etc/headrace", str(self.folder)).replace(str(OPERATOR_PORT), str(port))
        file = self.folder / f"shard-{node.number}.toml"
        file.write_text(text)
        container = self.world.api.one("StatefulSet", "c")["spec"]["template"]["spec"]["containers"][0]
        told: list[str] = container["command"]
        more = [
            part.replace("/etc/headrace", str(self.folder)) for part in told[told.index("--listeners-folder") + 2 :]
        ]
        kept = [each for each in super().store_options(node) if not each.startswith("--listener=")]
        return [*kept, f"--listeners={file}", *more]


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    async def made() -> World:
        world = World()
        world.declare("StreamCluster", "c", {"nodes": 3, "security": {"enabled": True}})
        await world.once(KEY)
        world.cluster.converge()
        await world.once(KEY)
        return world

    with toy_api() as api:
        started = Pods(tmp_path / "cluster", api, asyncio.run(made()))
        try:
            started.start()
            yield started
        finally:
            started.close()


def asked(pods: Pods, number: int, method: str, **params: Any) -> Any:
    async def ask() -> Any:
        admin = Admin(Here(pods.world.routes, pods.operator_ports[number]))
        try:
            return await admin.call("c-bootstrap.ns.svc:9092", method, params, patience_s=LIMIT_S)
        finally:
            await admin.close()

    return asyncio.run(ask())


def test_nodes_find_each_other_over_tls_and_know_the_operator(pods: Pods) -> None:
    pods.await_ready()
    for number in pods.nodes:
        assert asked(pods, number, "security.show")["on"]
    shown = until("all is whole", lambda: (found := asked(pods, 1, "cluster.status"))["redundancy"]["whole"] and found)
    assert len([node for node in shown["nodes"] if node["state"].startswith("up")]) == 3
    assert asked(pods, 1, "features.show")["level"] == 2


def test_an_authority_is_renewed_while_nodes_run_and_nodes_that_start_then_are_known(
    pods: Pods, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of three steps: the third ends the trust in an authority that nobody uses any longer."""
    pods.await_ready()
    first = decoded(pods.world.api.one("Secret", "c-cluster-ca"))["ca.crt"]
    found = pods.world.api.one("Secret", "c-cluster-ca")
    pods.world.api.put({**found, "metadata": {**found["metadata"], "annotations": {**notes(found), FORCE: "true"}}})
    step(pods)
    until("nodes trust the next one", lambda: all(replaced(node) >= 1 for node in pods.nodes.values()))
    at = time.time() + 3601
    with monkeypatch.context() as patched:
        patched.setattr(cluster_security.time, "time", lambda: at)
        step(pods)
    current = decoded(pods.world.api.one("Secret", "c-cluster-ca"))["ca.crt"]
    assert current != first
    proofs = operator_secret.read(decoded(pods.world.api.one("Secret", "c-operator")))
    assert proofs is not None
    pods.world.routes.put("ns", "c", Route.of(operator_secret.properties(proofs, current)))

    def shown() -> bool:
        try:
            return all(asked(pods, number, "security.show")["on"] for number in pods.nodes)
        except HeadraceError:
            return False

    until("nodes show certificates of the new one", shown)
    pods.kill(2)
    pods.start(2)
    pods.await_ready(2)
    until("all is whole", lambda: asked(pods, 1, "cluster.status")["redundancy"]["whole"])


def notes(found: dict[str, Any]) -> dict[str, str]:
    return found["metadata"].get("annotations") or {}


def step(pods: Pods) -> None:
    """Take the step that is due at the operator, and at the kubelet."""
    asyncio.run(reconciled(pods.world))
    pods.mount()


async def reconciled(world: World) -> None:
    await world.once(KEY)


def replaced(node: Node) -> int:
    """Return how often the node has loaded changed files."""
    return node.log().count("certificate replaced")
