"""The first message of OAUTHBEARER: how it is parsed, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.security.sasl.oauthbearer_server import (
    MAX_MESSAGE_BYTES,
    MAX_PAIRS,
    MAX_TOKEN_BYTES,
    BearerMessage,
    read_bearer,
)
from headrace.security.sasl.outcome import Refusal, SaslFailed


@pytest.mark.parametrize(
    ("message", "read"),
    [
        (b"n,,\x01auth=Bearer a.b.c\x01\x01", BearerMessage("a.b.c", None)),
        (b"n,a=alice,\x01auth=bearer a.b.c\x01\x01", BearerMessage("a.b.c", "alice")),
        (b"n,a=a=2Cb,\x01auth=Bearer x\x01traceId=1 2\x01\x01", BearerMessage("x", "a,b")),
        (b"n,,\x01logicalCluster=lkc-1\x01auth=Bearer  x \x01\x01", BearerMessage("x", None)),
    ],
)
def test_token_and_authorization_id_are_read(message: bytes, read: BearerMessage) -> None:
    assert read_bearer(message) == read


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"", Refusal.MALFORMED),
        (b"\x01", Refusal.MALFORMED),
        (b"n,,", Refusal.MALFORMED),
        (b"n,,\x01auth=Bearer x\x01", Refusal.MALFORMED),
        (b"n,\x01auth=Bearer x\x01\x01", Refusal.MALFORMED),
        (b"n,b=alice,\x01auth=Bearer x\x01\x01", Refusal.MALFORMED),
        (b"n,a=alice,x\x01auth=Bearer x\x01\x01", Refusal.MALFORMED),
        (b"n,,\x01auth=Bearer x\x01auth=Bearer y\x01\x01", Refusal.MALFORMED),
        (b"n,,\x01auth=Bearer x\x01no pair\x01\x01", Refusal.MALFORMED),
        (b"n,,\x01auth=Bearer x\x01\x01\x01", Refusal.MALFORMED),
        (b"n,,\x01auth=Bearer x\x01a=\xc3\xa9\x01\x01", Refusal.MALFORMED),
        (b"n,,\x01auth=Bearer \xff\x01\x01", Refusal.MALFORMED),
        (b"y,,\x01auth=Bearer x\x01\x01", Refusal.CHANNEL_BINDING),
        (b"p=tls-unique,,\x01auth=Bearer x\x01\x01", Refusal.CHANNEL_BINDING),
        (b"n,a=,\x01auth=Bearer x\x01\x01", Refusal.ILLEGAL_NAME),
        (b"n,a=a=b,\x01auth=Bearer x\x01\x01", Refusal.ILLEGAL_NAME),
        (b"n,,\x01host=example\x01\x01", Refusal.NO_TOKEN),
        (b"n,,\x01auth=\x01\x01", Refusal.NO_TOKEN),
        (b"n,,\x01auth=Bearer\x01\x01", Refusal.NO_TOKEN),
        (b"n,,\x01auth=Basic YTpi\x01\x01", Refusal.NO_TOKEN),
        (b"n,,\x01auth=Bearer a b\x01\x01", Refusal.NO_TOKEN),
        (b"n,,\x01auth=Bearer x" + b"\x01a=b" * MAX_PAIRS + b"\x01\x01", Refusal.MALFORMED),
        (b"n,,\x01auth=Bearer " + b"x" * (MAX_TOKEN_BYTES + 1) + b"\x01\x01", Refusal.TOKEN_TOO_LONG),
        (b"n,,\x01auth=Bearer x\x01a=" + b"x" * MAX_MESSAGE_BYTES + b"\x01\x01", Refusal.TOKEN_TOO_LONG),
    ],
    ids=lambda value: value[:40] if isinstance(value, bytes) else value.name,
)
def test_a_message_that_breaks_a_rule_is_refused(message: bytes, why: Refusal) -> None:
    with pytest.raises(SaslFailed) as failed:
        read_bearer(message)
    assert failed.value.refusal is why


def test_a_token_of_64_kib_is_read() -> None:
    assert len(read_bearer(b"n,,\x01auth=Bearer " + b"x" * MAX_TOKEN_BYTES + b"\x01\x01").token) == 64 << 10


def test_a_message_does_not_tell_its_token() -> None:
    assert "a.b.c" not in repr(read_bearer(b"n,,\x01auth=Bearer a.b.c\x01\x01"))


@given(st.binary(max_size=100) | st.text("n,a=\x01uthBer x", max_size=40).map(str.encode))
def test_no_bytes_are_met_with_anything_but_a_refusal(message: bytes) -> None:
    try:
        assert read_bearer(message).token
    except SaslFailed:
        pass
