"""Calls of Headrace's own client to a server that the test simulates."""

import base64
import hashlib
import hmac
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from headrace.base.addresses import Address
from headrace.base.ids import NodeId
from headrace.kafka_client.client import Client
from headrace.kafka_client.connection import Limits
from headrace.security.client_security import security_of
from headrace.wire.admin_call import decode_admin_request, encode_admin_response
from headrace.wire.api_keys import ApiKey
from headrace.wire.header import RequestHeader
from kit.certificates import Certificates
from kit.fake_kafka import Act, Answer, FakeKafka, framed

ONE = NodeId(1)

DICT = msgspec.msgpack.Decoder(dict)

QUICK = Limits(connect_s=5.0, silence_s=0.3, answer_bytes=1 << 20, under_way=8)

PATIENT = Limits(connect_s=20.0, silence_s=20.0, answer_bytes=64 << 20)

Connect = Callable[..., Client]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Makes clients; closed after the test."""
    made: list[Client] = []

    def client(*servers: FakeKafka, limits: Limits = PATIENT, **properties: str) -> Client:
        security = security_of({name.replace("_", "."): value for name, value in properties.items()})
        one = Client([Address("127.0.0.1", server.port) for server in servers], security=security, limits=limits)
        made.append(one)
        return one

    yield client
    for each in made:
        await each.close()


def echo(header: RequestHeader, body: memoryview) -> bytes:
    method, params = decode_admin_request(body)
    return encode_admin_response({"method": method, **params})


async def ask(client: Client, node: NodeId = ONE, **params: Any) -> Any:
    return await client.admin(node, "test.echo", params, DICT)


def server_context(
    certificates: Certificates, *, name: str = "server", client_authority: str | None = None
) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates.path(f"{name}.pem"), certificates.path(f"{name}.key"))
    if client_authority:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(certificates.path(client_authority))
    return context


def sasl(mechanism: str, password: str, *, lifetime_ms: int = 0) -> Answer:
    """A server that authenticates alice, by Kafka's protocol."""
    nonce = ""
    first = ""

    def step(auth: bytes) -> bytes:
        nonlocal nonce, first
        if mechanism == "PLAIN":
            return b"" if auth == f"\0alice\0{password}".encode() else b"!"
        salt = b"salt" * 4
        if not nonce:
            first = auth.decode().removeprefix("n,,")
            nonce = first.split("r=")[1] + "server"
            return f"r={nonce},s={base64.b64encode(salt).decode()},i=4096".encode()
        salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, 4096)
        said = f"{first},r={nonce},s={base64.b64encode(salt).decode()},i=4096,c=biws,r={nonce}".encode()
        client_key = hmac.digest(salted, b"Client Key", "sha256")
        proof = base64.b64decode(auth.decode().split("p=")[1])
        wanted = hmac.digest(hashlib.sha256(client_key).digest(), said, "sha256")
        nonce = ""
        if bytes(a ^ b for a, b in zip(proof, wanted, strict=True)) != client_key:
            return b"!"
        server_key = hmac.digest(salted, b"Server Key", "sha256")
        return b"v=" + base64.b64encode(hmac.digest(server_key, said, "sha256"))

    def answer(header: RequestHeader, body: memoryview) -> bytes:
        if header.api_key == 17:
            known = bytes(body[2:]).decode() == mechanism
            return struct.pack(">hih", 0 if known else 33, 1, len(mechanism)) + mechanism.encode()
        if header.api_key == 36:
            said = step(bytes(body[4:]))
            if said == b"!":
                return struct.pack(">hh", 58, 11) + b"bad secrets" + struct.pack(">iq", 0, 0)
            return struct.pack(">hhi", 0, -1, len(said)) + said + struct.pack(">q", lifetime_ms)
        return echo(header, body)

    return answer


WITH_SASL = {17: (0, 1), 36: (0, 2), int(ApiKey.METADATA): (0, 12)}


def twice(header: RequestHeader, body: memoryview) -> Act:
    return Act(framed(header, echo(header, body)) * 2)
