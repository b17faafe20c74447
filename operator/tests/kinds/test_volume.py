"""Volumes, against an API server and a cluster in memory."""

from ..fake_cluster import World
from .declared import REF


async def test_a_volume_that_cannot_be_kept_is_a_condition(world: World) -> None:
    problem = "volume 'v' asks for 5 replicas on hosts of their own, and there are 3 hosts"
    world.cluster.volumes["v"] = {"volume": "v", "replicas": 5, "min_in_sync": 2, "problem": problem}
    await world.run(world.declare("Volume", "v", {**REF, "replicas": 5}))
    assert world.condition("Volume", "v") == ("False", "Impossible", problem)
    assert world.condition("Volume", "v", "Reconciled")[0] == "True"


async def test_a_volume_is_made_and_changed(world: World) -> None:
    key = world.declare("Volume", "v", {**REF, "replicas": 2, "minInSync": 1, "sizeLimit": "1Gi"})
    await world.run(key)
    assert world.cluster.volumes["v"]["size_limit"] == 2**30
    world.declare("Volume", "v", {**REF, "replicas": 3, "minInSync": 2, "sizeLimit": "1Gi"})
    await world.run(key)
    assert world.cluster.volumes["v"]["replicas"] == 3
