"""When another node should be the controller: this one hears less than others do."""

import pytest

from headrace.base.ids import NodeId
from headrace.control.observations import Life, ProbeResult, cut_off
from kit.world import World


def why(world: World) -> str:
    return cut_off(world.observed(), world.now)


def test_who_hears_all_is_not_cut_off(three: World) -> None:
    three.says(2, heard=[NodeId(1), NodeId(3)])
    assert why(three) == ""


def test_who_hears_nobody_any_more_is_cut_off_before_it_takes_anything(three: World) -> None:
    three.silent(2, 3, for_s=1.4)
    assert why(three) == ""
    three.silent(2, 3, for_s=1.6)
    assert "hears 1 nodes, and no longer 2" in why(three)
    assert three.put() == {}


def test_probes_that_are_late_by_little_are_no_cut(three: World) -> None:
    """Probes are sent once a second, so by then the last answers are older than that."""
    for number in (2, 3):
        answer = three.probes[NodeId(number)].answer
        three.probes[NodeId(number)] = ProbeResult(answer, three.now - 1.6, three.now - 0.6)
        assert not three.observed().is_alive(NodeId(number), three.now)
    assert why(three) == ""
    for number in (2, 3):
        answer = three.probes[NodeId(number)].answer
        three.probes[NodeId(number)] = ProbeResult(answer, three.now - 1.8, three.now - 0.8)
        assert three.observed().life(NodeId(number), three.now) is Life.DOUBT
    assert "hears 1 nodes" in why(three)


def test_who_stood_still_is_not_cut_off(three: World) -> None:
    three.silent(2, 3, for_s=3)
    three.counted_from = three.now - 0.5
    assert why(three) == ""


def test_refusals_are_no_cut(three: World) -> None:
    three.refused(2, 3)
    assert why(three) == ""


def test_refusals_that_nobody_else_gets_are_a_cut_by_a_firewall(three: World) -> None:
    three.says(3, heard=[NodeId(1), NodeId(2)])
    three.refused(2, for_s=3.6, witnessed=False)
    three.asked(3)
    assert "hears 2 nodes, and node 3 hears 3" in why(three)
    three.says(3, heard=[NodeId(1)])
    three.asked(3)
    assert why(three) == ""


def test_one_of_three_that_is_silent_is_no_cut(three: World) -> None:
    three.silent(2)
    assert why(three) == ""


def test_of_two_nodes_the_one_in_office_goes_on(world: World) -> None:
    world.node(1, 2)
    world.silent(2)
    assert why(world) == ""


def test_the_smaller_side_of_a_cut_leaves_the_office(world: World) -> None:
    world.node(1, 2, 3, 4, 5)
    world.silent(3, 4, 5, for_s=1.6)
    assert "no longer 3" in why(world)


def test_nodes_that_were_never_heard_are_no_cut(world: World) -> None:
    world.node(1, 2, 3)
    for number in (2, 3):
        world.probes[NodeId(number)] = ProbeResult(None, None, world.now - 10)
    assert why(world) == ""


@pytest.mark.parametrize(("silence", "leaves"), [(2.5, False), (3.6, True)])
def test_who_is_deaf_to_a_node_leaves_the_office_to_one_that_hears_it(
    three: World, silence: float, leaves: bool
) -> None:
    three.says(2, heard=[NodeId(1), NodeId(3)])
    three.silent(3, for_s=silence)
    assert three.observed().life(NodeId(3), three.now) is Life.DOUBT
    assert bool(why(three)) is leaves


def test_a_node_that_could_not_do_the_office_is_not_waited_for(three: World) -> None:
    three.says(2, heard=[NodeId(1), NodeId(3)], reaches_store=False)
    three.silent(3, for_s=10)
    assert why(three) == ""
