"""Users of a node in the test's loop, security turned on and off, and the events of its audit."""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from headrace.base.ids import Millis
from headrace.catalog.access import AccessItem, SecureCluster, SetAccess
from headrace.catalog.names import DEFAULT_STREAM
from headrace.kafka.authorization import Authorization
from headrace.kafka.connection import Connection
from headrace.node.parts import NodeParts
from headrace.partitions.access_control import AccessControl
from headrace.partitions.authorizer import Authorizer
from headrace.security.access_rules import AccessRules, Kind, Permission, Rule
from headrace.security.audit import AuditLog
from headrace.security.principals import NOBODY, Mechanism, Principal
from headrace.wire import fetch, generic_codec, metadata, produce
from headrace.wire.api_keys import ApiKey
from headrace.wire.batch import build_batch
from headrace.wire.header import read_request_header, request_header
from headrace.wire.primitives import Buffer
from kit.catalog import NOW, Still
from kit.parts import handler

Expressions = Mapping[tuple[Kind, str, Permission], str]
"""Expressions by object and permission; a topic has its full name, the cluster ""."""


def principal(user: str, *groups: str, mechanism: Mechanism = Mechanism.SCRAM_SHA_256) -> Principal:
    """`user`: "" is a client that has not authenticated."""
    return Principal(user, mechanism, frozenset(groups)) if user else NOBODY


@dataclass(frozen=True)
class Client:
    """A caller without a connection."""

    principal: Principal = NOBODY
    listener: str = "external"
    default_stream: str = DEFAULT_STREAM
    peer: str = "10.0.0.7:50123"
    client_id: str | None = "app"


def client(user: str) -> Client:
    """A client that has authenticated as `user`; "" has not authenticated."""
    return Client(principal(user))


def authorization(rules: Iterable[Rule] = (), *, on: bool = True) -> Authorization:
    """An authorization without a node: it allows what these rules allow, and everything while security is off."""
    runtime = cast(Any, Still())
    access = AccessControl(runtime=runtime, catalog=cast(Any, None))
    access.rules = AccessRules.of(rules, on=on)
    return Authorization(Authorizer(runtime=runtime, access=access, audit=AuditLog([], monotonic=time.monotonic)))


async def put(parts: NodeParts, expressions: Mapping[tuple[Kind, str, Permission], str | None]) -> None:
    """Set expressions, or remove them (None)."""
    items = []
    for (kind, name, permission), text in expressions.items():
        topic_id = b""
        if kind is Kind.TOPIC:
            (topic,) = await parts.topics.resolve([name])
            topic_id, name = cast(Any, topic).topic_id, ""
        items.append(AccessItem(str(kind), name, str(permission), text, topic_id))
    outcomes = await parts.catalog.submit(SetAccess(items=items, now=Millis(int(NOW))))
    assert not any(each.code for each in outcomes), outcomes


async def secure(parts: NodeParts, *, on: bool = True) -> None:
    """Turn security on or off."""
    await parts.catalog.submit(SecureCluster(on=on))


class Slot:
    """The place of an answer, which can be awaited. None: the client was disconnected, or gets no answer."""

    timed = None

    def __init__(self) -> None:
        self.future: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self.is_followed = False
        self.throttle_ms = 0
        self.peer = "10.0.0.7:50123"
        self.codes: list[int] = []
        """The error codes of refused requests."""

    def answer(self, body: Sequence[Buffer]) -> None:
        self.future.set_result(b"".join(bytes(piece) for piece in body))

    def failed(self, code: int) -> None:
        self.codes.append(code)

    def lose(self) -> None:
        self.future.set_result(None)

    complete_without_answer = lose

    async def body(self) -> memoryview:
        async with asyncio.timeout(20):
            answer = await self.future
        assert answer is not None, "the client was cut off"
        return memoryview(answer)


