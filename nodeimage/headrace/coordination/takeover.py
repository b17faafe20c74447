"""When this node coordinates groups: while it leads the catalog's container, and only once it has caught up with it.

    another node leads the catalog  ->  NOT_COORDINATOR
    this node takes it over         ->  requests wait for WAIT_S, then get COORDINATOR_LOAD_IN_PROGRESS
    this node has taken over        ->  the group service, in memory
    this node no longer leads it    ->  requests that wait for a rebalance get NOT_COORDINATOR; the service ends

Taking over means that everything committed by earlier leaders is known to be committed (invariant 8: the container
serves) and is applied on this node. From then on the committed offsets and generations in the tables are the latest.
Each epoch has a new service: everything that an earlier service held in memory is in the catalog, or was never
promised.

Clients that look for the coordinator get a node only once that node confirms that it coordinates or is about to, unless
it does not answer (`_named_by`): this node's view may be old, and a client that reaches a wrong node twice gives up its
commits (librdkafka), and its program sees an error.

A coordinator that is out of touch with its followers may have been replaced without knowing it, so it answers nobody
(invariant 16). Everything runs on the loop thread.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import structlog

from headrace.base.errors import Code, HeadraceError, KafkaError
from headrace.base.ids import NodeId
from headrace.base.runtime import Runtime
from headrace.catalog.catalog import Catalog
from headrace.container.commit_wait import back_in_touch, committed_to
from headrace.container.leader import Leader
from headrace.coordination.service import GroupService
from headrace.partitions.cluster_client import ClusterClient
from headrace.peer.messages import CoordinationAsked

log = structlog.get_logger(__name__)

WAIT_S: Final = 5.0
"""Seconds for which a request waits for the service."""
ROUND_S: Final = 5.0
"""Seconds of one wait for the container to serve."""
RETRY_S: Final = 0.2
FIND_S: Final = 1.0
"""Seconds for which a client that looks for the coordinator waits until there is one."""
ASK_AGAIN_S: Final = 0.1
ASK_S: Final = 0.5
"""Timeout, in seconds, for asking another node which node coordinates groups."""


class Coordination:
    """Owns the group service while this node coordinates groups, and finds the coordinator otherwise."""

    def __init__(
        self, *, runtime: Runtime, catalog: Catalog, cluster: ClusterClient, make: Callable[[], GroupService]
    ) -> None:
        """`make` returns a new service, without any group in memory."""
        self._runtime = runtime
        self._catalog = catalog
        self._cluster = cluster
        self._make = make
        self._container: Leader | None = None
        self._taking_over: asyncio.Task[None] | None = None
        self._service: GroupService | None = None
        self._finding: asyncio.Task[NodeId | None] | None = None
        self._changed = asyncio.Event()
        self._closed = False

    @property
    def present(self) -> GroupService:
        """The service, if this node coordinates. Raises KafkaError NOT_COORDINATOR."""
        if self._service is None:
            raise _not_coordinator()
        return self._service

    @property
    def is_here(self) -> bool:
        """Whether this node coordinates."""
        return self._service is not None

    @property
    def elsewhere(self) -> bool:
        """Whether another node coordinates, and this one is not about to."""
        return self._container is None and not self.is_due

    @property
    def named(self) -> NodeId | None:
        """The coordinating node as far as this node knows; this node only if it coordinates or is about to."""
        if self.is_due or self._container is not None:
            return None if self._closed else self._cluster.node_id
        return self.leader

    @property
    def is_due(self) -> bool:
        """Whether the cluster wants this node to lead the catalog's container, even if it does not lead it yet."""
        return self.leader == self._cluster.node_id

    @property
    def leader(self) -> NodeId | None:
        """The node that leads the catalog's container, as far as this node knows."""
        record = self._cluster.catalog
        return None if record is None else record.leader

    async def find(self) -> NodeId | None:
        """The coordinating node, as confirmed by itself, or as known here if it does not answer; None if there is none
        within FIND_S."""
        if self._finding is None or self._finding.done():
            self._finding = self._runtime.spawn(self._find())
        return await asyncio.shield(self._finding)

    async def _find(self) -> NodeId | None:
        try:
            async with asyncio.timeout(FIND_S):
                while (named := self.leader) is not None:
                    confirmed = await self._named_by(named)
                    if confirmed is not None and (confirmed == named or await self._named_by(confirmed) == confirmed):
                        return confirmed
                    self._changed.clear()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(ASK_AGAIN_S):
                            await self._changed.wait()
        except TimeoutError:
            pass
        return None

    async def _named_by(self, node_id: NodeId) -> NodeId | None:
        """The node that `node_id` names as the coordinator. If `node_id` does not answer, it is returned itself: the
        client may still reach it, and otherwise another node will lead soon."""
        if node_id == self._cluster.node_id:
            return self.named
        node = self._cluster.node(node_id)
        if node is None:
            return node_id
        try:
            answer, _ = await self._cluster.ask(node, CoordinationAsked(), timeout_s=ASK_S)
        except HeadraceError:
            return node_id
        return answer.node or None

    async def service(self) -> GroupService:
        """The service, once this node has taken over.

        Raises KafkaError: NOT_COORDINATOR; COORDINATOR_LOAD_IN_PROGRESS after the wait; COORDINATOR_NOT_AVAILABLE while
        out of touch with the followers, or when the node stops.
        """
        if self._service is None:
            await self._wait_for_service()
        container = self._container
        if container is not None and not container.in_touch and not await back_in_touch(container):
            raise KafkaError(
                Code.COORDINATOR_NOT_AVAILABLE, "this node has not heard from the catalog's followers for a moment"
            )
        return self.present

    async def _wait_for_service(self) -> None:
        try:
            async with asyncio.timeout(WAIT_S):
                while self._service is None:
                    if self._closed:
                        raise KafkaError(Code.COORDINATOR_NOT_AVAILABLE, "the node is shutting down")
                    if self.elsewhere:
                        raise _not_coordinator()
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise KafkaError(
                Code.COORDINATOR_LOAD_IN_PROGRESS, "this node is about to coordinate groups; ask again in a moment"
            ) from None

    # --- events

    def container_led(self, container: Leader) -> None:
        """Note that this node leads a container; if it is the catalog's, start to take over the groups."""
        if container is not self._cluster.catalog_container or self._closed:
            return
        self._end_service(Code.NOT_COORDINATOR)
        self._container = container
        self._taking_over = self._runtime.spawn(self._take_over(container))
        self._changed.set()

    def container_left(self, container: Leader) -> None:
        """Note that this node no longer leads a container."""
        if container is not self._container:
            return
        self._container = None
        if self._taking_over is not None:
            self._taking_over.cancel()
            self._taking_over = None
        if self._service is not None:
            log.info("no longer coordinates groups", epoch=container.epoch)
        self._end_service(Code.NOT_COORDINATOR)
        self._changed.set()

    def records_changed(self) -> None:
        """Note that another node may lead the catalog now."""
        self._changed.set()

    def close(self) -> None:
        """End the service, because the node stops."""
        self._closed = True
        self._end_service(Code.COORDINATOR_NOT_AVAILABLE)
        self._changed.set()

    # --- inside

    async def _take_over(self, container: Leader) -> None:
        start = container.state.epoch_start
        while not container.serves:
            if container.lost:
                return
            try:
                await committed_to(container, start, timeout_s=ROUND_S)
            except KafkaError as error:
                log.info("groups wait for the catalog's container", reason=str(error))
        while True:
            try:
                await self._catalog.wait_applied(start)
                break
            except HeadraceError as error:
                log.warning("groups cannot be taken over yet", reason=str(error))
                await asyncio.sleep(RETRY_S)
        if container.lost or self._closed:
            return
        service = self._service = self._make()
        log.info("coordinates groups", epoch=container.epoch)
        self._changed.set()
        self._runtime.spawn(_warm(service))

    def _end_service(self, code: Code) -> None:
        service, self._service = self._service, None
        if service is not None:
            service.close(code)


async def _warm(service: GroupService) -> None:
    """Load all groups with members, so that sessions of members that are gone end even if nobody asks for their
    groups."""
    try:
        await service.warm()
    except HeadraceError as error:
        log.warning("not all groups were loaded; the others are loaded on demand", reason=str(error))


def _not_coordinator() -> KafkaError:
    return KafkaError(Code.NOT_COORDINATOR, "another node coordinates groups; ask for the coordinator")
