"""Sequence numbers of producers."""

import pytest

from headrace.log.index import last_sequence

MOST = 2**31 - 1


@pytest.mark.parametrize(
    ("base", "delta", "last"),
    [(0, 0, 0), (10, 4, 14), (MOST - 4, 4, MOST), (MOST - 4, 5, 0), (MOST, 1, 0), (MOST, 10, 9)],
)
def test_sequences_go_on_at_zero_behind_the_largest(base: int, delta: int, last: int) -> None:
    assert last_sequence(base, delta) == last
