"""Which node leads: containers are handed over only to members of the in-sync set, as soon as it is clear that they
must be."""

import uuid

import pytest

from headrace.base.ids import NodeId, Position
from headrace.control.changes import PutContainer
from headrace.control.observations import Life, ProbeResult
from kit.world import World


def test_a_healthy_cluster_is_left_alone(three: World) -> None:
    assert three.plan() == []


def test_a_node_that_refuses_twice_loses_its_roles_at_once(three: World) -> None:
    three.refused(2)
    (change,) = three.plan()
    assert isinstance(change, PutContainer)
    assert change.version == three.versions[change.record.container_id]
    assert (change.record.container_id, change.record.epoch) == (3, 6)
    assert change.record.leader in (1, 3)
    assert {node for node, _ in change.record.in_sync} == {1, 3}
    assert change.record.replicas == (2, 3, 1)
    assert "node 2 refuses connections" in change.reason


def test_a_silent_node_is_in_doubt_for_two_seconds_and_then_dead(three: World) -> None:
    for seconds, life in ((0.9, Life.ALIVE), (1.5, Life.DOUBT), (1.9, Life.DOUBT), (2.0, Life.DEAD)):
        three.silent(2, for_s=seconds)
        assert three.observed().life(NodeId(2), three.now) is life
        assert bool(three.put()) is (life is Life.DEAD)


def test_a_probe_that_was_just_sent_proves_nothing_however_old_the_last_answer_is(three: World) -> None:
    three.probes[NodeId(2)] = ProbeResult(three.probes[NodeId(2)].answer, three.now - 30, three.now - 0.7)
    assert three.observed().life(NodeId(2), three.now) is Life.DOUBT


def test_silence_counts_only_since_this_process_last_stood_still(three: World) -> None:
    three.silent(2, for_s=10)
    three.counted_from = three.now - 0.9
    assert three.observed().life(NodeId(2), three.now) is Life.DOUBT
    three.counted_from = three.now - 1
    assert three.observed().life(NodeId(2), three.now) is Life.DEAD


def test_a_silent_node_that_another_has_heard_keeps_its_roles(three: World) -> None:
    three.silent(2, for_s=10)
    three.says(3, heard=[NodeId(1), NodeId(2)])
    assert three.plan() == []
    three.says(3, heard=[NodeId(1)])
    assert three.put().keys() == {3}


def test_a_node_that_says_of_itself_that_it_lives_does_not_vouch_for_it(three: World) -> None:
    three.says(2, heard=[NodeId(2)])
    three.silent(2, for_s=10)
    assert three.put().keys() == {3}


def test_a_removed_nodes_roles_go_to_others(three: World) -> None:
    del three.nodes[NodeId(2)]
    assert three.put()[3].leader in (1, 3)


def test_a_node_without_the_store_keeps_the_roles_that_it_has(three: World) -> None:
    three.says(2, reaches_store=False)
    assert three.put() == {}


def test_a_stopping_node_hands_over_and_is_not_waited_for(three: World) -> None:
    three.mark(2, stopping=True)
    record = three.put()[3]
    assert record.leader in (1, 3)
    assert {node for node, _ in record.in_sync} == {1, 3}


def test_a_leader_that_is_well_and_goes_hands_over_and_one_that_is_dead_fails_over(three: World) -> None:
    three.mark(2, stopping=True)
    assert [each.is_planned for each in three.plan() if isinstance(each, PutContainer)] == [True]
    three.mark(2, stopping=False)
    three.silent(2, for_s=10)
    assert [each.is_planned for each in three.plan() if isinstance(each, PutContainer)] == [False]


def test_when_all_stop_nothing_is_handed_around(three: World) -> None:
    for number in (1, 2, 3):
        three.mark(number, stopping=True)
    assert three.plan() == []


def test_a_drained_node_hands_over_first(three: World) -> None:
    three.mark(2, draining=True)
    record = three.put()[3]
    assert record.leader in (1, 3)
    assert NodeId(2) in record.replicas


def test_a_stalled_leader_is_relieved_by_a_member_that_sees_more(three: World) -> None:
    three.replica(2, 3, stalled=True)
    three.says(1, heard=[])
    three.says(2, heard=[NodeId(1)])
    three.says(3, heard=[NodeId(2)])
    assert three.put() == {}
    three.says(3, heard=[NodeId(1), NodeId(2)])
    assert three.put()[3].leader == 3


def test_a_leader_whose_disk_hangs_is_replaced_by_a_member_whose_disk_does_not(three: World) -> None:
    """One log that hangs is enough, since all are on the same disk. The node stays in sync until the next leader
    removes it."""
    three.container(5, (2, 3, 1), state="closed")
    three.replica(2, 5)
    three.replica(2, 4, stuck=True)
    three.replica(3, 3, end=Position(9000))
    three.replica(3, 5, end=Position(9000))
    put = three.put()
    assert {container: record.leader for container, record in put.items()} == {3: 3, 5: 3}
    assert {node for node, _ in put[3].in_sync} == {1, 2, 3}
    assert "the disk of node 2 hangs; node 3 leads now" in {each.reason for each in three.plan()}
    three.replica(3, 4, stuck=True)
    assert {container: record.leader for container, record in three.put().items()} == {3: 1, 4: 1, 5: 1}
    three.replica(1, 4, stuck=True)
    assert three.plan() == [], "nobody would do better"


def test_a_leader_whose_disk_hangs_is_replaced_though_it_also_stalls(three: World) -> None:
    """Even if the leader hears more followers: it is its disk that fails."""
    three.replica(2, 3, stalled=True, stuck=True)
    three.says(2, heard=[NodeId(1), NodeId(3)])
    assert three.put().keys() == {3}


