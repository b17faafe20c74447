"""Request and response bodies of Headrace's own API."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import Code, KafkaError, MalformedRequest
from headrace.wire.admin_call import (
    ANYTHING,
    MAX_REQUEST_BYTES,
    decode_admin_request,
    decode_admin_response,
    encode_admin_request,
    encode_admin_response,
    split_admin_request,
)

STRINGS = msgspec.msgpack.Decoder(list[str])


def test_a_request_is_read_as_it_was_written() -> None:
    params = {"stream": "/s", "limit": 5, "after": None, "names": ["a"]}
    assert decode_admin_request(encode_admin_request("topic.list", params)) == ("topic.list", params)
    assert decode_admin_request(memoryview(encode_admin_request("a", {}))) == ("a", {})


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x01" + msgspec.msgpack.encode(["a", {}]),
        b"\x00",
        b"\x00" + msgspec.msgpack.encode(["a"]),
        b"\x00" + msgspec.msgpack.encode(["a", []]),
        b"\x00" + msgspec.msgpack.encode([1, {}]),
        b"\x00" + msgspec.msgpack.encode(["a", {}]) + b"\x00",
        b"\x00" + b"\x91" * 100_000,
    ],
)
def test_bytes_that_are_no_request_are_refused(body: bytes) -> None:
    with pytest.raises(MalformedRequest):
        decode_admin_request(body)


@given(st.binary(max_size=60))
def test_whatever_comes_is_a_request_or_refused(body: bytes) -> None:
    try:
        method, params = decode_admin_request(body)
    except MalformedRequest:
        return
    assert isinstance(method, str)
    assert isinstance(params, dict)


def test_parameters_are_left_as_bytes_until_somebody_knows_what_they_are() -> None:
    method, given = split_admin_request(encode_admin_request("topic.list", {"stream": "/s"}))
    assert (method, msgspec.msgpack.decode(given)) == ("topic.list", {"stream": "/s"})


def test_a_request_that_is_too_long_is_refused() -> None:
    for read in (decode_admin_request, split_admin_request):
        with pytest.raises(MalformedRequest, match="the limit is"):
            read(bytes(MAX_REQUEST_BYTES + 1))


def test_a_result_is_decoded_as_its_method_has_it() -> None:
    assert decode_admin_response("m", encode_admin_response(["a", "b"]), STRINGS) == ["a", "b"]
    assert decode_admin_response("m", encode_admin_response({"x": None}), ANYTHING) == {"x": None}
    assert decode_admin_response("m", encode_admin_response(None), ANYTHING) is None
    with pytest.raises(MalformedRequest, match=r"^m: "):
        decode_admin_response("m", encode_admin_response([1]), STRINGS)


def test_a_refusal_is_an_error_with_its_code_and_message() -> None:
    body = encode_admin_response(None, error=Code.POLICY_VIOLATION, message="it is a copy")
    with pytest.raises(KafkaError, match="it is a copy") as refused:
        decode_admin_response("m", body, STRINGS)
    assert refused.value.code is Code.POLICY_VIOLATION
    with pytest.raises(KafkaError, match="m failed") as unknown:
        decode_admin_response("m", encode_admin_response(None, error=30_000), STRINGS)
    assert unknown.value.code is Code.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize("body", [b"", b"\xc1", msgspec.msgpack.encode({"message": "no code"})])
def test_bytes_that_are_no_answer_are_told_with_the_method(body: bytes) -> None:
    with pytest.raises(MalformedRequest, match=r"^topic\.list: "):
        decode_admin_response("topic.list", body, ANYTHING)
