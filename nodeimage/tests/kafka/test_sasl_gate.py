"""Requests before, during and after authentication, from clients that follow the protocol and from others."""

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from headrace.base.admission import Admission
from headrace.base.errors import Code
from headrace.base.runtime import Runtime
from headrace.catalog.names import DEFAULT_STREAM
from headrace.kafka import unproven_connections
from headrace.kafka.connection import MAX_REQUEST_BYTES, Connection, Slot
from headrace.kafka.sasl_gate import (
    MAX_BYTES,
    MAX_SHORT_BYTES,
    MAX_VERSIONS,
    UNPROVEN_ROOM_BYTES,
    SaslConnection,
    SaslGate,
)
from headrace.kafka.unproven_connections import MAX_HELD, UnprovenConnections
from headrace.security.principals import NOBODY, Mechanism
from headrace.security.sasl import exchange as sasl_exchange
from headrace.security.sasl.exchange import Attempt
from headrace.security.sasl.mechanisms import offered_mechanisms
from headrace.security.sasl.outcome import Refusal
from headrace.security.scram import ScramClient
from headrace.wire import generic_codec
from headrace.wire.api_keys import ApiKey
from headrace.wire.header import RequestHeader, request_header
from kit.heard_transport import HeardTransport
from kit.patience import PATIENCE
from kit.sasl import PASSWORD, MemoryCredentials, run_at_once

ALICE = f"\0alice\0{PASSWORD}".encode()
BOB = f"\0bob\0{PASSWORD}".encode()
CREDENTIALS = MemoryCredentials()
for name in ("alice", "bob"):
    CREDENTIALS.add(name, "SCRAM-SHA-256", "SCRAM-SHA-512")


class Broker:
    """Answers everything at once, and records the requests."""

    def __init__(self) -> None:
        self.handled: list[int] = []
        self.connections: list[Connection] = []
        self.waiting: list[Slot] = []
        self.counted: list[tuple[int, int]] = []
        """(API, error) of each refusal by the gate."""

    def failed(self, key: int, code: int) -> None:
        self.counted.append((key, code))

    def handle(self, session: Connection, header: RequestHeader, request: memoryview, slot: Slot) -> None:
        self.handled.append(header.api_key)
        if header.api_key == ApiKey.LIST_OFFSETS:  # answered when the test decides
            self.waiting.append(slot)
        else:
            slot.answer([b"done"], header_version=0)

    def connected(self, session: Connection) -> None:
        self.connections.append(session)

    def disconnected(self, session: Connection) -> None:
        self.connections.remove(session)


class Clock:
    def now(self) -> int:
        return 1


class Port:
    """A listener and its connections."""

    def __init__(self, credentials: MemoryCredentials, *, max_reauth_ms: int = 0) -> None:
        loop = asyncio.get_running_loop()
        self.executor = ThreadPoolExecutor(1)
        self.runtime = Runtime(executor=self.executor, clock=Clock())
        self.broker = Broker()
        self.unproven = UnprovenConnections(loop)
        self.attempts: list[Attempt] = []
        mechanisms = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")
        self.gate = SaslGate(
            self.broker,
            offered=offered_mechanisms(mechanisms, credentials=credentials, run_blocking=run_at_once),
            max_reauth_ms=max_reauth_ms,
            security_protocol="SASL_PLAINTEXT",
            unproven=self.unproven,
            runtime=self.runtime,
            heard=lambda _connection, attempt: self.attempts.append(attempt),
        )
        self.admission = Admission(kind="clients", most=9, most_of_address=9, descriptors=99, time=loop.time)

    def connect(self) -> "Client":
        place = self.admission.admit("127.0.0.1", 5, lambda: None)
        assert place is not None
        return Client(self.gate.accepted(place, listener="secure", default_stream=DEFAULT_STREAM))

    def close(self) -> None:
        self.runtime.close()
        self.executor.shutdown()

    @property
    def refusals(self) -> list[Refusal | None]:
        return [each.refusal for each in self.attempts]


