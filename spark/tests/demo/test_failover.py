import pytest

from headrace_spark.demo.failover import ClusterState, ContainerState, Failover, NewLeader, busiest, summary
from headrace_spark.demo.places import Unsound


def look(at: float, *leaders: int, whole: bool) -> ClusterState:
    kinds = ("catalog", *("data" for _ in leaders[1:]))
    return ClusterState(
        at,
        tuple(
            ContainerState(number, kind, leader, 1, 3, 3)
            for number, (kind, leader) in enumerate(zip(kinds, leaders, strict=True), 1)
        ),
        whole,
    )


def test_the_busiest_container_is_the_one_that_grew_most() -> None:
    assert busiest({2: 1_000, 3: 50}, {2: 1_100, 3: 450, 4: 200}) == (3, 400)
    assert busiest({}, {3: 10, 2: 10}) == (2, 10)
    with pytest.raises(Unsound, match="no leader of a container with data answers"):
        busiest({2: 10}, {})


def test_each_heir_is_told_with_the_time_at_which_it_was_first_seen() -> None:
    failover = Failover(2, look(99.0, 2, 2, 3, whole=True), killed_at=100.0)
    failover.see(look(100.5, 2, 2, 3, whole=False))
    assert not failover.taken_over
    failover.see(look(101.0, 1, 2, 3, whole=False))
    assert not failover.taken_over
    failover.see(look(101.5, 1, 3, 3, whole=False))
    failover.see(look(102.0, 1, 1, 3, whole=False))  # moved for balance
    assert failover.taken_over
    assert failover.took_over_s == 1.5
    assert {number: new_leader.container.leader for number, new_leader in failover.new_leaders.items()} == {1: 1, 2: 3}


def test_redundancy_is_whole_again_only_once_the_node_was_started_again() -> None:
    failover = Failover(2, look(99.0, 2, 1, whole=True), killed_at=100.0)
    failover.see(look(100.1, 2, 1, whole=True))  # the node that was asked has not noticed yet
    assert failover.whole_s is None
    failover.see(look(101.0, 1, 1, whole=False))
    failover.starts_again(105.0)
    failover.see(look(106.0, 1, 1, whole=False))
    assert failover.whole_s is None
    failover.see(look(107.5, 1, 1, whole=True))
    failover.see(look(109.0, 1, 1, whole=True))
    assert failover.whole_s == 2.5


def test_who_took_over_is_told_by_node() -> None:
    new_leaders = [
        NewLeader(ContainerState(number, kind, leader, 2, 2, 3), 1.0)
        for number, kind, leader in ((4, "data", 3), (1, "catalog", 1), (2, "data", 1))
    ]
    assert summary(new_leaders) == "node 1 leads the catalog and container 2, node 3 leads container 4"
