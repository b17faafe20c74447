"""Conditions that matter only if they last, and when they began."""

from headrace.control.plan import forgettable
from kit.world import World


def test_a_deleted_container_is_forgotten_once_it_has_been_so_for_ten_minutes(world: World) -> None:
    world.node(1)
    world.container(1, [1], kind="catalog")
    world.container(2, [1], state="closed")
    world.container(3, [1], state="deleted")
    world.plan()
    began = world.now
    world.pass_time(599)
    world.plan()
    assert forgettable(world.observed(), world.now) == []
    world.pass_time(1)
    assert forgettable(world.observed(), world.now) == [3]
    world.since.clear()  # another node holds the lease now
    world.plan()
    assert forgettable(world.observed(), world.now) == []
    assert world.now == began + 600
