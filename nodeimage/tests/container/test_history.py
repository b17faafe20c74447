"""Where two logs diverge, found by the epochs of their frames (KIP-101, KIP-279; invariant 7)."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.base.ids import Epoch, Position
from headrace.container.history import MAX_ENTRIES, begin_epoch, clip, last_epoch, match_point


def test_logs_of_the_same_epochs_match_up_to_the_shorter_end() -> None:
    assert match_point([(1, 0), (2, 50)], 80, [(1, 0), (2, 50)], 70) == 70


def test_what_an_old_leader_wrote_beyond_the_next_epochs_start_differs() -> None:
    assert match_point([(1, 0), (2, 50)], 80, [(1, 0)], 90) == 50


def test_an_epoch_that_only_one_log_has_ends_the_match_at_its_start() -> None:
    """KIP-279: neither end alone shows it; the follower has epochs 1, 3 and the leader 1, 2, 4."""
    assert match_point([(1, 0), (2, 40), (4, 60)], 90, [(1, 0), (3, 30)], 70) == 30


def test_an_empty_log_matches_at_its_end() -> None:
    assert match_point([(1, 0)], 80, [], 0) == 0


def test_positions_below_a_trimmed_start_count_as_equal() -> None:
    assert match_point([(3, 100), (4, 200)], 300, [(1, 0), (3, 90)], 250) == 200


def test_of_who_was_away_for_all_epochs_that_are_known_nothing_counts_as_equal() -> None:
    """It may have been a leader whose last frames were never committed, in epochs that are no longer known here."""
    whole = [(1, 0), *((epoch, 10 * epoch) for epoch in range(10, 2_000))]
    trimmed = whole[-MAX_ENTRIES:]
    away = [(1, 0), (9, 95)]
    assert match_point(whole, 20_000, away, 150) == 95
    assert match_point(trimmed, 20_000, away, 150) == 0
    assert match_point(trimmed, 20_000, away, 15_000) == 0
    assert match_point(trimmed, 20_000, [(1, 0), *whole[1:-500]], 14_995) == 14_995
    assert match_point(trimmed, 120, away, 150) == 0, "as the follower sees it, where the primary's log begins at 120"


def test_what_is_fetched_below_the_epochs_that_are_known_is_kept() -> None:
    """It has the leader's history, but not all of its frames yet."""
    trimmed = [(epoch, 10 * epoch) for epoch in range(1_000, 2_000)]
    assert match_point(trimmed, 20_000, clip(tuple(trimmed), 5_000), 5_000) == 5_000


def test_an_epoch_without_frames_leaves_no_trace() -> None:
    history = begin_epoch((), epoch=Epoch(1), start=Position(0))
    history = begin_epoch(history, epoch=Epoch(2), start=Position(10))
    history = begin_epoch(history, epoch=Epoch(3), start=Position(10))
    assert history == ((1, 0), (3, 10))
    assert clip(history, Position(10)) == ((1, 0),)
    assert last_epoch(history, Position(10)) == 1
    assert last_epoch((), Position(0)) == 0


@st.composite
def two_logs(draw: st.DrawFn) -> tuple[list[int], list[int], int]:
    """Two logs, each as the epoch of every byte: a common beginning, then epochs that only one of them has."""
    common = sorted(draw(st.lists(st.integers(1, 9), max_size=12)))
    last = common[-1] if common else 0
    left = [last + 1 + 2 * number for number in sorted(draw(st.lists(st.integers(0, 4), max_size=8)))]
    right = [last + 2 + 2 * number for number in sorted(draw(st.lists(st.integers(0, 4), max_size=8)))]
    return common + left, common + right, len(common)


def history_of(log: list[int]) -> list[tuple[int, int]]:
    return [(epoch, at) for at, epoch in enumerate(log) if at == 0 or log[at - 1] != epoch]


@given(two_logs())
def test_the_match_point_is_where_the_logs_part(logs: tuple[list[int], list[int], int]) -> None:
    left, right, common = logs
    found = match_point(history_of(left), len(left), history_of(right), len(right))
    if not left or not right:
        assert found == 0
    else:
        assert found == common or left[:found] == right[:found]
        assert left[:found] == right[:found]
        assert found == min(len(left), len(right)) or left[found] != right[found]
