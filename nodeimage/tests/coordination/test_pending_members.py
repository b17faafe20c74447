"""Ids that were handed out are awaited for a session timeout each, and no longer."""

from headrace.coordination.deadline_heap import Deadlines
from headrace.coordination.pending_members import Pending


class Ids:
    """The ids of one group, a clock, and the times at which the group learnt of an expired id."""

    def __init__(self) -> None:
        self.deadlines = Deadlines()
        self.late: list[int] = []
        self.pending = Pending(self.deadlines, owner=self, expired=self.late.append)

    def tick(self, now: int) -> None:
        while (alarm := self.deadlines.pop(now)) is not None:
            assert alarm.owner is self
            alarm.ring(now)


def test_an_id_that_does_not_come_back_is_forgotten_and_the_group_told() -> None:
    ids = Ids()
    ids.pending.expect("a", 100, 1000)
    ids.pending.expect("b", 200, 1000)
    ids.tick(1099)
    assert len(ids.pending) == 2
    ids.tick(1100)
    assert ids.late == [1100]
    assert "a" not in ids.pending
    assert "b" in ids.pending


def test_an_id_that_came_back_is_awaited_no_more() -> None:
    ids = Ids()
    ids.pending.expect("a", 100, 1000)
    assert ids.pending.forget("a")
    assert not ids.pending.forget("a")
    ids.tick(5000)
    assert ids.late == []
    assert ids.deadlines.next() is None


def test_all_ids_are_forgotten_with_their_alarms() -> None:
    ids = Ids()
    for name in "abc":
        ids.pending.expect(name, 100, 1000)
    ids.pending.forget_all()
    assert not ids.pending
    ids.tick(5000)
    assert ids.late == []
