"""The gate of a listener with SASL: until its client has authenticated, a connection accepts next to nothing.

    before authentication   ApiVersions `MAX_VERSIONS` times, SaslHandshake, SaslAuthenticate. Any other request ends
                            the connection by its key alone: its header and body are not read. Requests have at most
                            `MAX_BYTES`, ApiVersions and SaslHandshake `MAX_SHORT_BYTES`; a client that sends more
                            while its last message is processed is disconnected too
    after a handshake       SaslAuthenticate (version 1), or tokens as bare frames without a header (version 0)
    authenticated           everything. A handshake begins a re-authentication (KIP-368), in the order of the requests:
                            earlier requests are answered first, and none is accepted before it is over
    lifetime expired        the connection ends at its next request that does not re-authenticate

A failure is answered, and `FAILED_S` later the connection ends. `security.sasl.exchange` decides who is authenticated;
this module decides what is accepted when. The connection's place stays new until the client is authenticated
(`base.admission`), and until then the connection counts among those of `unproven_connections`.
"""

import asyncio
import struct
from collections.abc import Callable
from typing import Final, cast

from headrace.base.admission import Place
from headrace.base.errors import Code, KafkaError
from headrace.base.runtime import Runtime
from headrace.catalog.names import DEFAULT_STREAM
from headrace.kafka.common_refusals import NotAuthenticated
from headrace.kafka.connection import MAX_REQUEST_BYTES, ROOM_BYTES, Connection, Handler, Identify, Slot
from headrace.kafka.unproven_connections import UnprovenConnections
from headrace.partitions.caller import Caller
from headrace.security.principals import Mechanism, Principal
from headrace.security.sasl.exchange import Attempt, Done, Failed, SaslExchange
from headrace.security.sasl.mechanisms import Offered
from headrace.security.sasl.oauthbearer_server import MAX_MESSAGE_BYTES
from headrace.security.sasl.outcome import Challenge, Proven
from headrace.wire import generic_codec
from headrace.wire.api_keys import ApiKey, Versions
from headrace.wire.header import RequestHeader

MAX_BYTES: Final = MAX_MESSAGE_BYTES + (8 << 10)
"""The longest message of any mechanism, plus its header. Kafka's `sasl.server.max.receive.size` is 512 KiB: TLS could
then hold more for a connection than `unproven_connections` counts."""
MAX_SHORT_BYTES: Final = 4 << 10
MAX_VERSIONS: Final = 4
"""ApiVersions requests before authentication: a client may retry with a lower version of it."""
UNPROVEN_ROOM_BYTES: Final = 16 << 10
"""Bytes of the connection's buffer that are used before authentication."""
FAILED_S: Final = 0.1
"""Kafka's `connection.failed.authentication.delay.ms`."""

_HANDSHAKE: Final = int(ApiKey.SASL_HANDSHAKE)
_AUTHENTICATE: Final = int(ApiKey.SASL_AUTHENTICATE)
_API_VERSIONS: Final = int(ApiKey.API_VERSIONS)
_HANDSHAKE_VERSIONS: Final = Versions(0, 1)
_AUTHENTICATE_VERSIONS: Final = Versions(0, 2)
_KEY: Final = struct.Struct(">h")
_LENGTH: Final = struct.Struct(">i")
_BARE: Final = RequestHeader(_AUTHENTICATE, 0, 0, None, 0)
"""Stands in for the header of a token that is sent without one."""

Heard = Callable[[Caller, Attempt], None]
"""Called at the end of each authentication, with the connection on which it took place."""


