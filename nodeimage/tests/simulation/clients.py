"""Clients of a simulated cluster: they append to the node that seems to lead, and ask any node for the latest position.

A client learns of a change of leader late, from its own view, which lags, or from a refusal. An append whose outcome it
does not learn is never repeated: the record may exist once, or not at all.
"""

import asyncio
import random
from typing import TYPE_CHECKING, Any

from headrace.base.errors import HeadraceError
from headrace.base.ids import ContainerId
from simulation.network import PORT
from simulation.node import Append, Latest, Read

if TYPE_CHECKING:
    from simulation.cluster import Cluster

CALL_S = 4.0


class Client:
    """One client."""

    def __init__(self, cluster: "Cluster", number: int) -> None:
        self._cluster = cluster
        self._chance: random.Random = cluster.chance
        self._number = number
        self._sent = 0
        self._known: dict[ContainerId, int] = {}
        """By container, the node that the client believes to lead."""

    async def run(self) -> None:
        """Run until the cluster says that the run is over."""
        pause = 0.02 + self._chance.random() * 0.25
        while not self._cluster.over:
            await asyncio.sleep(self._chance.random() * pause * 2)
            containers = self._cluster.open_to_commands()
            if not containers:
                continue
            container_id = self._chance.choice(containers)
            roll = self._chance.random()
            if roll < 0.15:
                await self._latest(container_id)
            elif self._cluster.shape.flips and roll < 0.3:
                await self._read(container_id)
            elif roll < 0.5:
                await asyncio.gather(*(self.append(container_id) for _ in range(self._chance.randint(2, 8))))
            else:
                await self.append(container_id)

    async def append(self, container_id: ContainerId) -> bool:
        """Append one command; whether it was acknowledged."""
        self._sent += 1
        size = self._chance.choice((10, 100, 100, 400, 3000))
        payload = f"{self._number}:{self._sent} ".encode().ljust(size, b".")
        checks = self._cluster.checks
        checks.sent.add(payload)
        number = self._leader(container_id)
        try:
            position = await self._call(number, Append(container_id, payload))
        except HeadraceError:
            self._known.pop(container_id, None)
        else:
            checks.acknowledge(container_id, position, payload)
            return True
        return False

    async def _latest(self, container_id: ContainerId) -> None:
        checks = self._cluster.checks
        known = checks.latest[container_id]
        node = self._chance.choice(self._cluster.nodes)
        try:
            found = await self._call(node.number, Latest(container_id))
        except HeadraceError:
            return
        checks.read_latest(node, container_id, known, found)

    async def _read(self, container_id: ContainerId) -> None:
        """Read from any replica."""
        checks = self._cluster.checks
        node = self._chance.choice(self._cluster.nodes)
        after = checks.some_position(container_id, self._chance.random())
        try:
            found = await self._call(node.number, Read(container_id, after))
        except HeadraceError:
            return
        checks.served(node, container_id, after, found)

    async def _call(self, number: int, request: object) -> Any:
        network = self._cluster.network
        answer, _ = await network.call(network.hosts[0], ("simulated", PORT + number), request, timeout_s=CALL_S)
        return answer

    def _leader(self, container_id: ContainerId) -> int:
        if container_id not in self._known:
            record = self._cluster.record(container_id)
            assert record is not None
            self._known[container_id] = self._cluster.by_id(record.leader).number
        return self._known[container_id]
