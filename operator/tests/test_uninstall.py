"""Before an uninstall: the operator stops first, then its finalizers are removed from everything."""

from typing import Any

import pytest

from headrace.store.kubernetes.api import ApiError
from headrace_operator import uninstall
from headrace_operator.kube import Kube
from headrace_operator.specs import FINALIZER
from headrace_operator.uninstall import stop_operator, strip

from .fake_cluster import NS, World


@pytest.fixture
async def world() -> World:
    """A cluster, a stream with our finalizer, and a topic with another finalizer too."""
    made = World()
    made.declare("StreamCluster", "c", {"nodes": 1})
    made.declare("Stream", "plant", {"clusterRef": {"name": "c"}, "path": "/plant"})
    made.declare("Topic", "pump", {"clusterRef": {"name": "c"}, "stream": "/plant"})
    made.api.one("Stream", "plant")["metadata"]["finalizers"] = [FINALIZER]
    made.api.one("Topic", "pump")["metadata"]["finalizers"] = ["example.org/mine", FINALIZER]
    return made


def finalizers(world: World, kind: str, name: str) -> Any:
    return world.api.one(kind, name)["metadata"].get("finalizers", [])


async def test_our_finalizers_go_and_those_of_others_stay(world: World) -> None:
    assert await strip(Kube(world.api), namespaces=[NS]) == 2
    assert finalizers(world, "Stream", "plant") == []
    assert finalizers(world, "Topic", "pump") == ["example.org/mine"]
    writes = len(world.api.writes)
    assert await strip(Kube(world.api), namespaces=[NS]) == 0
    assert len(world.api.writes) == writes, "what has none is not written"


async def test_a_resource_that_somebody_changes_meanwhile_is_looked_at_again(world: World) -> None:
    refused: list[str] = []

    def refuse(method: str, path: str) -> ApiError | None:
        if method == "PATCH" and "streams" in path and len(refused) < 2:
            refused.append(path)
            return ApiError(409, "somebody was faster")
        return None

    world.api.refuse = refuse
    assert await strip(Kube(world.api), namespaces=[NS]) == 2
    assert len(refused) == 2
    assert finalizers(world, "Stream", "plant") == []


async def test_one_that_is_changed_again_and_again_is_an_error(world: World) -> None:
    world.api.refuse = lambda method, path: ApiError(409, "faster") if method == "PATCH" else None
    with pytest.raises(ApiError):
        await strip(Kube(world.api), namespaces=[NS])


async def test_an_operator_that_is_not_there_needs_no_stopping(world: World) -> None:
    await stop_operator(Kube(world.api), namespace=NS, deployment="headrace-operator")


async def test_an_operator_that_does_not_end_is_waited_for_only_so_long(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uninstall, "STOP_S", 0.0)
    monkeypatch.setattr(uninstall, "CHECK_S", 0.0)
    labels = {"app": "headrace-operator"}
    deployment: dict[str, Any] = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "headrace-operator", "namespace": NS},
        "spec": {"replicas": 1, "selector": {"matchLabels": labels}},
    }
    world.api.put(deployment)
    world.api.put({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "o", "namespace": NS, "labels": labels}})
    await stop_operator(Kube(world.api), namespace=NS, deployment="headrace-operator")
    assert world.api.one("Deployment", "headrace-operator")["spec"]["replicas"] == 0
