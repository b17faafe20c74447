"""Members with a group.instance.id (KIP-345): they return without a rebalance, and fence their duplicates."""

from headrace.base.errors import Code
from headrace.coordination.messages import Departure, GroupState, Protocol
from kit.group_machine import SESSION, Machine

TWO = ("one", "two")


def test_instance_joins_without_an_id_handed_out_first(machine: Machine) -> None:
    token = machine.join(instance="one", known_member=False)
    machine.pass_time(1_000)
    result = machine.joined(token)
    assert result.member_id == "one-#1"
    assert result.members[0].instance_id == "one"


def test_follower_that_restarts_keeps_its_assignment_without_a_rebalance(machine: Machine) -> None:
    members, generation = machine.stable(instances=TWO)
    result = machine.joined(machine.join(instance="two"))
    assert (result.code, result.generation, result.leader) == (Code.NONE, generation, members[0])
    assert result.member_id not in members
    assert machine.describe().state is GroupState.STABLE
    assert machine.synced(machine.sync(result.member_id, generation, instance="two")).assignment == b"a1"
    assert machine.heartbeat(members[0], generation, instance="one") is Code.NONE


def test_leader_that_restarts_is_not_led_to_assign_again(machine: Machine) -> None:
    members, generation = machine.stable(instances=TWO)
    result = machine.joined(machine.join(instance="one"))
    assert (result.leader, result.members) == (members[0], ())
    assert result.leader != result.member_id
    assert machine.synced(machine.sync(result.member_id, generation)).assignment == b"a0"


def test_leader_that_restarts_and_can_skip_the_assignment_leads_on(machine: Machine) -> None:
    members, generation = machine.stable(instances=TWO)
    result = machine.joined(machine.join(instance="one", skip=True))
    assert result.skip_assignment
    assert result.leader == result.member_id
    assert {member.member_id for member in result.members} == {result.member_id, members[1]}
    follower = machine.joined(machine.join(instance="two", skip=True))
    assert (follower.skip_assignment, follower.leader, follower.members) == (False, result.member_id, ())
    assert machine.synced(machine.sync(result.member_id, generation)).assignment == b"a0"


def test_restart_that_changes_the_selected_protocol_rebalances(machine: Machine) -> None:
    both = (Protocol("range", b""), Protocol("sticky", b""))
    machine.stable(instances=TWO, protocols=both)
    token = machine.join(instance="two", protocols=(Protocol("sticky", b""),))
    assert machine.waits(token)
    assert machine.describe().state is GroupState.PREPARING


def test_new_id_is_answered_only_once_it_is_stored(slow_catalog: Machine) -> None:
    machine = slow_catalog
    machine.stores = True
    members, generation = machine.stable(instances=TWO)
    machine.stores = False
    token = machine.join(instance="two")
    assert machine.waits(token)
    machine.store()
    new_id = machine.joined(token).member_id
    machine.restart()
    assert machine.heartbeat(new_id, generation, instance="two") is Code.NONE
    assert machine.heartbeat(members[1], generation, instance="two") is Code.FENCED_INSTANCE_ID


def test_new_id_that_could_not_be_stored_is_not_given_out(slow_catalog: Machine) -> None:
    machine = slow_catalog
    machine.stores = True
    machine.stable(instances=TWO)
    machine.stores = False
    token = machine.join(instance="two")
    machine.store(ok=False)
    result = machine.joined(token)
    assert (result.code, result.member_id) == (Code.COORDINATOR_NOT_AVAILABLE, "")
    machine.stores = True
    assert machine.joined(machine.join(instance="two")).code is Code.NONE


def test_rebalance_that_begins_while_a_new_id_is_stored_answers_it(slow_catalog: Machine) -> None:
    machine = slow_catalog
    machine.stores = True
    members, generation = machine.stable(instances=TWO)
    machine.stores = False
    back = machine.join(instance="two")
    leading = machine.join(members[0], instance="one")
    assert machine.joined(back).generation == generation + 1
    assert machine.joined(leading).generation == generation + 1
    machine.store()


