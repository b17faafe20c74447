"""What is committed, depending on what each replica has on disk."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.base.ids import Epoch, NodeId, Position
from headrace.container.leader_state import IN_TOUCH_S, LET_GO_S, STIR_S, STUCK_S, LeaderState, Member, Vouch

MEMBERS = [Member(NodeId(number), f"format-{number}") for number in (1, 2, 3)]


def leader(count: int, *, start: int = 0, min_in_sync: int = 1) -> LeaderState:
    return LeaderState(
        me=MEMBERS[0],
        epoch=Epoch(4),
        in_sync=MEMBERS[:count],
        replicas=[member.node for member in MEMBERS],
        start=Position(start),
        min_in_sync=min_in_sync,
    )


def test_a_single_replica_commits_what_it_has_on_disk() -> None:
    one = leader(1)
    assert one.on_disk(MEMBERS[0], Position(100))
    assert one.committed == 100
    assert not one.on_disk(MEMBERS[0], Position(100))


def test_nothing_is_committed_before_every_member_has_it() -> None:
    three = leader(3)
    three.on_disk(MEMBERS[0], Position(100))
    three.on_disk(MEMBERS[1], Position(80))
    assert three.committed == 0
    assert three.on_disk(MEMBERS[2], Position(90))
    assert three.committed == 80


def test_another_incarnation_of_the_same_node_does_not_count() -> None:
    one = leader(1)
    assert not one.on_disk(Member(NodeId(1), "a new folder"), Position(100))
    assert one.committed == 0


def test_too_few_members_commit_nothing() -> None:
    one = leader(1, min_in_sync=2)
    assert not one.on_disk(MEMBERS[0], Position(100))


def test_a_new_leader_serves_once_the_start_of_its_epoch_is_committed() -> None:
    two = leader(2, start=50)
    two.on_disk(MEMBERS[0], Position(60))
    assert not two.serves
    two.on_disk(MEMBERS[1], Position(50))
    assert two.serves


def test_a_silent_follower_is_proposed_out_and_commits_wait_for_both_sets_meanwhile() -> None:
    """Invariant 3: a put that is in progress, or timed out, may have been stored or not."""
    three = leader(3, min_in_sync=2)
    for member in MEMBERS[1:]:
        three.follows(member, Position(0), now=0.0)
    three.on_disk(MEMBERS[0], Position(100))
    three.on_disk(MEMBERS[1], Position(100), now=LET_GO_S)
    assert three.proposal(LET_GO_S - 0.1) is None
    assert three.proposal(LET_GO_S) == {MEMBERS[0], MEMBERS[1]}
    assert three.committed == 0
    assert three.proposal(LET_GO_S + 1) is None
    assert three.decided(MEMBERS[:2])
    assert three.committed == 100


def test_a_follower_that_has_left_a_stopping_node_is_proposed_out_at_once() -> None:
    three = leader(3)
    for member in MEMBERS[1:]:
        three.follows(member, Position(0), now=0.0)
    stopping = {MEMBERS[1].node}
    assert three.proposal(0.1, stopping) is None, "it follows still"
    three.gone(MEMBERS[1])
    three.gone(MEMBERS[2])
    assert three.proposal(0.2, stopping) == {MEMBERS[0], MEMBERS[2]}


def test_a_follower_without_progress_is_proposed_out() -> None:
    two = leader(2)
    two.follows(MEMBERS[1], Position(0), now=0.0)
    two.on_disk(MEMBERS[0], Position(100))
    two.end = Position(100)
    for tenth in range(int(STUCK_S * 10) - 1):
        two.on_disk(MEMBERS[1], Position(40), now=tenth / 10)
    assert two.proposal(STUCK_S - 0.2) is None
    two.on_disk(MEMBERS[1], Position(40), now=STUCK_S)
    assert two.proposal(STUCK_S + 0.1) == {MEMBERS[0]}


def test_the_set_never_shrinks_below_the_minimum_but_grows() -> None:
    """Invariant 6."""
    two = leader(2, min_in_sync=2)
    assert two.proposal(10.0) is None
    assert two.stalled
    two.follows(MEMBERS[2], Position(0), now=10.0)
    assert two.proposal(10.1) == {MEMBERS[0], MEMBERS[2]}
    assert not two.stalled


def test_too_few_are_told_of_while_a_set_is_being_put_as_well() -> None:
    """The store may be unavailable: the put then takes as long as that lasts, and nothing else would report it."""
    three = leader(3, min_in_sync=2)
    three.follows(MEMBERS[1], Position(0), now=2.0)
    assert three.proposal(2.0) == set(MEMBERS[:2])
    assert not three.stalled
    three.look(2.0 + LET_GO_S)
    assert three.stalled
    three.follows(MEMBERS[1], Position(0), now=4.0)
    three.look(4.0)
    assert not three.stalled
    assert three.waits_for == set(MEMBERS), "nothing else was proposed"


def test_while_the_leader_stood_still_no_follower_was_silent() -> None:
    three = leader(3)
    for member in MEMBERS[1:]:
        three.follows(member, Position(0), now=0.0)
        three.assured(member, 0.0)
    three.stood_still(30.0)
    assert not three.in_touch(30.0), "another may have taken over"
    assert three.proposal(30.0 + LET_GO_S - 0.1) is None
    three.on_disk(MEMBERS[1], Position(0), now=30.0 + LET_GO_S)
    assert three.proposal(30.1 + LET_GO_S) == set(MEMBERS[:2])


def test_a_member_that_lost_what_it_had_acknowledged_is_proposed_out_until_it_has_all_again() -> None:
    """Its volume was restored from a snapshot, together with its incarnation."""
    three = leader(3, min_in_sync=2)
    for member in MEMBERS[1:]:
        three.follows(member, Position(0), now=0.0)
    for member in MEMBERS:
        three.on_disk(member, Position(100), now=0.0)
    three.gone(MEMBERS[1])
    three.follows(MEMBERS[1], Position(0), now=0.1)
    assert three.proposal(0.1) is None, "it has yet to say what it has"
    three.on_disk(MEMBERS[1], Position(99), now=0.1)
    assert three.proposal(0.2) == {MEMBERS[0], MEMBERS[2]}
    three.decided([MEMBERS[0], MEMBERS[2]])
    assert three.proposal(0.3) is None
    three.on_disk(MEMBERS[1], Position(100), now=0.4)
    assert three.proposal(0.5) == set(MEMBERS)


def test_a_follower_joins_only_at_or_above_what_is_committed() -> None:
    """Invariant 5."""
    one = leader(1)
    one.on_disk(MEMBERS[0], Position(100))
    one.follows(MEMBERS[1], Position(0), now=0.0)
    one.on_disk(MEMBERS[1], Position(99), now=0.1)
    assert one.proposal(0.2) is None
    one.on_disk(MEMBERS[1], Position(100), now=0.3)
    assert one.proposal(0.4) == set(MEMBERS[:2])


def test_an_observer_never_joins() -> None:
    one = LeaderState(
        me=MEMBERS[0], epoch=Epoch(1), in_sync=MEMBERS[:1], replicas=[NodeId(1)], start=Position(0), min_in_sync=1
    )
    one.follows(MEMBERS[1], Position(0), now=0.0)
    assert one.proposal(0.1) is None


def test_a_new_folder_takes_the_place_of_the_lost_one() -> None:
    two = leader(2, min_in_sync=1)
    fresh = Member(MEMBERS[1].node, "made anew")
    two.follows(fresh, Position(0), now=0.0)
    assert two.proposal(0.1) == {MEMBERS[0], fresh}


def test_without_word_from_a_follower_the_lease_is_over() -> None:
    """Invariant 16."""
    two = leader(2)
    assert not two.in_touch(0.0)
    two.follows(MEMBERS[1], Position(0), now=0.0)
    assert not two.in_touch(0.0)
    two.assured(MEMBERS[1], 0.0)
    assert two.in_touch(IN_TOUCH_S - 0.1)
    assert not two.in_touch(IN_TOUCH_S)
    two.assured(MEMBERS[1], IN_TOUCH_S)
    two.gone(MEMBERS[1])
    assert not two.in_touch(IN_TOUCH_S)


def test_an_answer_that_was_under_way_for_long_renews_no_lease() -> None:
    """Invariant 16: a process that was suspended finds answers as old as its suspension."""
    two = leader(2)
    two.follows(MEMBERS[1], Position(0), now=0.0)
    two.assured(MEMBERS[1], 0.1)
    two.on_disk(MEMBERS[1], Position(0), now=30.0)
    assert not two.in_touch(30.0)


def test_a_member_that_is_proposed_may_lead_already() -> None:
    """Invariant 16: the put may have been stored."""
    one = LeaderState(
        me=MEMBERS[0],
        epoch=Epoch(1),
        in_sync=MEMBERS[:1],
        replicas=[MEMBERS[0].node, MEMBERS[1].node],
        start=Position(0),
        min_in_sync=1,
    )
    assert one.in_touch(5.0)
    one.follows(MEMBERS[1], Position(0), now=5.0)
    assert one.proposal(5.0) == set(MEMBERS[:2])
    assert not one.in_touch(5.0)
    one.assured(MEMBERS[1], 5.0)
    assert one.in_touch(5.5)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1000))))
def test_committed_never_falls_and_never_passes_a_member(reports: list[tuple[int, int]]) -> None:
    three = leader(3)
    have = [0, 0, 0]
    before = 0
    for index, position in reports:
        have[index] = max(have[index], position)
        three.on_disk(MEMBERS[index], Position(position))
        assert before <= three.committed == min(have)
        before = three.committed


def resting(*, vouch: Vouch) -> LeaderState:
    """A leader of two whose follower rests."""
    two = leader(2)
    two.follows(MEMBERS[1], Position(0), now=0.0)
    two.end = Position(100)
    two.on_disk(MEMBERS[0], Position(100))
    two.on_disk(MEMBERS[1], Position(100), now=0.0)
    assert two.vouched(MEMBERS[1], Position(100), vouch)
    return two


def test_a_follower_that_rests_is_heard_and_assured_by_its_nodes_heartbeats() -> None:
    vouch = Vouch(heard=0.0, assured=0.0)
    two = resting(vouch=vouch)
    later = LET_GO_S * 10
    vouch.heard = vouch.assured = later
    assert two.in_touch(later)
    assert two.is_settled(later)
    assert two.near(later) == {MEMBERS[1].node}
    assert two.proposal(later) is None
    assert not two.in_touch(later + IN_TOUCH_S)
    assert not two.is_settled(later + 2 * STIR_S)
    assert two.proposal(later + 2 * LET_GO_S) == {MEMBERS[0]}


def test_a_heartbeat_of_its_node_says_nothing_of_a_follower_that_stirred() -> None:
    vouch = Vouch(heard=5.0, assured=5.0)
    two = resting(vouch=vouch)
    two.end = Position(200)
    two.stirs(MEMBERS[1])
    vouch.heard = vouch.assured = 5.0 + LET_GO_S
    assert two.in_touch(5.0 + IN_TOUCH_S / 2)
    assert not two.in_touch(5.0 + IN_TOUCH_S)
    assert two.proposal(5.0 + LET_GO_S / 2) is None  # it had all until it stirred: it is not stuck
    assert two.proposal(5.0 + 2 * LET_GO_S) == {MEMBERS[0]}


def test_a_connection_that_ended_is_spoken_for_by_nobody() -> None:
    vouch = Vouch(heard=5.0, assured=5.0)
    two = resting(vouch=vouch)
    two.gone(MEMBERS[1])
    vouch.heard = vouch.assured = 5.0 + LET_GO_S
    assert not two.in_touch(5.0 + LET_GO_S)
    assert two.proposal(5.0 + 2 * LET_GO_S) == {MEMBERS[0]}


def test_a_follower_rests_only_with_all_that_there_is_and_all_of_it_committed() -> None:
    vouch = Vouch(heard=0.0, assured=0.0)
    two = leader(2)
    assert not two.vouched(MEMBERS[1], Position(0), vouch)  # it has not come
    two.follows(MEMBERS[1], Position(0), now=0.0)
    assert not two.vouched(MEMBERS[1], Position(0), vouch)  # it has said nothing
    two.on_disk(MEMBERS[1], Position(0), now=0.0)
    two.end = Position(100)
    assert not two.vouched(MEMBERS[1], Position(0), vouch)  # there is more
    two.on_disk(MEMBERS[1], Position(100), now=0.0)
    assert not two.vouched(MEMBERS[1], Position(100), vouch)  # which is not committed
    two.on_disk(MEMBERS[0], Position(100))
    assert not two.vouched(MEMBERS[1], Position(50), vouch)
    assert two.vouched(MEMBERS[1], Position(100), vouch)
