"""A group from Empty to Stable and back: its delays and sessions, and what is stored before it is answered."""

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


def test_protocol_that_all_offer_and_most_prefer_is_selected(machine: Machine) -> None:
    a, b, c = (Protocol(name, name.encode()) for name in "abc")
    tokens = [machine.join(protocols=offered) for offered in [(a, b, c), (b, a), (c, b, a)]]
    machine.pass_time(3 * DELAY)
    results = [machine.joined(token) for token in tokens]
    # c is not offered by all; then the votes are a, b, b
    assert {result.protocol_name for result in results} == {"b"}
    assert {member.metadata for member in results[0].members} == {b"b"}


def test_new_member_during_completing_sends_waiting_syncs_back(machine: Machine) -> None:
    tokens = [machine.join(), machine.join()]
    machine.pass_time(2 * DELAY)
    leader, follower = (machine.joined(token).member_id for token in tokens)
    waiting = machine.sync(follower, 1)
    machine.join()
    assert machine.synced(waiting).code is Code.REBALANCE_IN_PROGRESS
    assert machine.heartbeat(leader, 1) is Code.REBALANCE_IN_PROGRESS


def test_members_that_do_not_rejoin_in_time_are_removed(machine: Machine) -> None:
    members, generation = machine.stable(3)
    token = machine.join(members[0], rebalance=20_000)
    passed = 0
    while machine.waits(token):  # the others send heartbeats, but do not rejoin
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
    for _ in range(REBALANCE // 5_000):  # the leader sends heartbeats, but does not assign
        machine.heartbeat(members[0], generation)
        machine.pass_time(5_000)
    assert machine.synced(waiting).code is Code.REBALANCE_IN_PROGRESS
    assert [member.member_id for member in machine.describe().members] == [members[1]]


def test_silent_member_is_removed_when_its_session_ends(machine: Machine) -> None:
    (member,), generation = machine.stable(1)
    machine.pass_time(SESSION - 1)
    assert machine.describe().state is GroupState.STABLE
    machine.pass_time(1)
    assert machine.describe().state is GroupState.EMPTY
    assert machine.heartbeat(member, generation) is Code.UNKNOWN_MEMBER_ID
    assert machine.catalog["g"].generation == generation + 1
    assert machine.catalog["g"].members == ()


def test_members_that_wait_for_us_do_not_expire(machine: Machine) -> None:
    members, generation = machine.stable(2)
    rejoining = machine.join(members[0])
    for _ in range(5):
        machine.pass_time(SESSION - 1)
        assert machine.heartbeat(members[1], generation) is Code.REBALANCE_IN_PROGRESS
    assert machine.waits(rejoining)
    machine.join(members[1])
    assert machine.joined(rejoining).code is Code.NONE


def test_session_starts_again_with_the_answer_to_a_wait(slow_catalog: Machine) -> None:
    token = slow_catalog.join()
    slow_catalog.pass_time(DELAY)
    member = slow_catalog.joined(token).member_id
    waiting = slow_catalog.sync(member, 1, {member: b"all"})
    slow_catalog.pass_time(SESSION + 1)
    slow_catalog.store()
    assert slow_catalog.synced(waiting).code is Code.NONE
    slow_catalog.pass_time(SESSION - 1)
    assert slow_catalog.heartbeat(member, 1) is Code.NONE
    slow_catalog.pass_time(SESSION)
    assert slow_catalog.heartbeat(member, 1) is Code.UNKNOWN_MEMBER_ID


def test_join_of_a_new_member_is_given_up_after_five_minutes(machine: Machine) -> None:
    members, generation = machine.stable(1)
    machine.join(members[0], rebalance=3_600_000)
    machine.synced(machine.sync(members[0], generation + 1, {}))
    token = machine.join(session=30_000)
    for _ in range(300_000 // 5_000):
        assert machine.waits(token)
        assert machine.heartbeat(members[0], generation + 1) is Code.REBALANCE_IN_PROGRESS
        machine.pass_time(5_000)
    assert machine.joined(token).code is Code.UNKNOWN_MEMBER_ID


def test_assignments_that_could_not_be_stored_are_given_to_nobody(slow_catalog: Machine) -> None:
    token = slow_catalog.join()
    slow_catalog.pass_time(DELAY)
    member = slow_catalog.joined(token).member_id
    waiting = slow_catalog.sync(member, 1, {member: b"all"})
    slow_catalog.store(ok=False)
    result = slow_catalog.synced(waiting)
    assert (result.code, result.assignment) == (Code.COORDINATOR_NOT_AVAILABLE, b"")
    assert slow_catalog.describe().state is GroupState.PREPARING
    again = slow_catalog.join(member)
    assert slow_catalog.joined(again).generation == 2


@pytest.mark.parametrize("ok", [True, False])
def test_outcome_for_a_generation_that_was_given_up_changes_nothing(slow_catalog: Machine, ok: bool) -> None:
    token = slow_catalog.join()
    slow_catalog.pass_time(DELAY)
    member = slow_catalog.joined(token).member_id
    waiting = slow_catalog.sync(member, 1, {member: b"all"})
    slow_catalog.join()
    assert slow_catalog.synced(waiting).code is Code.REBALANCE_IN_PROGRESS
    slow_catalog.store(ok=ok)
    assert slow_catalog.describe().state is GroupState.PREPARING


def test_empty_group_that_could_not_be_stored_is_stored_later(slow_catalog: Machine) -> None:
    slow_catalog.stores = True
    (member,), generation = slow_catalog.stable(1)
    slow_catalog.stores = False
    slow_catalog.leave(member)
    slow_catalog.store(ok=False)
    assert not slow_catalog.persists
    slow_catalog.pass_time(GroupLimits().save_retry_ms)
    slow_catalog.store()
    assert (slow_catalog.catalog["g"].generation, slow_catalog.catalog["g"].members) == (generation + 1, ())
