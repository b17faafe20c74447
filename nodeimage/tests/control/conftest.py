"""Fixtures: a new world for each test."""

import pytest

from kit.world import World


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def three(world: World) -> World:
    """Three nodes and three replicas, of which two must be in sync; the catalog on 1, and an open container led by
    each."""
    world.volume(3, 2)
    world.node(1, 2, 3)
    world.container(1, (1, 2, 3), kind="catalog")
    world.container(2, (1, 2, 3))
    world.container(3, (2, 3, 1))
    world.container(4, (3, 1, 2))
    return world
