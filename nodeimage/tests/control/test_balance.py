"""What moves when one node carries more than others: little, slowly, and only if it helps."""

import itertools
from dataclasses import replace

import pytest

from headrace.base.ids import ContainerId, NodeId, Position
from headrace.control.balance import CLOSED_PER_MINUTE, EVERY_S, REST_S, BalanceState, balance
from headrace.control.changes import Change, PutContainer, Roll
from headrace.peer.reports import NodeLoad
from headrace.store.records import BalanceRecord
from kit.world import World

MIB = 1024 * 1024


class Balanced:
    """Rounds of balancing, with containers whose leaders write to them at given rates (MiB/s)."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.state = BalanceState()
        self.policy = BalanceRecord()
        self.rates: dict[int, float] = {}

    def load(self, node: int, mib: float = 0, *, requests: float = 0, disk: int = 0) -> None:
        self.world.loads[NodeId(node)] = NodeLoad(
            bytes_in_per_s=mib * MIB,
            requests_per_s=requests,
            disk_used=disk * 1024 * MIB,
            disk_total=1 << 40,
        )

    def load_three(self) -> None:
        """The first three nodes lead one container each, and carry the same load."""
        for node in (1, 2, 3):
            self.load(node, 40)
            self.rates[node + 1] = 40

    def join(self, *nodes: int) -> None:
        """Add new nodes without load; each leads a container of the next number."""
        for node in nodes:
            self.world.node(node)
            self.world.container(node + 1, (node, 1, 2))
            self.load(node, 0)

    def round(self) -> list[Change]:
        self.world.pass_time(EVERY_S)
        for number, mib in self.rates.items():
            record = self.world.containers[ContainerId(number)]
            replica = self.world.observed().replica(record.leader, record.container_id)
            assert replica is not None
            self.world.replica(record.leader, number, end=Position(replica.end + int(mib * MIB * EVERY_S)))
        changes, self.state = balance(self.world.observed(), self.state, self.world.now, self.policy)
        self.world.apply(changes)
        return changes

    def rounds(self, count: int) -> list[Change]:
        return [change for _ in range(count) for change in self.round()]


@pytest.fixture
def balanced(three: World) -> Balanced:
    return Balanced(three)


def test_equal_loads_are_left_alone(balanced: Balanced) -> None:
    for node in (1, 2, 3):
        balanced.load(node, 100)
        balanced.rates[node + 1] = 100
    assert balanced.rounds(20) == []


def test_what_is_below_the_floor_is_left_alone(balanced: Balanced) -> None:
    balanced.load(1, 2.5)
    balanced.rates[2] = 2.5
    assert balanced.rounds(20) == []


def test_a_node_that_is_hot_for_a_moment_is_left_alone(balanced: Balanced) -> None:
    for node in (1, 2, 3):
        balanced.load(node, 10)
    balanced.rates[2] = 10
    balanced.round()
    balanced.load(1, 100)
    assert balanced.round() == []
    balanced.load(1, 10)
    assert balanced.rounds(3) == []


def test_partitionlets_of_a_hot_node_roll_to_the_coolest(balanced: Balanced) -> None:
    balanced.load(1, 100)
    balanced.load(2, 40)
    balanced.load(3, 30)
    balanced.rates[2] = 100
    assert balanced.round() == []
    (change,) = balanced.round()
    assert isinstance(change, Roll)
    assert (change.node, change.container, change.to) == (1, 2, 4)
    mean = 170 / 3
    assert change.share == pytest.approx((100 - mean) / 2 / 100)
    assert change.limit == pytest.approx(0.9 - 0.3), "node 3 stays below what node 1 has now"
    assert "node 1 carries 1.76 times the mean traffic; 22% of what is written to container 2" in change.reason


def test_a_new_node_gets_its_share_from_all_that_have_more_than_the_mean(balanced: Balanced) -> None:
    balanced.load_three()
    balanced.join(4)
    assert balanced.round() == []
    changes = balanced.round()
    assert {(each.node, each.container, each.to) for each in changes if isinstance(each, Roll)} == {
        (1, 2, 5),
        (2, 3, 5),
        (3, 4, 5),
    }
    assert all(each.share == pytest.approx(0.25) and each.limit == pytest.approx(0.325) for each in changes)
    assert "node 4 carries 0.00 times the mean traffic" in changes[0].reason
    balanced.rates[5] = 5
    assert balanced.rounds(4) == [], "it is left alone until that has had its effect"
    (again,) = balanced.rounds(2)
    assert isinstance(again, Roll)
    assert (again.to, again.share, again.limit) == (5, pytest.approx(0.25), pytest.approx(0.9)), "now a large one too"


def test_a_new_node_to_which_nothing_came_is_given_a_large_one_soon(balanced: Balanced) -> None:
    balanced.load_three()
    balanced.join(4, 5)
    assert len(balanced.rounds(2)) == 6
    assert balanced.round() == [], "partitionlets take a moment to roll"
    changes = balanced.round()
    assert [(each.node, each.to) for each in changes if isinstance(each, Roll)] == [(1, 5), (2, 6)]
    assert all(each.limit == pytest.approx(0.9) for each in changes if isinstance(each, Roll))
    balanced.rates[5] = 20
    balanced.load(1, 20)
    balanced.load(4, 20)
    changes = balanced.rounds(2)
    assert [(each.node, each.to) for each in changes if isinstance(each, Roll)] == [(3, 6)], (
        "not again who gave nothing"
    )


def test_where_nobody_can_give_anything_all_are_left_alone_for_a_while(balanced: Balanced) -> None:
    balanced.load_three()
    balanced.join(4)
    orders = [each for each in balanced.rounds(2 + 8) if isinstance(each, Roll)]
    assert [each.node for each in orders if each.limit > 0.5] == [1, 2, 3], "each leads one that carries all of it"
    assert balanced.rounds(19) == []
    assert rolls_of(balanced.round()) == {(1, 5)}


def test_many_nodes_give_some_of_them_something_worth_a_move(balanced: Balanced) -> None:
    for node in range(4, 101):
        balanced.world.node(node)
        balanced.world.container(node + 1, (node, 1, 2))
    for node in range(1, 101):
        balanced.load(node, 40)
        balanced.rates[node + 1] = 40
    balanced.join(101)
    shares = [each.share for each in balanced.rounds(2) if isinstance(each, Roll)]
    assert min(shares) == pytest.approx(0.02)
    assert sum(shares) * 40 == pytest.approx(40 * 100 / 101, abs=1)


def rolls_of(changes: list[Change]) -> set[tuple[int, int]]:
    """Return (node, container that it rolls to)."""
    return {(each.node, each.to) for each in changes if isinstance(each, Roll)}


def test_several_new_nodes_get_their_share_at_once(balanced: Balanced) -> None:
    balanced.load_three()
    balanced.join(4, 5)
    assert balanced.round() == []
    changes = balanced.round()
    assert rolls_of(changes) == {(1, 5), (2, 5), (3, 5), (1, 6), (2, 6), (3, 6)}
    assert all(each.share == pytest.approx(0.2) for each in changes if isinstance(each, Roll))


def test_a_new_node_need_not_wait_until_the_others_have_rested_from_another(balanced: Balanced) -> None:
    balanced.load_three()
    balanced.join(4)
    assert rolls_of(balanced.rounds(2)) == {(1, 5), (2, 5), (3, 5)}
    balanced.rates[5] = 5
    balanced.join(5)
    changes = balanced.rounds(2)
    assert rolls_of(changes) == {(1, 6), (2, 6), (3, 6)}
    assert all(each.share == pytest.approx(0.2) for each in changes if isinstance(each, Roll)), "as if both were new"


def test_a_new_node_that_had_to_wait_gets_its_share_from_all_then(balanced: Balanced) -> None:
    balanced.policy = BalanceRecord(moves_per_minute=1)
    balanced.load_three()
    balanced.join(4, 5)
    assert rolls_of(balanced.rounds(2)) == {(1, 5), (2, 5), (3, 5)}
    for node, mib in ((1, 32), (2, 32), (3, 32), (4, 24)):
        balanced.load(node, mib)
    assert rolls_of(balanced.rounds(21)) == {(1, 6), (2, 6), (3, 6)}


def test_a_new_node_does_not_wait_for_what_was_moved_before_it_came(balanced: Balanced) -> None:
    balanced.load_three()
    balanced.state = replace(balanced.state, moves=(balanced.world.now,) * balanced.policy.moves_per_minute)
    balanced.join(4)
    assert rolls_of(balanced.rounds(2)) == {(1, 5), (2, 5), (3, 5)}


def test_a_node_whose_disk_is_full_is_given_nothing(balanced: Balanced) -> None:
    balanced.load_three()
    balanced.join(4)
    balanced.world.mark(4, full=True)
    assert balanced.rounds(20) == []
    balanced.load(1, 100)
    balanced.rates[2] = 100
    assert {target for _, target in rolls_of(balanced.rounds(6))} <= {3, 4}, "what node 4 leads is container 5"
    balanced.world.mark(4, full=False)
    assert (1, 5) in rolls_of(balanced.rounds(20))


def test_a_new_node_that_got_something_from_some_gets_its_share_from_all_later(balanced: Balanced) -> None:
    balanced.load_three()
    balanced.state = replace(balanced.state, resting={NodeId(1): balanced.world.now + 3 * EVERY_S})
    balanced.join(4)
    assert rolls_of(balanced.rounds(2)) == {(2, 5), (3, 5)}, "node 1 has just been given something"
    for node, mib in ((1, 40), (2, 35), (3, 35), (4, 10)):
        balanced.load(node, mib)
    assert rolls_of(balanced.rounds(6)) == {(1, 5), (2, 5), (3, 5)}


def test_a_small_budget_keeps_no_node_cold(balanced: Balanced) -> None:
    balanced.policy = BalanceRecord(moves_per_minute=1)
    balanced.load_three()
    balanced.join(4)
    orders = [each for each in balanced.rounds(100) if isinstance(each, Roll)]
    assert {each.node for each in orders if each.limit > 0.5} == {1, 2, 3}, "each may give a large one, in the end"


def test_a_new_node_comes_before_what_hot_nodes_could_do_among_each_other(balanced: Balanced) -> None:
    balanced.world.container(9, (1, 2, 3))
    balanced.world.node(4)
    balanced.world.container(5, (4, 1, 2))
    for node, mib in ((1, 60), (2, 40), (3, 20), (4, 0)):
        balanced.load(node, mib)
    balanced.rates |= {2: 30, 3: 40, 4: 20, 9: 30}
    changes = balanced.rounds(2)
    assert {each.to for each in changes if isinstance(each, Roll)} == {5}
    assert not any(isinstance(each, PutContainer) for each in changes)


def test_a_node_that_has_come_back_is_handed_a_leader_rather_than_partitionlets(balanced: Balanced) -> None:
    balanced.world.container(9, (1, 2, 3))
    for node, mib in ((1, 60), (2, 25), (3, 0)):
        balanced.load(node, mib)
    balanced.rates |= {2: 30, 3: 25, 9: 30}
    (change,) = balanced.rounds(2)
    assert isinstance(change, PutContainer)
    assert change.record.leader == 3


def test_idle_clusters_and_busy_readers_make_no_node_cold(balanced: Balanced) -> None:
    for node in (1, 2):
        balanced.load(node, 0.5)
        balanced.rates[node + 1] = 0.5
    balanced.load(3, 0)
    assert balanced.rounds(5) == []
    for node in (1, 2):
        balanced.load(node, 7, requests=100)
    balanced.load(3, 1, requests=5_000)
    assert not any(isinstance(each, Roll) and each.to == 4 for each in balanced.rounds(2))


def test_nodes_of_a_move_are_left_alone_until_it_has_its_effect(balanced: Balanced) -> None:
    balanced.load(1, 100)
    balanced.rates |= {2: 100, 3: 1, 4: 1}
    moved_at = [balanced.world.now for _ in range(20) if balanced.round()]
    assert len(moved_at) >= 2
    assert all(later - earlier >= REST_S for earlier, later in itertools.pairwise(moved_at))


def test_a_leader_is_handed_over_where_a_node_leads_several(balanced: Balanced) -> None:
    balanced.world.container(9, (1, 2, 3))
    for node, mib in ((1, 100), (2, 30), (3, 10)):
        balanced.load(node, mib)
    balanced.rates |= {2: 60, 9: 40}
    balanced.round()
    (change,) = balanced.round()
    assert isinstance(change, PutContainer)
    assert change.record.container_id in (2, 9)
    assert change.record.leader == 3
    assert change.record.epoch == 6


def test_a_leader_is_not_handed_over_if_that_makes_another_as_hot(balanced: Balanced) -> None:
    balanced.world.container(9, (1, 2, 3))
    for node, mib in ((1, 100), (2, 40), (3, 40)):
        balanced.load(node, mib)
    balanced.rates |= {2: 99, 9: 1}
    changes = balanced.rounds(2)
    assert not any(isinstance(each, PutContainer) for each in changes)


@pytest.mark.parametrize("kind", ["requests", "disk"])
def test_requests_and_disk_are_loads_too(balanced: Balanced, kind: str) -> None:
    for node in (1, 2, 3):
        balanced.load(node, 1)
    balanced.load(1, 1, **{"requests": {"requests": 50_000}, "disk": {"disk": 500}}[kind])
    balanced.rates[2] = 1
    changes = balanced.rounds(2)
    assert rolls_of(changes) == {"requests": {(1, 3), (1, 4)}, "disk": {(1, 3)}}[kind]
    assert all(f"times the mean {kind}" in each.reason for each in changes)


def test_a_node_that_leaves_or_is_silent_gets_nothing(balanced: Balanced) -> None:
    balanced.load(1, 100)
    balanced.rates[2] = 100
    balanced.world.mark(2, draining=True)
    balanced.world.silent(3)
    assert balanced.rounds(5) == []


def test_leaders_of_closed_containers_are_spread_evenly_within_the_budget(balanced: Balanced) -> None:
    for number in range(10, 40):
        balanced.world.container(number, (1, 2, 3), state="closed")
    times = [balanced.world.now for _ in range(60) for _ in balanced.round()]
    led = [record.leader for record in balanced.world.containers.values() if record.state == "closed"]
    assert sorted(led.count(NodeId(node)) for node in (1, 2, 3)) == [10, 10, 10]
    for at in times:
        assert sum(1 for other in times if at <= other < at + 60) <= CLOSED_PER_MINUTE
    assert balanced.rounds(10) == []


def test_the_owner_says_from_when_on_and_how_much(balanced: Balanced) -> None:
    balanced.load(1, 60)
    balanced.load(2, 30)
    balanced.load(3, 30)
    balanced.rates = {2: 60, 3: 30, 4: 30}
    for policy in (
        BalanceRecord(over_mean=1.6),
        BalanceRecord(traffic_floor=61 * MIB),
        BalanceRecord(moves_per_minute=0),
        BalanceRecord(paused=True),
    ):
        balanced.policy = policy
        assert balanced.rounds(10) == []
    balanced.policy = BalanceRecord(over_mean=1.4)
    assert balanced.rounds(10)


def test_a_round_that_is_not_due_does_nothing(balanced: Balanced) -> None:
    balanced.load(1, 100)
    balanced.round()
    state = balanced.state
    assert balance(balanced.world.observed(), state, balanced.world.now + 1) == ([], state)
