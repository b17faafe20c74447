"""Damaged tables of the catalog on this node: made anew from another node; and tables that differ from other nodes'
found.

Where another node leads the catalog, its snapshot is fetched, and this node's log applied to it; replica and place in
sync stay. Where this node leads, another one is to (invariant 14: its replica counts as damaged until then). Where
nobody is there who could lead, this node's own newest snapshot is used, if every row of it checks, with its log, but
never the damaged tables. Where there is none either, the node serves what checks, refuses the rest, and keeps all that
it has.

What is on the disk is checked by sums (catalog.row_sums), which does not show that a node has applied commands
otherwise than the others have. So nodes compare the totals of their tables at the same positions of the log: where a
node differs from most replicas of the catalog, or from the leader with as many on either side, its tables are damaged.
"""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import structlog

from headrace.base.errors import HeadraceError
from headrace.base.ids import NodeId, Position
from headrace.base.levels import Level
from headrace.catalog.catalog import Catalog
from headrace.container.local_replica import LocalReplica
from headrace.peer.client import PeerClient
from headrace.peer.messages import ReadMarks
from headrace.store.records import CATALOG_ID
from headrace.store.view import ClusterView

log = structlog.get_logger()

RETRY_S: Final = 1.0
ALONE_RETRY_S: Final = 30.0
"""Once the node serves damaged tables, as nobody has others."""
LAST_RESORT_S: Final = 60.0
"""After so long without tables from another node, as all others may be damaged, the own snapshot and log are tried."""
COMPARE_S: Final = 30.0
CALL_S: Final = 5.0

Marks = Mapping[Position, str]


class TablesRepair:
    """Of one node. The loop thread's."""

    def __init__(
        self,
        *,
        node_id: NodeId,
        tables: Catalog,
        replica: LocalReplica,
        view: ClusterView,
        peers: PeerClient,
        fetch: Callable[[], Awaitable[None]],
        tell: Callable[[str, str], None] = lambda _kind, _reason: None,
    ) -> None:
        """`fetch` gets the leader's tables, once, and says itself why not. `tell` hears of events, by kind."""
        self._node_id = node_id
        self._tables = tables
        self._replica = replica
        self._view = view
        self._peers = peers
        self._fetch = fetch
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._repairing: asyncio.Task[None] | None = None
        self._closed = False
        tables.on_damage(self._damaged)
        self._comparing = self._loop.create_task(self._compare_always(), name="catalog-compare")
        if tables.restored:
            self._tell_damaged(tables.restored)
            self._tell_repaired()
        if tables.damage:
            self._damaged()

    async def close(self) -> None:
        """Repair and compare no more."""
        self._closed = True
        for task in (self._comparing, self._repairing):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])

    # --- damage

    def _damaged(self) -> None:
        if not self._closed and (self._repairing is None or self._repairing.done()):
            self._repairing = self._loop.create_task(self._repair(), name="catalog-repair")

    async def _repair(self) -> None:
        since = self._loop.time()
        self._tell_damaged(self._tables.damage)
        while self._tables.damage and not self._tables.failed.done():
            try:
                await self._try(patience_over=self._loop.time() - since > LAST_RESORT_S)
            except (HeadraceError, OSError, sqlite3.Error) as error:
                log.warning("the catalog's damaged tables are not made anew yet", reason=str(error))
            except Exception:
                log.exception("making the catalog's tables anew went wrong")
            if self._tables.damage:
                await asyncio.sleep(ALONE_RETRY_S if self._tables.served_damaged else RETRY_S)
        if not self._tables.damage:
            self._tell_repaired()

    def _tell_damaged(self, reason: str) -> None:
        self._tell("damaged", f"the catalog's tables of node {self._node_id} are damaged: {reason}")

    def _tell_repaired(self) -> None:
        self._tell("repaired", f"the catalog's tables of node {self._node_id} are made anew")

    async def _try(self, *, patience_over: bool) -> None:
        leader = self._replica.leader
        if leader is not None and not leader.lost:
            if leader.state.near(self._loop.time()) and not patience_over:
                self._replica.report_damage()  # another one is to lead; repeated, it changes nothing
                return
            await self._by_itself()
            return
        await self._fetch()
        if self._tables.damage and patience_over:
            await self._tables.rebuild_alone()

    async def _by_itself(self) -> None:
        try:
            await self._tables.rebuild_alone()
        except (HeadraceError, OSError, sqlite3.Error) as error:
            if not self._tables.served_damaged:
                log.error("the catalog's tables cannot be made anew from what this node has", reason=str(error))
            self._tables.serve_damaged()

    # --- comparison

    async def _compare_always(self) -> None:
        while True:
            await asyncio.sleep(COMPARE_S)
            try:
                await self.compare()
            except (HeadraceError, OSError, sqlite3.Error) as error:
                log.debug("the catalog's tables are not compared", reason=str(error))
            except Exception:
                log.exception("comparing the catalog's tables went wrong")

    async def compare(self) -> None:
        """Compare the tables here with those of the catalog's replicas, as far as they tell."""
        record = self._view.containers.get(CATALOG_ID)
        if record is None or not self._view.may(Level.FENCED):
            return
        before = await self._tables.marks()
        if not before:
            return
        others = [node for node in sorted({*record.replicas, record.leader}) if node != self._node_id]
        told = dict(zip(others, await asyncio.gather(*map(self._ask, others)), strict=True))
        own = dict([*before, *await self._tables.marks()])
        votes = self._node_id in record.replicas
        if differs := differing(own, told, votes=votes, leader=record.leader):
            self._tables.found_damage(f"the tables differ from those of the nodes {', '.join(map(str, differs))}")

    async def _ask(self, node_id: NodeId) -> Marks:
        node = self._view.nodes.get(node_id)
        if node is None:
            return {}
        try:
            answer, _ = await self._peers.call(node.peer_address, ReadMarks(), timeout_s=CALL_S)
        except (HeadraceError, OSError):
            return {}
        return dict(answer.marks)


def differing(own: Marks, others: Mapping[NodeId, Marks], *, votes: bool, leader: NodeId) -> list[NodeId]:
    """The nodes from which the tables here differ, where these are the ones that are wrong; else none.

    Of the newest position that is known of another node too. `votes`: this node has a replica of the catalog.
    """
    for position in sorted(own, reverse=True):
        there = {node: marks[position] for node, marks in others.items() if position in marks}
        if not there:
            continue
        against = Counter(digest for digest in there.values() if digest != own[position])
        if not against:
            return []
        digest, most = against.most_common(1)[0]
        like_here = sum(each == own[position] for each in there.values()) + votes
        if most > like_here or (most == like_here and there.get(leader, own[position]) != own[position]):
            return [node for node, each in there.items() if each == digest]
        log.error("nodes differ in the catalog's tables", position=position, nodes=sorted(there))
        return []
    return []
