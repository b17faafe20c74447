"""No secret is logged, sent back, or shown in a repr: passwords, keys, salts, proofs and tokens."""

import base64
import traceback

import pytest

from headrace.security.sasl.exchange import Done, Failed
from headrace.security.sasl.jws import parse_token
from headrace.security.sasl.oauthbearer_server import read_bearer
from headrace.security.sasl.outcome import Challenge, SaslFailed
from headrace.security.sasl.plain_server import read_plain
from headrace.security.sasl.scram_credential import ScramCredential
from headrace.security.sasl.scram_server import ScramServer
from headrace.security.scram import ScramClient
from kit.sasl import PASSWORD, Listener, MemoryCredentials
from kit.tokens import Issuer, bearer

RECORD = ScramCredential.made_of(PASSWORD, "SCRAM-SHA-256")
BYTES = (RECORD.salt, RECORD.stored_key, RECORD.server_key, b"a secret of the cluster")
SECRETS = (
    PASSWORD,
    *(text for each in BYTES for text in (repr(each)[2:-1], each.hex(), base64.b64encode(each).decode())),
)


def assert_silent(*shown: object) -> None:
    for each in shown:
        for text in (repr(each), str(each)):
            assert not [secret for secret in SECRETS if secret in text], text


def test_records_and_servers_do_not_show_what_they_know() -> None:
    server = ScramServer("SCRAM-SHA-256", unknown_salt_key=b"a secret of the cluster")
    server.first(b"n,,n=alice,r=abc")
    server.challenge(RECORD)
    assert_silent(RECORD, server, read_plain(f"\0alice\0{PASSWORD}".encode()), Challenge(RECORD.salt))


async def test_exchanges_tell_neither_client_nor_audit_a_secret() -> None:
    credentials = MemoryCredentials()
    credentials.records["alice", "SCRAM-SHA-256"] = RECORD
    listener = Listener(credentials)
    for password in (PASSWORD, PASSWORD + "x"):
        exchange = listener.exchange()
        exchange.handshake("SCRAM-SHA-256", 1)
        client = ScramClient("SCRAM-SHA-256", "alice", password)
        challenge = await exchange.step(client.first())
        assert isinstance(challenge, Challenge)
        answer = await exchange.step(client.final(challenge.token))
        assert_silent(exchange, challenge, answer, client, *listener.audit)
        exchange = listener.exchange()
        exchange.handshake("PLAIN", 1)
        answer = await exchange.step(f"\0alice\0{password}".encode())
        assert isinstance(answer, Done | Failed)
        assert_silent(exchange, answer, *listener.audit)


@pytest.mark.parametrize(
    "message",
    [f"\0\0{PASSWORD}", f"{PASSWORD}\0alice\0{PASSWORD}", f"\0alice\0{PASSWORD}\0", f"alice\0{PASSWORD}"],
    ids=repr,
)
def test_a_refusal_and_its_trace_hold_nothing_of_the_message(message: str) -> None:
    for token in (message.encode(), message.encode() + b"\xff"):
        with pytest.raises(SaslFailed) as failed:
            read_plain(token)
        assert_silent(failed.value, "".join(traceback.format_exception(failed.value)))


def test_tokens_are_not_shown() -> None:
    text = Issuer().token()
    signature = text.split(".")[2]
    for shown in (read_bearer(bearer(text)), parse_token(text)):
        assert text.split(".")[1] not in repr(shown)
        assert signature not in repr(shown)
        assert "alice" not in repr(shown)
    with pytest.raises(SaslFailed) as failed:
        parse_token(text + ".x")
    assert text[:20] not in "".join(traceback.format_exception(failed.value))
