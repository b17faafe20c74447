"""For which followers a node's heartbeats count, as agreed by both nodes of a pair."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from headrace.base.errors import MalformedRequest
from headrace.base.ids import ContainerId, Epoch, Position
from headrace.container.leader_state import Vouch
from headrace.container.pair_roster import MAX_TOLD, FollowersRoster, LeadersRoster
from headrace.peer.messages import PairAnswer, Resting


class Follower:
    """A follower, on the followers' node."""

    def __init__(self) -> None:
        self.rested: list[int] = []
        self.stirred: list[tuple[int, bool]] = []

    def rest(self, number: int) -> None:
        self.rested.append(number)

    def stir(self, number: int, *, silent: bool) -> None:
        self.stirred.append((number, silent))


class Fed:
    """A follower, on the leaders' node."""

    def __init__(self, *, takes: bool = True) -> None:
        self.takes = takes
        self.vouch: Vouch | None = None
        self.looked_at = 0

    def spoken_for(self, vouch: Vouch, resting: Resting, stirred: Callable[[int], None]) -> bool:
        self.vouch = vouch if self.takes else None
        self.number, self.stirred = resting.number, stirred
        return self.takes

    def stir(self) -> None:
        if self.vouch is not None:
            self.vouch = None
            self.stirred(self.number)

    def look_at(self) -> None:
        self.looked_at += 1


class Pair:
    """Two rosters, and the messages in flight between them."""

    def __init__(self) -> None:
        self.followers = FollowersRoster()
        self.leaders = LeadersRoster(0.0)
        self.fed: dict[ContainerId, Fed] = {}
        self.now = 0.0

    def add(self, follower: Follower, container: int = 7) -> int:
        return self.followers.add(
            follower, container=ContainerId(container), epoch=Epoch(3), format="f", position=Position(100)
        )

    def answer(self) -> PairAnswer:
        self.now += 1.0
        return self.followers.answer(self.leaders.beat(self.now))

    def take(self, answer: PairAnswer) -> None:
        self.leaders.answered(answer, self.now, lambda resting: self.fed.get(resting.container))

    def beat(self) -> None:
        self.take(self.answer())


def test_a_follower_rests_once_its_leader_has_taken_that() -> None:
    pair, follower = Pair(), Follower()
    fed = pair.fed[ContainerId(7)] = Fed()
    number = pair.add(follower)
    assert fed.vouch is None
    pair.beat()
    assert fed.vouch is pair.leaders.vouch
    assert not follower.rested
    pair.beat()
    assert follower.rested == [number]
    assert (pair.leaders.vouch.heard, pair.leaders.vouch.assured) == (2.0, 2.0)


@pytest.mark.parametrize("fed", [None, Fed(takes=False)])
def test_one_that_its_leader_does_not_feed_so_goes_on_by_itself(fed: Fed | None) -> None:
    pair, follower = Pair(), Follower()
    if fed is not None:
        pair.fed[ContainerId(7)] = fed
    number = pair.add(follower)
    pair.beat()
    answer = pair.answer()
    assert follower.stirred == [(number, False)]
    assert (answer.stirs, answer.count) == ([number], 0)
    pair.take(answer)
    assert not follower.rested


def test_a_follower_hears_that_its_leader_looks_after_it_again() -> None:
    """If only their connection is dead, frames sent from now on may never arrive."""
    pair, follower = Pair(), Follower()
    fed = pair.fed[ContainerId(7)] = Fed()
    number = pair.add(follower)
    pair.beat()
    pair.beat()
    fed.stir()
    answer = pair.answer()
    assert (follower.rested, follower.stirred) == ([number], [(number, False)])
    pair.take(answer)
    assert answer.stirs == [number]
    assert pair.leaders.beat(9.0).astir == []


def test_what_is_taken_back_is_not_spoken_for_by_the_next_answer() -> None:
    pair, follower = Pair(), Follower()
    fed = pair.fed[ContainerId(7)] = Fed()
    number = pair.add(follower)
    pair.beat()
    pair.followers.take_back(number)
    pair.followers.take_back(number)
    answer = pair.answer()
    assert not follower.rested  # what was taken meanwhile
    pair.take(answer)
    assert fed.vouch is None
    pair.beat()


