"""SCRAM's server against the RFCs' own exchanges, against our client, and against clients that break the rules."""

import base64
import hashlib
import hmac
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.security import scram_common
from headrace.security.sasl import scram_server
from headrace.security.sasl.outcome import Refusal, SaslFailed
from headrace.security.sasl.scram_credential import ScramCredential
from headrace.security.sasl.scram_server import MAX_MESSAGE_BYTES, ScramServer
from headrace.security.scram import ScramClient, ScramFailed
from headrace.security.scram_common import HASHES

MECHANISMS = pytest.mark.parametrize("mechanism", HASHES)
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
RECORD = ScramCredential.made_of("pencil", "SCRAM-SHA-256", 4096, SALT)
BOTH_NONCES = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"


def server(nonce: str | None = None, mechanism: str = "SCRAM-SHA-256") -> ScramServer:
    return ScramServer(mechanism, unknown_salt_key=b"secret of the cluster", nonce=nonce)


def rfc7677() -> ScramServer:
    """The RFC's exchange up to the client's last message."""
    asked = server("%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    assert asked.first(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO") == "user"
    assert asked.challenge(RECORD) == f"r={BOTH_NONCES},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
    return asked


def refusal(ask: Any, *args: Any) -> Refusal:
    with pytest.raises(SaslFailed) as failed:
        ask(*args)
    return failed.value.refusal


def test_the_exchange_of_rfc_7677_comes_out_byte_for_byte() -> None:
    proof = f"c=biws,r={BOTH_NONCES},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    assert rfc7677().final(proof.encode()) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def test_the_keys_of_rfc_5802_come_out_byte_for_byte() -> None:
    """The RFC's exchange uses SHA-1, which is not offered."""
    salted = scram_common.salted_password("sha1", b"pencil", base64.b64decode("QSXCR+Q6sek8bf92"), 4096)
    said = (
        b"n=user,r=fyko+d2lbbFgONRv9qkxdawL,"
        b"r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096,"
        b"c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j"
    )
    key = scram_common.client_key("sha1", salted)
    proof = scram_common.xor(key, scram_common.sign("sha1", scram_common.stored_key("sha1", key), said))
    signature = scram_common.sign("sha1", scram_common.server_key("sha1", salted), said)
    assert scram_common.to_base64(proof) == "v0X8v3Bz2T0CJGbJQyF0X+HI4Ts="
    assert scram_common.to_base64(signature) == "rmF9pqV8S7suAoZWja4dJRkFsKQ="


@MECHANISMS
@pytest.mark.parametrize("user", ["alice", "a,b=c", "=2C", "Zoë", "x" * 1024])
def test_our_client_and_our_server_prove_themselves_to_each_other(mechanism: str, user: str) -> None:
    client, asked = ScramClient(mechanism, user, "pencil"), server(mechanism=mechanism)
    assert asked.first(client.first()) == user
    challenge = asked.challenge(ScramCredential.made_of("pencil", mechanism, 5000))
    client.verify(asked.final(client.final(challenge)))


@MECHANISMS
def test_a_wrong_password_is_refused(mechanism: str) -> None:
    client, asked = ScramClient(mechanism, "alice", "pencil "), server(mechanism=mechanism)
    asked.first(client.first())
    proof = client.final(asked.challenge(ScramCredential.made_of("pencil", mechanism)))
    assert refusal(asked.final, proof) is Refusal.WRONG_CREDENTIALS


@MECHANISMS
def test_an_unknown_user_is_asked_and_refused_as_a_wrong_password_is(mechanism: str) -> None:
    salts = set()
    for _ in range(3):
        client, asked = ScramClient(mechanism, "mallory", "pencil"), server(mechanism=mechanism)
        asked.first(client.first())
        challenge = asked.challenge(None)
        salts.add(challenge.split(b",s=")[1])
        assert refusal(asked.final, client.final(challenge)) is Refusal.WRONG_CREDENTIALS
    assert len(salts) == 1


def test_a_made_up_record_lets_nobody_in_whatever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scram_server, "credential_of_unknown", lambda *_: RECORD)
    client, asked = ScramClient("SCRAM-SHA-256", "mallory", "pencil"), server()
    asked.first(client.first())
    assert refusal(asked.final, client.final(asked.challenge(None))) is Refusal.WRONG_CREDENTIALS


def test_a_record_of_the_other_mechanism_lets_nobody_in() -> None:
    client, asked = ScramClient("SCRAM-SHA-512", "alice", "pencil"), server(mechanism="SCRAM-SHA-512")
    asked.first(client.first())
    proof = client.final(asked.challenge(ScramCredential.made_of("pencil", "SCRAM-SHA-256")))
    assert refusal(asked.final, proof) is Refusal.WRONG_CREDENTIALS


