"""Waiting for what a node sees to change: the cluster store's records, its replicas, what it leads."""

import asyncio


class Changes:
    """Wakes all who wait, at each change; they look whether it is the one that they wait for."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def wake(self) -> None:
        """Something has changed."""
        self._next.set()
        self._next = asyncio.Event()

    async def wait(self) -> None:
        """Return at the next change."""
        await self._next.wait()