def test_restart_while_others_sync_starts_another_rebalance(machine: Machine) -> None:
    tokens = [machine.join(instance=instance) for instance in TWO]
    machine.pass_time(1_000)
    leader, follower = (machine.joined(token).member_id for token in tokens)
    waiting = machine.sync(follower, 1, instance="two")
    again = machine.join(instance="two")
    assert machine.synced(waiting).code is Code.FENCED_INSTANCE_ID
    machine.join(leader, instance="one")
    assert machine.joined(again).generation == 2


def test_double_of_an_instance_fences_the_one_that_waits(machine: Machine) -> None:
    first = machine.join(instance="one")
    second = machine.join(instance="one")
    assert machine.joined(first).code is Code.FENCED_INSTANCE_ID
    machine.pass_time(1_000)
    assert machine.joined(second).code is Code.NONE


def test_replaced_member_is_fenced_everywhere(machine: Machine) -> None:
    members, generation = machine.stable(instances=TWO)
    machine.join(instance="two")
    old = members[1]
    assert machine.heartbeat(old, generation, instance="two") is Code.FENCED_INSTANCE_ID
    assert machine.commit(old, generation, instance="two") is Code.FENCED_INSTANCE_ID
    assert machine.joined(machine.join(old, instance="two")).code is Code.FENCED_INSTANCE_ID
    assert machine.synced(machine.sync(old, generation, instance="two")).code is Code.FENCED_INSTANCE_ID
    assert machine.leave(Departure(old, "two")) == [Code.FENCED_INSTANCE_ID]
    assert machine.heartbeat(old, generation) is Code.UNKNOWN_MEMBER_ID


def test_instance_that_nobody_has_is_unknown(machine: Machine) -> None:
    members, generation = machine.stable(instances=TWO)
    assert machine.heartbeat(members[0], generation, instance="three") is Code.UNKNOWN_MEMBER_ID
    pending = machine.joined(machine.join(known_member=True)).member_id
    assert machine.joined(machine.join(pending, instance="three")).code is Code.UNKNOWN_MEMBER_ID


def test_silent_instance_is_removed_when_its_session_ends(machine: Machine) -> None:
    members, generation = machine.stable(instances=TWO)
    for _ in range(SESSION // 5_000):
        assert machine.heartbeat(members[0], generation, instance="one") is Code.NONE
        machine.pass_time(5_000)
    assert machine.heartbeat(members[0], generation, instance="one") is Code.REBALANCE_IN_PROGRESS
    assert [member.instance_id for member in machine.describe().members] == ["one"]


def test_rebalance_goes_on_without_an_instance_that_may_still_come_back(machine: Machine) -> None:
    members, generation = machine.stable(instances=TWO)
    for _ in range(3):
        machine.heartbeat(members[1], generation, instance="two")
        machine.pass_time(1_000)
    token = machine.join(members[0], instance="one", rebalance=6_000)
    while machine.waits(token):
        machine.heartbeat(members[1], generation, instance="two")
        machine.pass_time(5_000)
    assert {member.instance_id for member in machine.joined(token).members} == {"one", "two"}


def test_operator_removes_an_instance_by_its_name(machine: Machine) -> None:
    machine.stable(instances=TWO)
    codes = machine.leave(Departure("", "two", "it is gone"), Departure("", "three"), Departure("", None))
    assert codes == [Code.NONE, Code.UNKNOWN_MEMBER_ID, Code.UNKNOWN_MEMBER_ID]
    assert [member.instance_id for member in machine.describe().members] == ["one"]


def test_new_id_that_is_stored_during_a_rebalance_waits_for_its_end(slow_catalog: Machine) -> None:
    machine = slow_catalog
    machine.stores = True
    machine.stable(instances=TWO)
    machine.stores = False
    back = machine.join(instance="two")
    machine.join()
    machine.store()
    assert machine.waits(back)
