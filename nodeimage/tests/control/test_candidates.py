"""Which members of the in-sync set can lead, which is best, and which set the new leader gets."""

import uuid

from msgspec import structs

from headrace.base.ids import NodeId, Position
from kit.world import World, replica_format


def test_a_member_that_serves_already_leads_rather_than_one_that_starts(three: World) -> None:
    three.refused(2)
    three.replica(3, 3, end=Position(9000))
    assert three.put()[3].leader == 3
    three.says(3, ready=False)
    assert three.put()[3].leader == 1


def test_of_several_the_one_with_the_highest_epoch_and_position_leads(three: World) -> None:
    three.refused(2)
    three.replica(1, 3, end=Position(2000), last_epoch=4)
    three.replica(3, 3, end=Position(1000), last_epoch=5)
    assert three.put()[3].leader == 3
    three.replica(1, 3, end=Position(1001), last_epoch=5)
    assert three.put()[3].leader == 1


def test_equals_share_what_a_dead_node_led(world: World) -> None:
    world.volume(3, 2)
    world.node(1, 2, 3)
    world.container(1, (1, 2, 3), kind="catalog")
    world.container(2, (1, 2, 3))
    world.container(3, (2, 1, 3))
    for number in range(4, 8):
        world.container(number, (3, 1, 2))
    world.refused(3)
    led = [record.leader for record in world.put().values()]
    assert sorted(led) == [1, 1, 2, 2]


def test_the_epoch_is_above_all_that_any_replica_has_seen(three: World) -> None:
    three.refused(2)
    three.replica(3, 3, epoch=9)
    assert three.put()[3].epoch == 10


def test_a_member_whose_replica_was_taken_away_does_not_lead(three: World) -> None:
    record = three.container(3, (2, 3, 1), in_sync=(2, 1, 3))
    three.containers[record.container_id] = structs.replace(record, replicas=(NodeId(2), NodeId(3)))
    three.replica(1, 3, end=Position(9000))
    three.refused(2)
    put = three.put()[3]
    assert (put.leader, sorted(put.in_sync)) == (3, [(1, replica_format(1, 3)), (3, replica_format(3, 3))])


def test_nobody_outside_the_in_sync_set_leads_and_the_wait_is_explained(three: World) -> None:
    three.container(3, (2, 3, 1), in_sync=(2,))
    three.refused(2)
    assert three.put() == {}
    assert "none of those in sync (nodes 2) can lead" in three.waits()[3]


def test_a_replica_of_another_incarnation_never_leads(three: World) -> None:
    three.container(3, (2, 3, 1), in_sync=(2, 3))
    three.refused(2)
    three.replica(3, 3, format=str(uuid.uuid4()))
    assert three.put() == {}
    three.has_no_replica(3, 3)
    assert three.put() == {}
    assert 3 in three.waits()


def test_dead_members_stay_in_sync_where_there_would_be_too_few(three: World) -> None:
    three.container(3, (2, 3, 1), in_sync=(2, 3))
    three.refused(2)
    assert three.put()[3].in_sync == ((2, replica_format(2, 3)), (3, replica_format(3, 3)))


def test_a_node_without_the_store_gets_no_role_unless_there_is_no_other(three: World) -> None:
    three.refused(2)
    three.says(1, reaches_store=False)
    three.replica(1, 3, end=Position(9000))
    assert three.put()[3].leader == 3
    three.says(3, reaches_store=False)
    assert three.put()[3].leader == 1


def test_a_stopping_node_stays_in_sync_where_there_would_be_too_few(three: World) -> None:
    three.container(3, (2, 3, 1), in_sync=(2, 3))
    three.mark(2, stopping=True)
    assert three.put()[3].in_sync == ((2, replica_format(2, 3)), (3, replica_format(3, 3)))
    assert three.put()[3].leader == 3


def test_a_stopping_node_leaves_no_heir_alone_in_sync(three: World) -> None:
    """Although one would be enough: the candidate may have died a moment ago, and its disk with it (seed 131127)."""
    three.volume(2, 1)
    three.container(3, (2, 3))
    three.mark(2, stopping=True)
    record = three.put()[3]
    assert record.leader == 3
    assert {node for node, _ in record.in_sync} == {2, 3}


def test_a_dead_node_leaves_no_heir_alone_in_sync_but_one_that_was_removed_does(
    three: World,
) -> None:
    """The candidate may have died a moment ago, and its disk with it (seed 142880)."""
    three.volume(2, 1)
    three.container(3, (2, 3))
    three.refused(2)
    assert {node for node, _ in three.put()[3].in_sync} == {2, 3}
    del three.nodes[NodeId(2)]
    del three.probes[NodeId(2)]
    assert {node for node, _ in three.put()[3].in_sync} == {3}


def test_a_member_whose_disk_hangs_leads_only_where_no_other_can(three: World) -> None:
    three.refused(2)
    three.replica(3, 3, end=Position(9000), stuck=True)
    assert three.put()[3].leader == 1
    three.container(3, (2, 3, 1), in_sync=(2, 3))
    three.refused(2)
    three.replica(3, 3, stuck=True)
    assert three.put()[3].leader == 3


def test_a_member_whose_disk_is_full_leads_only_where_no_other_can(three: World) -> None:
    three.refused(1)
    three.mark(2, full=True)
    assert {each.leader for each in three.put().values()} == {3}
    three.mark(3, full=True)
    assert {each.leader for each in three.put().values()} == {2, 3}


def test_where_a_leader_lost_its_replica_any_member_leads(three: World) -> None:
    """Even a drained node, or one that has just come: no other node has the records."""
    three.replica(2, 3, format=str(uuid.uuid4()), role="none")
    three.since.clear()
    three.mark(1, draining=True)
    assert three.put()[3].leader == 3
    three.mark(3, draining=True)
    assert three.put()[3].leader in (1, 3)
    three.mark(2, draining=True)
    assert three.put()[3].leader in (1, 3)
