"""How a connection comes to be: TCP, TLS, what the server speaks, and SASL, all within one deadline.

    SaslHandshake 1    => mechanism STRING                      answer: error INT16, mechanisms [STRING]
    SaslAuthenticate 1 => auth BYTES                            answer: error INT16, message NULLABLE_STRING,
                                                                        auth BYTES, lifetime_ms INT64

Where the server lets a session live for a time only (KIP-368), the connection takes no more calls before that ends,
and its owner makes another.
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import Final

from headrace.base.errors import MalformedRequest
from headrace.kafka_client.connection import Connection, Limits
from headrace.kafka_client.errors import SourceRefuses, SourceUnreachable
from headrace.security.client_security import Security
from headrace.security.scram import ScramClient, ScramFailed
from headrace.wire import api_versions
from headrace.wire.api_keys import ApiKey
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
"""Of a session's lifetime; Java's clients take 0.85 to 0.95."""
_LEAST_LIFE_S: Final = 1.0
_MOST_LIFE_S: Final = 86_400.0
"""The server names any lifetime: one of no length would have each call make a connection."""


async def open_connection(
    host: str,
    port: int,
    *,
    security: Security,
    context: ssl.SSLContext | None,
    limits: Limits,
    silent: Callable[[Connection, float], None],
) -> Connection:
    """A connection that is ready for calls. Raises `SourceUnreachable`, `SourceRefuses`.

    `silent` is called when a call is given up, with the loop's time since when nothing was heard.
    """
    connection = Connection(f"{host}:{port}", limits, silent=silent)
    try:
        async with asyncio.timeout(limits.connect_s):
            await _connect(connection, host, port, context)
            await _learn_versions(connection)
            if security.mechanism is not None:
                await _authenticate(connection, security, security.mechanism)
                connection.hint = ""
    except BaseException as error:
        connection.abort("given up while connecting")
        match error:
            case TimeoutError():
                raise SourceUnreachable(
                    f"{host}:{port}: no connection within {limits.connect_s:g} s", timed_out=True
                ) from error
            case MalformedRequest():
                raise SourceUnreachable(f"{host}:{port}: {error}; is it a Kafka port?") from error
        raise
    return connection


async def _connect(connection: Connection, host: str, port: int, context: ssl.SSLContext | None) -> None:
    try:
        await asyncio.get_running_loop().create_connection(
            lambda: connection, host, port, ssl=context, server_hostname=host if context is not None else None
        )
    except ssl.SSLCertVerificationError as error:
        raise SourceRefuses(f"{host}:{port} has a certificate that is not trusted: {error.verify_message}") from error
    except ssl.SSLEOFError as error:
        raise SourceUnreachable(f"{host}:{port} ended while TLS began (does it speak TLS there?)") from error
    except ssl.SSLError as error:
        why = "it speaks no TLS" if error.reason == "WRONG_VERSION_NUMBER" else str(error.reason or error)
        raise SourceRefuses(f"{host}:{port} did not agree on TLS: {why}") from error
    except OSError as error:
        hint = " (does it speak TLS there?)" if context is not None and isinstance(error, ConnectionResetError) else ""
        raise SourceUnreachable(f"{host}:{port} cannot be reached: {error.strerror or error}{hint}") from error
    if connection.is_to_itself:  # the transport may be closed by now, and its socket not be asked any more
        raise SourceUnreachable(f"{host}:{port} cannot be reached: nobody listens there")


async def _learn_versions(connection: Connection) -> None:
    connection.hint = "is it a Kafka port, and does it speak TLS (security.protocol SSL or SASL_SSL)?"
    answer = await connection.call(ApiKey.API_VERSIONS, 0, [b""])
    error, connection.versions = api_versions.decode_v0_response(answer)
    if error:
        raise SourceUnreachable(f"{connection.address} tells no versions: error {error}")
    connection.hint = "does it want SASL (security.protocol SASL_PLAINTEXT or SASL_SSL), or has the user no right?"


async def _authenticate(connection: Connection, security: Security, mechanism: str) -> None:
    connection.hint = "while authenticating"
    who = f"{connection.address}: {security.username!r}"
    request = bytearray()
    put_string(request, mechanism, False)
    error, offered = _decode_handshake(await connection.call(_SASL_HANDSHAKE, 1, [request]))
    if error == _ILLEGAL_STATE:
        raise SourceRefuses(f"{connection.address} takes no SASL there (security.protocol PLAINTEXT or SSL)")
    if error:
        what = "offers " + ", ".join(offered) if error == _UNSUPPORTED_MECHANISM else f"says error {error}"
        raise SourceRefuses(f"{connection.address} does not take {mechanism}: it {what}")
    if mechanism == "PLAIN":
        await _say(connection, f"\0{security.username}\0{security.password}".encode(), who)
        return
    scram = ScramClient(mechanism, security.username, security.password)
    try:
        answer = await _say(connection, scram.first(), who)
        final = await asyncio.to_thread(scram.final, answer)
        scram.verify(await _say(connection, final, who))
    except ScramFailed as failure:
        raise SourceRefuses(f"{who} is refused, {mechanism}: {failure}") from failure


async def _say(connection: Connection, auth: bytes, who: str) -> bytes:
    """The server's answer to a step of SASL."""
    _, highest = connection.versions.get(_SASL_AUTHENTICATE, (0, 0))
    version = min(1, highest)
    answer = await connection.call(_SASL_AUTHENTICATE, version, [INT32.pack(len(auth)), auth])
    error, message, said, lifetime_ms = _decode_authenticate(answer, version)
    if error:
        raise SourceRefuses(f"{who} is refused: {(message or f'error {error}')[:500]}")
    if lifetime_ms > 0:
        connection.retire_after(min(max(lifetime_ms / 1000 * _LIFE_USED, _LEAST_LIFE_S), _MOST_LIFE_S))
    return said


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
    said, pos = read_bytes(answer, pos + INT32.size, max(length, 0))
    (lifetime_ms,) = INT64.unpack_from(answer, pos) if version else (0,)
    return error, message, bytes(said), lifetime_ms
