"""The inventory that all steps of maintenance share: this node's replicas, what their chunks hold, and who owns it.

A closed chunk is read once and summarized in a note, since most rounds have nothing to do with most chunks. Everything
runs on the loop thread, except functions marked [blocking].
"""

import os
import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple, TypeVar

import structlog

from headrace.base.errors import CorruptLog, HeadraceError
from headrace.base.ids import PARTITIONLET_BITS, ContainerId, PartitionletId, Position, StreamNumber, stream_of
from headrace.base.runtime import Runtime
from headrace.catalog.catalog import Catalog
from headrace.catalog.reader import Reader
from headrace.catalog.rows import Owner
from headrace.container.leader import Leader
from headrace.container.local_replica import LocalReplica
from headrace.log.chunk import Body
from headrace.log.container_log import Chunk, ContainerLog, Summary
from headrace.partitions.cluster_client import ClusterClient
from headrace.storage.retention_rules import Share

log = structlog.get_logger()

T = TypeVar("T")

ChunkKey = tuple[ContainerId, int]
"""A container, and the start position of one of its chunks."""


class Held(NamedTuple):
    """A replica of this node. `led`: its container, if this node leads it."""

    id: ContainerId
    log: ContainerLog
    committed: Position
    led: Leader | None
    kick: Callable[[], None]
    is_current: bool = True
    """Whether records arrive when they are written: the replica is neither being built nor far behind."""


FAILURES = (HeadraceError, OSError, sqlite3.Error)
"""Errors with which a step may end; it is retried in the next round."""


class _Note(NamedTuple):
    """What is known of a closed chunk that was read: by stream, the smallest of its partitionlets' largest
    timestamps."""

    body: Body
    oldest: Mapping[StreamNumber, int]


