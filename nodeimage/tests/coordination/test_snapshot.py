"""The stored form of a group, and how the group continues from it."""

import msgspec

from headrace.base.errors import Code
from headrace.coordination.messages import GroupState
from headrace.coordination.snapshot import decode_members, encode_members
from kit.group_machine import DELAY, SESSION, Machine


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


def test_members_written_before_listeners_had_default_streams_are_of_the_nodes(machine: Machine) -> None:
    machine.stable(1)
    raw = msgspec.msgpack.decode(encode_members(machine.catalog["g"].members))
    older = msgspec.msgpack.encode([each[:-1] for each in raw])
    assert decode_members(older) == machine.catalog["g"].members
    newer = msgspec.msgpack.encode([[*each, "more"] for each in raw])
    assert decode_members(newer) == machine.catalog["g"].members, "as a node of an older version reads what is new"
