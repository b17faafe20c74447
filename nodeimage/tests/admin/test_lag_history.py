import pytest

from headrace.admin import lag_history
from headrace.admin.lag_history import MAX_NOTES, LagHistory

KEY = (b"t", 0)


def noted(*notes: tuple[float, int]) -> LagHistory:
    history = LagHistory()
    for now, end in notes:
        history.note(KEY, end, now=now)
    return history


def test_an_end_rises_steadily_between_two_notes() -> None:
    history = noted((10.0, 100), (20.0, 200))
    assert history.age_s(KEY, 200, now=30.0) == 0.0
    assert history.age_s(KEY, 150, now=30.0) == 15.0
    assert history.age_s(KEY, 100, now=30.0) == 20.0
    assert history.age_s(KEY, 7, now=30.0) == 20.0, "at least: since the partition is followed"


def test_a_record_is_as_old_as_the_last_time_that_it_was_not_there() -> None:
    history = noted((10.0, 100), (20.0, 100), (30.0, 100), (40.0, 110))
    assert history.age_s(KEY, 100, now=50.0) == 20.0
    assert history.age_s(KEY, 105, now=50.0) == 15.0


def test_what_is_not_followed_is_not_known() -> None:
    assert LagHistory().age_s(KEY, 5, now=1.0) is None


def test_a_partition_that_was_cut_begins_anew() -> None:
    history = noted((10.0, 100), (20.0, 200), (30.0, 50), (40.0, 60))
    assert history.age_s(KEY, 55, now=50.0) == 15.0


def test_notes_are_bounded_and_reach_far_back() -> None:
    history = noted(*((float(time), 10 * time) for time in range(5_000)))
    assert len(history._notes[KEY].times) <= MAX_NOTES
    for offset in (49_000, 40_000, 20_000):
        age = history.age_s(KEY, offset, now=5_000.0)
        assert age is not None
        assert abs(age - (5_000 - offset / 10)) < 1
    assert history.age_s(KEY, 20, now=5_000.0) == pytest.approx(4_998, abs=1)


def test_partitions_are_bounded_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag_history, "MAX_PARTITIONS", 2)
    history = LagHistory()
    for number in range(3):
        history.note((b"t", number), 5, now=1.0)
    assert history.age_s((b"t", 2), 1, now=2.0) is None
    history.forget_others({(b"t", 1)})
    history.note((b"t", 2), 5, now=3.0)
    assert history.age_s((b"t", 2), 1, now=4.0) == 1.0
    assert history.age_s((b"t", 0), 1, now=4.0) is None
