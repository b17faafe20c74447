"""Where replicas are placed."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.base.ids import NodeId
from headrace.control.placement import choose_members
from headrace.peer.reports import NodeLoad
from headrace.store.records import VolumeRecord
from kit.world import World


def choose(world: World, count: int, first: int = 1, present: tuple[int, ...] = ()) -> list[int]:
    return list(
        choose_members(
            list(world.nodes.values()),
            world.containers.values(),
            first=NodeId(first),
            count=count,
            volume=world.volumes["default"],
            loads=world.loads,
            present=[NodeId(each) for each in present],
        )
    )


def test_zones_come_before_hosts_and_hosts_before_load(world: World) -> None:
    world.node(1, zone="a", failure_host="h1")
    world.node(2, zone="a", failure_host="h2")
    world.node(3, zone="b", failure_host="h3")
    world.node(4, zone="b", failure_host="h3")
    world.loads[NodeId(3)] = NodeLoad(bytes_in_per_s=1e9)
    assert choose(world, 2) == [1, 4]
    assert choose(world, 3) == [1, 4, 2]
    assert choose(world, 4) == [1, 4, 2, 3]
    assert choose(world, 9) == [1, 4, 2, 3]


def test_one_host_is_enough_where_the_spread_is_only_preferred(world: World) -> None:
    world.node(1, 2, 3, failure_host="laptop")
    assert choose(world, 3) == [1, 2, 3]
    world.volume(3, 1, spread="required")
    assert choose(world, 3) == [1]


def test_nodes_that_do_not_say_where_they_are_fail_alone(world: World) -> None:
    world.node(1, 2, 3, failure_host="")
    world.volume(3, 1, spread="required")
    assert choose(world, 3) == [1, 2, 3]


def test_nodes_that_hold_little_come_first_and_full_disks_last(world: World) -> None:
    world.node(1, 2, 3, 4)
    world.container(5, (2, 4))
    world.container(6, (2,), state="closed")
    assert choose(world, 4) == [1, 3, 4, 2]
    world.loads[NodeId(3)] = NodeLoad(disk_used=95, disk_total=100)
    assert choose(world, 4) == [1, 4, 2, 3]


def test_members_that_are_there_already_are_spread_around(world: World) -> None:
    world.node(1, failure_host="h1")
    world.node(2, failure_host="h2")
    world.node(3, failure_host="h2")
    world.node(4, failure_host="h3")
    assert choose(world, 3, present=(1, 2)) == [1, 2, 4]
    assert choose(world, 3, present=(1, 77)) == [1, 77, 2]


def test_zones_and_labels_of_a_volume_are_kept_to(world: World) -> None:
    world.node(1, 2, zone="a", labels={"disk": "fast", "rack": "7"})
    world.node(3, zone="a", labels={"disk": "slow"})
    world.node(4, zone="b", labels={"disk": "fast"})
    world.volume(4, 1, zones=("a",), labels={"disk": "fast"})
    assert choose(world, 4) == [1, 2]
    assert VolumeRecord("v", labels={"disk": "fast"}).admits(world.nodes[NodeId(4)])


@given(
    hosts=st.lists(st.sampled_from("abcd"), min_size=1, max_size=8),
    count=st.integers(1, 5),
    required=st.booleans(),
)
def test_replicas_share_a_host_only_when_there_is_no_other(hosts: list[str], count: int, required: bool) -> None:
    world = World()
    for number, host in enumerate(hosts, 1):
        world.node(number, failure_host=host)
    world.volume(count, 1, spread="required" if required else "preferred")
    chosen = choose(world, count)
    used = {hosts[node - 1] for node in chosen}
    assert len(set(chosen)) == len(chosen) == min(count, len(set(hosts)) if required else len(hosts))
    assert len(used) == min(len(set(hosts)), len(chosen))
