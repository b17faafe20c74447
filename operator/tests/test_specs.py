import pytest

from headrace_operator.specs import milliseconds, quantity


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", 0), ("250ms", 250), ("90s", 90_000), ("5m", 300_000), ("12h", 43_200_000), ("7d", 604_800_000)],
)
def test_a_duration_is_milliseconds(text: str, expected: int) -> None:
    assert milliseconds(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("10", 10), ("2Ki", 2048), ("10Gi", 10 * 2**30), ("1.5k", 1500), ("3M", 3_000_000)]
)
def test_a_quantity_is_bytes(text: str, expected: int) -> None:
    assert quantity(text) == expected
