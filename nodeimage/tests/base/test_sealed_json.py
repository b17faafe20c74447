"""JSON objects with a checksum."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.sealed_json import seal, unseal

TEXT = b'{"format": "f", "seen": 7}'


def test_what_was_sealed_is_read_and_a_version_that_knows_no_checksum_reads_it_too() -> None:
    sealed = seal(TEXT, salt=b"k")
    assert unseal(sealed, salt=b"k") == TEXT
    assert json.loads(sealed) == {"crc": sealed[8:16].decode(), **json.loads(TEXT)}
    assert unseal(sealed + b"   ", salt=b"k") == TEXT
    assert unseal(TEXT) == TEXT
    assert unseal(seal(b"7")) == b"7"
    assert seal(b"{}") == b"{}"
    assert seal(TEXT) == b'{"crc":"34c8f269",' + TEXT[1:]
    with pytest.raises(ValueError, match="checksum"):
        unseal(sealed, salt=b"another")


@given(bit=st.integers(0, 8 * len(seal(TEXT)) - 1))
def test_whichever_bit_flips_it_is_refused_or_what_was_written(bit: int) -> None:
    flipped = bytearray(seal(TEXT))
    flipped[bit // 8] ^= 1 << bit % 8
    try:
        fields = json.loads(unseal(bytes(flipped)))
    except ValueError:
        return
    assert {"format": "f", "seen": 7}.items() <= fields.items()