def test_known_and_unknown_users_cost_the_same_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    known, unknown = (operations_of_scram(monkeypatch, record) for record in (RECORD, None))
    assert known == unknown
    assert len(known) > 3


def operations_of_scram(monkeypatch: pytest.MonkeyPatch, record: ScramCredential | None) -> list[str]:
    """The hashes that the server computes while it refuses a wrong proof."""
    asked = server()
    made: list[str] = []
    with monkeypatch.context() as patch:
        for module, name in ((hmac, "digest"), (hmac, "compare_digest"), (hashlib, "new"), (hashlib, "pbkdf2_hmac")):
            patch.setattr(module, name, counted(getattr(module, name), name, made))
        asked.first(b"n,,n=alice,r=abc")
        nonce = asked.challenge(record).split(b",")[0]
        proof = base64.b64encode(bytes(32))
        assert refusal(asked.final, b"c=biws," + nonce + b",p=" + proof) is Refusal.WRONG_CREDENTIALS
    return made


def counted(function: Any, name: str, made: list[str]) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        made.append(name)
        return function(*args, **kwargs)

    return call


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"y,,n=user,r=abc", Refusal.CHANNEL_BINDING),
        (b"p=tls-exporter,,n=user,r=abc", Refusal.CHANNEL_BINDING),
        (b"n,a=admin,n=user,r=abc", Refusal.OTHER_AUTHORIZATION_ID),
        (b"n,a=user,n=user,r=abc", Refusal.OTHER_AUTHORIZATION_ID),
        (b"n,,m=x,n=user,r=abc", Refusal.MANDATORY_EXTENSION),
        (b"n,,n=user,r=abc,m=x", Refusal.MANDATORY_EXTENSION),
        (b"n,,n=user,r=abc,tokenauth=true", Refusal.DELEGATION_TOKEN),
        (b"n,,n=user,r=abc,x=1,tokenauth=false", Refusal.DELEGATION_TOKEN),
        (b"", Refusal.MALFORMED),
        (b"n,,", Refusal.MALFORMED),
        (b"n,,n=user", Refusal.MALFORMED),
        (b"n,,r=abc,n=user", Refusal.MALFORMED),
        (b"n,,n=user,r=", Refusal.MALFORMED),
        (b"n,,n=user,r=a\tb", Refusal.MALFORMED),
        (b"n,,n=user,r=" + b"x" * 1025, Refusal.MALFORMED),
        (b"n,,n=us\0er,r=abc", Refusal.MALFORMED),
        (b"n,,n=\xff,r=abc", Refusal.MALFORMED),
        (b"n,,n=user,r=abc,", Refusal.MALFORMED),
        (b"n,,n=user,r=abc\n", Refusal.MALFORMED),
        (b"n,,n=,r=abc", Refusal.ILLEGAL_NAME),
        (b"n,,n=a=b,r=abc", Refusal.ILLEGAL_NAME),
        (b"n,,n=a=2c,r=abc", Refusal.ILLEGAL_NAME),
        (b"n,,n=a=,r=abc", Refusal.ILLEGAL_NAME),
        (b"n,,n=a\nb,r=abc", Refusal.ILLEGAL_NAME),
        (b"n,,n=" + b"x" * 1025 + b",r=abc", Refusal.ILLEGAL_NAME),
        (b"n,,n=user,r=abc,x=" + b"x" * MAX_MESSAGE_BYTES, Refusal.TOKEN_TOO_LONG),
    ],
    ids=lambda value: value[:40] if isinstance(value, bytes) else value.name,
)
def test_a_first_message_that_breaks_a_rule_is_refused(message: bytes, why: Refusal) -> None:
    assert refusal(server().first, message) is why


