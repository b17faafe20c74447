"""How many replicas there are, and where: rebuilt when a node is permanently gone, given up when they are not
needed."""

import pytest
from msgspec import structs

from headrace.base.ids import ContainerId, NodeId, Position
from headrace.peer.reports import NodeLoad
from headrace.store.records import VolumeRecord
from kit.world import World, replica_format


def test_containers_that_had_too_few_nodes_are_filled_up_at_once(world: World) -> None:
    world.volume(3, 2)
    world.node(1, 2, 3)
    world.container(1, (1,), kind="catalog")
    world.container(2, (1,))
    world.container(3, (2, 1, 3))
    world.container(4, (3, 1, 2))
    put = world.put()
    assert put.keys() == {1, 2}
    assert set(put[1].replicas) == {1, 2, 3}
    assert put[1].in_sync == ((1, replica_format(1, 1)),)
    assert put[1].epoch == 5


def test_a_dead_nodes_replicas_are_rebuilt_elsewhere_after_ten_minutes(three: World) -> None:
    three.node(4)
    three.container(5, (4, 1, 2))
    three.container(3, (1, 2, 3))
    three.container(4, (2, 3, 1))
    three.silent(3, for_s=590)
    three.container(6, (1, 2, 3), in_sync=(1, 2))
    assert all(3 in record.replicas for record in three.put().values())
    three.silent(3, for_s=602)
    put = three.put()
    assert set(put[6].replicas) == {1, 2, 3, 4}
    three.converge()
    assert all(3 not in dict(record.in_sync) for record in three.containers.values())
    assert {len(record.replicas) for record in three.containers.values()} == {3}


def test_a_node_whose_disk_is_gone_is_replaced_at_once_by_the_newer_one_of_its_slot(three: World) -> None:
    three.mark(3, slot="c-2/0")
    three.mark(1, slot="c-0/0")
    three.refused(3)
    three.node(4)
    three.container(5, (4, 1, 2))
    assert all(3 in record.replicas for record in three.put().values())
    three.mark(4, slot="c-2/0")
    three.converge()
    assert all(3 not in record.replicas for record in three.containers.values())
    assert all(4 in record.replicas for record in three.containers.values())
    assert {len(record.in_sync) for record in three.containers.values()} == {3}


def test_a_dead_node_that_nothing_replaces_keeps_its_replicas_for_when_it_returns(three: World) -> None:
    three.silent(3, for_s=10_000)
    three.converge()
    assert all(3 in record.replicas for record in three.containers.values())
    three.hears(3)
    three.catch_up()
    three.converge()
    assert all(len(record.in_sync) == 3 for record in three.containers.values())


def test_a_drained_nodes_replicas_leave_once_others_are_in_sync(three: World) -> None:
    three.node(4)
    three.container(5, (4, 1, 2))
    three.mark(3, draining=True)
    three.apply(three.plan())
    assert set(three.containers[ContainerId(2)].replicas) == {1, 2, 3, 4}
    assert 2 not in three.put()
    three.converge()
    assert all(3 not in record.replicas for record in three.containers.values())
    assert all(len(record.in_sync) == 3 for record in three.containers.values())


def test_a_drained_node_keeps_its_replica_while_one_that_counts_as_in_sync_has_lost_its_own(three: World) -> None:
    """The in-sync set stays unchanged until its leader notices, and names a replica that no longer exists."""
    three.mark(3, draining=True)
    for lost in ({"format": "another"}, {"damaged": True}):
        three.replica(2, 2, **lost)
        assert 2 not in three.put()
        three.has_no_replica(2, 2)
        assert 2 not in three.put()
        three.replica(2, 2)
        assert set(three.put()[2].replicas) == {1, 2}


def test_a_node_is_drained_though_there_is_no_other_if_the_minimum_allows(three: World) -> None:
    three.mark(3, draining=True)
    three.converge()
    assert all(set(record.replicas) == {1, 2} for record in three.containers.values())
    three.volumes["default"] = VolumeRecord("default", 3, 2)
    three.mark(2, draining=True)
    three.converge()
    assert all(set(record.replicas) == {1, 2} for record in three.containers.values())
    assert {record.leader for record in three.containers.values()} == {1}


def test_the_only_replica_moves_when_its_node_is_drained(world: World) -> None:
    world.node(1, 2)
    world.container(1, (1,), kind="catalog")
    world.container(2, (1,))
    world.container(3, (2,))
    world.mark(1, draining=True)
    world.converge()
    assert {record.replicas for record in world.containers.values()} == {(2,)}


