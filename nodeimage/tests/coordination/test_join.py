"""JoinGroup: who is admitted, who gets an id first, who causes a rebalance, and who simply continues."""

import struct

import pytest

from headrace.base.errors import Code
from headrace.catalog.names import DEFAULT_STREAM
from headrace.coordination.limits import GroupLimits
from headrace.coordination.messages import GroupState, Protocol
from kit.group_machine import DELAY, SESSION, Machine


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


def test_members_must_share_the_protocol_type_and_a_protocol(machine: Machine) -> None:
    machine.stable(1)
    assert machine.joined(machine.join(protocol_type="connect")).code is Code.INCONSISTENT_GROUP_PROTOCOL
    other = (Protocol("sticky", b""),)
    assert machine.joined(machine.join(protocols=other)).code is Code.INCONSISTENT_GROUP_PROTOCOL


def test_join_without_protocols_or_type_is_refused(machine: Machine) -> None:
    assert machine.joined(machine.join(protocols=())).code is Code.INCONSISTENT_GROUP_PROTOCOL
    assert machine.joined(machine.join(protocol_type="")).code is Code.INCONSISTENT_GROUP_PROTOCOL


def test_new_member_makes_the_others_rejoin(machine: Machine) -> None:
    members, generation = machine.stable(2)
    newcomer = machine.join()
    assert machine.describe().state is GroupState.PREPARING
    assert machine.heartbeat(members[0], generation) is Code.REBALANCE_IN_PROGRESS
    again = [machine.join(member) for member in members]
    results = [machine.joined(token) for token in [newcomer, *again]]
    assert {result.generation for result in results} == {generation + 1}
    assert {result.leader for result in results} == {members[0]}


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


def subscribed(*topics: str) -> tuple[Protocol, ...]:
    names = b"".join(struct.pack(">h", len(each)) + each.encode() for each in topics)
    return (Protocol("range", struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", -1)),)


FULL, BARE = subscribed("/default:orders", "/sensors:orders"), subscribed("orders")


@pytest.mark.parametrize(("there", "new"), [(BARE, BARE), (FULL, BARE), (BARE, FULL)])
def test_a_name_cannot_be_one_topic_for_some_members_and_another_for_others(
    machine: Machine, there: tuple[Protocol, ...], new: tuple[Protocol, ...]
) -> None:
    members, generation = machine.stable(1, protocols=there)
    refused = machine.joined(machine.join(protocols=new, default_stream="/sensors"))
    assert (refused.code, refused.other_stream) == (Code.INCONSISTENT_GROUP_PROTOCOL, DEFAULT_STREAM)
    assert machine.heartbeat(members[0], generation) is Code.NONE, "who is there goes on"


def test_that_holds_after_a_restart_too(machine: Machine) -> None:
    machine.stable(1, protocols=BARE)
    machine.restart()
    refused = machine.joined(machine.join(protocols=BARE, default_stream="/sensors"))
    assert refused.code is Code.INCONSISTENT_GROUP_PROTOCOL


def test_full_names_are_the_same_topics_for_members_of_all_listeners(machine: Machine) -> None:
    machine.stable(1, protocols=FULL)
    token = machine.join(protocols=FULL, default_stream="/sensors")
    assert machine.waits(token)
    assert machine.describe().state is GroupState.PREPARING
    assert machine.coordinator.subscribed_topics("g") == {"/default:orders", "/sensors:orders"}


def test_a_group_of_one_default_stream_names_topics_of_it(machine: Machine) -> None:
    tokens = [machine.join(protocols=BARE, default_stream="/sensors") for _ in range(2)]
    machine.pass_time(2 * DELAY)
    assert [machine.joined(token).code for token in tokens] == [Code.NONE] * 2
    assert machine.coordinator.subscribed_topics("g") == {"/sensors:orders"}


def test_an_instance_that_comes_back_by_another_listener_disturbs_nobody(machine: Machine) -> None:
    machine.stable(instances=("i",), protocols=BARE)
    token = machine.join(instance="i", protocols=BARE, default_stream="/sensors")
    machine.pass_time(DELAY)
    assert machine.waits(token) or machine.joined(token).code is Code.NONE
    assert machine.coordinator.subscribed_topics("g") == {"/sensors:orders"}


def test_what_is_no_group_of_consumers_is_not_looked_into(machine: Machine) -> None:
    machine.join(protocol_type="connect")
    token = machine.join(protocol_type="connect", default_stream="/sensors")
    machine.pass_time(2 * DELAY)
    assert machine.joined(token).code is Code.NONE
