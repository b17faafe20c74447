"""A Kafka client for a source cluster: finds the nodes, keeps connections to them, and makes calls with typed answers.

For each node and lane there is one connection, opened by the first call that needs it and kept while it works. The
calls of one lane are pipelined and answered in order, so calls that may wait long (`Lane.POLLS`), calls with large
answers (`Lane.FETCHES`) and the others (`Lane.CALLS`) do not delay each other. Concurrent callers share an attempt to
connect. Nothing is sent twice: after `SourceUnreachable` only the caller knows what may be repeated.

Nodes and their addresses are learnt by Metadata from any node or bootstrap address: whenever a node is unknown or
unreachable, and from every Metadata answer, so a node that has moved is found at its new address. An address that
answers for another cluster than before is not used.

The client has no task of its own. Its memory is bounded by `Limits` for each connection; a node has at most three.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, TypeVar

import msgspec

from headrace.base.addresses import Address
from headrace.base.errors import Code, KafkaError, MalformedRequest
from headrace.base.ids import NodeId
from headrace.kafka_client.connection import Connection, Limits
from headrace.kafka_client.connection_setup import open_connection
from headrace.kafka_client.errors import SourceRefuses, SourceUnreachable
from headrace.security.client_security import Security
from headrace.wire import fetch, generic_codec, metadata, produce
from headrace.wire.admin_call import decode_admin_response, encode_admin_request
from headrace.wire.api_keys import ApiKey, Versions
from headrace.wire.fetch import FetchRequest, FetchResponse
from headrace.wire.metadata import Broker, MetadataRequest, MetadataResponse
from headrace.wire.primitives import Buffer
from headrace.wire.produce import PartitionRecords, ProduceRequest, ProduceResult

ANY: Final = NodeId(-1)
"""Stands for any node that answers."""
DECODED_APART: Final = 128 << 10
"""Size above which an answer is decoded in a thread, so that the loop can serve records meanwhile."""
LEARNT_AGAIN_S: Final = 1.0
"""Minimum seconds between two requests for the nodes' addresses after a failure."""

FETCH_BY_ID: Final = Versions(fetch.TOPIC_IDS, fetch.VERSIONS.highest)
"""The versions in which `Client.fetch` sends requests."""
_METADATA: Final = Versions(4, metadata.VERSIONS.highest)
"""Before version 4, a request for a topic created it."""
_PRODUCE: Final = Versions(3, produce.VERSIONS.highest)
"""Since version 3 batches have the format that Headrace uses."""

T = TypeVar("T")


class Lane(Enum):
    """Calls that share a connection and are answered in order."""

    CALLS = "calls"
    FETCHES = "fetches"
    POLLS = "polls"


class _Place:
    """The connection to a node in a lane, or the last failure to open one."""

    __slots__ = ("address", "connection", "error", "failures", "lock")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.connection: Connection | None = None
        self.address: Address | None = None
        self.failures = 0
        self.error: SourceUnreachable | SourceRefuses | None = None

    def usable(self, addresses: Sequence[Address]) -> Connection | None:
        """The connection, if it is usable and leads to one of these addresses."""
        if self.connection is not None and self.connection.is_usable and self.address in addresses:
            return self.connection
        return None


