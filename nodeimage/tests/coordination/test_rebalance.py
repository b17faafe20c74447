"""Joining, syncing and the states between, as Apache Kafka has them."""

import pytest

from headrace.base.errors import Code
from headrace.coordination.limits import GroupLimits
from headrace.coordination.messages import GroupState, JoinedMember, Protocol
from kit.group_machine import DELAY, REBALANCE, SESSION, Machine


def test_first_member_leads_generation_one_after_the_initial_delay(machine: Machine) -> None:
    token = machine.join()
    machine.pass_time(DELAY - 1)
    assert machine.waits(token)
    machine.pass_time(1)
    result = machine.joined(token)
    assert (result.code, result.generation, result.leader) == (Code.NONE, 1, result.member_id)
    assert (result.protocol_type, result.protocol_name) == ("consumer", "range")
    assert result.members == (JoinedMember(result.member_id, None, b"topics"),)
    assert machine.describe().state is GroupState.COMPLETING


def test_members_that_come_one_after_the_other_make_one_generation(machine: Machine) -> None:
    tokens = []
    for _ in range(5):
        tokens.append(machine.join())
        machine.pass_time(DELAY - 50)
    machine.pass_time(DELAY)
    results = [machine.joined(token) for token in tokens]
    assert {result.generation for result in results} == {1}
    assert [len(result.members) for result in results] == [5, 0, 0, 0, 0]


def test_initial_delay_is_extended_to_the_rebalance_timeout_at_most(machine: Machine) -> None:
    first = machine.join(rebalance=1_000)
    passed = 0
    while machine.waits(first):
        machine.join(rebalance=1_000)
        machine.pass_time(100)
        passed += 100
        assert passed <= 1_000
    assert passed == 1_000


def test_without_initial_delay_a_member_is_answered_at_once() -> None:
    machine = Machine(limits=GroupLimits(initial_rebalance_delay_ms=0))
    token = machine.join()
    machine.pass_time(0)
    assert machine.joined(token).code is Code.NONE


def test_client_that_knows_member_ids_gets_one_first(machine: Machine) -> None:
    refused = machine.joined(machine.join(known_member=True))
    assert refused.code is Code.MEMBER_ID_REQUIRED
    assert refused.member_id == "client-#1"
    token = machine.join(refused.member_id, known_member=True)
    machine.pass_time(DELAY)
    assert machine.joined(token).member_id == refused.member_id


def test_rebalance_waits_for_an_id_handed_out_until_its_session_ends(machine: Machine) -> None:
    members, generation = machine.stable(1)
    machine.joined(machine.join(known_member=True, session=8_000))
    token = machine.join(members[0])
    machine.pass_time(7_999)
    assert machine.waits(token)
    machine.pass_time(1)
    assert machine.joined(token).generation == generation + 1


def test_id_handed_out_that_comes_back_too_late_is_unknown(machine: Machine) -> None:
    member_id = machine.joined(machine.join(known_member=True)).member_id
    machine.pass_time(SESSION)
    assert machine.joined(machine.join(member_id)).code is Code.UNKNOWN_MEMBER_ID


def test_member_id_that_nobody_gave_is_unknown(machine: Machine) -> None:
    assert machine.joined(machine.join("made-up")).code is Code.UNKNOWN_MEMBER_ID
    machine.stable(1)
    assert machine.joined(machine.join("made-up")).code is Code.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    ("session", "accepted"), [(5_999, False), (6_000, True), (1_800_000, True), (1_800_001, False)]
)
def test_session_timeout_has_bounds(machine: Machine, session: int, accepted: bool) -> None:
    token = machine.join(session=session)
    machine.pass_time(DELAY)
    code = machine.joined(token).code
    assert code is (Code.NONE if accepted else Code.INVALID_SESSION_TIMEOUT)


def test_members_must_share_the_protocol_type_and_a_protocol(machine: Machine) -> None:
    machine.stable(1)
    assert machine.joined(machine.join(protocol_type="connect")).code is Code.INCONSISTENT_GROUP_PROTOCOL
    other = (Protocol("sticky", b""),)
    assert machine.joined(machine.join(protocols=other)).code is Code.INCONSISTENT_GROUP_PROTOCOL


def test_join_without_protocols_or_type_is_refused(machine: Machine) -> None:
    assert machine.joined(machine.join(protocols=())).code is Code.INCONSISTENT_GROUP_PROTOCOL
    assert machine.joined(machine.join(protocol_type="")).code is Code.INCONSISTENT_GROUP_PROTOCOL


