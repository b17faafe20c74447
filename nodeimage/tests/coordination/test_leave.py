"""Members leave, alone and together, and ids that were handed out are returned."""

from headrace.base.errors import Code
from headrace.coordination.messages import Departure, GroupState
from kit.group_machine import Machine


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
