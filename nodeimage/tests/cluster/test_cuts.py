"""Cuts between nodes, both ways and one way, slow and broken connections, and a node away from the cluster store."""

import itertools
import random
import time

import pytest

from kit.cluster_clients import FILLING, Load
from kit.cluster_nodes import Cluster, until
from kit.cluster_targets import TARGETS, Target, busiest_leader, catalog_leader, controller

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

FEW = TARGETS[:3]
LOST = 0.02
LOSSY_S = 10.0
FLIPS = 20
LANDED_S = 1.0
CUT_S = 5.0
"""Longer than it takes to find a node dead."""
AWAY_S = 5.0
"""Longer than the controller's lease holds without a renewal."""


def others(cluster: Cluster, number: int) -> list[int]:
    return [each for each in cluster.nodes if each != number]


def leads(cluster: Cluster, number: int) -> list[int]:
    """The containers of which a node is the leader."""
    node_id = cluster.nodes[number].node_id
    return [each.container_id for each in cluster.containers() if each.leader == node_id]


@pytest.mark.parametrize("target", FEW, ids=lambda each: each.__name__)
def test_a_node_that_no_other_hears_is_replaced_and_comes_back_as_a_follower(three: Cluster, target: Target) -> None:
    """Clients and the store still reach it: it must refuse what it cannot commit, and answer nothing stale."""
    load = Load(three)
    victim = target(three, load)
    three.ways.isolate(victim)
    load.await_writes(time.monotonic())
    until("others lead what it led, and decide", lambda: not leads(three, victim) and three.controller() != victim)
    three.ways.heal()
    three.await_whole()
    load.await_writes(time.monotonic())
    load.finish()


@pytest.mark.parametrize("hears", [True, False], ids=["it hears", "it is heard"])
def test_a_leader_that_is_cut_one_way_is_replaced_or_goes_on(three: Cluster, hears: bool) -> None:
    load = Load(three)
    victim = busiest_leader(three, load)
    for other in others(three, victim):
        three.ways.cut(*((other, victim) if not hears else (victim, other)))
    load.await_writes(time.monotonic())
    three.ways.heal()
    three.await_whole()
    load.await_writes(time.monotonic())
    load.finish()


def test_two_nodes_that_hear_nothing_of_each_other_go_on_through_the_third(three: Cluster) -> None:
    load = Load(three)
    victim = busiest_leader(three, load)
    for other in others(three, victim):
        three.ways.cut_both(victim, other)
        load.await_writes(time.monotonic())
        three.ways.heal()
        three.await_whole()
    load.await_writes(time.monotonic())
    load.finish()


def test_two_followers_that_are_cut_from_each_other_change_nothing(three: Cluster) -> None:
    """For the catalog: their leader hears both. What one of them leads goes on without the other."""
    load = Load(three)
    before = three.catalog()
    one, other = others(three, catalog_leader(three, load))
    three.ways.cut_both(one, other)
    load.await_writes(time.monotonic())
    load.write_on_for(CUT_S)
    assert three.catalog() == before
    three.ways.heal()
    three.await_whole()
    load.finish()


def test_a_node_that_the_catalogs_leader_does_not_hear_takes_changes_and_learns_of_them(three: Cluster) -> None:
    """The two live, and the third hears both: it leads the catalog then."""
    load = Load(three)
    for turn in range(2):  # one of the two may be the controller, or neither
        led = three.catalog().leader
        victim = three.number_of(led)
        three.ways.cut_both(victim, others(three, victim)[turn])
        until("another node leads the catalog", lambda led=led: three.catalog().leader != led)
        for number in three.nodes:
            three.admin("stream.create", {"path": f"/made-{turn}-by-{number}"}, node=number)
        load.await_writes(time.monotonic())
        three.ways.heal()
        three.await_whole()
    load.finish()


def test_slow_and_broken_connections_cost_time_alone(three: Cluster) -> None:
    load = Load(three)
    victim = busiest_leader(three, load)
    for other in others(three, victim):
        three.ways.slow(victim, other, 0.2)
        three.ways.slow(other, victim, 0.1)
    load.await_writes(time.monotonic())
    for _ in range(5):
        for other in others(three, victim):
            three.ways.drop(victim, other)
        load.await_writes(time.monotonic())
    three.ways.heal()
    three.await_whole()
    load.finish()


def test_packets_that_are_lost_cost_time_alone(three: Cluster) -> None:
    """Every way between nodes stalls now and then, for up to three seconds: some followers are let go, some lead."""
    load = Load(three)
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for source, target in itertools.permutations(three.nodes, 2):
        three.ways.lose(source, target, LOST, chance)
    load.write_on_for(LOSSY_S, within_s=30.0)
    assert three.ways.stalls > 0
    three.ways.heal()
    load.await_writes(time.monotonic())
    three.await_whole()
    load.finish()


def test_a_bit_that_flips_between_nodes_is_never_acknowledged(three: Cluster) -> None:
    """TCP's checksum has 16 bits. What a follower takes counts as a copy, and is read once the leader is gone."""
    load = Load(three)
    victim = busiest_leader(three, load)
    three.ways.flip(b"." * (FILLING // 2), FLIPS)
    load.await_writes(time.monotonic())
    until("enough has been damaged", lambda: three.ways.flipped == FLIPS)
    load.await_writes(time.monotonic())
    assert any("a batch whose checksum does not match" in node.log() for node in three.nodes.values())
    three.await_whole()
    three.kill(victim)
    load.await_writes(time.monotonic())
    three.start(victim)
    three.await_whole()
    load.finish()


@pytest.mark.parametrize("target", [busiest_leader, controller], ids=lambda each: each.__name__)
def test_a_node_away_from_the_store_goes_on_with_what_it_leads(three: Cluster, target: Target) -> None:
    load = Load(three)
    victim = target(three, load)
    before = three.lease()
    assert before is not None
    was_in_office = three.controller() == victim
    with three.nodes[victim].fault("store-away"):
        load.write_on_for(AWAY_S)
        until("another node is the controller", lambda: three.controller() not in (None, victim))
        if was_in_office:
            after = three.lease()
            assert after is not None
            assert after.term > before.term
        load.await_writes(time.monotonic())
    three.await_whole()
    load.finish()


def test_with_the_store_away_from_all_reads_and_writes_go_on(three: Cluster) -> None:
    load = Load(three)
    for node in three.nodes.values():
        node.switch("store-away", True)
    load.write_on_for(LANDED_S)  # a renewal that was under way has landed
    lapsing = three.lease()
    load.write_on_for(AWAY_S)
    assert three.lease() == lapsing, "somebody holds the office, and renews"
    for node in three.nodes.values():
        node.switch("store-away", False)
    until("the office is filled again", lambda: three.lease() != lapsing)
    three.await_whole()
    load.await_writes(time.monotonic())
    load.finish()


def test_puts_whose_answers_are_lost_do_no_harm(three: Cluster) -> None:
    """A compare and set that landed, but was told as unavailable (invariant 3)."""
    load = Load(three)
    victim = busiest_leader(three, load)
    for node in three.nodes.values():
        node.switch("store-deaf", True)
    three.ways.isolate(others(three, victim)[0])
    load.await_writes(time.monotonic(), within_s=20.0)
    for node in three.nodes.values():
        node.switch("store-deaf", False)
    three.ways.heal()
    three.await_whole()
    load.finish()
