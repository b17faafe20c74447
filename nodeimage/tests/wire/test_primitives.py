import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import MalformedRequest
from headrace.wire import primitives as p


@given(st.integers(0, 2**32 - 1))
def test_a_uvarint_comes_back(value: int) -> None:
    raw = p.uvarint(value)
    assert p.read_uvarint(raw, 0) == (value, len(raw))


@pytest.mark.parametrize("raw", ["ffffffffff01", "ffffffff7f", "8080808080", "ffffffffff"])
def test_a_uvarint_over_32_bits_is_malformed(raw: str) -> None:
    with pytest.raises(MalformedRequest):
        p.read_uvarint(bytes.fromhex(raw), 0)


@given(st.text(max_size=300) | st.none(), st.booleans(), st.binary(max_size=5))
def test_a_nullable_string_comes_back_and_what_follows_is_left_alone(
    value: str | None, flexible: bool, rest: bytes
) -> None:
    out = bytearray()
    p.put_nullable_string(out, value, flexible)
    end = len(out)
    assert p.read_nullable_string(out + rest, 0, flexible) == (value, end)


@pytest.mark.parametrize("flexible", [True, False])
def test_null_is_refused_where_a_string_or_an_array_is_due(flexible: bool) -> None:
    null_string = b"\x00" if flexible else b"\xff\xff"
    null_array = b"\x00" if flexible else b"\xff\xff\xff\xff"
    with pytest.raises(MalformedRequest, match="string is due"):
        p.read_string(null_string, 0, flexible)
    with pytest.raises(MalformedRequest, match="array is due"):
        p.read_count(null_array, 0, flexible)


def test_negative_lengths_other_than_null_are_malformed() -> None:
    with pytest.raises(MalformedRequest):
        p.read_nullable_string(b"\xff\xfe", 0, False)
    with pytest.raises(MalformedRequest):
        p.read_nullable_count(b"\xff\xff\xff\xfe", 0, False)


def test_a_count_is_held_against_the_bytes_left_before_anything_is_allocated() -> None:
    with pytest.raises(MalformedRequest, match="2147483647 elements"):
        p.read_count(b"\x7f\xff\xff\xff" + bytes(100), 0, False)
    with pytest.raises(MalformedRequest, match="elements"):
        p.read_count((p.MAX_ELEMENTS + 1).to_bytes(4, "big") + bytes(p.MAX_ELEMENTS + 1), 0, False)


def test_a_string_longer_than_what_is_left_is_malformed() -> None:
    with pytest.raises(MalformedRequest, match="3 are left"):
        p.read_string(b"\x00\x04abc", 0, False)
    with pytest.raises(MalformedRequest, match="3 are left"):
        p.read_string(b"\x05abc", 0, True)


def test_tagged_fields_are_skipped_whatever_they_are() -> None:
    raw = b"\x02" + b"\x00\x03abc" + b"\x90\x4e\x00" + b"rest"
    assert p.skip_tags(raw, 0) == len(raw) - len("rest")
    with pytest.raises(MalformedRequest):
        p.skip_tags(b"\x01\x00\x7f", 0)


def test_more_tagged_fields_than_any_message_has_are_malformed() -> None:
    tag = b"\x05\x00"
    assert p.skip_tags(p.uvarint(p.MAX_TAGS) + tag * p.MAX_TAGS, 0) == 2 + 2 * p.MAX_TAGS
    with pytest.raises(MalformedRequest, match="10001 tagged fields; the limit is 10000"):
        p.skip_tags(p.uvarint(p.MAX_TAGS + 1) + tag * (p.MAX_TAGS + 1), 0)


def test_an_error_message_is_cut_so_that_every_version_can_carry_it() -> None:
    for flexible in (True, False):
        out = bytearray()
        p.put_message(out, "é" * 100_000, flexible)
        value, end = p.read_nullable_string(out, 0, flexible)
        assert value == "é" * 8000
        assert end == len(out)


def test_a_string_that_the_older_encoding_cannot_hold_is_an_error_of_ours() -> None:
    with pytest.raises(ValueError, match="32767"):
        p.put_string(bytearray(), "x" * 32_768, False)


def test_malformed_covers_short_input_and_bad_utf8() -> None:
    @p.malformed
    def read(raw: bytes) -> str:
        length = p.INT32.unpack_from(raw)[0]
        return p.read_string(raw, length, False)[0]

    for raw in (b"", b"\x00\x00\x00\x04", b"\x00\x00\x00\x04\x00\x01\xff"):
        with pytest.raises(MalformedRequest):
            read(raw)
