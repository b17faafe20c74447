"""What has to be made true again where a container went on with less than was acknowledged (invariant 15).

An operator let a replica lead that was not in sync: the end of the container's log is gone. Whoever leads it from then
on, and each time that somebody begins to, does what is due here; all of it may be repeated.

A container of records: its partitionlets that the catalog has as sealed may end earlier in the log, or be gone. The
catalog is told where (`ShortenChains`), so that readers and retention go on behind the gap. That is concluded from a
log alone that has all there is: this node leads it, in the epoch of the seal or a later one, and it serves. A damaged
log raises, and shortens nothing. With its end the log may have lost seals, which else keep batches out of what the
catalog here, a moment behind, still has as open: so nothing is loaded before that has caught up. What is open simply
ends where the log does; the greater epoch tells clients (invariant 10), and a new home the copies in other clusters
(recovered_homes.py).

The catalog: commands are gone, and with them the knowledge of numbers that were given away, under which records lie in
containers. Those numbers are left out (`SkipNumbers`), or new topics would begin with the records of lost ones. What
had left the catalog may be back in it, without its bytes: all containers are looked at as above. A roll that is not
known any more, but stands in the containers' logs, is recorded again when it is taken up (opening.py).
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
"""Partitionlets that one visit to a reader thread looks at, so that fetches get their turn in between."""

Sealed = tuple[bytes, PartitionletRow]
"""A sealed partitionlet, with its topic's id."""


class UncleanRecoveries:
    """One node's part in it."""

    def __init__(self, *, runtime: Runtime, catalog: Catalog, cluster: ClusterClient, own_cluster: str) -> None:
        """`own_cluster`: this cluster's id."""
        self._runtime = runtime
        self._catalog = catalog
        self._cluster = cluster
        self._led = cluster.replicas.led
        self._own_cluster = own_cluster
        self._behind: dict[Leader, asyncio.Future[None]] = {}
        """Recovered containers that are led here, while the catalog here may be behind what they lost."""
        self._catalogs = 0
        """Recoveries of the catalog, as last seen."""

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
        if record.recovered or self._of_catalog():
            self._repeat(container, partial(self._look_at, container))

    def container_left(self, container: Leader) -> None:
        """This node leads a container no more."""
        self._caught_up(container)

    def records_changed(self) -> None:
        """The catalog may have been recovered while containers are led here."""
        recovered = self._of_catalog()
        if recovered > self._catalogs:
            self._catalogs = recovered
            for container in self._led.values():
                if container is not self._cluster.catalog_container:
                    self._repeat(container, partial(self._look_at, container))

    def is_behind(self, container: Leader) -> bool:
        """Whether partitions of a container are not to be loaded yet."""
        return container in self._behind

    async def caught_up(self, container: Leader, *, timeout_s: float) -> None:
        """Return when they are. Raises KafkaError LEADER_NOT_AVAILABLE."""
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

    def _of_catalog(self) -> int:
        record = self._cluster.catalog
        return 0 if record is None else record.recovered

    def _repeat(self, container: Leader, work: Callable[[], Awaitable[None]]) -> None:
        self._runtime.spawn(self._until_done(container, work))

    async def _until_done(self, container: Leader, work: Callable[[], Awaitable[None]]) -> None:
        """Try again for as long as this node leads a container."""
        backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        while not container.lost:
            try:
                await work()
                return
            except CatalogFailed:
                return  # this node ends
            except Exception as error:  # whatever it is: nothing is loaded there before it is done
                log.warning(
                    "a recovered container is not set right yet",
                    container=container.id,
                    reason=str(error),
                    exc_info=not isinstance(error, HeadraceError | OSError),
                )
            await asyncio.sleep(backoff.failed())

    # --- the catalog

    def _skip_numbers(self, container: Leader, recovered: int) -> None:
        command = SkipNumbers(recovered)
        if container.log.end >= self._catalog.applied:  # at once, before anybody else's command
            container.append_command(encode(command)).add_done_callback(_retrieve)

        async def skip() -> None:
            await self._catalog.submit(command)
            await self._end_those_of_deleted()

        self._repeat(container, skip)

    async def _end_those_of_deleted(self) -> None:
        """Of containers that are deleted nothing is left: their sealed partitionlets leave the chains again."""
        containers = await self._catalog.query(lambda reader: reader.chains.containers())
        for each in containers:
            if self._cluster.is_deleted(each):
                await self._shorten(each, lambda row: row.first)

    # --- containers of records

    def _caught_up(self, container: Leader) -> None:
        behind = self._behind.pop(container, None)
        if behind is not None and not behind.done():
            behind.set_result(None)

    async def _look_at(self, container: Leader) -> None:
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
        """Tell the catalog where sealed partitionlets of a container end. `only_while`: this node leads that."""
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
                return  # its log may have been cut or closed under the reader
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
    """[blocking] Those that end earlier than the catalog says. Raises `CorruptLog`."""
    ends = [(topic_id, row, Offset(end_of(row))) for topic_id, row in sealed]
    return [Shortened(topic_id, row.partition, row.id, end) for topic_id, row, end in ends if end < row.end]


def _retrieve(appended: "asyncio.Future[Position]") -> None:
    """It is submitted again until it is applied."""
    if not appended.cancelled():
        appended.exception()