class User:
    """A client whose connection has authenticated, and its requests."""

    def __init__(
        self, parts: NodeParts, name: str = "", *, groups: Iterable[str] = (), default_stream: str = DEFAULT_STREAM
    ) -> None:
        """`name`: "" has not authenticated."""
        self.parts = parts
        self.connection = Connection(parts.dispatcher, default_stream=default_stream)
        self.connection.peer = "10.0.0.7:50123"
        self.connection.client_id = "app"
        self.connection.principal = principal(name, *groups)

    async def ask(self, key: ApiKey, version: int | None = None, /, **fields: Any) -> Any:
        """Call an API of the generic codec, through the bytes of the request and the answer."""
        version = self.parts.dispatcher.apis[key].versions.highest if version is None else version
        request = generic_codec.decode_request(key, version, generic_codec.encode_request(key, version, fields))
        answer = await handler(self.parts, key)(request, self.connection)
        return generic_codec.decode_response(key, version, generic_codec.encode_response(key, version, answer))

    def _start(self, key: ApiKey, version: int, body: bytes) -> Slot:
        slot = Slot()
        request = memoryview(bytearray(request_header(key, version, 1, "app") + body))
        cast(Any, self.parts.dispatcher.apis[key]).start(self.connection, read_request_header(request), request, slot)
        return slot

    # --- Metadata

    async def metadata(
        self,
        topics: Iterable[str | bytes] | None,
        version: int = 12,
        *,
        create: bool = False,
        operations: bool = False,
    ) -> metadata.MetadataResponse:
        """`topics`: names and ids."""
        named = None if topics is None else [(each, None) if isinstance(each, str) else (None, each) for each in topics]
        asked = metadata.MetadataRequest(cast(Any, named), create, operations and version <= 10, operations)
        slot = self._start(ApiKey.METADATA, version, metadata.encode_request(version, asked))
        return metadata.decode_response(await slot.body(), 0, version)

    # --- Produce

    def start_produce(
        self,
        *topics: str,
        version: int = 9,
        acks: int = -1,
        transactional_id: str | None = None,
        batch: bytes | bytearray | None = None,
    ) -> Slot:
        """Send one record to partition 0 of each topic."""
        records = bytearray(build_batch([(int(time.time() * 1000), None, b"x", [])]) if batch is None else batch)
        parts = [produce.PartitionRecords(name, 0, memoryview(bytearray(records))) for name in topics]
        request = produce.ProduceRequest(transactional_id, acks, 1000, parts)
        return self._start(ApiKey.PRODUCE, version, produce.encode_request(version, request))

    async def produce(self, *topics: str, **more: Any) -> dict[str, produce.ProduceResult]:
        """By topic, the result of a produce request."""
        results, _ = produce.decode_response(await self.start_produce(*topics, **more).body(), 0, 9)
        return {each.topic: each for each in results}

    # --- Fetch

    def start_fetch(
        self,
        *topics: str | bytes,
        session: tuple[int, int] = (0, -1),
        wait_ms: int = 0,
        offset: int = 0,
        replica_id: int = -1,
        version: int | None = None,
    ) -> Slot:
        """Fetch partition 0 of topics, all by name or all by id."""
        version = version or (16 if topics and isinstance(topics[0], bytes) else 12)
        asked = [
            fetch.FetchTopic(
                each if isinstance(each, str) else None,
                each if isinstance(each, bytes) else None,
                [fetch.FetchPartition(0, -1, offset, -1, -1, 1 << 20)],
            )
            for each in topics
        ]
        request = fetch.FetchRequest(wait_ms, 1, 1 << 20, 0, *session, asked, [], "", replica_id)
        return self._start(ApiKey.FETCH, version, fetch.encode_request(version, request))

    async def fetch(self, *topics: str | bytes, **more: Any) -> fetch.FetchResponse:
        """The result of a fetch."""
        version = more.setdefault("version", 16 if topics and isinstance(topics[0], bytes) else 12)
        return fetch.decode_response(await self.start_fetch(*topics, **more).body(), 0, version)

    async def fetch_codes(self, *topics: str | bytes, **more: Any) -> list[int]:
        """The error code of each partition in the answer."""
        return codes_of(await self.fetch(*topics, **more))


def codes_of(response: fetch.FetchResponse) -> list[int]:
    """The error code of each partition in the answer."""
    return [part.error for topic in response.topics for part in topic.partitions]


class AuditTold:
    """The events that a node's audit reports from now on."""

    def __init__(self, parts: NodeParts) -> None:
        self.events: list[Mapping[str, object]] = []
        parts.audit._sinks.append(self.events.append)

    def denials(self) -> list[tuple[object, object, object, object]]:
        return [(each["user"], each["action"], each["kind"], each["name"]) for each in self.events]