class Client:
    """A client of one cluster. Every call raises `SourceUnreachable`, `SourceRefuses`, and KafkaError
    UNSUPPORTED_VERSION if the server does not support the required version."""

    def __init__(self, bootstrap: Sequence[Address], *, security: Security, limits: Limits | None = None) -> None:
        self.name = ",".join(map(str, bootstrap))
        """The bootstrap addresses, for messages."""
        self.cluster_id: str | None = None
        """The id in the first answer; None before that."""
        self._bootstrap = list(bootstrap)
        self._security = security
        self._limits = limits or Limits()
        self._context: ssl.SSLContext | None = None
        self._context_lock = asyncio.Lock()
        self._addresses: dict[NodeId, Address] = {}
        self._learning = asyncio.Lock()
        self._learnt_at = -LEARNT_AGAIN_S
        self._learn_error: SourceUnreachable | SourceRefuses | None = None
        self._places: dict[tuple[NodeId, Lane], _Place] = {}
        self._connections: set[Connection] = set()
        self._closing = False

    # --- calls

    async def metadata(
        self, topics: Sequence[tuple[str | None, bytes | None]] | None = (), *, node: NodeId = ANY
    ) -> MetadataResponse:
        """Fetch the nodes, and `topics` (name or id of each; None: all), without creating topics.

        A starting node may name no nodes, and know no topics: such an answer counts as SourceUnreachable.
        """
        request = MetadataRequest(None if topics is None else list(topics), False)
        connection = await self._connection(node, Lane.CALLS)
        version = self._version(connection, ApiKey.METADATA, _METADATA)
        if version < 12 and any(name is None for name, _ in topics or ()):
            raise self._too_old(connection, ApiKey.METADATA, 12)
        answer = await connection.call(ApiKey.METADATA, version, [metadata.encode_request(version, request)])
        response = await self._decoded(connection, answer, lambda: metadata.decode_response(answer, 0, version))
        if not response.brokers:
            raise SourceUnreachable(f"{connection.address} names no nodes yet")
        self._learn(connection, response)
        return response

    async def nodes(self) -> Sequence[Broker]:
        """The nodes, from a new Metadata request."""
        return (await self.metadata()).brokers

    async def fetch(self, node: NodeId, request: FetchRequest, *, lane: Lane = Lane.FETCHES) -> FetchResponse:
        """Fetch records, with topics by id. Records are views of the answer's own memory, which is writable."""
        connection = await self._connection(node, lane)
        version = self._version(connection, ApiKey.FETCH, FETCH_BY_ID)
        body = fetch.encode_request(version, request)
        silence_s = self._limits.silence_s + request.max_wait_ms / 1000
        answer = await connection.call(ApiKey.FETCH, version, [body], silence_s=silence_s)
        try:
            return fetch.decode_response(answer, 0, version)
        except MalformedRequest as error:
            raise self._unreadable(connection, error) from error

    async def reach(self, node: NodeId, *, lane: Lane = Lane.CALLS) -> None:
        """Make sure that there is a connection to a node; nothing has been sent if this fails. An immediately following
        call uses it."""
        await self._connection(node, lane)

    async def produce(
        self, node: NodeId, partitions: Sequence[PartitionRecords], *, acks: int = -1, timeout_ms: int = 10_000
    ) -> Sequence[ProduceResult]:
        """Send batches unchanged; returns a result for each partition. `acks` must not be 0."""
        connection = await self._connection(node, Lane.CALLS)
        version = self._version(connection, ApiKey.PRODUCE, _PRODUCE)
        body = produce.encode_request(version, ProduceRequest(None, acks, timeout_ms, list(partitions)))
        silence_s = self._limits.silence_s + timeout_ms / 1000
        answer = await connection.call(ApiKey.PRODUCE, version, [body], silence_s=silence_s)
        try:
            results, _ = produce.decode_response(answer, 0, version)
        except MalformedRequest as error:
            raise self._unreadable(connection, error) from error
        return results

    async def ask(self, node: NodeId, key: ApiKey, versions: Versions, fields: Mapping[str, Any]) -> Any:
        """Call any API of `wire/generic_codec.py`; returns kio's entity of the answer. Uses the highest version that
        both the server and the caller (`versions`) support. Error codes in the answer are left to the caller."""
        connection = await self._connection(node, Lane.CALLS)
        version = self._version(connection, key, versions)
        if not generic_codec.is_prepared(key, version):
            await asyncio.to_thread(generic_codec.prepare, key, version)
        answer = await connection.call(key, version, [generic_codec.encode_request(key, version, fields)])
        return await self._decoded(connection, answer, lambda: generic_codec.decode_response(key, version, answer))

    async def admin(
        self,
        node: NodeId,
        method: str,
        params: Mapping[str, Any],
        result: msgspec.msgpack.Decoder[T],
        *,
        lane: Lane = Lane.CALLS,
        wait_ms: int = 0,
    ) -> T:
        """Call one of Headrace's own admin methods; returns the result as `result` decodes it, or raises KafkaError
        with the answer's code and message.

        `wait_ms`: how long the request lets the server wait.
        """
        connection = await self._connection(node, lane)
        body = encode_admin_request(method, params)
        silence_s = self._limits.silence_s + wait_ms / 1000
        try:
            answer = await connection.call(ApiKey.HEADRACE_ADMIN, 0, [body], silence_s=silence_s)
        except SourceUnreachable as error:
            if error.timed_out or self._closing:
                raise
            raise SourceUnreachable(f"{error}, asked {method} (is it a Headrace cluster, of this version?)") from error
        return await self._decoded(connection, answer, lambda: decode_admin_response(method, answer, result))

    async def lacks(self, key: ApiKey, versions: Versions) -> str | None:
        """A message that the cluster supports an API in none of these versions; None if it supports one."""
        try:
            self._version(await self._connection(ANY, Lane.CALLS), key, versions)
        except KafkaError as error:
            return str(error)
        return None

    async def close(self) -> None:
        """Close all connections; calls under way raise `SourceUnreachable`. Closing twice is harmless."""
        self._closing = True
        ending = list(self._connections)
        for connection in ending:
            connection.abort("closed on this side")
        for connection in ending:
            await connection.closed()
        self._connections.clear()

    # --- connections

    async def _connection(self, node: NodeId, lane: Lane) -> Connection:
        if node == ANY:
            return await self._any(lane)
        address = self._addresses.get(node)
        if address is None:
            await self._refresh_nodes()
            address = self._addresses.get(node)
            if address is None:
                raise SourceUnreachable(f"{self.name}: the cluster has no node {node}")
        try:
            return await self._at((node, lane), [address])
        except SourceUnreachable:
            await self._refresh_nodes()
            moved = self._addresses.get(node)
            if moved is None or moved == address:
                raise
        return await self._at((node, lane), [moved])

    async def _any(self, lane: Lane) -> Connection:
        for (_, other), place in self._places.items():
            if other is lane and place.address is not None and (connection := place.usable([place.address])):
                return connection
        return await self._at((ANY, lane), list(dict.fromkeys([*self._bootstrap, *self._addresses.values()])))

    async def _at(self, key: tuple[NodeId, Lane], addresses: Sequence[Address]) -> Connection:
        """The connection for a node and lane, opened if necessary, to the first of these addresses that can be
        reached."""
        place = self._places.setdefault(key, _Place())
        failures = place.failures
        if (connection := place.usable(addresses)) is not None:
            return connection
        async with place.lock:
            if (connection := place.usable(addresses)) is not None:
                return connection
            if place.failures != failures and place.error is not None:  # of the attempt that this call waited for
                raise place.error.again()
            if place.connection is not None:
                place.connection.retire()
            try:
                place.connection, place.address = await self._open(addresses)
            except (SourceUnreachable, SourceRefuses) as error:
                place.failures += 1
                place.error = error
                raise
            return place.connection

    async def _open(self, addresses: Sequence[Address]) -> tuple[Connection, Address]:
        errors: list[SourceUnreachable | SourceRefuses] = []
        for address in addresses:
            if self._closing:
                raise SourceUnreachable(f"{self.name}: closed on this side")
            try:
                connection = await open_connection(
                    address.host,
                    address.port,
                    security=self._security,
                    context=await self._tls(),
                    limits=self._limits,
                    silent=self._doubt_siblings,
                )
            except SourceRefuses as error:
                self._context = None  # the files may have changed by the next attempt
                errors.append(error)
                continue
            except SourceUnreachable as error:
                errors.append(error)
                continue
            if self._closing:
                connection.abort("closed on this side")
                raise SourceUnreachable(f"{self.name}: closed on this side")
            self._connections = {other for other in self._connections if not other.is_gone}
            self._connections.add(connection)
            return connection, address
        text = "; ".join(map(str, errors[:3])) + (f"; and {len(errors) - 3} more" if len(errors) > 3 else "")
        if any(isinstance(error, SourceRefuses) for error in errors):
            raise SourceRefuses(text)
        raise SourceUnreachable(text, timed_out=any(getattr(error, "timed_out", False) for error in errors))

    def _doubt_siblings(self, silent: Connection, since: float) -> None:
        """End the other connections to an address that have been silent for as long as `silent`. A firewall, or a
        host that vanished, silences all connections at once; if each found out by itself, one after the other, it would
        take a minute. A connection that is still being opened says nothing about others."""
        if silent in self._connections:
            for each in list(self._connections):
                if each.address == silent.address:
                    each.doubt(since)

    async def _tls(self) -> ssl.SSLContext | None:
        if not self._security.tls:
            return None
        async with self._context_lock:
            if self._context is None:
                self._context = await asyncio.to_thread(self._security.context)
            return self._context

    # --- nodes

    async def _refresh_nodes(self) -> None:
        """Request the nodes' addresses, or reuse the result of a moment ago, even if it was an error."""
        loop = asyncio.get_running_loop()
        async with self._learning:
            if loop.time() - self._learnt_at >= LEARNT_AGAIN_S:
                self._learn_error = None
                try:
                    await self.metadata()
                except (SourceUnreachable, SourceRefuses) as error:
                    self._learn_error = error
                    raise
                finally:
                    self._learnt_at = loop.time()
            elif self._learn_error is not None:
                raise self._learn_error.again()

    def _learn(self, connection: Connection, response: MetadataResponse) -> None:
        if response.cluster_id is not None:
            if self.cluster_id is None:
                self.cluster_id = response.cluster_id
            elif self.cluster_id != response.cluster_id:
                connection.abort("another cluster answers")
                raise SourceUnreachable(
                    f"{connection.address} belongs to cluster {response.cluster_id!r} now, not to {self.cluster_id!r}"
                )
        self._addresses = {NodeId(each.node_id): Address(each.host, each.port) for each in response.brokers}
        for (node, lane), place in list(self._places.items()):
            if node != ANY and place.address is not None and self._addresses.get(node) != place.address:
                if place.connection is not None:
                    place.connection.retire()
                if node not in self._addresses and not place.lock.locked():
                    del self._places[node, lane]

    # --- versions and answers

    def _version(self, connection: Connection, key: ApiKey, ours: Versions) -> int:
        """The highest version that both sides support. Raises KafkaError UNSUPPORTED_VERSION."""
        lowest, highest = connection.versions.get(key, (0, -1))
        version = min(ours.highest, highest)
        if version < max(ours.lowest, lowest):
            raise self._too_old(connection, key, ours.lowest)
        return version

    def _too_old(self, connection: Connection, key: ApiKey, lowest: int) -> KafkaError:
        theirs = connection.versions.get(key)
        spoken = "not at all" if theirs is None else f"in versions {theirs[0]} to {theirs[1]}"
        return KafkaError(
            Code.UNSUPPORTED_VERSION, f"{connection.address} speaks {key.name} {spoken}; {lowest} or later is needed"
        )

    async def _decoded(self, connection: Connection, answer: Buffer, decode: Callable[[], T]) -> T:
        try:
            return await asyncio.to_thread(decode) if len(answer) > DECODED_APART else decode()
        except MalformedRequest as error:
            raise self._unreadable(connection, error) from error

    def _unreadable(self, connection: Connection, error: MalformedRequest) -> SourceUnreachable:
        connection.abort("its answer could not be read")
        return SourceUnreachable(f"{connection.address} gave an answer that cannot be read: {error}")