def test_protocol_that_all_offer_and_most_prefer_is_selected(machine: Machine) -> None:
    a, b, c = (Protocol(name, name.encode()) for name in "abc")
    tokens = [machine.join(protocols=offered) for offered in [(a, b, c), (b, a), (c, b, a)]]
    machine.pass_time(3 * DELAY)
    results = [machine.joined(token) for token in tokens]
    # c is not offered by all; then the votes are a, b, b
    assert {result.protocol_name for result in results} == {"b"}
    assert {member.metadata for member in results[0].members} == {b"b"}


def test_follower_waits_for_the_leaders_assignment(machine: Machine) -> None:
    tokens = [machine.join(), machine.join()]
    machine.pass_time(2 * DELAY)
    leader, follower = (machine.joined(token).member_id for token in tokens)
    waiting = machine.sync(follower, 1, protocol_type="consumer", protocol="range")
    assert machine.waits(waiting)
    leading = machine.sync(leader, 1, {follower: b"f", leader: b"l", "stranger": b"x"})
    assert machine.synced(leading).assignment == b"l"
    result = machine.synced(waiting)
    assert (result.code, result.assignment) == (Code.NONE, b"f")
    assert (result.protocol_type, result.protocol_name) == ("consumer", "range")
    assert machine.describe().state is GroupState.STABLE


def test_member_left_out_by_the_leader_gets_an_empty_assignment(machine: Machine) -> None:
    tokens = [machine.join(), machine.join()]
    machine.pass_time(2 * DELAY)
    leader, follower = (machine.joined(token).member_id for token in tokens)
    waiting = machine.sync(follower, 1)
    machine.sync(leader, 1, {leader: b"all"})
    assert machine.synced(waiting).assignment == b""


def test_late_sync_gets_the_current_assignment(machine: Machine) -> None:
    members, generation = machine.stable(2)
    assert machine.synced(machine.sync(members[1], generation)).assignment == b"a1"


def test_sync_is_refused_where_it_does_not_fit(machine: Machine) -> None:
    members, generation = machine.stable(2)
    synced = machine.synced
    assert synced(machine.sync("nobody", generation)).code is Code.UNKNOWN_MEMBER_ID
    assert synced(machine.sync(members[1], generation - 1)).code is Code.ILLEGAL_GENERATION
    assert synced(machine.sync(members[1], generation + 1)).code is Code.ILLEGAL_GENERATION
    assert synced(machine.sync(members[1], generation, protocol="sticky")).code is Code.INCONSISTENT_GROUP_PROTOCOL
    assert synced(machine.sync(members[1], generation, protocol_type="x")).code is Code.INCONSISTENT_GROUP_PROTOCOL
    machine.join(members[0])
    assert synced(machine.sync(members[1], generation)).code is Code.REBALANCE_IN_PROGRESS
    assert synced(machine.sync("nobody", 1, group="other")).code is Code.UNKNOWN_MEMBER_ID


def test_new_member_makes_the_others_rejoin(machine: Machine) -> None:
    members, generation = machine.stable(2)
    newcomer = machine.join()
    assert machine.describe().state is GroupState.PREPARING
    assert machine.heartbeat(members[0], generation) is Code.REBALANCE_IN_PROGRESS
    again = [machine.join(member) for member in members]
    results = [machine.joined(token) for token in [newcomer, *again]]
    assert {result.generation for result in results} == {generation + 1}
    assert {result.leader for result in results} == {members[0]}


def test_new_member_during_completing_sends_waiting_syncs_back(machine: Machine) -> None:
    tokens = [machine.join(), machine.join()]
    machine.pass_time(2 * DELAY)
    leader, follower = (machine.joined(token).member_id for token in tokens)
    waiting = machine.sync(follower, 1)
    machine.join()
    assert machine.synced(waiting).code is Code.REBALANCE_IN_PROGRESS
    assert machine.heartbeat(leader, 1) is Code.REBALANCE_IN_PROGRESS


def test_leader_that_rejoins_forces_a_rebalance(machine: Machine) -> None:
    members, generation = machine.stable(2)
    token = machine.join(members[0])
    assert machine.waits(token)
    machine.join(members[1])
    assert machine.joined(token).generation == generation + 1


def test_follower_that_rejoins_unchanged_goes_on(machine: Machine) -> None:
    members, generation = machine.stable(2)
    result = machine.joined(machine.join(members[1]))
    assert (result.generation, result.leader, result.members) == (generation, members[0], ())
    assert machine.describe().state is GroupState.STABLE


