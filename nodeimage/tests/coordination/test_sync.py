"""SyncGroup: the leader sends the assignments, and each member gets its own."""

from headrace.base.errors import Code
from headrace.coordination.messages import GroupState
from kit.group_machine import DELAY, Machine


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


def test_no_assignment_is_answered_before_it_is_stored(slow_catalog: Machine) -> None:
    tokens = [slow_catalog.join(), slow_catalog.join()]
    slow_catalog.pass_time(2 * DELAY)
    leader, follower = (slow_catalog.joined(token).member_id for token in tokens)
    waiting = [slow_catalog.sync(leader, 1, {leader: b"l", follower: b"f"}), slow_catalog.sync(follower, 1)]
    assert all(slow_catalog.waits(token) for token in waiting)
    assert slow_catalog.describe().state is GroupState.COMPLETING
    slow_catalog.store()
    assert [slow_catalog.synced(token).assignment for token in waiting] == [b"l", b"f"]


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
