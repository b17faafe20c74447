"""What is committed, by who has what on disk."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.container.replica import Member, Primary
from headrace.ids import Epoch, NodeId, Position

MEMBERS = [Member(NodeId(number), f"format-{number}") for number in (1, 2, 3)]


def primary(count: int, *, start: int = 0, min_in_sync: int = 1) -> Primary:
    return Primary(epoch=Epoch(4), in_sync=MEMBERS[:count], start=Position(start), min_in_sync=min_in_sync)


def test_a_single_replica_commits_what_it_has_on_disk() -> None:
    one = primary(1)
    assert one.on_disk(MEMBERS[0], Position(100))
    assert one.committed == 100
    assert not one.on_disk(MEMBERS[0], Position(100))


def test_nothing_is_committed_before_every_member_has_it() -> None:
    three = primary(3)
    three.on_disk(MEMBERS[0], Position(100))
    three.on_disk(MEMBERS[1], Position(80))
    assert three.committed == 0
    assert three.on_disk(MEMBERS[2], Position(90))
    assert three.committed == 80


def test_another_format_of_the_same_node_does_not_count() -> None:
    one = primary(1)
    assert not one.on_disk(Member(NodeId(1), "a new folder"), Position(100))
    assert one.committed == 0


def test_too_few_members_commit_nothing() -> None:
    one = primary(1, min_in_sync=2)
    assert not one.on_disk(MEMBERS[0], Position(100))


def test_a_new_primary_serves_once_the_start_of_its_epoch_is_committed() -> None:
    two = primary(2, start=50)
    two.on_disk(MEMBERS[0], Position(60))
    assert not two.serves
    two.on_disk(MEMBERS[1], Position(50))
    assert two.serves


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1000))))
def test_committed_never_falls_and_never_passes_a_member(reports: list[tuple[int, int]]) -> None:
    three = primary(3)
    have = [0, 0, 0]
    before = 0
    for index, position in reports:
        have[index] = max(have[index], position)
        three.on_disk(MEMBERS[index], Position(position))
        assert before <= three.committed == min(have)
        before = three.committed