class Client:
    """One connection, to which the test feeds bytes."""

    def __init__(self, connection: SaslConnection) -> None:
        self.connection = connection
        self.heard = HeardTransport()
        connection.connection_made(self.heard)
        self.read = 0

    def feed(self, raw: bytes) -> None:
        """Feed bytes as a socket would, while the connection reads."""
        while raw and not self.heard.over and self.heard.reading:
            room = self.connection.get_buffer(-1)
            taken = min(len(room), len(raw))
            room[:taken] = raw[:taken]
            self.connection.buffer_updated(taken)
            raw = raw[taken:]

    async def over(self) -> bool:
        """Whether the connection has ended."""
        await until(lambda: self.heard.over)
        return True

    async def answer(self) -> bytes:
        """The next answer."""
        await until(lambda: self.heard.over or len(self.heard.frames()) > self.read)
        assert len(self.heard.frames()) > self.read, "it ended"
        self.read += 1
        return self.heard.frames()[self.read - 1]

    async def asks(self, key: ApiKey, version: int, **fields: Any) -> Any:
        self.feed(request(key, version, **fields))
        answer = await self.answer()
        return generic_codec.decode_response(key, version, answer[5 if (key, version) == (36, 2) else 4 :])

    async def logs_in(self, token: bytes = ALICE) -> Any:
        handshake = await self.asks(ApiKey.SASL_HANDSHAKE, 1, mechanism="PLAIN")
        assert handshake.error_code == 0
        return await self.asks(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=token)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(5 * PATIENCE):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def frame(raw: bytes) -> bytes:
    return struct.pack(">i", len(raw)) + raw


def request(key: int, version: int, **fields: Any) -> bytes:
    body = generic_codec.encode_request(key, version, fields) if key in (17, 36) else b""
    return frame(request_header(key, version, 7, "test") + body)


def ids(frames: list[bytes]) -> list[int]:
    return [struct.unpack_from(">i", each)[0] for each in frames]


@pytest.fixture
async def port() -> AsyncIterator[Port]:
    made = Port(CREDENTIALS)
    yield made
    made.close()


