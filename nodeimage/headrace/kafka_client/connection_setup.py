"""Setup of a connection: TCP, TLS, the server's API versions and SASL, all within one deadline.

If the server limits the life of a session (KIP-368), the connection accepts no more calls before the session ends, and
its owner opens another.
"""

import asyncio
import ssl
from collections.abc import Callable

from headrace.base.errors import MalformedRequest
from headrace.kafka_client import authentication
from headrace.kafka_client.authentication import Authenticated, Request
from headrace.kafka_client.connection import Connection, Limits
from headrace.kafka_client.errors import SourceRefuses, SourceUnreachable
from headrace.security.client_security import Security
from headrace.wire import api_versions
from headrace.wire.api_keys import ApiKey


async def open_connection(
    host: str,
    port: int,
    *,
    security: Security,
    context: ssl.SSLContext | None,
    limits: Limits,
    silent: Callable[[Connection, float], None],
) -> Connection:
    """Open a connection that is ready for calls. Raises `SourceUnreachable`, `SourceRefuses`.

    `silent` is called when a call is given up, with the connection and the loop time since which nothing was received.
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
        raise SourceUnreachable(
            f"{host}:{port} closed the connection during the TLS handshake (does this port use TLS?)"
        ) from error
    except ssl.SSLError as error:
        why = "this port does not use TLS" if error.reason == "WRONG_VERSION_NUMBER" else str(error.reason or error)
        raise SourceRefuses(f"{host}:{port}: no TLS connection: {why}") from error
    except OSError as error:
        hint = " (does this port use TLS?)" if context is not None and isinstance(error, ConnectionResetError) else ""
        raise SourceUnreachable(f"{host}:{port} cannot be reached: {error.strerror or error}{hint}") from error
    if connection.is_to_itself:  # noted earlier, since the transport may be closed by now
        raise SourceUnreachable(f"{host}:{port} cannot be reached: nobody listens there")


async def _learn_versions(connection: Connection) -> None:
    connection.hint = "is it a Kafka port, and does it speak TLS (security.protocol SSL or SASL_SSL)?"
    answer = await connection.call(ApiKey.API_VERSIONS, 0, [b""])
    error, connection.versions = api_versions.decode_v0_response(answer)
    if error:
        raise SourceUnreachable(f"{connection.address} did not report its API versions: error {error}")
    connection.hint = (
        "does it require SASL (security.protocol SASL_PLAINTEXT or SASL_SSL), or does the user lack a right?"
    )


async def _authenticate(connection: Connection, security: Security, mechanism: str) -> None:
    connection.hint = "while authenticating"
    steps = authentication.steps(security, mechanism, address=connection.address, versions=connection.versions)
    following: Request | Authenticated = next(steps)
    while isinstance(following, Request):
        answer = await connection.call(following.api_key, following.version, [following.body])
        following = await asyncio.to_thread(authentication.following, steps, answer)
    if following.life_s is not None:
        connection.retire_after(following.life_s)
