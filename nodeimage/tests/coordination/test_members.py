"""The leader, the vote for a protocol, and the members that wait in JoinGroup."""

import pytest

from headrace.coordination.members import Member, Members
from headrace.coordination.messages import Protocol, Token
from headrace.coordination.snapshot import StoredMember


def member(member_id: str, *protocols: str, instance: str | None = None, rebalance_ms: int = 1000) -> Member:
    stored = StoredMember(
        member_id=member_id,
        instance_id=instance,
        client_id="client",
        client_host="/127.0.0.1",
        session_timeout_ms=6000,
        rebalance_timeout_ms=rebalance_ms,
        protocols=tuple((name, name.encode()) for name in protocols or ("range",)),
        assignment=b"",
    )
    return Member.of(stored, owner=None, expired=lambda member, now: None)


def members(*each: Member) -> Members:
    made = Members()
    for one in each:
        made.add(one)
    return made


def test_the_first_member_leads_and_the_oldest_one_that_is_left_follows_it() -> None:
    group = members(member("a"), member("b"), member("c"))
    assert group.leader == "a"
    group.remove("b")
    assert group.leader == "a"
    group.remove("a")
    assert group.leader == "c"
    group.remove("c")
    assert group.leader is None


def test_a_leader_that_has_not_joined_is_replaced_by_the_oldest_one_that_has() -> None:
    first, second, third = member("a"), member("b"), member("c")
    group = members(first, second, third)
    assert not group.elect_joined_leader()
    group.wait_in_join(third, Token(1))
    group.wait_in_join(second, Token(2))
    assert group.elect_joined_leader()
    assert group.leader == "b"
    group.wait_in_join(first, Token(3))
    assert group.elect_joined_leader()
    assert group.leader == "b", "one that leads and has joined leads on"


def test_a_member_that_waits_twice_counts_once_and_gives_its_older_token_back() -> None:
    one, other = member("a"), member("b")
    group = members(one, other)
    assert group.wait_in_join(one, Token(1)) is None
    assert group.wait_in_join(one, Token(2)) == Token(1)
    assert group.joining == 1
    assert not group.all_joined()
    group.wait_in_join(other, Token(3))
    assert group.all_joined()
    assert group.end_join(one) == Token(2)
    assert group.end_join(one) is None
    assert group.joining == 1


def test_of_what_all_offer_the_protocol_with_the_most_first_choices_is_selected() -> None:
    group = members(
        member("a", "sticky", "range"), member("b", "range", "sticky"), member("c", "mine", "range", "sticky")
    )
    assert group.select_protocol() == "range"
    assert group.all_offer_one_of({"sticky"})
    assert not group.all_offer_one_of({"mine", "other"})


def test_of_protocols_with_as_many_votes_the_oldest_member_has_its_way() -> None:
    assert members(member("a", "sticky", "range"), member("b", "range", "sticky")).select_protocol() == "sticky"


def test_votes_follow_what_members_offer_now() -> None:
    one, other = member("a", "range"), member("b", "sticky", "range")
    group = members(one, other)
    assert not group.all_offer_one_of({"sticky"})
    group.offer(one, (Protocol("sticky", b""),))
    assert group.all_offer_one_of({"sticky"})
    assert not group.all_offer_one_of({"range"})
    group.remove("b")
    assert group.select_protocol() == "sticky"


def test_a_protocol_that_is_named_twice_is_one_vote() -> None:
    group = members(member("a", "range", "range"), member("b", "range"))
    assert group.all_offer_one_of({"range"})


def test_an_instance_under_a_new_id_keeps_its_lead_and_its_name() -> None:
    static = member("a", instance="one")
    group = members(static, member("b"))
    group.rename(static, "a2")
    assert group.leader == "a2"
    assert group.member_id_of("one") == "a2"
    assert "a" not in group
    assert group.get("a2") is static
    group.remove("a2")
    assert group.member_id_of("one") is None


def test_an_instance_that_another_member_has_taken_over_stays_with_it() -> None:
    group = members(member("a", instance="one"), member("b", instance="one"))
    group.remove("a")
    assert group.member_id_of("one") == "b"


@pytest.mark.parametrize(("asked", "longest"), [((1000, 5000), 5000), ((0,), 1), ((), 1)])
def test_the_group_waits_as_long_as_any_member_asks_for(asked: tuple[int, ...], longest: int) -> None:
    group = members(*(member(f"m{index}", rebalance_ms=ms) for index, ms in enumerate(asked)))
    assert group.rebalance_timeout_ms == longest


def test_metadata_is_that_of_the_protocol() -> None:
    one = member("a", "range", "sticky")
    assert (one.metadata("sticky"), one.metadata("other")) == (b"sticky", b"")
