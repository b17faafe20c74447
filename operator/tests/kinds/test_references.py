"""References of resources: clusters of this and other namespaces, and which of two conflicting resources is applied."""

import pytest

from headrace_operator.engine import Key

from ..fake_api import Object
from ..fake_cluster import NS, World
from .declared import STREAM


async def test_an_unknown_cluster_is_a_condition_and_nobody_polls(world: World) -> None:
    key = world.declare("Stream", "plant", STREAM | {"clusterRef": {"name": "other"}})
    assert await world.once(key) is None
    state, reason, message = world.condition("Stream", "plant")
    assert (state, reason) == ("False", "NoCluster")
    assert "clusterRef" in message


async def test_a_cluster_that_comes_later_calls_those_that_wait_for_it(world: World) -> None:
    key = world.declare("Stream", "plant", STREAM | {"clusterRef": {"name": "later"}})
    await world.once(key)
    cluster = world.declare("StreamCluster", "later", {"nodes": 1})
    assert list(world.index.concerned(cluster, world.api.one("StreamCluster", "later"))) == [key]


@pytest.mark.parametrize(
    ("allowed", "ready"),
    [
        ({}, "False"),
        ({"names": ["other"]}, "True"),
        ({"names": ["*"]}, "True"),
        ({"selector": {"matchLabels": {"plant": "yes"}}}, "True"),
        ({"selector": {"matchLabels": {"plant": "no"}}}, "False"),
    ],
)
async def test_other_namespaces_use_a_cluster_that_allows_it(world: World, allowed: Object, ready: str) -> None:
    world.api.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other", "labels": {"plant": "yes"}}})
    world.declare("StreamCluster", "c", {"nodes": 3, "allowedNamespaces": allowed})
    world.declare("Stream", "plant", STREAM | {"clusterRef": {"name": "c", "namespace": NS}}, namespace="other")
    await world.once(Key("Stream", "other", "plant"))
    assert world.condition("Stream", "plant")[0] == ready
    if ready == "False":
        assert world.condition("Stream", "plant")[1] == "NotAllowed"


async def test_of_two_that_clash_the_older_one_wins_and_the_other_takes_over_when_it_goes(world: World) -> None:
    young = world.declare("Stream", "a", STREAM, creationTimestamp="2026-02-02T00:00:00Z")
    old = world.declare("Stream", "b", STREAM | {"ttl": "1h"}, creationTimestamp="2026-01-01T00:00:00Z")
    for _ in range(2):
        await world.once(young)
        await world.once(old)
    assert world.condition("Stream", "b")[0] == "True"
    assert world.condition("Stream", "a")[1] == "Clash"
    assert "ns/b" in world.condition("Stream", "a")[2]
    assert world.cluster.streams["/plant"]["ttl_ms"] == 3_600_000
    gone = world.api.one("Stream", "b")
    world.api.remove("Stream", "b")
    world.cache.gone(old)
    assert list(world.index.concerned(old, gone)) == [young]
    await world.once(young)
    assert world.condition("Stream", "a")[0] == "True"


async def test_of_two_of_one_second_the_one_that_has_it_keeps_it(world: World) -> None:
    second = "2026-02-02T00:00:00Z"
    first = world.declare("Stream", "b", STREAM, creationTimestamp=second)
    await world.run(first)
    later = world.declare("Stream", "a", STREAM | {"ttl": "1h"}, creationTimestamp=second)
    for _ in range(2):
        await world.once(later)
        await world.once(first)
    assert world.condition("Stream", "b")[0] == "True"
    assert world.condition("Stream", "a")[1] == "Clash"
    assert world.cluster.streams["/plant"]["ttl_ms"] == 604_800_000


async def test_a_resource_that_its_cluster_does_not_allow_holds_nothing(world: World) -> None:
    world.api.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}})
    reference = {"clusterRef": {"name": "c", "namespace": NS}}
    world.declare("Stream", "a", STREAM | reference, namespace="other", creationTimestamp="2026-01-01T00:00:00Z")
    own = world.declare("Stream", "b", STREAM, creationTimestamp="2026-02-02T00:00:00Z")
    await world.once(own)
    assert world.condition("Stream", "b")[0] == "True"
