"""PLAIN: what it accepts and refuses, and that its cost is the same for every user."""

import hashlib
import hmac
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.security.sasl import plain_server
from headrace.security.sasl.outcome import Refusal, SaslFailed
from headrace.security.sasl.plain_server import MAX_MESSAGE_BYTES, PlainLogin, is_right, read_plain
from headrace.security.sasl.scram_credential import ScramCredential
from headrace.security.scram_common import HASHES

RECORDS = {mechanism: ScramCredential.made_of("pencil", mechanism) for mechanism in HASHES}
KEY = b"secret of the cluster"


def test_user_and_password_are_read() -> None:
    assert read_plain(b"\0alice\0pencil") == PlainLogin("alice", "pencil")
    assert read_plain(b"alice\0alice\0pencil") == PlainLogin("alice", "pencil")
    assert read_plain("\0Zoë=,\0pä ss".encode()) == PlainLogin("Zoë=,", "pä ss")


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"admin\0alice\0pencil", Refusal.OTHER_AUTHORIZATION_ID),  # CVE-2017-12610
        (b"ALICE\0alice\0pencil", Refusal.OTHER_AUTHORIZATION_ID),
        (b"\0\0pencil", Refusal.ILLEGAL_NAME),
        (b"alice\0\0pencil", Refusal.ILLEGAL_NAME),
        (b"\0al\nice\0pencil", Refusal.ILLEGAL_NAME),
        (b"\0" + b"x" * 1025 + b"\0pencil", Refusal.ILLEGAL_NAME),
        (b"\0alice\0", Refusal.NO_PASSWORD),
        (b"alice\0pencil", Refusal.MALFORMED),
        (b"\0alice\0pencil\0", Refusal.MALFORMED),
        (b"\0alice\0pen\0cil", Refusal.MALFORMED),
        (b"", Refusal.MALFORMED),
        (b"\0alice\0\xff", Refusal.MALFORMED),
        (b"\0alice\0" + b"x" * 1025, Refusal.TOKEN_TOO_LONG),
        (b"\0alice\0" + b"x" * MAX_MESSAGE_BYTES, Refusal.TOKEN_TOO_LONG),
    ],
    ids=lambda value: value[:40] if isinstance(value, bytes) else value.name,
)
def test_a_message_that_breaks_a_rule_is_refused(message: bytes, why: Refusal) -> None:
    with pytest.raises(SaslFailed) as failed:
        read_plain(message)
    assert failed.value.refusal is why
    assert failed.value.__context__ is None  # Python's own error would hold the password


@pytest.mark.parametrize("has", [("SCRAM-SHA-256",), ("SCRAM-SHA-512",), tuple(HASHES)], ids=str)
def test_the_password_of_any_record_is_right(has: tuple[str, ...]) -> None:
    records = {mechanism: RECORDS[mechanism] if mechanism in has else None for mechanism in HASHES}
    assert is_right(PlainLogin("alice", "pencil"), records, unknown_salt_key=KEY)
    assert not is_right(PlainLogin("alice", "Pencil"), records, unknown_salt_key=KEY)


def test_nobody_without_a_record_gets_in() -> None:
    assert not is_right(PlainLogin("alice", "pencil"), dict.fromkeys(HASHES), unknown_salt_key=KEY)
    assert not is_right(PlainLogin("alice", "pencil"), {}, unknown_salt_key=KEY)


def test_a_made_up_record_lets_nobody_in_whatever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_server, "credential_of_unknown", lambda _key, _user, mechanism: RECORDS[mechanism])
    assert not is_right(PlainLogin("mallory", "pencil"), {}, unknown_salt_key=KEY)


def test_known_and_unknown_users_cost_the_same_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    for known in (RECORDS, {"SCRAM-SHA-256": RECORDS["SCRAM-SHA-256"]}, {}):
        made: list[tuple[Any, ...]] = []
        with monkeypatch.context() as patch:
            for module, name in ((hmac, "digest"), (hmac, "compare_digest"), (hashlib, "pbkdf2_hmac")):
                patch.setattr(module, name, counted(getattr(module, name), name, made))
            assert not is_right(PlainLogin("alice", "wrong"), known, unknown_salt_key=KEY)
        seen.append(made)
    assert seen[0] == seen[1] == seen[2]
    assert [call for call in seen[0] if call[0] == "pbkdf2_hmac"] == [
        ("pbkdf2_hmac", "sha256", 4096),
        ("pbkdf2_hmac", "sha512", 4096),
    ]


def counted(function: Any, name: str, made: list[tuple[Any, ...]]) -> Any:
    """Wrap `function` so that it records its hash and iterations, which determine a call's cost."""

    def call(*args: Any) -> Any:
        made.append((name, args[0], args[3]) if name == "pbkdf2_hmac" else (name,))
        return function(*args)

    return call


def test_a_login_does_not_tell_its_password() -> None:
    assert repr(read_plain(b"\0alice\0pencil")) == "PlainLogin(user='alice')"


@given(st.binary(max_size=100) | st.text("a\0é\n", max_size=20).map(str.encode))
def test_no_bytes_are_met_with_anything_but_a_refusal(message: bytes) -> None:
    try:
        login = read_plain(message)
    except SaslFailed:
        return
    assert message.split(b"\0")[1:] == [login.user.encode(), login.password.encode()]
