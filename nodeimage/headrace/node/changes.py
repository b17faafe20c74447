"""Waiting for what a node sees to change: the cluster store's records, its replicas, what it leads."""

import asyncio

from headrace.container.leader import Leader
from headrace.container.listeners import ReplicaListener
from headrace.container.local_replica import LocalReplica


class Changes(ReplicaListener):
    """Wakes all who wait, at each change; they look whether it is the one that they wait for. Also a
    ContainerListener."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def wake(self) -> None:
        """Something has changed."""
        self._next.set()
        self._next = asyncio.Event()

    async def wait(self) -> None:
        """Return at the next change."""
        await self._next.wait()

    def container_led(self, _container: Leader) -> None:
        """See ContainerListener."""
        self.wake()

    def container_left(self, _container: Leader) -> None:
        """See ContainerListener. Nobody waits for that."""

    def replica_opened(self, _replica: LocalReplica) -> None:
        """See ReplicaListener."""
        self.wake()
