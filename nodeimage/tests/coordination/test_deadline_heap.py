"""The one heap of all deadlines."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.coordination.deadline_heap import SWEEP_ABOVE, Alarm, Deadlines


def _alarm(name: str = "") -> Alarm:
    return Alarm(name, lambda now: None)


def test_alarm_moved_to_later_rings_once_and_late() -> None:
    deadlines, alarm = Deadlines(), _alarm()
    for due in range(10, 1_000, 10):
        deadlines.set(alarm, due)
    assert len(deadlines) == 1
    assert deadlines.pop(989) is None
    assert deadlines.pop(990) is alarm
    assert deadlines.pop(10_000) is None


def test_alarm_moved_to_earlier_rings_once() -> None:
    deadlines, alarm = Deadlines(), _alarm()
    deadlines.set(alarm, 100)
    deadlines.set(alarm, 50)
    assert deadlines.next() == 50
    assert deadlines.pop(50) is alarm
    assert deadlines.pop(1_000) is None


def test_cancelled_alarms_are_swept_out() -> None:
    deadlines = Deadlines()
    kept = _alarm("kept")
    deadlines.set(kept, 5)
    for _ in range(10 * SWEEP_ABOVE):
        gone = _alarm()
        deadlines.set(gone, 1_000_000)
        deadlines.cancel(gone)
    assert len(deadlines) <= 3 * SWEEP_ABOVE
    assert deadlines.pop(5) is kept


def test_an_alarm_brought_forward_and_back_has_one_entry_after_a_sweep() -> None:
    deadlines, alarm = Deadlines(), _alarm()
    for due in (100, 50, 100):
        deadlines.set(alarm, due)
    assert deadlines.pop(50) is None
    for _ in range(SWEEP_ABOVE):
        gone = _alarm()
        deadlines.set(gone, 1_000_000)
        deadlines.cancel(gone)
    assert len(deadlines) == 1
    assert deadlines.pop(100) is alarm
    assert deadlines.pop(100) is None


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, 4), st.integers(0, 30)),
        st.tuples(st.just("cancel"), st.integers(0, 4), st.just(0)),
        st.tuples(st.just("pass"), st.just(0), st.integers(1, 20)),
    ),
    max_size=60,
)


@given(ACTIONS)
def test_rings_exactly_what_is_due(actions: list[tuple[str, int, int]]) -> None:
    deadlines = Deadlines()
    alarms = [_alarm(str(index)) for index in range(5)]
    expected: dict[int, int] = {}
    now = 0
    for action, index, ms in [*actions, ("pass", 0, 100)]:
        if action == "set":
            deadlines.set(alarms[index], now + ms)
            expected[index] = now + ms
        elif action == "cancel":
            deadlines.cancel(alarms[index])
            expected.pop(index, None)
        else:
            now += ms
            due = {index for index, at in expected.items() if at <= now}
            assert not due or (deadlines.next() or 0) <= now
            rung = []
            while (alarm := deadlines.pop(now)) is not None:
                rung.append(alarms.index(alarm))
            assert sorted(rung) == sorted(due)
            expected = {index: at for index, at in expected.items() if index not in due}
