"""Clusters that resources refer to."""

import pytest

from ..fake_cluster import World


@pytest.fixture
async def world() -> World:
    """A cluster `c` of three nodes."""
    made = World()
    await made.run(made.declare("StreamCluster", "c", {"nodes": 3}))
    return made


@pytest.fixture
async def two(world: World) -> World:
    """A second cluster, in another namespace, that does not yet allow this one."""
    world.declare("StreamCluster", "d", {"nodes": 1}, namespace="far")
    return world


@pytest.fixture
async def secure(world: World) -> World:
    """The same cluster, with security."""
    world.cluster.levels = {**(world.cluster.levels or {}), "level": 2, "supported_by_all": 2}
    await world.run(world.declare("StreamCluster", "c", {"nodes": 3, "security": {"enabled": True}}))
    assert world.condition("StreamCluster", "c", "Secured")[1] == "Secured"
    return world
