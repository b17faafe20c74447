"""A change of what is asked for changes its digest."""

import pytest

from headrace_operator.builders.digest import digest


def test_the_order_of_entries_does_not_count_and_that_of_items_does() -> None:
    assert digest({"a": 1, "b": {"c": [1, 2]}}) == digest({"b": {"c": [1, 2]}, "a": 1})
    assert digest({"a": [1, 2]}) != digest({"a": [2, 1]})


@pytest.mark.parametrize("other", [{"a": "1"}, {"a": 2}, {}, {"a": 1, "b": None}])
def test_whatever_differs_has_another_digest(other: object) -> None:
    assert digest({"a": 1}) != digest(other)


def test_it_is_short_and_fits_into_a_label() -> None:
    made = digest({"a": 1})
    assert len(made) == 16
    assert set(made) <= set("0123456789abcdef")
    assert made == "f9d86028c6e0d64e", "another would make all pods anew with a newer operator"