def test_a_node_whose_disk_hung_gets_nothing_before_it_has_written_for_a_while(three: World) -> None:
    three.plan()
    three.replica(2, 3, stuck=True)
    three.apply(three.plan())
    assert 2 not in {each.leader for each in three.containers.values()}
    three.replica(2, 4, stuck=True)
    for _ in range(60):
        assert three.plan() == [], "neither its container, nor a new one"
        three.pass_time(1)
    three.replica(2, 4)
    for _ in range(12):
        assert three.plan() == []
        three.pass_time(1)
    assert [record.leader for record in three.put().values()] == [2]


def hear(world: World, cut: tuple[int, int] | None) -> None:
    """Let all nodes hear each other, except two."""
    for number in world.nodes:
        world.says(
            number, heard=[other for other in world.nodes if other != number and {number, other} != {*(cut or ())}]
        )


@pytest.mark.parametrize("own", [1, 3])
def test_the_catalog_goes_to_a_member_that_hears_more_where_its_leader_and_a_living_node_are_apart(
    three: World, own: int
) -> None:
    """Whichever node is the controller: the leader itself, or the node between the two."""
    three.own = NodeId(own)
    hear(three, (1, 2))
    if own == 1:
        three.silent(2, for_s=3)
        assert three.observed().life(NodeId(2), three.now) is Life.DOUBT, "node 3 hears it"
    assert three.plan() == []
    three.pass_time(0.9)
    assert three.plan() == []
    three.pass_time(0.2)
    assert {container: record.leader for container, record in three.put().items()} == {1: 3}
    assert {node for node, _ in three.put()[1].in_sync} == {1, 2, 3}


def test_a_cut_that_does_not_last_leaves_the_catalog_where_it_is(three: World) -> None:
    for cut in ((1, 2), None, (1, 3), None):
        hear(three, cut)
        assert three.plan() == []
        three.pass_time(0.9)
        assert three.plan() == []


def test_the_catalog_stays_where_nobody_in_sync_hears_more(three: World) -> None:
    hear(three, (2, 3))
    three.plan()
    three.pass_time(5)
    assert three.plan() == []
    hear(three, (1, 2))
    three.container(1, (1, 2, 3), in_sync=(1, 2), kind="catalog")
    three.plan()
    three.pass_time(5)
    assert three.plan() == [], "node 3 hears all, and lacks what is committed"


def test_the_catalog_does_not_leave_its_leader_for_a_node_that_is_dead(three: World) -> None:
    three.refused(2)
    three.says(1, heard=[NodeId(3)])
    three.says(3, heard=[NodeId(1)])
    three.apply(three.plan())
    three.pass_time(5)
    assert 1 not in three.put()


def test_a_leader_that_lost_its_replica_is_replaced_and_leaves_the_in_sync_set(three: World) -> None:
    three.replica(2, 3, format=str(uuid.uuid4()), role="none")
    record = three.put()[3]
    assert record.leader in (1, 3)
    assert {node for node, _ in record.in_sync} == {1, 3}


def test_a_leader_that_does_not_take_its_role_up_is_replaced_after_a_while(three: World) -> None:
    three.replica(2, 3, role="none")
    assert three.plan() == []
    three.pass_time(9.9)
    assert three.plan() == []
    three.pass_time(0.2)
    assert three.put()[3].leader in (1, 3)


@pytest.mark.parametrize("alone", [True, False])
def test_a_process_that_has_just_started_waits_for_nodes_that_it_never_heard(three: World, alone: bool) -> None:
    three.started_at = three.now - 4.9
    three.refused(2)
    if alone:
        three.probes[NodeId(2)] = ProbeResult(None, None, three.now - 4, refused_twice=True)
        assert three.plan() == []
        three.now += 0.2
    assert three.put().keys() == {3}


def test_a_node_that_refuses_is_dead_once_the_others_have_been_asked_whether_they_hear_it(three: World) -> None:
    """A firewall between it and the controller rejects connections in the same way."""
    three.says(3, heard=[NodeId(1), NodeId(2)])
    three.refused(2, for_s=0.1, witnessed=False)
    assert three.observed().witnesses(NodeId(2), three.now) == [3]
    assert 3 not in three.put(), "node 3 has yet to say"
    three.asked(3)
    for _ in range(3):
        assert 3 not in three.put(), "node 3 hears it"
        three.now += 700
        three.hears(3)
        three.asked(3)
    three.says(3, heard=[NodeId(1)])
    three.asked(3)
    assert 3 in three.put()


def test_who_does_not_say_whether_it_hears_a_node_that_refuses_is_not_waited_for(three: World) -> None:
    three.refused(2, for_s=0.1, witnessed=False)
    assert 3 not in three.put()
    three.refused(2, for_s=0.6, witnessed=False)
    assert 3 in three.put()
    three.refused(2, 3, for_s=0.1, witnessed=False)
    assert three.observed().life(NodeId(2), three.now) is Life.DEAD, "nobody is left to ask"


def test_a_cluster_of_two_goes_on_with_one(world: World) -> None:
    world.volume(2, 1)
    world.node(1, 2)
    world.container(1, (2, 1), kind="catalog")
    world.container(2, (1, 2))
    world.container(3, (2, 1))
    world.silent(2)
    put = world.put()
    assert {record.leader for record in put.values()} == {1}
    assert [len(record.in_sync) for record in put.values()] == [2, 2], "node 1 lets node 2 go once it leads"


def test_a_node_that_was_registered_a_moment_ago_and_not_probed_yet_is_no_fault(three: World) -> None:
    three.node(4)
    del three.probes[NodeId(4)]
    assert three.observed().unheard_by(NodeId(1), three.now) == frozenset()
    assert three.put() == {}
