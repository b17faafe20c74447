"""Runs in which the cluster store is set back to an old copy of itself under running nodes.

The store continues from the copy, with its counters and versions. Later writes, and calls in flight, are lost. After a
while an operator runs `recover-store` on some node, again whenever it is refused, and starts the nodes that are down.
The times are drawn from a separate random source, so other runs stay as they were.
"""

import asyncio
import contextlib
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.base.errors import HeadraceError
from headrace.node.store_recovery import StoreRecovery
from headrace.store import records
from simulation.odd_calls import OddError

if TYPE_CHECKING:
    from simulation.cluster import Cluster

TRY_S = 70.0
"""Virtual seconds after which one attempt is over."""
AGAIN_S = 1.0


@dataclass(frozen=True, slots=True)
class SetBack:
    """The store is copied at `copied_at` and set back to the copy at `at`; the operator acts `after` seconds later."""

    at: float
    copied_at: float
    after: float

    def __str__(self) -> str:
        return f"{self.at:.2f} s store set back to {self.copied_at:.2f} s (operator after {self.after:.2f} s)"


def draw_set_back(chance: random.Random, *, begin: float, length: float) -> SetBack | None:
    """The set-back of a run; some runs have one. The copy is of a moment after the nodes have found each other."""
    if chance.random() < 0.85:
        return None
    at = begin + (0.1 + 0.9 * chance.random()) * length
    copied_at = begin - 0.5 + chance.random() * (at - begin)
    return SetBack(at, copied_at, after=chance.choice((0.5, 3.0, 8.0)) * chance.uniform(0.5, 1.5))


class Operator:
    """An operator who notices that the store was set back, and repairs it."""

    def __init__(self, cluster: "Cluster", chance: random.Random) -> None:
        self._cluster = cluster
        self._chance = chance

    async def befall(self, fault: SetBack) -> None:
        """Copy the store, set it back, and repair it."""
        cluster = self._cluster
        await asyncio.sleep(fault.copied_at - cluster.loop.now)
        copy = cluster.store.copy()
        await asyncio.sleep(fault.at - cluster.loop.now)
        cluster.trace(f"FAULT {fault}")
        cluster.set_back = True
        cluster.store.set_back(copy)
        await asyncio.sleep(fault.after)
        while cluster.checks.failure is None and not await self._is_mended():
            for node in cluster.nodes:
                if not node.is_up:
                    node.start()
            await asyncio.sleep(AGAIN_S)
        cluster.set_back = False
        cluster.trace("the store is whole again")

    async def _is_mended(self) -> bool:
        """One attempt; returns whether nothing is left to repair, as far as all nodes know."""
        done = await self._recover(apply=True)
        if done is None or done["containers"]:
            return False
        self._repeat_decisions()
        await asyncio.sleep(2 * AGAIN_S)
        shown = await self._recover(apply=False)
        return shown is not None and not shown["containers"]

    async def _recover(self, *, apply: bool) -> dict[str, Any] | None:
        """The result of `headrace recover-store --pod` on one of the nodes; None: it was refused, or the node died."""
        able = [node for node in self._cluster.nodes if node.replicas is not None]
        if not able:
            return None
        node = self._chance.choice(able)
        process, replicas = node.process, node.replicas
        assert process is not None
        assert replicas is not None
        peers: Any = node
        recovery = StoreRecovery(node=node.node_id, replicas=replicas, peers=peers, store=node.store, view=node.view)
        task = self._cluster.loop.spawn(_refusable(recovery, apply=apply), process)
        until = self._cluster.loop.now + TRY_S
        while not task.done():
            if process.dead or self._cluster.loop.now > until:
                return None
            await asyncio.sleep(0.1)
        done = task.result()
        if isinstance(done, Exception):
            self._cluster.trace(f"recover-store is refused: {done}")
            return None
        self._cluster.trace(f"recover-store (apply={apply}): {[each['container'] for each in done['containers']]}")
        return done

    def _repeat_decisions(self) -> None:
        """Repeat the operator's decisions since the copy, and those that the recovery reports as undone."""
        for node in self._cluster.nodes:
            draining = node.number in self._cluster.drained
            with contextlib.suppress(HeadraceError):
                records.set_draining(self._cluster.store, node.node_id, draining)


async def _refusable(recovery: StoreRecovery, *, apply: bool) -> dict[str, Any] | Exception:
    try:
        return await recovery.recover(apply=apply)
    except (HeadraceError, OSError, OddError) as error:
        return error
