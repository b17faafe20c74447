"""Signs of life, leaving, committing, deleting, and what the catalog keeps."""

import pytest

from headrace.base.errors import Code
from headrace.coordination.limits import GroupLimits
from headrace.coordination.messages import Departure, GroupState
from headrace.coordination.snapshot import decode_members, encode_members
from kit.group_machine import DELAY, SESSION, Machine

# --- sessions


def test_heartbeats_keep_a_member(machine: Machine) -> None:
    (member,), generation = machine.stable(1)
    for _ in range(10):
        machine.pass_time(SESSION - 1)
        assert machine.heartbeat(member, generation) is Code.NONE


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


def test_heartbeat_is_refused_where_it_does_not_fit(machine: Machine) -> None:
    (member,), generation = machine.stable(1)
    assert machine.heartbeat(member, generation - 1) is Code.ILLEGAL_GENERATION
    assert machine.heartbeat(member, generation + 1) is Code.ILLEGAL_GENERATION
    assert machine.heartbeat("nobody", generation) is Code.UNKNOWN_MEMBER_ID
    assert machine.heartbeat(member, generation, group="other") is Code.UNKNOWN_MEMBER_ID


def test_heartbeat_before_the_sync_is_fine(machine: Machine) -> None:
    token = machine.join()
    machine.pass_time(DELAY)
    assert machine.heartbeat(machine.joined(token).member_id, 1) is Code.NONE


# --- leaving


def test_last_member_that_leaves_empties_the_group_at_once(machine: Machine) -> None:
    (member,), generation = machine.stable(1)
    assert machine.leave(member) == [Code.NONE]
    assert machine.describe().state is GroupState.EMPTY
    assert machine.catalog["g"].generation == generation + 1


def test_several_leave_in_one_request(machine: Machine) -> None:
    members, _ = machine.stable(3)
    assert machine.leave(members[0], "nobody", members[2]) == [Code.NONE, Code.UNKNOWN_MEMBER_ID, Code.NONE]
    assert [member.member_id for member in machine.describe().members] == [members[1]]
    assert machine.leave(members[1]) == [Code.NONE]
    assert machine.describe().state is GroupState.EMPTY


def test_id_handed_out_can_be_given_back(machine: Machine) -> None:
    (member,), _ = machine.stable(1)
    pending = machine.joined(machine.join(known_member=True)).member_id
    token = machine.join(member)
    assert machine.waits(token)
    assert machine.leave(pending) == [Code.NONE]
    assert machine.joined(token).code is Code.NONE


def test_member_that_leaves_while_it_joins_gets_its_answer(machine: Machine) -> None:
    members, _ = machine.stable(2)
    token = machine.join(members[0])
    machine.leave(members[0])
    assert machine.joined(token).code is Code.UNKNOWN_MEMBER_ID


def test_leaving_an_unknown_group_is_no_error_of_the_request(machine: Machine) -> None:
    assert machine.leave(Departure("nobody"), group="other") == [Code.UNKNOWN_MEMBER_ID]


# --- commits


def test_members_commit_in_their_generation(machine: Machine) -> None:
    (member,), generation = machine.stable(1)
    assert machine.commit(member, generation) is Code.NONE
    assert machine.commit(member, generation - 1) is Code.ILLEGAL_GENERATION
    assert machine.commit("nobody", generation) is Code.UNKNOWN_MEMBER_ID
    assert machine.commit("", -1) is Code.UNKNOWN_MEMBER_ID
    assert machine.commit(member, -1) is Code.ILLEGAL_GENERATION


def test_commit_is_a_sign_of_life(machine: Machine) -> None:
    (member,), generation = machine.stable(1)
    for _ in range(3):
        machine.pass_time(SESSION - 1)
        assert machine.commit(member, generation) is Code.NONE


def test_members_commit_while_the_group_prepares_but_not_before_it_has_synced(machine: Machine) -> None:
    members, generation = machine.stable(2)
    machine.join(members[0])
    assert machine.commit(members[1], generation) is Code.NONE
    machine.join(members[1])
    assert machine.commit(members[1], generation) is Code.ILLEGAL_GENERATION
    assert machine.commit(members[1], generation + 1) is Code.REBALANCE_IN_PROGRESS


def test_consumer_without_a_group_commits_while_the_group_is_empty(machine: Machine) -> None:
    assert machine.commit("", -1) is Code.NONE
    assert machine.commit("", 3) is Code.ILLEGAL_GENERATION
    (member,), _ = machine.stable(1)
    machine.leave(member)
    assert machine.commit("", -1) is Code.NONE
    assert machine.commit("", 3) is Code.UNKNOWN_MEMBER_ID


