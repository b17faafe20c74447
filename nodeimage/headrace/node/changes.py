"""Waiting for a change in the cluster store's records, the node's replicas, or the containers that it leads."""

import asyncio

from headrace.container.leader import Leader
from headrace.container.listeners import ReplicaListener
from headrace.container.local_replica import LocalReplica


class Changes(ReplicaListener):
    """Wakes all waiting tasks at each change; each task checks whether it is the change it waits for. Also a
    ContainerListener."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def wake(self) -> None:
        """Report that something has changed."""
        self._next.set()
        self._next = asyncio.Event()

    async def wait(self) -> None:
        """Return at the next change."""
        await self._next.wait()

    def container_led(self, _container: Leader) -> None:
        """See ContainerListener."""
        self.wake()

    def container_left(self, _container: Leader) -> None:
        """See ContainerListener. No task waits for this."""

    def replica_opened(self, _replica: LocalReplica) -> None:
        """See ReplicaListener."""
        self.wake()
