import pytest

from headrace_operator.specs import milliseconds, quantity


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", 0), ("250ms", 250), ("90s", 90_000), ("5m", 300_000), ("12h", 43_200_000), ("7d", 604_800_000)],
)
def test_a_duration_is_milliseconds(text: str, expected: int) -> None:
    assert milliseconds(text) == expected


@pytest.mark.parametrize("text", ["5hm", "m5", "", "5w", "5.5m"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"unit of time|invalid literal"):
        milliseconds(text)


@pytest.mark.parametrize(
    ("text", "expected"), [("10", 10), ("2Ki", 2048), ("10Gi", 10 * 2**30), ("1.5k", 1500), ("3M", 3_000_000)]
)
def test_a_quantity_is_bytes(text: str, expected: int) -> None:
    assert quantity(text) == expected


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("1.3Gi", "1395864371200m"),
        ("1e9", "1G"),
        ("1E3", "1k"),
        ("2E", "2e18"),
        ("1Ei", "1024Pi"),
        ("+5", "5"),
        (".5Ki", 512),
    ],
)
def test_a_quantity_is_read_as_the_api_server_writes_it(text: str, same: str | int) -> None:
    assert quantity(text) == quantity(same)


@pytest.mark.parametrize("text", ["", "Gi", "1.2.3", "1Gib", "1e", "ten", "1 Gi"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="quantity"):
        quantity(text)