def test_follower_that_rejoins_with_another_subscription_forces_a_rebalance(machine: Machine) -> None:
    members, generation = machine.stable(2)
    token = machine.join(members[1], protocols=(Protocol("range", b"other topics"),))
    assert machine.waits(token)
    leading = machine.join(members[0])
    assert {m.member_id: m.metadata for m in machine.joined(leading).members}[members[1]] == b"other topics"
    assert machine.joined(token).generation == generation + 1


def test_join_repeated_because_its_answer_was_lost_gets_the_same_answer(machine: Machine) -> None:
    token = machine.join()
    machine.pass_time(DELAY)
    first = machine.joined(token)
    assert machine.joined(machine.join(first.member_id)) == first


def test_join_sent_twice_answers_the_older_one_too(machine: Machine) -> None:
    members, _ = machine.stable(2)
    older = machine.join(members[0])
    newer = machine.join(members[0])
    assert machine.joined(older).code is Code.REBALANCE_IN_PROGRESS
    machine.join(members[1])
    assert machine.joined(newer).code is Code.NONE


def test_members_that_do_not_rejoin_in_time_are_removed(machine: Machine) -> None:
    members, generation = machine.stable(3)
    token = machine.join(members[0], rebalance=20_000)
    passed = 0
    while machine.waits(token):  # the others live, but do not come
        for member in members[1:]:
            assert machine.heartbeat(member, generation) is Code.REBALANCE_IN_PROGRESS
        machine.pass_time(5_000)
        passed += 5_000
    assert passed == REBALANCE
    assert [member.member_id for member in machine.joined(token).members] == [members[0]]
    assert machine.heartbeat(members[1], generation) is Code.UNKNOWN_MEMBER_ID


def test_a_leader_that_does_not_rejoin_is_followed_by_one_that_did(machine: Machine) -> None:
    members, generation = machine.stable(2)
    machine.join()
    token = machine.join(members[1])
    machine.pass_time(REBALANCE)
    result = machine.joined(token)
    assert (result.leader, result.generation) == (members[1], generation + 1)
    assert len(result.members) == 2


def test_members_that_send_no_sync_in_time_are_removed(machine: Machine) -> None:
    members, _ = machine.stable(2)
    tokens = [machine.join(members[0]), machine.join(members[1])]
    generation = machine.joined(tokens[0]).generation
    waiting = machine.sync(members[1], generation)
    for _ in range(REBALANCE // 5_000):  # the leader lives, but does not assign
        machine.heartbeat(members[0], generation)
        machine.pass_time(5_000)
    assert machine.synced(waiting).code is Code.REBALANCE_IN_PROGRESS
    assert [member.member_id for member in machine.describe().members] == [members[1]]


def test_group_takes_no_more_members_than_allowed() -> None:
    machine = Machine(limits=GroupLimits(initial_rebalance_delay_ms=DELAY, max_size=2))
    members, generation = machine.stable(2)
    assert machine.joined(machine.join()).code is Code.GROUP_MAX_SIZE_REACHED
    assert machine.heartbeat(members[1], generation) is Code.NONE
    assert machine.joined(machine.join(members[1])).code is Code.NONE


def test_last_one_to_rejoin_a_group_that_became_too_large_is_sent_away() -> None:
    machine = Machine(limits=GroupLimits(initial_rebalance_delay_ms=DELAY, max_size=3))
    members, _ = machine.stable(3)
    machine.limits = GroupLimits(max_size=2)
    machine.restart()
    first = [machine.join(member) for member in members[:2]]
    last = machine.join(members[2])
    assert machine.joined(last).code is Code.GROUP_MAX_SIZE_REACHED
    assert {machine.joined(token).code for token in first} == {Code.NONE}


def test_ids_handed_out_are_bounded() -> None:
    machine = Machine(limits=GroupLimits(max_size=2))
    codes = [machine.joined(machine.join(known_member=True)).code for _ in range(3)]
    assert codes == [Code.MEMBER_ID_REQUIRED, Code.MEMBER_ID_REQUIRED, Code.GROUP_MAX_SIZE_REACHED]


def test_description_shows_subscriptions_and_assignments_only_when_stable(machine: Machine) -> None:
    members, _ = machine.stable(2)
    view = machine.describe()
    assert (view.state, view.protocol_type, view.protocol_name) == (GroupState.STABLE, "consumer", "range")
    assert {(m.member_id, m.metadata, m.assignment) for m in view.members} == {
        (members[0], b"topics", b"a0"),
        (members[1], b"topics", b"a1"),
    }
    machine.join(members[0])
    view = machine.describe()
    assert view.protocol_name == ""
    assert {(m.metadata, m.assignment) for m in view.members} == {(b"", b"")}


def test_group_that_nobody_made_is_dead(machine: Machine) -> None:
    assert machine.describe("nobody's").state is GroupState.DEAD
