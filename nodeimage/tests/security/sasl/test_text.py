"""Names and messages as text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.security.sasl.outcome import Refusal, SaslFailed
from headrace.security.sasl.text import MAX_NAME_BYTES, checked_name, message_text, unescaped_name


@pytest.mark.parametrize(
    "name", ["", "a\tb", "\0", "a\x7f", "a\x85", "\ud800", "é" * (MAX_NAME_BYTES // 2 + 1)], ids=ascii
)
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(SaslFailed) as failed:
        checked_name(name)
    assert failed.value.refusal is Refusal.ILLEGAL_NAME


@pytest.mark.parametrize("escaped", ["a,b", "a=b", "=", "=2", "=2c", "=3d", "==3D", "=2C=2", ""])
def test_a_name_that_is_not_escaped_is_refused(escaped: str) -> None:
    with pytest.raises(SaslFailed) as failed:
        unescaped_name(escaped)
    assert failed.value.refusal is Refusal.ILLEGAL_NAME


@given(st.text("a=,23CDé", min_size=1, max_size=20))
def test_a_name_comes_back_as_it_was_escaped(name: str) -> None:
    assert unescaped_name(name.replace("=", "=3D").replace(",", "=2C")) == name


def test_a_message_is_bounded_and_utf_8() -> None:
    assert message_text("é".encode(), most_bytes=2) == "é"
    for message, why in ((b"abc", Refusal.TOKEN_TOO_LONG), (b"\xff", Refusal.MALFORMED)):
        with pytest.raises(SaslFailed) as failed:
            message_text(message, most_bytes=2)
        assert failed.value.refusal is why
