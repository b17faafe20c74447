"""The client's half of SASL: a state machine that turns the server's answers into the next requests. No I/O.

    SaslHandshake 1    => mechanism STRING                      answer: error INT16, mechanisms [STRING]
    SaslAuthenticate 1 => auth BYTES                            answer: error INT16, message NULLABLE_STRING,
                                                                        auth BYTES, lifetime_ms INT64

`steps` is a generator that yields requests and is sent the body of each answer; `connection_setup.py` drives it on an
event loop, `blocking_client.py` with a blocking socket. No error that it raises contains a secret.
"""

from collections.abc import Generator, Mapping
from typing import Final, NamedTuple

from headrace.kafka_client.errors import SourceRefuses
from headrace.security.client_security import Security
from headrace.security.scram import ScramClient, ScramFailed
from headrace.wire.primitives import (
    INT16,
    INT32,
    INT64,
    malformed,
    put_string,
    read_bytes,
    read_count,
    read_nullable_string,
    read_string,
)

_SASL_HANDSHAKE: Final = 17
_SASL_AUTHENTICATE: Final = 36
_UNSUPPORTED_MECHANISM: Final = 33
_ILLEGAL_STATE: Final = 34
_LIFE_USED: Final = 0.85
"""The share of a session's lifetime for which the connection is used; Java's clients use 0.85 to 0.95."""
_MIN_LIFE_S: Final = 1.0
_MAX_LIFE_S: Final = 86_400.0
"""Bounds, in seconds, on the lifetime that a server may set: with a very short one, each call would need a new
connection."""


class Request(NamedTuple):
    """A request to send; the generator is then sent the body of its answer."""

    api_key: int
    version: int
    body: bytes


class Authenticated(NamedTuple):
    """The result of a successful authentication."""

    life_s: float | None
    """Seconds for which the connection may be used (KIP-368); None: without limit."""


Steps = Generator[Request, memoryview, float | None]


def steps(security: Security, mechanism: str, *, address: str, versions: Mapping[int, tuple[int, int]]) -> Steps:
    """Yields the requests of an authentication, one after the other; returns the seconds for which the connection may
    be used, or None.

    `versions`: the versions of each API that the server supports. Raises SourceRefuses, which names the server and the
    user; MalformedRequest.
    """
    who = f"{address}: {security.username!r}"
    request = bytearray()
    put_string(request, mechanism, False)
    error, offered = _decode_handshake((yield Request(_SASL_HANDSHAKE, 1, bytes(request))))
    if error == _ILLEGAL_STATE:
        raise SourceRefuses(f"{address} does not use SASL (set security.protocol to PLAINTEXT or SSL)")
    if error:
        what = "offers " + ", ".join(offered) if error == _UNSUPPORTED_MECHANISM else f"answers error {error}"
        raise SourceRefuses(f"{address} does not accept {mechanism}: it {what} (sasl.mechanism)")
    version = min(1, versions.get(_SASL_AUTHENTICATE, (0, 0))[1])
    if mechanism == "PLAIN":
        token = f"\0{security.username}\0{security.password}".encode()
        return _answered(who, version, (yield _authenticate(version, token)))[1]
    scram = ScramClient(mechanism, security.username, security.password)
    try:
        server_token, _ = _answered(who, version, (yield _authenticate(version, scram.first())))
        server_token, life_s = _answered(who, version, (yield _authenticate(version, scram.final(server_token))))
        scram.verify(server_token)
    except ScramFailed as failure:
        raise SourceRefuses(f"{who} is refused, {mechanism}: {failure}") from failure
    return life_s


def following(running: Steps, answer: memoryview) -> Request | Authenticated:
    """[blocking] The next request, or the result, after an answer: computing SCRAM hashes takes a while. Raises as
    `steps`."""
    try:
        return running.send(answer)
    except StopIteration as end:
        return Authenticated(end.value)


def _authenticate(version: int, auth: bytes) -> Request:
    return Request(_SASL_AUTHENTICATE, version, INT32.pack(len(auth)) + auth)


def _answered(who: str, version: int, answer: memoryview) -> tuple[bytes, float | None]:
    """The server's token in a step of SASL, and the seconds for which the connection may be used, or None."""
    error, message, server_token, lifetime_ms = _decode_authenticate(answer, version)
    if error:
        raise SourceRefuses(f"{who} is refused: {(message or f'error {error}')[:500]}")
    if lifetime_ms <= 0:
        return server_token, None
    return server_token, min(max(lifetime_ms / 1000 * _LIFE_USED, _MIN_LIFE_S), _MAX_LIFE_S)


@malformed
def _decode_handshake(answer: memoryview) -> tuple[int, list[str]]:
    (error,) = INT16.unpack_from(answer)
    count, pos = read_count(answer, INT16.size, False)
    offered: list[str] = []
    for _ in range(count):
        name, pos = read_string(answer, pos, False)
        offered.append(name)
    return error, offered


@malformed
def _decode_authenticate(answer: memoryview, version: int) -> tuple[int, str | None, bytes, int]:
    (error,) = INT16.unpack_from(answer)
    message, pos = read_nullable_string(answer, INT16.size, False)
    (length,) = INT32.unpack_from(answer, pos)
    server_token, pos = read_bytes(answer, pos + INT32.size, max(length, 0))
    (lifetime_ms,) = INT64.unpack_from(answer, pos) if version else (0,)
    return error, message, bytes(server_token), lifetime_ms