def test_catalog_fences_by_the_generation_that_it_has(machine: Machine) -> None:
    members, generation = machine.stable(2)
    machine.join(members[0])
    machine.join(members[1])  # complete, but nobody syncs
    machine.join()
    assert machine.commit(members[0], generation + 1) is Code.NONE
    assert machine.coordinator.stored_generation("g", default=-1) == generation


# --- deleting


def test_only_an_empty_group_can_be_deleted(machine: Machine) -> None:
    (member,), _ = machine.stable(1)
    assert machine.coordinator.delete("g") is Code.NON_EMPTY_GROUP
    machine.leave(member)
    assert machine.coordinator.delete("g") is Code.NONE
    assert machine.commit("", -1) is Code.COORDINATOR_NOT_AVAILABLE
    assert machine.joined(machine.join()).code is Code.COORDINATOR_NOT_AVAILABLE
    assert machine.leave("") == [Code.COORDINATOR_NOT_AVAILABLE]
    del machine.catalog["g"]
    machine.coordinator.deleted("g")
    assert machine.describe().state is GroupState.DEAD
    assert machine.coordinator.delete("g") is Code.GROUP_ID_NOT_FOUND


def test_group_of_cursors_alone_can_be_deleted(machine: Machine) -> None:
    machine.load("simple")
    assert machine.coordinator.delete("simple") is Code.GROUP_ID_NOT_FOUND
    machine.commit("", -1, group="simple")
    machine.coordinator.committed("simple")
    assert machine.describe("simple").state is GroupState.EMPTY
    assert machine.coordinator.delete("simple") is Code.NONE


# --- what is stored


def test_no_assignment_is_answered_before_it_is_stored(slow_catalog: Machine) -> None:
    tokens = [slow_catalog.join(), slow_catalog.join()]
    slow_catalog.pass_time(2 * DELAY)
    leader, follower = (slow_catalog.joined(token).member_id for token in tokens)
    waiting = [slow_catalog.sync(leader, 1, {leader: b"l", follower: b"f"}), slow_catalog.sync(follower, 1)]
    assert all(slow_catalog.waits(token) for token in waiting)
    assert slow_catalog.describe().state is GroupState.COMPLETING
    slow_catalog.store()
    assert [slow_catalog.synced(token).assignment for token in waiting] == [b"l", b"f"]


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


def test_leaders_repeated_sync_waits_for_the_first(slow_catalog: Machine) -> None:
    token = slow_catalog.join()
    slow_catalog.pass_time(DELAY)
    member = slow_catalog.joined(token).member_id
    first = slow_catalog.sync(member, 1, {member: b"first"})
    second = slow_catalog.sync(member, 1, {member: b"second"})
    assert slow_catalog.synced(first).code is Code.REBALANCE_IN_PROGRESS
    slow_catalog.store()
    assert slow_catalog.synced(second).assignment == b"first"
    assert not slow_catalog.persists


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


def test_members_go_on_after_a_restart_without_a_rebalance(machine: Machine) -> None:
    members, generation = machine.stable(3)
    machine.restart()
    assert [machine.heartbeat(member, generation) for member in members] == [Code.NONE] * 3
    assert machine.commit(members[1], generation) is Code.NONE
    assert machine.synced(machine.sync(members[2], generation)).assignment == b"a2"
    assert machine.joined(machine.join(members[1])).leader == members[0]
    machine.pass_time(SESSION)
    assert machine.describe().state is GroupState.EMPTY


def test_generation_never_goes_back_over_a_restart(machine: Machine) -> None:
    (member,), generation = machine.stable(1)
    machine.leave(member)
    machine.restart()
    token = machine.join()
    machine.pass_time(DELAY)
    assert machine.joined(token).generation == generation + 2


def test_stored_members_are_read_as_they_were_written(machine: Machine) -> None:
    machine.stable(3)
    members = machine.catalog["g"].members
    assert decode_members(encode_members(members)) == members
    assert decode_members(b"") == ()


# --- memory


def test_empty_groups_leave_memory_and_come_back() -> None:
    machine = Machine(limits=GroupLimits(initial_rebalance_delay_ms=DELAY, idle_groups=10))
    (member,), generation = machine.stable(1)
    for index in range(100):
        machine.commit("", -1, group=f"simple-{index}")
    assert sum(1 for _ in machine.coordinator) == 11
    assert machine.heartbeat(member, generation) is Code.NONE
    machine.leave(member)
    for index in range(100):
        machine.commit("", -1, group=f"other-{index}")
    assert "g" not in machine.coordinator
    token = machine.join()
    machine.pass_time(DELAY)
    assert machine.joined(token).generation == generation + 2
    assert machine.describe().members[0].member_id != member
