"""Quantiles and ratios, by hand-checked examples and by their invariants."""

import os
from pathlib import Path

import pytest
from bench.figures import paired_ratio, quantile
from bench.servers import stored_bytes
from hypothesis import given
from hypothesis import strategies as st


def test_quantiles_are_values_of_the_nearest_rank() -> None:
    hundred = [float(value) for value in range(1, 101)]
    assert (quantile(hundred, 0.5), quantile(hundred, 0.99), quantile(hundred, 1.0)) == (50.0, 99.0, 100.0)
    assert quantile([7.0], 0.99) == 7.0


@given(st.lists(st.floats(0, 1e9), min_size=1), st.floats(0, 1))
def test_a_quantile_is_one_of_the_values_with_enough_of_them_at_or_below(values: list[float], share: float) -> None:
    values.sort()
    found = quantile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1


def test_ratios_are_taken_run_by_run() -> None:
    assert paired_ratio([10.0, 30.0, 8.0], [5.0, 10.0, 8.0], more_is_better=True) == 2.0
    assert paired_ratio([1.0], [5.0], more_is_better=False) == 5.0
    assert paired_ratio([], [], more_is_better=True) is None


def test_a_run_without_a_figure_to_divide_by_counts_for_nothing() -> None:
    assert paired_ratio([4.0, 4.0], [0.0, 2.0], more_is_better=True) == pytest.approx(2.0)


def test_bytes_that_are_set_aside_are_not_stored(tmp_path: Path) -> None:
    with (tmp_path / "chunk").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 1 << 20)
        file.write(b"x" * 5_000)
    (tmp_path / "within").mkdir()
    (tmp_path / "within" / "whole").write_bytes(b"x" * 100_000)
    assert 105_000 <= stored_bytes(tmp_path) < 150_000
