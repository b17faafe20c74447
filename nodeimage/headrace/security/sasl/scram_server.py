"""SCRAM, the server's side (RFC 5802, RFC 7677): the messages to send in answer to the client's. No I/O.

    client first    n,,n=<user>,r=<client nonce>[,<extensions>]
    server first    r=<client nonce><server nonce>,s=<salt>,i=<iterations>
    client final    c=biws,r=<both nonces>[,<extensions>],p=<proof>
    server final    v=<server's signature>

As in Kafka: no channel binding, no authorization id, names and passwords as they are (no SASLprep). A user who does not
exist is challenged like any other, with a salt that stays the same; the proof is computed and compared as for any
other, and then refused.

librdkafka before 2.6.1 prepends its own nonce to both nonces in its last message. That one form is accepted, as in
Kafka up to 3.9 (Kafka 4 refuses it): the server's whole nonce is in it, and the proof covers what was sent.
"""

import hmac
import re
import secrets
from typing import Final

from headrace.security.sasl.outcome import Refusal, SaslFailed
from headrace.security.sasl.scram_credential import ScramCredential, credential_of_unknown
from headrace.security.sasl.text import message_text, unescaped_name
from headrace.security.scram_common import (
    HASHES,
    NO_CHANNEL_BINDING,
    from_base64,
    sign,
    stored_key,
    to_base64,
    xor,
)

MAX_MESSAGE_BYTES: Final = 8192
"""The maximum number of bytes of each of a client's two messages."""
MAX_NONCE: Final = 1024

_NONCE: Final = r"(?P<nonce>[!-+\--~]+)"
_EXTENSIONS: Final = r"(?P<extensions>(?:,[A-Za-z]+=[^,\0]*)*)"
_FIRST: Final = re.compile(rf"n=(?P<name>[^,\0]*),r={_NONCE}{_EXTENSIONS}")
_FINAL: Final = re.compile(rf"c=(?P<binding>[^,]*),r={_NONCE}{_EXTENSIONS}")


class ScramServer:
    """One exchange: `first` reads the user's name, `challenge` requests the proof, `final` checks it and returns the
    server's own. Each raises SaslFailed, after which the exchange is over."""

    def __init__(self, mechanism: str, *, unknown_salt_key: bytes, nonce: str | None = None) -> None:
        """`nonce`: for tests only."""
        self._mechanism = mechanism
        self._hash = HASHES[mechanism]
        self._unknown_salt_key = unknown_salt_key
        self._server_nonce = nonce if nonce is not None else secrets.token_urlsafe(24)
        self._user = ""
        self._client_nonce = self._nonce = ""
        self._first_bare = b""
        self._server_first = b""
        self._credential: ScramCredential | None = None
        self._is_known = False

    def first(self, token: bytes) -> str:
        """The user that the client's first message names."""
        text = message_text(token, most_bytes=MAX_MESSAGE_BYTES)
        if not text.startswith("n,,"):
            raise SaslFailed(_refusal_of_header(text))
        bare = text[3:]
        if bare.startswith("m="):
            raise SaslFailed(Refusal.MANDATORY_EXTENSION)
        found = _FIRST.fullmatch(bare)
        if found is None or len(found["nonce"]) > MAX_NONCE:
            raise SaslFailed(Refusal.MALFORMED)
        _check_extensions(found["extensions"])
        self._user = unescaped_name(found["name"])
        self._client_nonce = found["nonce"]
        self._nonce = self._client_nonce + self._server_nonce
        self._first_bare = bare.encode()
        return self._user

    def challenge(self, credential: ScramCredential | None) -> bytes:
        """The server's first message, from the user's credential; None: there is no such user."""
        if not self._nonce:
            raise SaslFailed(Refusal.ILLEGAL_STATE)
        unknown = credential_of_unknown(self._unknown_salt_key, self._user, self._mechanism)
        self._is_known = credential is not None and credential.mechanism == self._mechanism
        self._credential = kept = credential if credential is not None and self._is_known else unknown
        self._server_first = f"r={self._nonce},s={to_base64(kept.salt)},i={kept.iterations}".encode()
        return self._server_first

    def final(self, token: bytes) -> bytes:
        """The server's last message, if the client's proof is right."""
        credential, self._credential = self._credential, None
        if credential is None:
            raise SaslFailed(Refusal.ILLEGAL_STATE)
        without_proof, _, proof_text = message_text(token, most_bytes=MAX_MESSAGE_BYTES).rpartition(",p=")
        parsed = _FINAL.fullmatch(without_proof)
        if parsed is None:
            raise SaslFailed(Refusal.MALFORMED)
        if parsed["binding"] != NO_CHANNEL_BINDING:
            raise SaslFailed(Refusal.CHANNEL_BINDING)
        sent = parsed["nonce"]
        if not hmac.compare_digest(sent, self._nonce):  # both nonces, not only the client's part
            sent = sent.removeprefix(self._client_nonce)  # sent by an old librdkafka
        if not hmac.compare_digest(sent, self._nonce):
            raise SaslFailed(Refusal.OTHER_NONCE)
        _check_extensions(parsed["extensions"])
        messages = b",".join((self._first_bare, self._server_first, without_proof.encode()))
        signature = sign(self._hash, credential.stored_key, messages)
        key = xor(_proof(proof_text, len(signature)), signature)
        does_fit = hmac.compare_digest(stored_key(self._hash, key), credential.stored_key)
        if not (does_fit and self._is_known):
            raise SaslFailed(Refusal.WRONG_CREDENTIALS)
        return f"v={to_base64(sign(self._hash, credential.server_key, messages))}".encode()


def _refusal_of_header(text: str) -> Refusal:
    if text.startswith(("y,", "p=")):
        return Refusal.CHANNEL_BINDING
    return Refusal.OTHER_AUTHORIZATION_ID if text.startswith("n,a=") else Refusal.MALFORMED


def _check_extensions(extensions: str) -> None:
    """Ignore optional extensions, and refuse mandatory ones (RFC 5802, 5.1)."""
    names = [each.partition("=")[0] for each in extensions.split(",")[1:]]
    if "tokenauth" in names:
        raise SaslFailed(Refusal.DELEGATION_TOKEN)
    if "m" in names:
        raise SaslFailed(Refusal.MANDATORY_EXTENSION)


def _proof(text: str, size: int) -> bytes:
    try:
        proof = from_base64(text)
    except ValueError:
        raise SaslFailed(Refusal.MALFORMED) from None
    if len(proof) != size:
        raise SaslFailed(Refusal.MALFORMED)
    return proof
