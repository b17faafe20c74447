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
    """A second cluster, in another namespace, that does not allow this one yet."""
    world.declare("StreamCluster", "d", {"nodes": 1}, namespace="far")
    return world
