"""A cluster's replicas: the default volume follows the nodes; a disruption budget exists only where it helps."""

import pytest

from headrace.base.errors import Code, KafkaError
from headrace.store.kubernetes.api import ApiError
from headrace_operator.engine import Key

from ..fake_api import Object
from ..fake_cluster import NS, World
from .test_cluster import KEY

SECRET = f"/api/v1/namespaces/{NS}/secrets/c-cluster"
STORAGE: Object = {"storage": {"size": "1Gi"}}
ONE: Object = {"replication": {"replicas": 1, "minInSync": 1}}


async def grown(world: World, nodes: int, **spec: object) -> tuple[int, int]:
    """Return the default volume's replicas and minimum in sync, once the cluster has grown."""
    world.declare("StreamCluster", "c", {"nodes": nodes} | STORAGE | spec)
    await world.run(KEY)
    return shown(world)


def shown(world: World) -> tuple[int, int]:
    volume = world.cluster.volumes["default"]
    return volume["replicas"], volume["min_in_sync"]


def made(world: World, replicas: int, min_in_sync: int) -> None:
    """The default volume as nodes create it, and as people alter it later."""
    world.cluster.volumes["default"] |= {"replicas": replicas, "min_in_sync": min_in_sync}


async def of_one_node() -> World:
    world = World()
    made(world, 1, 1)
    assert await grown(world, 1) == (1, 1)
    return world


async def test_the_default_volume_rises_with_the_nodes() -> None:
    world = await of_one_node()
    assert await grown(world, 2) == (2, 1)
    world.start_operator()
    assert await grown(world, 3) == (3, 2)
    assert await grown(world, 5) == (3, 2)
    assert world.events().count("ReplicasRaised") == 2


async def test_it_never_falls_by_itself() -> None:
    world = await of_one_node()
    await grown(world, 3)
    assert await grown(world, 2) == (3, 2)


async def test_it_waits_for_the_nodes() -> None:
    world = await of_one_node()
    world.declare("StreamCluster", "c", {"nodes": 3} | STORAGE)
    await world.once(KEY)
    await world.once(KEY)
    assert shown(world) == (1, 1), "one pod is there, and two are only asked for"
    world.cluster.converge()
    world.api.remove("Pod", "c-2")
    await world.once(KEY)
    assert shown(world) == (1, 1), "its node does not answer"
    await world.run(KEY)
    assert shown(world) == (3, 2)


@pytest.mark.parametrize("nodes", [2, 3])
async def test_what_somebody_made_of_it_stays(nodes: int) -> None:
    world = await of_one_node()
    await grown(world, nodes)
    made(world, 1, 1)
    assert await grown(world, 4) == (1, 1)


async def test_what_was_said_before_is_no_reason_to_stay_below() -> None:
    world = World()
    assert await grown(world, 3, **ONE) == (1, 1)
    assert await grown(world, 3) == (3, 2)


async def test_a_volume_resource_says_it_alone() -> None:
    world = await of_one_node()
    world.declare("Volume", "default", {"clusterRef": {"name": "c"}, "replicas": 1, "minInSync": 1})
    assert await grown(world, 3) == (1, 1)


async def test_where_it_cannot_rise_nothing_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await of_one_node()

    def refuse(**_fields: object) -> Object:
        raise KafkaError(Code.POLICY_VIOLATION, "volume 'default': there is 1 node in zone z9")

    monkeypatch.setattr(world.cluster, "volume_alter", refuse)
    assert await grown(world, 3) == (1, 1)
    assert world.condition("StreamCluster", "c")[0] == "True"
    monkeypatch.undo()
    assert await grown(world, 3) == (3, 2)


async def test_a_note_that_cannot_be_made_is_made_later() -> None:
    world = await of_one_node()
    world.api.refuse = lambda method, path: ApiError(500, "no") if (method, path) == ("PATCH", SECRET) else None
    with pytest.raises(ApiError):
        await grown(world, 2)
    world.api.refuse = lambda _method, _path: None
    assert await grown(world, 2) == (2, 1)
    assert await grown(world, 3) == (3, 2)


async def test_a_volume_with_several_replicas_has_a_disruption_budget() -> None:
    world = World()
    await grown(world, 3, **ONE)
    assert not world.api.find("PodDisruptionBudget")
    world.declare("Volume", "safe", {"clusterRef": {"name": "c"}, "replicas": 3, "minInSync": 2})
    await world.run(Key("Volume", NS, "safe"))
    await world.run(KEY)
    assert world.api.find("PodDisruptionBudget")
    world.cluster.away = True
    await world.once(KEY)
    assert world.api.find("PodDisruptionBudget"), "what its volumes are is not known"


async def test_a_default_volume_that_was_altered_to_one_replica_has_no_disruption_budget() -> None:
    world = World()
    await grown(world, 3)
    assert world.api.find("PodDisruptionBudget")
    made(world, 1, 1)
    await world.run(KEY)
    assert not world.api.find("PodDisruptionBudget")