class ChunkInventory:
    """This node's replicas, with notes of what their closed chunks hold."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        catalog: Catalog,
        cluster: ClusterClient,
        catalog_id: ContainerId,
        suspect: Callable[[ContainerId], None],
    ) -> None:
        """`catalog_id`: the catalog's container, which has no records; `suspect` is called for replicas that seem
        damaged."""
        self._runtime = runtime
        self._catalog = catalog
        self._cluster = cluster
        self._suspect = suspect
        self._notes: dict[ChunkKey, _Note] = {}
        self._failing: dict[ChunkKey, str] = {}
        """Chunks of which nothing can be freed, and why."""
        self.catalog_id = catalog_id

    async def blocking(self, work: Callable[[], T]) -> T:
        """Run work in a thread."""
        return await self._runtime.loop.run_in_executor(self._runtime.executor, work)

    # --- replicas

    def held(self) -> list[Held]:
        """All replicas of this node, except those that are being deleted."""
        cluster = self._cluster
        led = dict(cluster.replicas.led)
        found = [Held(each.id, each.log, each.committed, each, each.kick) for each in led.values()]
        found += [
            Held(each.id, each.log, each.committed, None, each.cycle.kick, _is_current(each))
            for each in cluster.replicas.followed()
            if each.id not in led and (record := cluster.record(each.id)) is not None and record.state != "deleted"
        ]
        return found

    def data(self) -> list[Held]:
        """The replicas that hold records."""
        return [each for each in self.held() if each.id != self.catalog_id]

    def led(self) -> list[Leader]:
        """The containers of records that this node leads."""
        return [container for container in list(self._cluster.replicas.led.values()) if container.id != self.catalog_id]

    # --- chunks

    def known_oldest(self, held: Held, chunk: Chunk) -> Mapping[StreamNumber, int] | None:
        """As `oldest`, for a closed chunk that was read before; else None."""
        note = self._notes.get((held.id, chunk.start))
        return None if note is None or note.body is not chunk.body else note.oldest

    async def oldest(self, held: Held, chunk: Chunk) -> Mapping[StreamNumber, int] | None:
        """By stream, the smallest of its partitionlets' largest timestamps in the chunk: no share of the stream expires
        earlier than that timestamp permits. None: the chunk is damaged."""
        known = self.known_oldest(held, chunk)
        if known is None:
            key, body = (held.id, chunk.start), chunk.body
            try:
                known = await self.blocking(lambda: _oldest_of(held.log, chunk))
            except HeadraceError as error:
                self.failed(key, error)
                return None
            if body.closed:
                self._notes[key] = _Note(body, known)
        return known

    async def shares(self, held: Held, chunk: Chunk, streams: Collection[StreamNumber] | None = None) -> list[Share]:
        """A chunk's shares of the partitionlets of `streams`, or of all. Raises `CorruptLog`."""
        return await self.blocking(lambda: _shares_of(held.log, chunk, streams))

    async def shares_of(self, held: Held, chunk: Chunk, partitionlets: Collection[PartitionletId]) -> list[Share]:
        """A chunk's shares of these partitionlets. Raises `CorruptLog`."""

        def read() -> list[Share]:
            found = held.log.summaries_of(chunk, partitionlets)
            return _as_shares(chunk, found) if found else []

        return await self.blocking(read)

    async def owners(self, shares: Iterable[Share]) -> dict[PartitionletId, Owner]:
        """The partitions to which these shares belong; shares without an owner are dead."""
        return await self._catalog.query(lambda reader: reader.chains.owners({share.partitionlet for share in shares}))

    async def fates(self, shares: Iterable[Share]) -> dict[PartitionletId, Owner] | None:
        """As `owners`; None if this node's catalog does not know some of the partitionlets yet: these are not dead."""

        def fates(reader: Reader) -> dict[PartitionletId, Owner] | None:
            partitionlets = {share.partitionlet for share in shares}
            return None if reader.chains.not_yet_made(partitionlets) else reader.chains.owners(partitionlets)

        return await self._catalog.query(fates)

    def failed(self, key: ChunkKey, error: Exception) -> None:
        """Note that a chunk cannot be closed, read or freed; logged once per reason.

        A suspected replica is reported to the scrub each time, since an earlier scrub may have had no result.
        """
        if self._failing.get(key) != str(error):
            self._failing[key] = str(error)
            log.error("the disk space of a chunk cannot be freed", container=key[0], chunk=key[1], error=str(error))
        if isinstance(error, CorruptLog):
            self._suspect(key[0])

    def done(self, key: ChunkKey) -> None:
        """Note that a step succeeded with a chunk."""
        self._failing.pop(key, None)

    def forget(self, key: ChunkKey) -> None:
        """Forget a chunk that is gone."""
        self._notes.pop(key, None)
        self._failing.pop(key, None)

    def keep(self, chunks: Mapping[ChunkKey, Body]) -> None:
        """Forget all chunks except these."""
        for key in [key for key, note in self._notes.items() if chunks.get(key) is not note.body]:
            del self._notes[key]
        self._failing = {key: reason for key, reason in self._failing.items() if key in chunks}


def _is_current(replica: LocalReplica) -> bool:
    return replica.follower is not None and replica.follower.is_current


def _oldest_of(container_log: ContainerLog, chunk: Chunk) -> dict[StreamNumber, int]:
    """[blocking] See ChunkInventory.oldest."""
    found = container_log.oldest(chunk, bits=PARTITIONLET_BITS, untimed=_written_at(chunk))
    return {StreamNumber(stream): oldest for stream, oldest in found.items() if stream >= 0}


def _shares_of(
    container_log: ContainerLog, chunk: Chunk, streams: Collection[StreamNumber] | None = None
) -> list[Share]:
    """[blocking] See ChunkInventory.shares."""
    return _as_shares(
        chunk,
        [
            each
            for each in container_log.summaries(chunk)
            if each.partitionlet > 0 and (streams is None or stream_of(PartitionletId(each.partitionlet)) in streams)
        ],
    )


def _as_shares(chunk: Chunk, summaries: Iterable[Summary]) -> list[Share]:
    """[blocking] Summaries as shares; records without a timestamp count as written with their chunk."""
    written = _written_at(chunk)
    return [
        Share(
            PartitionletId(each.partitionlet),
            each.first,
            each.last,
            each.max_timestamp if each.max_timestamp >= 0 else written,
            each.length,
        )
        for each in summaries
    ]


def _written_at(chunk: Chunk) -> int:
    """[blocking] The chunk's write time, in milliseconds: records without a timestamp count as old as their chunk, as
    in Kafka."""
    file = chunk.body.opened()
    return int(os.fstat(file.fd).st_mtime * 1000)