class SaslConnection(Connection):
    """A client's connection to a listener with SASL."""

    exchange: SaslExchange
    """The authentication exchange; set when the connection is made."""

    def __init__(
        self,
        gate: "SaslGate",
        *,
        listener: str,
        default_stream: str = DEFAULT_STREAM,
        place: Place | None = None,
        identify: Identify | None = None,
    ) -> None:
        super().__init__(gate, listener=listener, default_stream=default_stream, place=place, identify=identify)
        self.security_protocol = gate.security_protocol
        self.is_proven = False
        """Whether the client has authenticated."""
        self.mechanism = ""
        """The mechanism of the exchange that is under way."""
        self._gate = gate
        self._versions_asked = 0
        self._most_bytes = MAX_BYTES
        self._room_bytes = UNPROVEN_ROOM_BYTES
        # So that the first request does not prove the place, as it does without SASL; prove() does.
        self._is_new = False

    @property
    def address(self) -> str:
        """The client's address, without a port."""
        return self._place.address if self._place is not None else self.peer.rpartition(":")[0]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See Connection."""
        super().connection_made(transport)
        self.exchange = self._gate.exchange(self)
        since = None if self._place is None else self._place.since
        if not self.closed and not self._gate.unproven.join(self, since=since):
            self.drop()

    def connection_lost(self, exc: Exception | None) -> None:
        """See Connection."""
        self._gate.unproven.leave(self)
        self.exchange.close()
        super().connection_lost(exc)

    def buffer_updated(self, nbytes: int) -> None:
        """See Connection."""
        super().buffer_updated(nbytes)
        if not self.is_proven and self.parked and self._end - self._start >= UNPROVEN_ROOM_BYTES // 2:
            self.fail("it sent more before its authentication was answered")

    def drop(self) -> None:
        """See Connection."""
        self._gate.unproven.leave(self)
        super().drop()

    def prove(self, principal: Principal) -> None:
        """Set the principal of the client, which has authenticated or re-authenticated."""
        self.principal = principal
        if not self.is_proven:
            self.is_proven = True
            self._most_bytes = MAX_REQUEST_BYTES
            self._room_bytes = ROOM_BYTES
            self._gate.unproven.leave(self)
            if self._place is not None:
                self._place.proven()

    def check_turn(self, key: int, size: int) -> None:
        """Raises NotAuthenticated for a request that is not accepted now. `size`: its bytes."""
        if key == _HANDSHAKE:
            self._check_short(size)
        elif key == _AUTHENTICATE:
            pass
        elif self.exchange.is_under_way:
            raise NotAuthenticated(f"{_describe_key(key)} was sent before the authentication under way had ended")
        elif self.is_proven:
            if self.exchange.is_expired:
                raise NotAuthenticated("the session's lifetime is over, and the client has not authenticated again")
        elif key == _API_VERSIONS and self._versions_asked < MAX_VERSIONS:
            self._check_short(size)
            self._versions_asked += 1
        else:
            raise NotAuthenticated(
                f"{_describe_key(key)} came before authentication: the client's security.protocol has to be "
                f"{self.security_protocol}"
            )

    def _check_short(self, size: int) -> None:
        if size > MAX_SHORT_BYTES and not self.is_proven:
            raise NotAuthenticated(f"a request of {size} bytes before authentication; the limit is {MAX_SHORT_BYTES}")

    def _start_request(self, request: memoryview) -> None:
        if not self.is_proven:
            self._gate.unproven.hold(self, 0)
        if self.exchange.has_raw_tokens and self.exchange.is_under_way:
            slot = BareSlot(self)
            self.slots.append(slot)
            self.park(self._gate.bare_token(self, request, slot))
            return
        (key,) = _KEY.unpack_from(request) if len(request) >= _KEY.size else (-1,)
        self.check_turn(key, len(request))
        super()._start_request(request)
        if not self.is_proven and not self.parked:
            self._gate.unproven.waits(self)

    def _taking(self, size: int) -> None:
        if not self.is_proven:
            self._gate.unproven.hold(self, size)


class BareSlot(Slot):
    """The slot of an answer that is a bare token, without Kafka's header."""

    __slots__ = ()

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, _BARE)

    def answer_token(self, token: bytes) -> None:
        """Answer with a token."""
        self.answer_pieces = [_LENGTH.pack(len(token)), token]
        self.answer_bytes = _LENGTH.size + len(token)
        self.done = True
        self._connection.answered += self.answer_bytes
        self._connection.flush()


