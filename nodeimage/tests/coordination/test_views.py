"""A group as DescribeGroups shows it."""

from headrace.coordination.messages import GroupState
from kit.group_machine import Machine


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
