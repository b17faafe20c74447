"""Bootstrap lists as people write them."""

import pytest

from headrace.base.addresses import Address, parse_addresses
from headrace.base.errors import KafkaError


def test_lists_are_read_with_commas_and_as_elements() -> None:
    found = parse_addresses(["a:1, b.example:2", "[::1]:3", "a:1"])
    assert found == [Address("a", 1), Address("b.example", 2), Address("::1", 3)]
    assert [str(each) for each in found] == ["a:1", "b.example:2", "[::1]:3"]


@pytest.mark.parametrize("text", ["", "a", ":1", "a:", "a:0", "a:65536", "a:1x", "::1", "a:١"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(KafkaError, match="address"):
        parse_addresses([text])


def test_a_list_too_long_is_refused() -> None:
    with pytest.raises(KafkaError, match="65 addresses"):
        parse_addresses([f"a:{port}" for port in range(1, 66)])
