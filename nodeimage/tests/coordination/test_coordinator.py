"""The coordinator of all groups: heartbeats, commits, deletion, and groups that leave memory."""

import pytest

from headrace.base.errors import Code
from headrace.coordination.limits import GroupLimits
from headrace.coordination.messages import GroupState
from kit.group_machine import DELAY, SESSION, Machine


def test_heartbeats_keep_a_member(machine: Machine) -> None:
    (member,), generation = machine.stable(1)
    for _ in range(10):
        machine.pass_time(SESSION - 1)
        assert machine.heartbeat(member, generation) is Code.NONE


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
    machine.join(members[1])  # the join is complete, but nobody syncs
    machine.join()
    assert machine.commit(members[0], generation + 1) is Code.NONE
    assert machine.coordinator.stored_generation("g", default=-1) == generation


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


def test_group_of_committed_offsets_alone_can_be_deleted(machine: Machine) -> None:
    machine.load("simple")
    assert machine.coordinator.delete("simple") is Code.GROUP_ID_NOT_FOUND
    machine.commit("", -1, group="simple")
    machine.coordinator.committed("simple")
    assert machine.describe("simple").state is GroupState.EMPTY
    assert machine.coordinator.delete("simple") is Code.NONE


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


@pytest.mark.parametrize(
    ("session", "accepted"), [(5_999, False), (6_000, True), (1_800_000, True), (1_800_001, False)]
)
def test_session_timeout_has_bounds(machine: Machine, session: int, accepted: bool) -> None:
    token = machine.join(session=session)
    machine.pass_time(DELAY)
    code = machine.joined(token).code
    assert code is (Code.NONE if accepted else Code.INVALID_SESSION_TIMEOUT)