def test_extensions_that_need_not_be_understood_are_passed_over_and_signed() -> None:
    client, asked = ScramClient("SCRAM-SHA-256", "user", "pencil", nonce="abc"), server()
    client._bare += ",x=1,trace=a b"
    assert asked.first(client.first()) == "user"
    client.verify(asked.final(client.final(asked.challenge(RECORD))))


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ("c=biws,r=rOprNGfwEbeRWgbNEkqO,p={proof}", Refusal.OTHER_NONCE),
        ("c=biws,r={nonces}x,p={proof}", Refusal.OTHER_NONCE),
        ("c=biws,r=%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p={proof}", Refusal.OTHER_NONCE),
        ("c=biws,r=rOprNGfwEbeRWgbNEkqOrOprNGfwEbeRWgbNEkqO{nonces},p={proof}", Refusal.OTHER_NONCE),
        ("c=biws,r=x{nonces},p={proof}", Refusal.OTHER_NONCE),
        ("c=biws,r=rOprNGfwEbeRWgbNEkqO{nonces},p={proof}", Refusal.WRONG_CREDENTIALS),  # the proof covers another text
        ("c=eSws,r={nonces},p={proof}", Refusal.CHANNEL_BINDING),
        ("c=,r={nonces},p={proof}", Refusal.CHANNEL_BINDING),
        ("c=biws,r={nonces},tokenauth=true,p={proof}", Refusal.DELEGATION_TOKEN),
        ("c=biws,r={nonces},m=1,p={proof}", Refusal.MANDATORY_EXTENSION),
        ("c=biws,r={nonces},x=1,p={proof}", Refusal.WRONG_CREDENTIALS),  # the proof covers another text
        ("c=biws,r={nonces}", Refusal.MALFORMED),
        ("c=biws,r={nonces},p=", Refusal.MALFORMED),
        ("c=biws,r={nonces},p=!", Refusal.MALFORMED),
        ("c=biws,r={nonces},p=é", Refusal.MALFORMED),
        ("c=biws,r={nonces},p=AAAA", Refusal.MALFORMED),
        ("r={nonces},c=biws,p={proof}", Refusal.MALFORMED),
        ("p={proof}", Refusal.MALFORMED),
        ("", Refusal.MALFORMED),
        ("c=biws,r={nonces},p=" + "A" * MAX_MESSAGE_BYTES, Refusal.TOKEN_TOO_LONG),
        ("c=biws,r={nonces},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVA=", Refusal.WRONG_CREDENTIALS),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) and not isinstance(value, Refusal) else value.name,
)
def test_a_last_message_that_breaks_a_rule_is_refused(message: str, why: Refusal) -> None:
    proof = "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    asked = rfc7677()
    assert refusal(asked.final, message.format(nonces=BOTH_NONCES, proof=proof).encode()) is why
    right = f"c=biws,r={BOTH_NONCES},p={proof}".encode()
    assert refusal(asked.final, right) is Refusal.ILLEGAL_STATE  # only one attempt is allowed


def test_a_client_that_puts_its_nonce_before_both_is_let_in_by_a_proof_of_that() -> None:
    client, asked = ScramClient("SCRAM-SHA-256", "user", "pencil", nonce="abc"), server()
    asked.first(client.first())
    answer = asked.challenge(RECORD)
    without_proof = f"c=biws,r=abc{answer.split(b',')[0][2:].decode()}"
    said = b",".join((client.first()[3:], answer, without_proof.encode()))
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", RECORD.salt, RECORD.iterations)
    key = hmac.digest(salted, b"Client Key", "sha256")
    proof = scram_common.xor(key, hmac.digest(hashlib.sha256(key).digest(), said, "sha256"))
    verifier = hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), said, "sha256")
    final = f"{without_proof},p={base64.b64encode(proof).decode()}".encode()
    assert asked.final(final) == b"v=" + base64.b64encode(verifier)


def test_messages_out_of_order_are_refused() -> None:
    assert refusal(server().challenge, RECORD) is Refusal.ILLEGAL_STATE
    assert refusal(server().final, b"c=biws,r=x,p=AAAA") is Refusal.ILLEGAL_STATE


def test_what_one_client_proved_is_worth_nothing_to_another_connection() -> None:
    client, heard = ScramClient("SCRAM-SHA-256", "user", "pencil"), server()
    heard.first(client.first())
    proof = client.final(heard.challenge(RECORD))
    replayed = server()
    replayed.first(client.first())
    replayed.challenge(RECORD)
    assert refusal(replayed.final, proof) is Refusal.OTHER_NONCE


def test_a_server_that_has_the_stored_key_alone_cannot_prove_itself() -> None:
    half = ScramCredential(salt=RECORD.salt, stored_key=RECORD.stored_key, server_key=bytes(32), iterations=4096)
    client, asked = ScramClient("SCRAM-SHA-256", "user", "pencil"), server()
    asked.first(client.first())
    with pytest.raises(ScramFailed, match="does not know the password"):
        client.verify(asked.final(client.final(asked.challenge(half))))


@given(first=st.binary(max_size=200) | st.text("n,=rm2CD3-é\0ap", max_size=60).map(str.encode), last=st.binary())
def test_no_bytes_are_met_with_anything_but_a_refusal(first: bytes, last: bytes) -> None:
    asked = server()
    try:
        asked.first(first)
        asked.challenge(RECORD)
    except SaslFailed:
        pass
    assert isinstance(refusal(asked.final, last), Refusal)