def test_what_is_taken_back_before_it_was_told_is_never_told() -> None:
    pair = Pair()
    pair.followers.take_back(pair.add(Follower()))
    assert pair.answer() == PairAnswer(sent_at=1.0)


def test_an_answer_to_an_older_heartbeat_assures_of_no_later_time() -> None:
    pair = Pair()
    late = pair.answer()
    pair.leaders.beat(5.0)
    pair.now = 6.0
    pair.take(late)
    assert (pair.leaders.vouch.heard, pair.leaders.vouch.assured) == (6.0, 1.0)


def test_the_end_of_a_session_takes_all_back() -> None:
    pair, follower = Pair(), Follower()
    fed = pair.fed[ContainerId(7)] = Fed()
    number = pair.add(follower)
    pair.beat()
    pair.followers.end(silent=True)
    pair.leaders.end()
    assert follower.stirred == [(number, True)]
    assert fed.vouch is None


def test_leaders_are_told_of_a_node_that_is_silent() -> None:
    pair = Pair()
    fed = pair.fed[ContainerId(7)] = Fed()
    pair.add(Follower())
    pair.beat()
    pair.leaders.stir()
    assert fed.looked_at == 1


def test_many_are_told_of_a_part_at_a_time() -> None:
    pair = Pair()
    for container in range(MAX_TOLD + 10):
        pair.fed[ContainerId(container)] = Fed()
        pair.add(Follower(), container)
    pair.beat()
    assert sum(fed.vouch is not None for fed in pair.fed.values()) == MAX_TOLD
    pair.beat()
    assert all(fed.vouch is not None for fed in pair.fed.values())


@pytest.mark.parametrize(
    "change",
    [
        {"count": 0},
        {"digest": 0},
        {"sent_at": 99.0},
        {"stirs": [5]},
        {"rests": [Resting(1, ContainerId(7), Epoch(3), "f", Position(101))]},
        {"rests": [Resting(1, ContainerId(7), Epoch(4), "f", Position(100))]},
        {"rests": [Resting(1, ContainerId(7), Epoch(3), "g", Position(100))]},
        {"rests": [Resting(1, ContainerId(7), Epoch(3), "f", Position(100))] * 2},
    ],
)
def test_what_cannot_be_is_refused_and_assures_of_nothing(change: dict[str, Any]) -> None:
    pair = Pair()
    pair.fed[ContainerId(7)] = Fed()
    pair.add(Follower())
    answer = structs.replace(pair.answer(), **change)
    with pytest.raises(MalformedRequest):
        pair.take(answer)
    assert pair.leaders.vouch.assured == float("-inf")


@given(st.lists(st.tuples(st.sampled_from(["rest", "stir", "write", "send", "take"]), st.integers(0, 3))))
def test_an_answer_speaks_for_those_alone_that_rested_when_it_was_given(steps: list[tuple[str, int]]) -> None:
    """Whatever is in flight: an answer, processed in order, only counts for followers that rested when it was made, and
    to which their leader has not written since it accepted them."""
    pair = Pair()
    resting: dict[int, int] = {}
    under_way: list[tuple[PairAnswer, set[int]]] = []
    for container in range(4):
        pair.fed[ContainerId(container)] = Fed()
    for step, container in steps:
        match step:
            case "rest" if container not in resting:
                resting[container] = pair.add(Follower(), container)
            case "stir" if container in resting:
                pair.followers.take_back(resting.pop(container))
            case "write":
                pair.fed[ContainerId(container)].stir()
            case "send":
                under_way.append((pair.answer(), set(resting)))
            case "take" if under_way:
                answer, rested = under_way.pop(0)
                pair.take(answer)
                spoken_for = {each for each, fed in pair.fed.items() if fed.vouch is not None}
                assert spoken_for <= rested
