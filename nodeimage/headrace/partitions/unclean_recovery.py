"""Repair after an unclean recovery, in which a container continued without records that were acknowledged (invariant
15).

An operator let a replica that was not in sync lead: the end of the container's log is lost. Each time that a node
begins to lead such a container, it carries out the steps of this module; all of them may be repeated.

A container of records: partitionlets that are sealed in the catalog may end earlier in the log, or be gone.
`ShortenChains` records the new ends in the catalog, so that readers and retention continue behind the gap. Only a
complete log is evidence of these ends: this node leads the container, in the epoch of the seal or a later one, and the
container serves. A damaged log raises an error, and nothing is shortened. With its end the log may also have lost
seals, which normally keep batches out of partitionlets that a catalog slightly behind still lists as open: so nothing
is loaded before this node's catalog has caught up. An open partitionlet simply ends where the log does; clients notice
by the greater epoch (invariant 10), and copies in other clusters by a new home (recovered_homes.py).

The catalog's container: commands are lost, and with them the knowledge of which numbers were assigned; records lie in
containers under those numbers. `SkipNumbers` skips them, or new topics would begin with the records of lost ones.
Partitionlets that had been dropped from the catalog may be back in it, without their bytes: all containers are checked
as above. A roll that the catalog has lost but that is in the containers' logs is recorded again when it is resumed
(opening.py).
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

import structlog

from headrace.base.backoff import Backoff
from headrace.base.errors import Code, HeadraceError, KafkaError
from headrace.base.ids import ContainerId, Offset, PartitionletId, Position
from headrace.base.runtime import Runtime
from headrace.catalog.catalog import Catalog, CatalogFailed
from headrace.catalog.chains import ShortenChains, Shortened
from headrace.catalog.commands import encode
from headrace.catalog.reader import Reader
from headrace.catalog.recovery import SkipNumbers
from headrace.catalog.rows import PartitionletRow
from headrace.container.commit_wait import committed_to
from headrace.container.leader import Leader
from headrace.partitions.cluster_client import ClusterClient
from headrace.partitions.reads.local_reads import stored_end
from headrace.partitions.recovered_homes import retake_homes

log = structlog.get_logger()

SERVES_S: Final = 5.0
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 30.0
AT_ONCE: Final = 500
"""Partitionlets that are checked in one visit to a reader thread, so that fetches get their turn in between."""

Sealed = tuple[bytes, PartitionletRow]
"""The topic id of a sealed partitionlet, empty if its topic is unknown, and its row."""


class UncleanRecoveries:
    """Carries out the steps that are due on one node after unclean recoveries."""

    def __init__(self, *, runtime: Runtime, catalog: Catalog, cluster: ClusterClient, own_cluster: str) -> None:
        """`own_cluster`: this cluster's id."""
        self._runtime = runtime
        self._catalog = catalog
        self._cluster = cluster
        self._led = cluster.replicas.led
        self._own_cluster = own_cluster
        self._behind: dict[Leader, asyncio.Future[None]] = {}
        """Recovered containers that this node leads while its catalog may not yet know of seals that they lost; each
        future is done once it does."""
        self._known_recoveries = 0
        """Number of recoveries of the catalog's container when last seen."""

    def container_led(self, container: Leader) -> None:
        """This node leads a container from now on, and nothing has been written to it yet."""
        record = self._cluster.record(container.id)
        if record is None:
            return
        if record.kind == "catalog":
            if record.recovered:
                self._skip_numbers(container, record.recovered)
            return
        if record.recovered:
            self._behind[container] = self._runtime.loop.create_future()
        if record.recovered or self._catalog_recoveries():
            self._retry(container, partial(self._repair, container))

    def container_left(self, container: Leader) -> None:
        """This node no longer leads a container."""
        self._caught_up(container)

    def records_changed(self) -> None:
        """Records have changed: if the catalog was recovered, repair all containers that this node leads."""
        recovered = self._catalog_recoveries()
        if recovered > self._known_recoveries:
            self._known_recoveries = recovered
            for container in self._led.values():
                if container is not self._cluster.catalog_container:
                    self._retry(container, partial(self._repair, container))

    def is_behind(self, container: Leader) -> bool:
        """Whether partitions of a container must not be loaded yet."""
        return container in self._behind

    async def caught_up(self, container: Leader, *, timeout_s: float) -> None:
        """Wait until partitions of a container may be loaded. Raises KafkaError LEADER_NOT_AVAILABLE on a timeout."""
        behind = self._behind.get(container)
        if behind is not None:
            try:
                async with asyncio.timeout(timeout_s):
                    await asyncio.shield(behind)
            except TimeoutError:
                raise KafkaError(
                    Code.LEADER_NOT_AVAILABLE,
                    f"container {container.id} was recovered, and is being compared with the catalog",
                ) from None

    def _catalog_recoveries(self) -> int:
        record = self._cluster.catalog
        return 0 if record is None else record.recovered

    def _retry(self, container: Leader, work: Callable[[], Awaitable[None]]) -> None:
        self._runtime.spawn(self._retry_until_done(container, work))

    async def _retry_until_done(self, container: Leader, work: Callable[[], Awaitable[None]]) -> None:
        """Do some work, and retry it for as long as this node leads the container."""
        backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        while not container.lost:
            try:
                await work()
                return
            except CatalogFailed:
                return  # this node is about to stop
            except Exception as error:  # any error is retried: the container's partitions are not loaded before success
                log.warning(
                    "a recovered container could not be compared with the catalog yet",
                    container=container.id,
                    reason=str(error),
                    exc_info=not isinstance(error, HeadraceError | OSError),
                )
            await asyncio.sleep(backoff.failed())

    # --- the catalog

    def _skip_numbers(self, container: Leader, recovered: int) -> None:
        command = SkipNumbers(recovered)
        if container.log.end >= self._catalog.applied:  # append the command at once, before anybody else's
            container.append_command(encode(command)).add_done_callback(_ignore_failure)

        async def skip() -> None:
            await self._catalog.submit(command)
            await self._end_in_deleted_containers()

        self._retry(container, skip)

    async def _end_in_deleted_containers(self) -> None:
        """Remove sealed partitionlets of deleted containers from the chains again, as nothing of them is left."""
        containers = await self._catalog.query(lambda reader: reader.chains.containers())
        for each in containers:
            if self._cluster.is_deleted(each):
                await self._shorten(each, lambda row: row.first)

    # --- containers of records

    def _caught_up(self, container: Leader) -> None:
        behind = self._behind.pop(container, None)
        if behind is not None and not behind.done():
            behind.set_result(None)

    async def _repair(self, container: Leader) -> None:
        await committed_to(container, container.state.epoch_start, timeout_s=SERVES_S)
        await self._catalog.catch_up()
        if container in self._behind:  # before anything is appended where records were lost
            await retake_homes(container, catalog=self._catalog, own_cluster=self._own_cluster)
        self._caught_up(container)

        def end_of(row: PartitionletRow) -> int:
            return stored_end(container.log, row) if row.sealed_epoch <= container.epoch else row.end

        await self._shorten(container.id, end_of, only_while=container)

    async def _shorten(
        self,
        container: ContainerId,
        end_of: Callable[[PartitionletRow], int],
        *,
        only_while: Leader | None = None,
    ) -> None:
        """Record in the catalog where sealed partitionlets of a container end. `only_while`: stop once this node no
        longer leads that container."""
        after = PartitionletId(0)
        while True:
            sealed = await self._catalog.query(partial(_sealed_in, container=container, after=after))
            if not sealed:
                return
            after = sealed[-1][1].id
            items = await self._runtime.loop.run_in_executor(
                self._runtime.executor, _shortened, [each for each in sealed if each[0]], end_of
            )
            if only_while is not None and only_while.lost:
                return  # the log may have been cut or closed while it was read
            for item in items:
                log.warning(
                    "a sealed partitionlet ends earlier, its end was lost",
                    container=container,
                    partition=f"{item.topic_id.hex()}/{item.partition}",
                    partitionlet=item.partitionlet,
                    end=item.end,
                )
            if items:
                await self._catalog.submit(ShortenChains(items=items))


def _sealed_in(reader: Reader, container: ContainerId, after: PartitionletId) -> list[Sealed]:
    """[blocking] A page of the sealed partitionlets of a container."""
    rows = reader.chains.sealed_in(container, after=after, limit=AT_ONCE)
    owners = reader.chains.owners([row.id for row in rows])
    return [(owners[row.id].topic_id if row.id in owners else b"", row) for row in rows]


def _shortened(sealed: Sequence[Sealed], end_of: Callable[[PartitionletRow], int]) -> list[Shortened]:
    """[blocking] The partitionlets that end earlier than the catalog says. Raises `CorruptLog`."""
    ends = [(topic_id, row, Offset(end_of(row))) for topic_id, row in sealed]
    return [Shortened(topic_id, row.partition, row.id, end) for topic_id, row, end in ends if end < row.end]


def _ignore_failure(appended: "asyncio.Future[Position]") -> None:
    """Ignore a failed append, since the command is submitted again until it is applied."""
    if not appended.cancelled():
        appended.exception()
