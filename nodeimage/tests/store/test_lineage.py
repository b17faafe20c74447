"""A store that was restored to an old copy is recognized by the ids of changes, whatever its counters say."""

import pytest

from headrace.store.lineage import MAX_CHANGES, Changes, descends, is_given_up, merged, with_next


def after(changes: Changes, count: int) -> Changes:
    for _ in range(count):
        changes = with_next(changes)
    return changes


def test_a_record_descends_from_each_of_its_former_states() -> None:
    states = [after((), 1)]
    while len(states) < 3 * MAX_CHANGES:
        states.append(with_next(states[-1]))
    for state in states:
        assert len(state) <= MAX_CHANGES
        assert descends(states[-1], state)
        assert descends(state, ())
    assert descends((), ())


def test_an_old_copy_does_not_descend_from_what_came_after_it() -> None:
    copy = after((), 5)
    known = with_next(copy)
    assert not descends(copy, known)
    assert not descends((), known)


@pytest.mark.parametrize("since", [1, 2, MAX_CHANGES - 1])
def test_an_old_copy_that_went_on_has_the_same_counters_and_other_ids(since: int) -> None:
    copy = after((), 5)
    known, gone_on = with_next(copy), after(copy, since)
    assert known[-1].partition("-")[0] == gone_on[5 - len(copy) - since :][0].partition("-")[0]
    assert not descends(gone_on, known)


def test_a_record_that_is_built_anew_descends_from_all_that_was_found() -> None:
    copy = after((), 5)
    lines = [after(copy, 3), after(copy, 1), copy, ()]
    built = merged(lines)
    assert all(descends(built, line) for line in lines)
    assert not descends(lines[0], built)
    assert merged([(), ()]) == ()


def test_what_was_done_by_an_old_copy_while_others_went_on_is_given_up() -> None:
    copy = after((), 5)
    newest, by_the_copy = after(copy, 3), after(copy, 2)
    built = merged([newest, copy], [by_the_copy])
    gone_on = with_next(with_next(built))
    assert all(descends(gone_on, line) for line in (newest, copy, by_the_copy, built))
    assert is_given_up(built, by_the_copy)
    assert not is_given_up(built, newest)
    assert not is_given_up(built, copy)
    again = merged([with_next(built)], [with_next(built)])
    assert is_given_up(again, by_the_copy), "built anew once more"
    assert [built[-1].partition("-")[0], gone_on[-1].partition("-")[0]] == ["9", "11"]