def test_the_only_node_cannot_be_drained_and_says_so(world: World) -> None:
    world.node(1)
    world.container(1, (1,), kind="catalog")
    world.mark(1, draining=True)
    assert world.put() == {}
    assert "no other node can take its replica" in world.waits()[1]


def test_a_removed_nodes_replicas_are_rebuilt_at_once(three: World) -> None:
    three.node(4)
    three.container(5, (4, 1, 2))
    del three.nodes[NodeId(3)]
    del three.probes[NodeId(3)]
    three.converge()
    assert all(3 not in record.replicas for record in three.containers.values())
    assert all(len(record.in_sync) == 3 for record in three.containers.values())


def test_replicas_beyond_those_wanted_are_dropped_the_one_behind_first(three: World) -> None:
    three.node(4)
    three.container(5, (4, 1, 2))
    three.container(2, (1, 2, 3, 4), in_sync=(1, 2, 4))
    assert three.put()[2].replicas == (1, 2, 4)
    three.container(2, (1, 2, 3, 4))
    record = three.put()[2]
    assert len(record.replicas) == len(record.in_sync) == 3
    assert record.leader == 1


def test_a_replica_too_many_stays_while_the_others_are_not_in_sync(three: World) -> None:
    three.node(4)
    three.container(5, (4, 1, 2))
    three.container(2, (1, 2, 3, 4), in_sync=(1, 2))
    assert 2 not in three.put()


def test_a_container_whose_leader_is_in_doubt_is_left_alone(three: World) -> None:
    three.node(4)
    three.container(5, (4, 1, 2))
    three.container(2, (1, 2))
    three.silent(1, for_s=1.5)
    assert 2 not in three.put()


def test_containers_follow_their_volume(three: World) -> None:
    three.volumes["default"] = VolumeRecord("default", 2, 1)
    three.converge()
    found = {(record.wanted, record.min_in_sync, len(record.replicas)) for record in three.containers.values()}
    assert found == {(2, 1, 2)}


def test_a_higher_minimum_waits_until_as_many_are_in_sync(three: World) -> None:
    three.volumes["default"] = VolumeRecord("default", 3, 3)
    three.container(2, (1, 2, 3), in_sync=(1, 2))
    three.containers[ContainerId(2)] = structs.replace(three.containers[ContainerId(2)], min_in_sync=2)
    assert 2 not in three.put()
    three.catch_up()
    assert three.put()[2].min_in_sync == 3


def test_only_so_many_closed_containers_are_copied_at_a_time(three: World) -> None:
    three.node(4)
    three.container(5, (4, 1, 2))
    for number in range(10, 40):
        three.container(number, (1, 2, 3), state="closed")
    del three.nodes[NodeId(3)]
    del three.probes[NodeId(3)]
    three.apply(three.plan())
    copied = [each for each in three.containers.values() if each.state == "closed" and 4 in each.replicas]
    assert len(copied) == three.settings.rebuilds_at_once
    three.converge()
    assert all(3 not in record.replicas for record in three.containers.values())


def test_copies_that_cannot_be_done_hold_up_no_others(world: World) -> None:
    """A drain moves what is intact off a failing disk."""
    world.volume(1)
    world.node(1, 2)
    world.container(1, (2,), kind="catalog")
    world.container(2, (2,))
    bad = range(10, 10 + 2 * world.settings.rebuilds_at_once)
    whole = range(40, 45)
    for number in (*bad, *whole):
        world.container(number, (1,), state="closed")
    world.mark(1, draining=True)
    for _ in range(50):
        for number in bad:
            world.replica(1, number, damaged=True)
        world.apply(world.plan())
        for number in whole:
            record = world.containers[ContainerId(number)]
            pairs = tuple((node, replica_format(node, number)) for node in record.replicas)
            world.containers[record.container_id] = structs.replace(record, in_sync=pairs)
            for node in record.replicas:
                world.replica(node, number)
    assert {key for key, record in world.containers.items() if 1 in record.replicas} == set(bad)
    copied = [number for number in bad if len(world.containers[ContainerId(number)].replicas) > 1]
    assert len(copied) == world.settings.rebuilds_at_once, "nor are there ever more of these"