class SaslGate:
    """The gate of one listener: a Handler between its connections and the handler that answers requests."""

    def __init__(
        self,
        handler: Handler,
        *,
        offered: Offered,
        max_reauth_ms: int,
        security_protocol: str,
        unproven: UnprovenConnections,
        runtime: Runtime,
        heard: Heard,
    ) -> None:
        """`security_protocol`: the value that clients have to set. `heard` must not block."""
        self._offered = offered
        self._max_reauth_ms = max_reauth_ms
        self.security_protocol = security_protocol
        self.unproven = unproven
        self._heard = heard
        self._handler = handler
        self._runtime = runtime

    def exchange(self, connection: Caller) -> SaslExchange:
        """The authentication exchange of a new connection."""
        return SaslExchange(
            self._offered,
            max_reauth_ms=self._max_reauth_ms,
            monotonic_ms=self._runtime.monotonic_ms,
            audit=lambda attempt: self._heard(connection, attempt),
        )

    def accepted(
        self, place: Place, *, listener: str, default_stream: str, identify: Identify | None = None
    ) -> SaslConnection:
        """The protocol object for a connection that has a place."""
        return SaslConnection(self, listener=listener, default_stream=default_stream, place=place, identify=identify)

    def connected(self, session: Connection) -> None:
        """See Handler."""
        self._handler.connected(session)

    def disconnected(self, session: Connection) -> None:
        """See Handler."""
        self._handler.disconnected(session)

    def failed(self, api_key: int, code: int) -> None:
        """See Handler."""
        self._handler.failed(api_key, code)

    def handle(self, session: Connection, header: RequestHeader, request: memoryview, slot: Slot) -> None:
        """See Handler; the connection has already checked that it is the request's turn."""
        key = header.api_key
        if key == _HANDSHAKE:
            session.park(self._handshake(cast(SaslConnection, session), header, request, slot))
        elif key == _AUTHENTICATE:
            session.park(self._authenticate(cast(SaslConnection, session), header, request, slot))
        else:
            self._handler.handle(session, header, request, slot)

    # --- the two APIs

    async def _handshake(self, session: SaslConnection, header: RequestHeader, request: memoryview, slot: Slot) -> None:
        version, mechanism = header.api_version, ""
        self.unproven.works(session)
        if _HANDSHAKE_VERSIONS.lowest <= version <= _HANDSHAKE_VERSIONS.highest:
            await self._prepared(ApiKey.SASL_HANDSHAKE, version)
            mechanism = generic_codec.decode_request(ApiKey.SASL_HANDSHAKE, version, request[header.body :]).mechanism
        reply = session.exchange.handshake(mechanism, version)
        session.mechanism = mechanism
        fields = {"error_code": int(reply.code), "mechanisms": reply.mechanisms}
        answer = generic_codec.encode_response(ApiKey.SASL_HANDSHAKE, 0, fields)  # both versions are alike
        slot.answer([answer], header_version=0)
        self.unproven.waits(session)
        if reply.code is not Code.NONE:
            self._handler.failed(_HANDSHAKE, reply.code)
            await _end(session)

    async def _authenticate(
        self, session: SaslConnection, header: RequestHeader, request: memoryview, slot: Slot
    ) -> None:
        version = header.api_version
        if not _AUTHENTICATE_VERSIONS.lowest <= version <= _AUTHENTICATE_VERSIONS.highest:
            raise KafkaError(Code.UNSUPPORTED_VERSION, f"SaslAuthenticate version {version} is not supported")
        self.unproven.works(session)
        await self._prepared(ApiKey.SASL_AUTHENTICATE, version)
        asked = generic_codec.decode_request(ApiKey.SASL_AUTHENTICATE, version, request[header.body :])
        outcome = await session.exchange.step(asked.auth_bytes)
        code, message, token, lifetime_ms = Code.NONE, None, b"", 0
        match outcome:
            case Challenge():
                token = outcome.token
            case Done():
                self._prove(session, outcome)
                token, lifetime_ms = outcome.token, outcome.lifetime_ms
            case Failed():
                code, message = outcome.code, outcome.message
        fields = {
            "error_code": int(code),
            "error_message": message,
            "auth_bytes": token,
            "session_lifetime_ms": lifetime_ms,
        }
        slot.answer([generic_codec.encode_response(ApiKey.SASL_AUTHENTICATE, version, fields)])
        self.unproven.waits(session)
        if code is not Code.NONE:
            self._handler.failed(_AUTHENTICATE, code)
            await _end(session)

    async def bare_token(self, session: SaslConnection, token: memoryview, slot: BareSlot) -> None:
        """Answer a token that was sent without a header. A failure is not answered: this form has no error."""
        self.unproven.works(session)
        outcome = await session.exchange.step(bytes(token))
        match outcome:
            case Challenge():
                slot.answer_token(outcome.token)
            case Done():
                self._prove(session, outcome)
                slot.answer_token(outcome.token)
            case Failed():
                self.unproven.waits(session)
                await _end(session)
        self.unproven.waits(session)

    def _prove(self, session: SaslConnection, done: Done) -> None:
        until = self._runtime.loop.time() + done.lifetime_ms / 1000 if done.lifetime_ms else None
        session.prove(_principal(done.proven, session.mechanism, until))

    async def _prepared(self, key: ApiKey, version: int) -> None:
        if not generic_codec.is_prepared(key, version):
            await self._runtime.loop.run_in_executor(self._runtime.executor, generic_codec.prepare, key, version)


def _principal(proven: Proven, mechanism: str, until: float | None) -> Principal:
    return Principal(proven.user, Mechanism(mechanism), proven.groups, until, proven.passwords)


async def _end(session: SaslConnection) -> None:
    """End the connection after a delay in which the client can read why; what it sends meanwhile is not read."""
    await asyncio.sleep(FAILED_S)
    session.drop()


def _describe_key(key: int) -> str:
    try:
        return ApiKey(key).name
    except ValueError:
        return f"a request of key {key}"
