"""What moves when one node carries more than others: little, slowly, and only what helps."""

import itertools

import pytest
from nodeimage.tests.control.conftest import World

from headrace.control.balance import CLOSED_PER_MINUTE, EVERY_S, SETTLE_S, BalanceState, balance
from headrace.control.changes import Change, PutContainer, Roll
from headrace.ids import ContainerId, NodeId, Position
from headrace.peer.messages import NodeLoad

MIB = 1024 * 1024


class Balanced:
    """Rounds of balancing, with containers written to at given rates (MiB/s) by their primaries."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.state = BalanceState()
        self.rates: dict[int, float] = {}

    def load(self, node: int, mib: float = 0, *, requests: float = 0, disk: int = 0, partitionlets: int = 20) -> None:
        self.world.loads[NodeId(node)] = NodeLoad(
            bytes_in_per_s=mib * MIB,
            requests_per_s=requests,
            disk_used=disk * 1024 * MIB,
            disk_total=1 << 40,
            open_partitionlets=partitionlets,
        )

    def round(self) -> list[Change]:
        self.world.pass_time(EVERY_S)
        for number, mib in self.rates.items():
            record = self.world.containers[ContainerId(number)]
            replica = self.world.observed().replica(record.primary, record.container_id)
            assert replica is not None
            self.world.replica(record.primary, number, end=Position(replica.end + int(mib * MIB * EVERY_S)))
        changes, self.state = balance(self.world.observed(), self.state, self.world.now)
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
    balanced.load(1, 7)
    balanced.rates[2] = 7
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
    balanced.load(2, 20)
    balanced.load(3, 10)
    balanced.rates[2] = 100
    assert balanced.round() == []
    (change,) = balanced.round()
    assert isinstance(change, Roll)
    assert (change.node, change.container, change.to) == (1, 2, 4)
    assert 1 <= change.most < 20
    assert "node 1 carries 2.31 times the mean traffic" in change.reason


def test_the_only_partitionlet_does_not_carry_the_heat_around(balanced: Balanced) -> None:
    balanced.load(1, 100, partitionlets=1)
    balanced.rates[2] = 100
    assert balanced.rounds(5) == []


def test_nodes_of_a_move_are_left_alone_until_it_has_its_effect(balanced: Balanced) -> None:
    balanced.load(1, 100)
    balanced.rates[2] = 100
    moved_at = [balanced.world.now for _ in range(20) if balanced.round()]
    assert len(moved_at) >= 2
    assert all(later - earlier >= SETTLE_S for earlier, later in itertools.pairwise(moved_at))


def test_a_primary_is_handed_over_where_a_node_leads_several(balanced: Balanced) -> None:
    balanced.world.container(9, (1, 2, 3))
    for node, mib in ((1, 100), (2, 30), (3, 10)):
        balanced.load(node, mib)
    balanced.rates |= {2: 60, 9: 40}
    balanced.round()
    (change,) = balanced.round()
    assert isinstance(change, PutContainer)
    assert change.record.container_id in (2, 9)
    assert change.record.primary == 3
    assert change.record.epoch == 6


def test_a_primary_is_not_handed_over_if_that_makes_another_as_hot(balanced: Balanced) -> None:
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
    (change,) = balanced.rounds(2)
    assert isinstance(change, Roll)
    assert f"times the mean {kind}" in change.reason


def test_a_node_that_leaves_or_is_silent_gets_nothing(balanced: Balanced) -> None:
    balanced.load(1, 100)
    balanced.rates[2] = 100
    balanced.world.mark(2, draining=True)
    balanced.world.silent(3)
    assert balanced.rounds(5) == []


def test_primaries_of_closed_containers_are_spread_evenly_within_the_budget(balanced: Balanced) -> None:
    for number in range(10, 40):
        balanced.world.container(number, (1, 2, 3), state="closed")
    times = [balanced.world.now for _ in range(60) for _ in balanced.round()]
    led = [record.primary for record in balanced.world.containers.values() if record.state == "closed"]
    assert sorted(led.count(NodeId(node)) for node in (1, 2, 3)) == [10, 10, 10]
    for at in times:
        assert sum(1 for other in times if at <= other < at + 60) <= CLOSED_PER_MINUTE
    assert balanced.rounds(10) == []


def test_a_round_that_is_not_due_does_nothing(balanced: Balanced) -> None:
    balanced.load(1, 100)
    balanced.round()
    state = balanced.state
    assert balance(balanced.world.observed(), state, balanced.world.now + 1) == ([], state)