def test_where_all_that_had_replicas_were_removed_another_gets_an_empty_one_that_leads_nothing(world: World) -> None:
    """Such a container stayed unchanged forever: an unclean recovery had no replica to choose."""
    world.volume(1)
    world.node(1, 2)
    world.container(1, (1,), kind="catalog")
    world.container(2, (1,))
    world.container(3, (2,))
    before = world.containers[ContainerId(3)]
    world.refused(2)
    assert 3 not in world.put(), "it may come back"
    del world.nodes[NodeId(2)]
    del world.probes[NodeId(2)]
    world.apply(world.plan())
    assert world.containers[ContainerId(3)] == structs.replace(before, replicas=(2, 1))
    assert 3 in world.waits()
    assert 3 not in world.put()


def test_what_nobody_may_take_the_place_of_waits_as_it_is(world: World) -> None:
    world.volume(1, labels={"disk": "ssd"})
    world.node(1)
    world.node(2, labels={"disk": "ssd"})
    world.container(1, (1,), kind="catalog")
    world.container(3, (2,))
    del world.nodes[NodeId(2)]
    del world.probes[NodeId(2)]
    assert 3 not in world.put()
    assert 3 in world.waits()


@pytest.fixture
def stalling(three: World) -> World:
    """Container 2 holds more than its followers, nodes 2 and 3, have room for; nodes 4 and 1 have some room."""
    three.node(4)
    three.container(5, (4, 1, 2))
    for number in (2, 3):
        three.mark(number, full=True)
    stall(three)
    return three


def stall(world: World) -> None:
    world.replica(1, 2, stalled=True)
    for number in (2, 3):
        world.replica(number, 2, end=Position(900))


def test_where_all_followers_disks_are_full_a_node_with_room_gets_a_replica_and_one_of_theirs_goes(
    stalling: World,
) -> None:
    """Frames that they had yet to write could not be committed, nor any seal behind them, so no partition
    could leave."""
    put = stalling.put()
    assert put[2].replicas == (1, 2, 3, 4)
    assert put.keys() == {2}, "full is not stalled"
    stalling.apply(stalling.plan())
    stall(stalling)
    assert 2 not in stalling.put(), "the set names three, of which two lack what the fourth is about to have"
    stalling.container(2, (1, 2, 3, 4), in_sync=(1, 2, 3))
    assert 2 not in stalling.put(), "nor do they go where they have had room for that, and the fourth is behind"
    stalling.container(2, (1, 2, 3, 4), in_sync=(1, 4))
    assert stalling.put()[2].replicas == (1, 2, 4)
    stalling.container(2, (1, 2, 4), in_sync=(1, 4))
    assert 2 not in stalling.put()


def test_of_one_too_many_a_full_one_goes_where_it_would_stall_without_the_others(stalling: World) -> None:
    for number, zone in enumerate(("a", "b", "c", "a"), start=1):
        stalling.mark(number, zone=zone)
    stalling.container(2, (1, 2, 3, 4))
    assert set(stalling.put()[2].replicas) in ({1, 2, 4}, {1, 3, 4})
    stalling.mark(4, zone="b")
    assert set(stalling.put()[2].replicas) == {1, 3, 4}


def test_nodes_get_replicas_for_want_of_room_only_if_that_helps(stalling: World) -> None:
    stalling.loads[NodeId(4)] = NodeLoad(disk_used=5000, disk_total=6000)
    assert 2 not in stalling.put(), "it would be full before it has all"
    stalling.loads[NodeId(4)] = NodeLoad(disk_used=5000, disk_total=6001)
    assert set(stalling.put()[2].replicas) == {1, 2, 3, 4}
    stalling.volumes["default"] = VolumeRecord("default", 3, 3)
    stalling.containers[ContainerId(2)] = structs.replace(stalling.containers[ContainerId(2)], min_in_sync=3)
    assert 2 not in stalling.put(), "three would have to have it"


@pytest.mark.parametrize("least", [2, 3])
def test_followers_that_are_not_there_are_waited_for(stalling: World, least: int) -> None:
    """Full or not, they return, or count as permanently gone after a while."""
    stalling.node(5)
    stalling.container(6, (5, 1, 2))
    stalling.volumes["default"] = VolumeRecord("default", 3, least)
    stalling.containers[ContainerId(2)] = structs.replace(stalling.containers[ContainerId(2)], min_in_sync=least)
    stalling.silent(2, 3, for_s=60)
    assert 2 not in stalling.put()
    stalling.silent(2, for_s=700)
    added = set(stalling.put()[2].replicas) - {1, 2, 3}
    assert len(added) == 1
    assert added < {4, 5}
