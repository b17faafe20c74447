"""A Kafka client to a source cluster: which node is where, a connection to each, and calls with typed answers.

Per node and lane there is one connection, made by the first call that needs it and kept while it works: calls of one
lane are pipelined and answered in order, so what may wait long (`Lane.POLLS`), what brings much (`Lane.FETCHES`) and
the rest (`Lane.CALLS`) do not stand in each other's way. Callers that come while a connection is being made share the
attempt. Nothing is sent twice: after `SourceUnreachable` only the caller knows what may be repeated.

Nodes and their addresses are learnt by Metadata from any node or bootstrap address, again whenever a node is unknown
or cannot be reached, and from every Metadata answer: a node that has moved is found at its new address. An address
that answers for another cluster than before is not used.

The client has no task of its own. Memory is bounded by `Limits` for each connection, of which there are three a node.
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
"""Whichever node answers."""
DECODED_APART: Final = 128 << 10
"""A longer answer is decoded in a thread: the loop has records to serve meanwhile."""
LEARNT_AGAIN_S: Final = 1.0
"""After a failure the nodes' addresses are asked for at most so often."""

FETCH_BY_ID: Final = Versions(fetch.TOPIC_IDS, fetch.VERSIONS.highest)
"""In which `Client.fetch` asks."""
_METADATA: Final = Versions(4, metadata.VERSIONS.highest)
"""Before version 4, asking for a topic made it."""
_PRODUCE: Final = Versions(3, produce.VERSIONS.highest)
"""From version 3 on batches are of the format that we have."""

T = TypeVar("T")


class Lane(Enum):
    """What is answered in order on one connection."""

    CALLS = "calls"
    FETCHES = "fetches"
    POLLS = "polls"


class _Place:
    """The connection to a node in a lane, or the last failure to make one."""

    __slots__ = ("address", "connection", "error", "failures", "lock")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.connection: Connection | None = None
        self.address: Address | None = None
        self.failures = 0
        self.error: SourceUnreachable | SourceRefuses | None = None

    def usable(self, addresses: Sequence[Address]) -> Connection | None:
        """The connection, if it can be used and leads to one of these addresses."""
        if self.connection is not None and self.connection.is_usable and self.address in addresses:
            return self.connection
        return None


class Client:
    """Calls to one cluster. Every call raises `SourceUnreachable`, `SourceRefuses`, and KafkaError UNSUPPORTED_VERSION
    where the server does not speak what is needed."""

    def __init__(self, bootstrap: Sequence[Address], *, security: Security, limits: Limits | None = None) -> None:
        self.name = ",".join(map(str, bootstrap))
        """For messages: where the client was told to ask first."""
        self.cluster_id: str | None = None
        """As the first answer said; None before it."""
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
        """Nodes, and `topics` (name or id of each; None: all), which are not made by asking.

        A node that is starting may name no nodes, and know no topics either: that is no answer.
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
        """All nodes, asked for anew."""
        return (await self.metadata()).brokers

    async def fetch(self, node: NodeId, request: FetchRequest, *, lane: Lane = Lane.FETCHES) -> FetchResponse:
        """Topics are by id. Records are views of the answer's own memory, which may be written to."""
        connection = await self._connection(node, lane)
        version = self._version(connection, ApiKey.FETCH, FETCH_BY_ID)
        body = fetch.encode_request(version, request)
        silence_s = self._limits.silence_s + request.max_wait_ms / 1000
        answer = await connection.call(ApiKey.FETCH, version, [body], silence_s=silence_s)
        try:
            return fetch.decode_response(answer, 0, version)
        except MalformedRequest as error:
            raise self._nonsense(connection, error) from error

    async def reach(self, node: NodeId, *, lane: Lane = Lane.CALLS) -> None:
        """Have a connection to a node: what fails here was never asked. The next call finds it, if made at once."""
        await self._connection(node, lane)

    async def produce(
        self, node: NodeId, partitions: Sequence[PartitionRecords], *, acks: int = -1, timeout_ms: int = 10_000
    ) -> Sequence[ProduceResult]:
        """Batches as they are; a result for each partition. `acks` is not 0."""
        connection = await self._connection(node, Lane.CALLS)
        version = self._version(connection, ApiKey.PRODUCE, _PRODUCE)
        body = produce.encode_request(version, ProduceRequest(None, acks, timeout_ms, list(partitions)))
        silence_s = self._limits.silence_s + timeout_ms / 1000
        answer = await connection.call(ApiKey.PRODUCE, version, [body], silence_s=silence_s)
        try:
            results, _ = produce.decode_response(answer, 0, version)
        except MalformedRequest as error:
            raise self._nonsense(connection, error) from error
        return results

    async def ask(self, node: NodeId, key: ApiKey, versions: Versions, fields: Mapping[str, Any]) -> Any:
        """Any API of `wire/generic_codec.py`: kio's entity of the answer, in the highest version of `versions`, which
        the caller can speak, that the server does too. Codes in it are the caller's to read."""
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
        """A call of Headrace's own; the result as `result` decodes it, or KafkaError with its code and message.

        `wait_ms`: how long the server was asked to wait.
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
        """For people: that the cluster speaks an API in none of these versions; None: it does."""
        try:
            self._version(await self._connection(ANY, Lane.CALLS), key, versions)
        except KafkaError as error:
            return str(error)
        return None

    async def close(self) -> None:
        """End all connections; calls under way raise `SourceUnreachable`. Closing twice is fine."""
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
            await self._learn_again()
            address = self._addresses.get(node)
            if address is None:
                raise SourceUnreachable(f"{self.name}: the cluster has no node {node}")
        try:
            return await self._at((node, lane), [address])
        except SourceUnreachable:
            await self._learn_again()
            moved = self._addresses.get(node)
            if moved is None or moved == address:
                raise
        return await self._at((node, lane), [moved])

    async def _any(self, lane: Lane) -> Connection:
        for (_, other), place in self._places.items():
            if other is lane and place.address is not None and (open_one := place.usable([place.address])):
                return open_one
        return await self._at((ANY, lane), list(dict.fromkeys([*self._bootstrap, *self._addresses.values()])))

    async def _at(self, key: tuple[NodeId, Lane], addresses: Sequence[Address]) -> Connection:
        """The connection of a place, made if need be, to the first of these addresses that can be reached."""
        place = self._places.setdefault(key, _Place())
        failures = place.failures
        if (connection := place.usable(addresses)) is not None:
            return connection
        async with place.lock:
            if (connection := place.usable(addresses)) is not None:
                return connection
            if place.failures != failures and place.error is not None:  # the attempt that was waited for
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
                    silent=self._doubt,
                )
            except SourceRefuses as error:
                self._context = None  # files may be others by the next attempt
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

    def _doubt(self, silent: Connection, since: float) -> None:
        """A firewall, or a host that is gone without a word, silences all connections at once. Each finding that out by
        itself, one after the other, would take a minute. One that is only being made says nothing of others."""
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

    async def _learn_again(self) -> None:
        """Ask for the nodes' addresses, or take what was answered a moment ago, be it an error."""
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
        """The highest version that both speak. Raises KafkaError UNSUPPORTED_VERSION."""
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
            raise self._nonsense(connection, error) from error

    def _nonsense(self, connection: Connection, error: MalformedRequest) -> SourceUnreachable:
        connection.abort("its answer could not be read")
        return SourceUnreachable(f"{connection.address} gave an answer that cannot be read: {error}")