@pytest.fixture
def no_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let sessions be renewed at once."""
    monkeypatch.setattr(sasl_exchange, "MIN_INTERVAL_MS", 0)


# --- before authentication


@pytest.mark.parametrize(
    "key", [int(key) for key in ApiKey if key not in (ApiKey.API_VERSIONS, 17, 36)] + [-1, 999, 32767]
)
async def test_nothing_else_is_taken_and_its_body_is_not_read(port: Port, key: int) -> None:
    client = port.connect()
    with capture_logs() as logs:
        client.feed(frame(struct.pack(">h", key) + b"\xff" * 40))
    assert client.heard.over
    assert port.broker.handled == []
    (told,) = [each["reason"] for each in logs if each["event"] == "connection closed"]
    assert told.endswith("came before authentication: the client's security.protocol has to be SASL_PLAINTEXT")
    assert "\n" not in told


async def test_versions_are_told_a_few_times(port: Port) -> None:
    client = port.connect()
    for _ in range(MAX_VERSIONS):
        client.feed(request(ApiKey.API_VERSIONS, 0))
    assert len(port.broker.handled) == MAX_VERSIONS
    client.feed(request(ApiKey.API_VERSIONS, 0))
    assert client.heard.over


@pytest.mark.parametrize("length", [MAX_BYTES + 1, MAX_REQUEST_BYTES, 0, -1, 0x16030100, 0x47455420])
async def test_a_frame_beyond_the_limit_ends_the_connection_by_its_length(port: Port, length: int) -> None:
    client = port.connect()
    client.feed(struct.pack(">i", length))
    assert client.heard.over
    assert client.connection._large is None


async def test_memory_is_taken_as_bytes_come(port: Port) -> None:
    client = port.connect()
    client.feed(struct.pack(">i", MAX_BYTES) + b"\x00\x24" + b"\x00" * 5_000)
    assert sum(port.unproven._held.values()) < 32 << 10
    assert client.connection._end <= UNPROVEN_ROOM_BYTES
    client.feed(b"\x00" * (MAX_BYTES - 5_002))
    assert sum(port.unproven._held.values()) == 0, "the request is whole"
    assert await client.over(), "which is none"


async def test_those_that_send_much_and_do_not_end_cost_a_bounded_amount(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unproven_connections, "MAX_HELD", 2 * MAX_BYTES)
    assert MAX_HELD > 2 * MAX_BYTES
    clients = [port.connect() for _ in range(9)]
    for each in clients:
        each.feed(struct.pack(">i", MAX_BYTES) + b"\x00\x24" + b"\x00" * (MAX_BYTES - 3))
    living = [each for each in clients if not each.heard.over]
    assert len(living) == 2
    assert len(port.unproven) == len(port.admission) == len(living)


@pytest.mark.parametrize("key", [ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE])
async def test_short_requests_are_short(port: Port, key: ApiKey) -> None:
    client = port.connect()
    client.feed(frame(struct.pack(">hh", key, 0) + b"\x00" * MAX_SHORT_BYTES))
    assert client.heard.over
    assert port.broker.handled == []


@pytest.mark.parametrize("raw", [b"", b"\x00", b"\x00\x00\x00", request(17, 1, mechanism="PLAIN")[:-1]])
async def test_half_a_frame_waits_until_the_time_is_up(port: Port, monkeypatch: pytest.MonkeyPatch, raw: bytes) -> None:
    monkeypatch.setattr(unproven_connections, "LIMIT_S", 0.05)
    client = port.connect()
    client.feed(raw)
    assert not client.heard.over
    assert await client.over()
    assert client.heard.frames() == []
    assert len(port.unproven) == len(port.admission) == 0


async def test_a_frame_too_short_for_a_key_ends_the_connection(port: Port) -> None:
    client = port.connect()
    client.feed(frame(b"\x00"))
    assert client.heard.over


async def test_tls_at_this_port_is_told_with_the_protocol_that_it_has(port: Port) -> None:
    client = port.connect()
    with capture_logs() as logs:
        client.feed(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
    (told,) = [each["reason"] for each in logs if each["event"] == "connection closed"]
    assert told.startswith("the client speaks TLS, and this port does not: its security.protocol has to be SASL_PLAIN")


async def test_a_place_is_new_until_its_client_has_authenticated(port: Port) -> None:
    client = port.connect()
    await client.asks(ApiKey.SASL_HANDSHAKE, 1, mechanism="PLAIN")
    assert len(port.admission._new) == len(port.unproven) == 1
    await client.asks(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=ALICE)
    assert len(port.admission._new) == len(port.unproven) == 0
    assert len(port.admission) == 1
    client.connection.connection_lost(None)
    assert len(port.admission) == 0
    assert port.broker.connections == []


# --- authentication


async def test_who_has_authenticated_is_somebody_and_may_ask(port: Port) -> None:
    client = port.connect()
    assert client.connection.principal is NOBODY
    answer = await client.logs_in()
    assert (answer.error_code, answer.auth_bytes) == (0, b"")
    principal = client.connection.principal
    assert (principal.user, principal.mechanism, principal.until) == ("alice", Mechanism.PLAIN, None)
    client.feed(request(ApiKey.METADATA, 9))
    await client.answer()
    assert port.broker.handled == [ApiKey.METADATA]
    assert port.refusals == [None]


async def test_requests_behind_an_authentication_wait_for_it(port: Port) -> None:
    client = port.connect()
    client.feed(
        request(ApiKey.API_VERSIONS, 0)
        + request(17, 1, mechanism="PLAIN")
        + request(36, 1, auth_bytes=ALICE)
        + request(ApiKey.METADATA, 9)
        + request(ApiKey.FETCH, 12)
    )
    assert port.broker.handled == [ApiKey.API_VERSIONS]
    for _ in range(5):
        await client.answer()
    assert port.broker.handled == [ApiKey.API_VERSIONS, ApiKey.METADATA, ApiKey.FETCH]


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_scram_with_bare_tokens(port: Port, mechanism: str) -> None:
    client = port.connect()
    await client.asks(ApiKey.SASL_HANDSHAKE, 0, mechanism=mechanism)
    scram = ScramClient(mechanism, "alice", PASSWORD)
    client.feed(frame(scram.first()))
    client.feed(frame(scram.final(await client.answer())))
    scram.verify(await client.answer())
    assert client.connection.principal.mechanism == mechanism
    client.feed(request(ApiKey.METADATA, 9))
    assert await client.answer()


async def test_a_bare_token_that_is_wrong_has_no_answer(port: Port) -> None:
    client = port.connect()
    await client.asks(ApiKey.SASL_HANDSHAKE, 0, mechanism="PLAIN")
    client.feed(frame(b"\0alice\0wrong") + request(ApiKey.METADATA, 9))
    assert await client.over()
    assert len(client.heard.frames()) == 1
    assert port.broker.handled == []
    assert port.refusals == [Refusal.WRONG_CREDENTIALS]


async def test_a_mechanism_that_is_off_is_answered_with_those_that_there_are(port: Port) -> None:
    client = port.connect()
    answer = await client.asks(ApiKey.SASL_HANDSHAKE, 1, mechanism="OAUTHBEARER")
    assert answer.error_code == Code.UNSUPPORTED_SASL_MECHANISM
    assert answer.mechanisms == ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")
    assert not client.heard.over, "the client is to read it first"
    assert await client.over()
    assert port.broker.counted == [(ApiKey.SASL_HANDSHAKE, Code.UNSUPPORTED_SASL_MECHANISM)]


@pytest.mark.parametrize("token", [b"\0alice\0wrong", b"\0nobody\0wrong", b"", b"\xff" * 100])
async def test_a_failure_is_answered_first_and_nothing_behind_it_is_taken(port: Port, token: bytes) -> None:
    client = port.connect()
    client.feed(
        request(17, 1, mechanism="PLAIN")
        + request(36, 2, auth_bytes=token)
        + request(17, 1, mechanism="PLAIN")
        + request(36, 2, auth_bytes=ALICE)
        + request(ApiKey.METADATA, 9)
    )
    assert await client.over()
    _, answer = client.heard.frames()
    told = generic_codec.decode_response(36, 2, answer[5:])
    assert told.error_code == Code.SASL_AUTHENTICATION_FAILED
    assert told.error_message == "authentication failed with mechanism PLAIN"
    assert port.broker.handled == []
    assert port.broker.counted == [(ApiKey.SASL_AUTHENTICATE, Code.SASL_AUTHENTICATION_FAILED)]
    assert client.connection.principal is NOBODY


async def test_a_token_before_any_handshake_is_answered_as_out_of_place(port: Port) -> None:
    client = port.connect()
    answer = await client.asks(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=ALICE)
    assert answer.error_code == Code.ILLEGAL_SASL_STATE
    assert await client.over()


async def test_a_client_that_sends_on_while_its_token_is_seen_to_ends(port: Port) -> None:
    client = port.connect()
    client.feed(request(17, 1, mechanism="PLAIN") + request(36, 2, auth_bytes=ALICE) + b"\x00" * UNPROVEN_ROOM_BYTES)
    assert client.heard.over
    assert len(port.unproven) == 0
    assert client.connection.principal is NOBODY


async def test_versions_that_there_are_not(port: Port) -> None:
    client = port.connect()
    client.feed(frame(struct.pack(">hhih", 17, 2, 7, -1) + b"\x00\x05PLAIN"))
    answer = generic_codec.decode_response(17, 0, (await client.answer())[4:])
    assert answer.error_code == Code.UNSUPPORTED_VERSION
    assert await client.over()
    other = port.connect()
    other.feed(frame(struct.pack(">hhih", 36, 9, 7, -1) + b"\x00\x05PLAIN"))
    assert await other.over()
    assert other.heard.frames() == []


@pytest.mark.parametrize("key", [ApiKey.API_VERSIONS, ApiKey.METADATA, ApiKey.SASL_HANDSHAKE])
async def test_between_handshake_and_token_comes_nothing(port: Port, key: ApiKey) -> None:
    client = port.connect()
    await client.asks(ApiKey.SASL_HANDSHAKE, 1, mechanism="PLAIN")
    client.feed(request(key, 0, **({"mechanism": "PLAIN"} if key == 17 else {})))
    assert await client.over()
    assert port.broker.handled == []


async def test_credentials_that_cannot_be_read_are_no_wrong_password() -> None:
    credentials = MemoryCredentials(is_away=True)
    port = Port(credentials)
    client = port.connect()
    answer = await client.logs_in()
    assert answer.error_code == Code.BROKER_NOT_AVAILABLE
    assert await client.over()
    port.close()


async def test_a_client_that_goes_away_meanwhile_leaves_nothing(port: Port) -> None:
    client = port.connect()
    await client.asks(ApiKey.SASL_HANDSHAKE, 1, mechanism="SCRAM-SHA-256")
    client.feed(request(36, 2, auth_bytes=ScramClient("SCRAM-SHA-256", "alice", PASSWORD).first()))
    client.connection.connection_lost(None)
    await until(lambda: len(port.unproven) == 0)
    assert port.refusals == [Refusal.GIVEN_UP]


# --- sessions


async def test_a_session_that_is_over_ends_at_its_next_request() -> None:
    port = Port(CREDENTIALS, max_reauth_ms=50)
    client = port.connect()
    answer = await client.logs_in()
    assert generic_codec.field(answer, "session_lifetime") == 50
    assert client.connection.principal.until is not None
    await until(lambda: client.connection.exchange.is_expired)
    assert not client.heard.over
    with capture_logs() as logs:
        client.feed(request(ApiKey.METADATA, 9))
    assert client.heard.over
    assert port.broker.handled == []
    assert "lifetime is over" in logs[-1]["reason"]
    port.close()


@pytest.mark.usefixtures("no_interval")
async def test_a_session_is_renewed_behind_what_was_asked_before() -> None:
    port = Port(CREDENTIALS, max_reauth_ms=60_000)
    client = port.connect()
    await client.logs_in()
    until_first = client.connection.principal.until
    client.feed(request(ApiKey.LIST_OFFSETS, 7))  # not answered yet
    client.feed(request(17, 1, mechanism="PLAIN") + request(36, 2, auth_bytes=ALICE) + request(ApiKey.METADATA, 9))
    await until(lambda: ApiKey.METADATA in port.broker.handled)
    assert len(client.heard.frames()) == 2, "answers wait for the first"
    port.broker.waiting[0].answer([b"done"], header_version=0)
    for _ in range(4):
        await client.answer()
    assert port.broker.handled == [ApiKey.LIST_OFFSETS, ApiKey.METADATA]
    renewed = client.connection.principal
    assert renewed.until is not None
    assert until_first is not None
    assert renewed.until >= until_first
    assert [each.is_renewal for each in port.attempts] == [False, True]
    port.close()


@pytest.mark.usefixtures("no_interval")
@pytest.mark.parametrize(
    ("mechanism", "token"),
    [("PLAIN", BOB), ("PLAIN", b"\0alice\0wrong"), ("SCRAM-SHA-256", b"n,,n=alice,r=abc")],
    ids=["another user", "a wrong password", "another mechanism"],
)
async def test_a_renewal_that_is_none_ends_the_connection(port: Port, mechanism: str, token: bytes) -> None:
    client = port.connect()
    await client.logs_in()
    await client.asks(ApiKey.SASL_HANDSHAKE, 1, mechanism=mechanism)
    client.feed(request(36, 2, auth_bytes=token) + request(ApiKey.METADATA, 9))
    answer = generic_codec.decode_response(36, 2, (await client.answer())[5:])
    assert answer.error_code == Code.SASL_AUTHENTICATION_FAILED
    assert await client.over()
    assert port.broker.handled == []


@pytest.mark.usefixtures("no_interval")
async def test_nothing_is_taken_between_a_renewals_handshake_and_its_end(port: Port) -> None:
    client = port.connect()
    await client.logs_in()
    await client.asks(ApiKey.SASL_HANDSHAKE, 1, mechanism="PLAIN")
    client.feed(request(ApiKey.METADATA, 9))
    assert client.heard.over
    assert port.broker.handled == []


@given(st.lists(st.binary(max_size=40) | st.sampled_from([3, 17, 18, 36]), max_size=8))
def test_strangers_get_nowhere(pieces: list[bytes | int]) -> None:
    """Whatever a client sends without a valid token, only ApiVersions is passed on."""

    async def talk() -> None:
        port = Port(CREDENTIALS)
        client = port.connect()
        for piece in pieces:
            if isinstance(piece, bytes):
                client.feed(frame(piece) if len(piece) % 2 else piece)
            else:
                client.feed(request(piece, 0, **{17: {"mechanism": "PLAIN"}, 36: {"auth_bytes": b"x"}}.get(piece, {})))
            await asyncio.sleep(0)
        assert set(port.broker.handled) <= {ApiKey.API_VERSIONS}
        assert client.connection.principal is NOBODY
        client.connection.connection_lost(None)
        assert len(port.unproven) == len(port.admission) == 0
        port.close()

    asyncio.run(talk())
