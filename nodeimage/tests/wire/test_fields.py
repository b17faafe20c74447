"""Fields by Kafka type: written and read back, and invalid values refused."""

import datetime
import struct
import uuid
from typing import Any

import pytest

from headrace.base.errors import MalformedRequest
from headrace.wire.fields import EPOCH, Input, array_codec, codec
from headrace.wire.primitives import MAX_ELEMENTS, uvarint

ID = uuid.UUID(int=7)


def written(kafka_type: str, value: Any, *, flexible: bool = True, nullable: bool = True, name: str = "field") -> bytes:
    out = bytearray()
    codec(kafka_type, name, flexible=flexible, nullable=nullable)[1](out, value)
    return bytes(out)


def read(kafka_type: str, raw: bytes, *, flexible: bool = True, nullable: bool = True) -> Any:
    source = Input(raw)
    value = codec(kafka_type, "field", flexible=flexible, nullable=nullable)[0](source)
    assert source.pos == len(raw)
    return value


@pytest.mark.parametrize("flexible", [True, False])
@pytest.mark.parametrize(
    ("kafka_type", "value"),
    [
        ("string", "pump ü"),
        ("string", ""),
        ("string", None),
        ("bytes", b"\x00\xff"),
        ("bytes", b""),
        ("bytes", None),
        ("uuid", ID),
        ("uuid", None),
        ("bool", True),
        ("int8", -1),
        ("int16", -2),
        ("uint16", 65_535),
        ("int32", -3),
        ("int64", 2**63 - 1),
        ("float64", 0.5),
        ("error_code", 3),
        ("timedelta_i32", datetime.timedelta(milliseconds=1500)),
        ("timedelta_i64", datetime.timedelta(days=40)),
        ("datetime_i64", EPOCH + datetime.timedelta(milliseconds=1_700_000_000_123)),
        ("datetime_i64", None),
    ],
)
def test_a_field_is_read_as_it_was_written(kafka_type: str, value: Any, flexible: bool) -> None:
    assert read(kafka_type, written(kafka_type, value, flexible=flexible), flexible=flexible) == value


def test_numbers_stand_in_network_order_and_lengths_by_version() -> None:
    assert written("int32", 1) == b"\x00\x00\x00\x01"
    assert written("string", "ab") == b"\x03ab"
    assert written("string", "ab", flexible=False) == b"\x00\x02ab"
    assert written("bytes", b"ab", flexible=False) == b"\x00\x00\x00\x02ab"
    assert written("bytes", None) == b"\x00"


def test_times_may_be_given_as_plain_milliseconds() -> None:
    assert written("timedelta_i32", 1500) == written("timedelta_i32", datetime.timedelta(seconds=1.5))
    assert written("datetime_i64", 5) == struct.pack(">q", 5)
    assert written("uuid", b"\x00" * 15 + b"\x07") == ID.bytes


@pytest.mark.parametrize(("kafka_type", "raw"), [("string", b"\x00"), ("bytes", b"\x00")])
def test_null_where_none_may_be_is_refused(kafka_type: str, raw: bytes) -> None:
    with pytest.raises(MalformedRequest):
        read(kafka_type, raw, nullable=False)
    with pytest.raises(TypeError):
        written(kafka_type, None, nullable=False)


@pytest.mark.parametrize(
    ("kafka_type", "value"), [("int8", 128), ("int16", 1 << 15), ("uuid", b"short"), ("timedelta_i32", 1 << 31)]
)
def test_a_value_that_does_not_fit_is_refused(kafka_type: str, value: Any) -> None:
    with pytest.raises((ValueError, struct.error)):
        written(kafka_type, value)


@pytest.mark.parametrize("kafka_type", ["timedelta_i64", "datetime_i64"])
def test_a_time_that_cannot_be_is_refused(kafka_type: str) -> None:
    with pytest.raises(MalformedRequest):
        read(kafka_type, struct.pack(">q", 2**63 - 1))


def test_a_code_that_is_newer_than_kio_is_a_number() -> None:
    assert read("error_code", struct.pack(">h", 30_000)) == 30_000


def test_a_type_without_a_codec_is_named() -> None:
    with pytest.raises(TypeError, match="field: no codec for int128"):
        codec("int128", "field", flexible=True, nullable=False)


@pytest.mark.parametrize("flexible", [True, False])
def test_arrays_are_read_as_they_were_written(flexible: bool) -> None:
    one = codec("int16", "field", flexible=flexible, nullable=False)
    reads, writes = array_codec(*one, flexible=flexible, nullable=True)
    for values in ((1, 2, 3), (), None):
        out = bytearray()
        writes(out, values)
        assert reads(Input(bytes(out))) == values
    out = bytearray()
    writes(out, iter([1, 2]))
    assert reads(Input(bytes(out))) == (1, 2)


def test_an_array_that_may_not_be_null_is_not() -> None:
    one = codec("int16", "field", flexible=True, nullable=False)
    reads, writes = array_codec(*one, flexible=True, nullable=False)
    with pytest.raises(MalformedRequest, match="null"):
        reads(Input(b"\x00"))
    with pytest.raises(TypeError):
        writes(bytearray(), None)


def test_elements_are_bounded_over_a_whole_request() -> None:
    one = codec("bool", "field", flexible=True, nullable=False)
    reads, _ = array_codec(*one, flexible=True, nullable=False)
    source = Input(bytes(uvarint(2)) + b"\x01")
    source.elements = MAX_ELEMENTS - 1
    assert reads(source) == (True,)
    source.pos = 0
    with pytest.raises(MalformedRequest, match="array elements"):
        reads(source)
