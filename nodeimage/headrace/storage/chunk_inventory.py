"""The inventory that all steps of maintenance share: this node's replicas, what their chunks hold, and who owns it.

A closed chunk is read once and summarized in a note, since most rounds have nothing to do with most chunks. All of it
belongs to the loop thread, except functions marked [blocking].
"""

import os
import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple, TypeVar

import structlog

from headrace.base.errors import CorruptLog, HeadraceError
from headrace.base.ids import ContainerId, PartitionletId, Position, StreamNumber, stream_of
from headrace.base.runtime import Runtime
from headrace.catalog.catalog import Catalog
from headrace.catalog.reader import Reader
from headrace.catalog.rows import Owner
from headrace.container.leader import Leader
from headrace.log.chunk import Body
from headrace.log.container_log import Chunk, ContainerLog
from headrace.partitions.cluster_client import ClusterClient
from headrace.storage.retention_rules import Share

log = structlog.get_logger()

T = TypeVar("T")

ChunkKey = tuple[ContainerId, int]
"""A container, and the position at which a chunk of it starts."""
_NO_TIME = 1 << 62


class Held(NamedTuple):
    """A replica of this node. `led`: the container, where this node leads it."""

    id: ContainerId
    log: ContainerLog
    committed: Position
    led: Leader | None
    kick: Callable[[], None]


FAILURES = (HeadraceError, OSError, sqlite3.Error)
"""What a step may end with; it is tried again in the next round."""


class _Note(NamedTuple):
    """A closed chunk as it was last read: by stream, the smallest of its partitionlets' largest timestamps."""

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
        """`catalog_id`: the container that holds no records; `suspect` is told of replicas that seem damaged."""
        self._runtime = runtime
        self._catalog = catalog
        self._cluster = cluster
        self._suspect = suspect
        self._notes: dict[ChunkKey, _Note] = {}
        self._failing: dict[ChunkKey, str] = {}
        """Chunks of which nothing can be given back, and why."""
        self.catalog_id = catalog_id

    async def blocking(self, work: Callable[[], T]) -> T:
        """Run work in a thread."""
        return await self._runtime.loop.run_in_executor(self._runtime.executor, work)

    # --- replicas

    def held(self) -> list[Held]:
        """Every replica here that is not about to go."""
        cluster = self._cluster
        led = dict(cluster.replicas.led)
        found = [Held(each.id, each.log, each.committed, each, each.kick) for each in led.values()]
        found += [
            Held(each.id, each.log, each.committed, None, each.cycle.kick)
            for each in cluster.replicas.followed()
            if each.id not in led and (record := cluster.record(each.id)) is not None and record.state != "deleted"
        ]
        return found

    def data(self) -> list[Held]:
        """Those that hold records."""
        return [each for each in self.held() if each.id != self.catalog_id]

    def led(self) -> list[Leader]:
        """The containers of records that this node leads."""
        return [container for container in list(self._cluster.replicas.led.values()) if container.id != self.catalog_id]

    # --- chunks

    async def oldest(self, held: Held, chunk: Chunk) -> Mapping[StreamNumber, int] | None:
        """By stream that a closed chunk has records of, how old they are at most; None: it is damaged."""
        key = (held.id, chunk.start)
        note = self._notes.get(key)
        if note is None or note.body is not chunk.body:
            try:
                note, _ = await self._read(key, held, chunk)
            except HeadraceError as error:
                self.failed(key, error)
                return None
        return note.oldest

    async def shares(self, held: Held, chunk: Chunk, streams: Collection[StreamNumber] | None = None) -> list[Share]:
        """What a chunk holds of the partitionlets of `streams`, or of all. Raises `CorruptLog`."""
        if streams is None:
            return (await self._read((held.id, chunk.start), held, chunk))[1]
        return await self.blocking(lambda: _shares_of(held.log, chunk, streams))

    async def _read(self, key: ChunkKey, held: Held, chunk: Chunk) -> tuple[_Note, list[Share]]:
        body = chunk.body

        def read() -> tuple[_Note, list[Share]]:
            shares = _shares_of(held.log, chunk)
            return _Note(body, _oldest_of(shares)), shares

        note, shares = await self.blocking(read)
        if body.closed:
            self._notes[key] = note
        return note, shares

    async def owners(self, shares: Iterable[Share]) -> dict[PartitionletId, Owner]:
        """The partitions that these belong to; nothing for those that are dead."""
        return await self._catalog.query(lambda reader: reader.chains.owners({share.partitionlet for share in shares}))

    async def fates(self, shares: Iterable[Share]) -> dict[PartitionletId, Owner] | None:
        """As `owners`; None: this node's catalog does not know some of them yet, which are not dead."""

        def fates(reader: Reader) -> dict[PartitionletId, Owner] | None:
            partitionlets = {share.partitionlet for share in shares}
            return None if reader.chains.not_yet_made(partitionlets) else reader.chains.owners(partitionlets)

        return await self._catalog.query(fates)

    def failed(self, key: ChunkKey, error: Exception) -> None:
        """A chunk cannot be closed, read or given back; said once, for as long as it is for the same reason.

        The scrub is told each time: it may have come to nothing before.
        """
        if self._failing.get(key) != str(error):
            self._failing[key] = str(error)
            log.error("nothing is given back of a chunk", container=key[0], chunk=key[1], error=str(error))
        if isinstance(error, CorruptLog):
            self._suspect(key[0])

    def done(self, key: ChunkKey) -> None:
        """That could be done with a chunk."""
        self._failing.pop(key, None)

    def forget(self, key: ChunkKey) -> None:
        """This chunk is gone."""
        self._notes.pop(key, None)
        self._failing.pop(key, None)

    def keep(self, chunks: Mapping[ChunkKey, Body]) -> None:
        """All others are gone."""
        for key in [key for key, note in self._notes.items() if chunks.get(key) is not note.body]:
            del self._notes[key]
        self._failing = {key: reason for key, reason in self._failing.items() if key in chunks}


def _oldest_of(shares: Iterable[Share]) -> dict[StreamNumber, int]:
    oldest: dict[StreamNumber, int] = {}
    for share in shares:
        stream = stream_of(share.partitionlet)
        newest = share.max_timestamp if share.last >= 0 else _NO_TIME
        oldest[stream] = min(oldest.get(stream, newest), newest)
    return oldest


def _shares_of(
    container_log: ContainerLog, chunk: Chunk, streams: Collection[StreamNumber] | None = None
) -> list[Share]:
    """[blocking]"""
    # Records without a timestamp are as old as their chunk, as in Kafka.
    file = chunk.body.opened()
    written = int(os.fstat(file.fd).st_mtime * 1000)
    return [
        Share(
            PartitionletId(each.partitionlet),
            each.first,
            each.last,
            each.max_timestamp if each.max_timestamp >= 0 else written,
            each.length,
        )
        for each in container_log.summaries(chunk)
        if each.partitionlet > 0 and (streams is None or stream_of(PartitionletId(each.partitionlet)) in streams)
    ]
