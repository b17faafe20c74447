"""Answers to other nodes' requests about partitions: reading stored records and sizes, opening partitionlets, rolling
load away.

Each handler answers from this node's replicas alone. It refuses what it cannot answer, so that the requesting node
tries another one.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol, TypeVar

import msgspec

from headrace.base.errors import Code, HeadraceError, KafkaError
from headrace.base.ids import ContainerId, NodeId, Offset
from headrace.base.runtime import Runtime
from headrace.container.leader import Leader
from headrace.partitions.cluster_client import ClusterClient
from headrace.partitions.reads import local_reads
from headrace.partitions.reads.local_reads import ReadFailed, Replica
from headrace.partitions.reads.remote_reads import extents_of, replica_of, sum_of
from headrace.partitions.rolls.frames import read_open
from headrace.partitions.rolls.opening import AlreadySealed
from headrace.partitions.rolls.rolls import Rolls
from headrace.peer.messages import (
    CoordinationAsked,
    CoordinationTold,
    Extents,
    ExtentsFound,
    FindTime,
    Held,
    HeldBytes,
    Message,
    Opened,
    OpenPartitionlet,
    RangeRead,
    ReadRange,
    RollAway,
    Rolled,
    TimeFound,
)
from headrace.peer.server import Handler
from headrace.peer.session import Session
from headrace.wire.primitives import Buffer

T = TypeVar("T")

MAX_BYTES: Final = 64 * 1024 * 1024
"""Limit of an answer's bytes; its last batch may exceed it."""
MAX_ROLLED: Final = 256
"""Limit of partitions that one request rolls away."""


class SentBytes(Protocol):
    """Counts the bytes sent to other nodes and clients."""

    bytes_out: int


class PeerApis:
    """The handlers of these requests; each takes a request, its payload and its session (peer.server.Handler), and
    returns the answer, perhaps with a payload."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        cluster: ClusterClient,
        rolls: Rolls,
        sent: SentBytes,
        read_failed: ReadFailed,
        held_bytes: Callable[[], Awaitable[Mapping[ContainerId, int]]],
        coordinator: Callable[[], NodeId | None],
    ) -> None:
        """`held_bytes`: the bytes in each container that this node leads. `coordinator`: the node that coordinates
        groups, as far as this node knows."""
        self._runtime = runtime
        self._cluster = cluster
        self._rolls = rolls
        self._sent = sent
        self._read_failed = read_failed
        self._held_bytes = held_bytes
        self._coordinator = coordinator

    def handlers(self) -> Mapping[type[Message], Handler]:
        """The handler of each request type."""
        return {
            ReadRange: self.read_range,
            FindTime: self.find_time,
            Extents: self.extents,
            OpenPartitionlet: self.open_partitionlet,
            RollAway: self.roll_away,
            HeldBytes: self.held_bytes,
            CoordinationAsked: self.coordination,
        }

    async def read_range(
        self, asked: ReadRange, _payload: memoryview, _session: Session
    ) -> tuple[RangeRead, list[Buffer]]:
        def read(replica: Replica) -> tuple[list[Buffer], int] | None:
            batches = local_reads.read_range(
                replica,
                asked.partitionlet,
                offset=asked.offset,
                limit=asked.limit,
                max_bytes=min(asked.max_bytes, MAX_BYTES),
            )
            return None if batches is None else (batches, sum_of(batches))

        found = await self._read(asked.container, read)
        if found is None:
            raise _not_available(asked.container)
        batches, crc = found
        self._sent.bytes_out += sum(map(len, batches))
        return RangeRead([len(batch) for batch in batches], crc=crc), batches

    async def find_time(
        self, asked: FindTime, _payload: memoryview, _session: Session
    ) -> tuple[TimeFound, list[Buffer]]:
        def read(replica: Replica) -> tuple[bytes | None] | None:
            if not local_reads.has_all(replica, asked.partitionlet, asked.limit):
                return None
            return (local_reads.find_time(replica, asked.partitionlet, asked.timestamp, asked.limit),)

        found = await self._read(asked.container, read)
        if found is None:
            raise _not_available(asked.container)
        (batch,) = found
        found_batches: list[Buffer] = [] if batch is None else [batch]
        return TimeFound(batch is not None, crc=sum_of(found_batches)), found_batches

    async def extents(self, asked: Extents, _payload: memoryview, _session: Session) -> ExtentsFound:
        replica = self._replica(asked.container)
        if not replica.led:
            raise _not_available(asked.container)
        try:
            found = await extents_of(self._runtime, replica, asked.partitionlets, set(asked.open), asked.first)
        except (HeadraceError, OSError) as error:
            raise self._failed(error, ContainerId(asked.container)) from error
        return ExtentsFound(
            [(id_, extent.size, Offset(extent.end)) for id_, extent in found.items()],
            {id_: extent.oldest for id_, extent in found.items() if extent.oldest is not None},
        )

    async def open_partitionlet(self, asked: OpenPartitionlet, payload: memoryview, _session: Session) -> Opened:
        try:
            (opening,) = read_open(payload)
        except (msgspec.DecodeError, ValueError) as error:
            raise KafkaError(Code.UNSUPPORTED_VERSION, f"an open frame is not understood: {error}") from error
        if (opening.partitionlet, opening.first) != (asked.partitionlet, asked.first):
            raise KafkaError(
                Code.UNSUPPORTED_VERSION,
                f"an open frame of {opening.partitionlet} at {opening.first} for {asked.partitionlet} at {asked.first}",
            )
        try:
            return Opened(await self._rolls.opening.open(self._led(asked.container), opening))
        except AlreadySealed as sealed:
            if sealed.epoch is None:
                raise
            return Opened(sealed.epoch)

    async def roll_away(self, asked: RollAway, _payload: memoryview, _session: Session) -> Rolled:
        count = await self._rolls.roll_away(
            self._led(asked.container),
            most=min(asked.most, MAX_ROLLED),
            to=ContainerId(asked.to) if asked.to else None,
            share=asked.share,
            limit=asked.limit,
            reason=asked.reason,
        )
        return Rolled(count)

    async def held_bytes(self, _asked: HeldBytes, _payload: memoryview, _session: Session) -> Held:
        return Held(list((await self._held_bytes()).items()))

    async def coordination(
        self, _asked: CoordinationAsked, _payload: memoryview, _session: Session
    ) -> CoordinationTold:
        return CoordinationTold(self._coordinator() or NodeId(0))

    def _led(self, container_id: ContainerId) -> Leader:
        container = self._cluster.replicas.led.get(container_id)
        if container is None or container.lost:
            raise KafkaError(
                Code.NOT_LEADER_OR_FOLLOWER, f"node {self._cluster.node_id} does not lead container {container_id}"
            )
        return container

    def _replica(self, container_id: ContainerId) -> Replica:
        replica = replica_of(self._cluster, container_id)
        if replica is None:
            raise _not_available(container_id)
        return replica

    async def _read(self, container_id: ContainerId, read: Callable[[Replica], T]) -> T:
        replica = self._replica(container_id)
        try:
            return await self._runtime.loop.run_in_executor(self._runtime.executor, read, replica)
        except (HeadraceError, OSError) as error:
            raise self._failed(error, container_id) from error

    def _failed(self, error: Exception, container_id: ContainerId) -> KafkaError:
        self._read_failed(error, container_id)
        return KafkaError(Code.KAFKA_STORAGE_ERROR, str(error))


def _not_available(container_id: ContainerId) -> KafkaError:
    return KafkaError(Code.REPLICA_NOT_AVAILABLE, f"no replica of container {container_id} here is complete enough")
