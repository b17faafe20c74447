"""The cluster's time if clocks differ: that of a majority, from the last reading of each clock."""

import pytest

from headrace.base.ids import Millis, NodeId
from headrace.control.cluster_clock import OFF_S, RIGHT_S, Clocks

NOW = 1_800_000_000.0


class Clock:
    """Node 1's own two clocks, which the test sets; the others' clocks as they report them."""

    def __init__(self, *others: int) -> None:
        self.passed = 7.0
        self.ahead = 0.0
        self.clocks = Clocks(own=NodeId(1), monotonic=lambda: self.passed, wall=lambda: NOW + self.passed + self.ahead)
        for other in others:
            self.clocks.expect(NodeId(other))

    def tells(self, node: int, ahead: float) -> None:
        self.clocks.told(NodeId(node), Millis(int((NOW + self.passed + ahead) * 1000)))

    @property
    def agreed(self) -> float | None:
        """The cluster's time, in seconds ahead of the true time."""
        found = self.clocks.agreed()
        return None if found is None else round(found / 1000 - NOW - self.passed, 2)


def test_one_node_alone_goes_by_its_own_clock() -> None:
    clock = Clock()
    clock.ahead = 60.0
    assert clock.agreed == 60.0
    clock.clocks.look()
    assert clock.clocks.off() == {}


@pytest.mark.parametrize("ahead", [600.0, -600.0])
def test_a_minority_of_clocks_moves_the_clusters_time_neither_way(ahead: float) -> None:
    others = Clock(2, 3)
    others.tells(2, ahead)
    others.tells(3, 0.0)
    assert others.agreed == 0.0
    own = Clock(2, 3, 4, 5)
    own.ahead = ahead
    for node, their in ((2, 0.0), (3, ahead), (4, 0.0), (5, 0.0)):
        own.tells(node, their)
    assert own.agreed == 0.0
    assert own.clocks.now() == own.clocks.agreed()
    assert own.clocks.off() == pytest.approx({1: ahead, 3: ahead}, abs=0.01)


def test_of_two_clocks_the_one_that_is_behind_counts() -> None:
    clock = Clock(2)
    clock.tells(2, -300.0)
    assert clock.agreed == -300.0
    clock.tells(2, 300.0)
    assert clock.agreed == 0.0


def test_the_clusters_time_is_unknown_until_more_than_half_of_the_clocks_are_read() -> None:
    clock = Clock(2, 3, 4)
    clock.ahead = 600.0
    clock.tells(2, 600.0)
    assert clock.agreed is None
    assert clock.clocks.now() == clock.clocks.own()
    clock.tells(3, 0.0)
    assert clock.agreed == 0.0
    clock.clocks.forget(NodeId(4))  # removed: of three clocks two are 600 s ahead
    clock.clocks.look()
    assert clock.agreed == 600.0


def test_a_clock_that_was_read_goes_on_whatever_our_own_does() -> None:
    clock = Clock(2, 3)
    clock.tells(2, 0.0)
    clock.tells(3, 0.0)
    clock.passed += 100
    clock.ahead = 900.0
    assert clock.agreed == 0.0
    clock.clocks.look()
    assert clock.agreed == 0.0
    assert clock.clocks.off() == pytest.approx({1: 900.0}, abs=0.01)


def test_a_node_that_does_not_tell_its_clock_does_not_count() -> None:
    clock = Clock(2)
    clock.clocks.told(NodeId(2), Millis(0))
    assert clock.agreed == 0.0


def test_a_clock_is_off_until_it_is_clearly_right() -> None:
    clock = Clock(2, 3)
    clock.tells(3, 0.0)
    for ahead, off in ((OFF_S - 0.1, False), (OFF_S + 0.1, True), (RIGHT_S + 0.1, True), (RIGHT_S - 0.1, False)):
        clock.tells(2, ahead)
        assert (2 in clock.clocks.off()) == off, ahead
