"""When this node coordinates groups: while it leads the catalog's container, and only once it has caught up with it.

    another node leads the catalog  ->  NOT_COORDINATOR
    this node takes it over         ->  requests wait, WAIT_S at most, then COORDINATOR_LOAD_IN_PROGRESS
    this node has taken over        ->  the group service, in memory
    this node leads it no more      ->  whoever waits for a rebalance gets NOT_COORDINATOR, and the service is gone

Taking over means: all that earlier leaders committed is known to be committed (invariant 8: the container serves) and
is applied here. From then on committed offsets and generations read from the tables are the newest there are. The
service of an epoch is never that of another: what it held in memory is in the catalog, or was never promised.

Clients that look for the coordinator are told of it once it says itself that it is: what this node knows may be old,
and a client that comes to the wrong one twice gives up what it commits (librdkafka), and its program has an error.

A coordinator that is out of touch with its followers may have been replaced without knowing it: it answers nobody
(invariant 16). The loop thread's own.
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
"""How long a request waits for the service."""
ROUND_S: Final = 5.0
"""How long one look at the container lasts, while it does not serve."""
RETRY_S: Final = 0.2
FIND_S: Final = 1.0
"""How long a client that looks for the coordinator waits until there is one."""
ASK_AGAIN_S: Final = 0.1
ASK_S: Final = 0.5
"""How long another node is asked who coordinates groups."""


class Coordination:
    """Whether there is a group service here, and which."""

    def __init__(
        self, *, runtime: Runtime, catalog: Catalog, cluster: ClusterClient, make: Callable[[], GroupService]
    ) -> None:
        """`make` gives a new service, without any group in memory."""
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
            raise _not_here()
        return self._service

    @property
    def is_here(self) -> bool:
        """This node coordinates."""
        return self._service is not None

    @property
    def elsewhere(self) -> bool:
        """Another node coordinates, and this one is not about to."""
        return self._container is None and not self.is_due

    @property
    def named(self) -> NodeId | None:
        """The node that coordinates, as far as is known here; this one only if it does, or is about to."""
        if self.is_due or self._container is not None:
            return None if self._closed else self._cluster.node_id
        return self.leader

    @property
    def is_due(self) -> bool:
        """The cluster wants this node to lead the catalog's container, which it may not yet do."""
        return self.leader == self._cluster.node_id

    @property
    def leader(self) -> NodeId | None:
        """The node that leads the catalog's container, as far as is known."""
        record = self._cluster.catalog
        return None if record is None else record.leader

    async def find(self) -> NodeId | None:
        """The node that coordinates, as it says itself, or as is known here where it says nothing; None: there is none
        within FIND_S."""
        if self._finding is None or self._finding.done():
            self._finding = self._runtime.spawn(self._find())
        return await asyncio.shield(self._finding)

    async def _find(self) -> NodeId | None:
        try:
            async with asyncio.timeout(FIND_S):
                while (named := self.leader) is not None:
                    told = await self._named_by(named)
                    if told is not None and (told == named or await self._named_by(told) == told):
                        return told
                    self._changed.clear()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(ASK_AGAIN_S):
                            await self._changed.wait()
        except TimeoutError:
            pass
        return None

    async def _named_by(self, node_id: NodeId) -> NodeId | None:
        """Whom a node names as the coordinator of groups; itself where it says nothing: it may hear the client, and if
        not, another leads soon."""
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
        """The service, once it is here.

        Raises KafkaError: NOT_COORDINATOR; COORDINATOR_LOAD_IN_PROGRESS when the wait is over; and out of touch with
        the followers, or when the node stops, COORDINATOR_NOT_AVAILABLE.
        """
        if self._service is None:
            await self._arrived()
        container = self._container
        if container is not None and not container.in_touch and not await back_in_touch(container):
            raise KafkaError(
                Code.COORDINATOR_NOT_AVAILABLE, "this node has not heard of the catalog's followers for a moment"
            )
        return self.present

    async def _arrived(self) -> None:
        try:
            async with asyncio.timeout(WAIT_S):
                while self._service is None:
                    if self._closed:
                        raise KafkaError(Code.COORDINATOR_NOT_AVAILABLE, "the node is shutting down")
                    if self.elsewhere:
                        raise _not_here()
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise KafkaError(
                Code.COORDINATOR_LOAD_IN_PROGRESS, "this node is about to coordinate groups; ask again in a moment"
            ) from None

    # --- events

    def container_led(self, container: Leader) -> None:
        """This node leads a container; if it is the catalog's, it takes the groups over."""
        if container is not self._cluster.catalog_container or self._closed:
            return
        self._end_service(Code.NOT_COORDINATOR)
        self._container = container
        self._taking_over = self._runtime.spawn(self._take_over(container))
        self._changed.set()

    def container_left(self, container: Leader) -> None:
        """This node leads a container no more."""
        if container is not self._container:
            return
        self._container = None
        if self._taking_over is not None:
            self._taking_over.cancel()
            self._taking_over = None
        if self._service is not None:
            log.info("coordinates groups no more", epoch=container.epoch)
        self._end_service(Code.NOT_COORDINATOR)
        self._changed.set()

    def records_changed(self) -> None:
        """Another node may lead the catalog now."""
        self._changed.set()

    def close(self) -> None:
        """The node stops."""
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
    """Sessions of members that are gone have to end, though nobody asks for their groups."""
    try:
        await service.warm()
    except HeadraceError as error:
        log.warning("not all groups were loaded; the others are when they are asked for", reason=str(error))


def _not_here() -> KafkaError:
    return KafkaError(Code.NOT_COORDINATOR, "another node coordinates groups; ask for the coordinator")
