"""Repairs damaged tables of the catalog on this node from another node, and finds tables that differ from other nodes'.

If another node leads the catalog, this node fetches that node's snapshot and applies its own log to it; the replica
stays in sync. If this node leads, another one has to take the lead (invariant 14: until then this replica
counts as damaged). If no other node could lead, this node uses its own newest snapshot and its log, if every row of the
snapshot passes its check, but never the damaged tables. Without such a snapshot, the node serves the rows that pass,
refuses the rest, and keeps all that it has.

Files are checked by sums (catalog.row_sums), which do not show that a node has applied commands differently from
others. So nodes compare the totals of their tables at the same positions of the log: if a node differs from most
replicas of the catalog, or from the leader when the votes are equal, its tables are damaged.
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
"""Seconds between repair attempts while the node serves damaged tables because no other node has sound ones."""
LAST_RESORT_S: Final = 60.0
"""Seconds without tables from another node after which the node tries its own snapshot and log: the tables of all other
nodes may be damaged."""
COMPARE_S: Final = 30.0
CALL_S: Final = 5.0

Marks = Mapping[Position, str]


class TablesRepair:
    """Repairs and compares one node's tables. Runs on the event loop's thread."""

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
        """`fetch` tries once to fetch the leader's tables, and logs its own failures. `tell` is called with an event's
        kind and text."""
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
        """Stop repairing and comparing."""
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
                log.warning("the catalog's damaged tables are not rebuilt yet", reason=str(error))
            except Exception:
                log.exception("rebuilding the catalog's tables failed")
            if self._tables.damage:
                await asyncio.sleep(ALONE_RETRY_S if self._tables.served_damaged else RETRY_S)
        if not self._tables.damage:
            self._tell_repaired()

    def _tell_damaged(self, reason: str) -> None:
        self._tell("damaged", f"the catalog's tables of node {self._node_id} are damaged: {reason}")

    def _tell_repaired(self) -> None:
        self._tell("repaired", f"the catalog's tables of node {self._node_id} are rebuilt")

    async def _try(self, *, patience_over: bool) -> None:
        leader = self._replica.leader
        if leader is not None and not leader.lost:
            if leader.state.near(self._loop.time()) and not patience_over:
                self._replica.report_damage()  # makes another node lead; repeating it changes nothing
                return
            await self._repair_alone()
            return
        await self._fetch()
        if self._tables.damage and patience_over:
            await self._tables.rebuild_alone()

    async def _repair_alone(self) -> None:
        try:
            await self._tables.rebuild_alone()
        except (HeadraceError, OSError, sqlite3.Error) as error:
            if not self._tables.served_damaged:
                log.error("the catalog's tables cannot be rebuilt from this node's data", reason=str(error))
            self._tables.serve_damaged()

    # --- comparison

    async def _compare_always(self) -> None:
        while True:
            await asyncio.sleep(COMPARE_S)
            try:
                await self.compare()
            except (HeadraceError, OSError, sqlite3.Error) as error:
                log.debug("the catalog's tables could not be compared", reason=str(error))
            except Exception:
                log.exception("comparing the catalog's tables failed")

    async def compare(self) -> None:
        """Compare this node's tables with those of the catalog's replicas that answer."""
        record = self._view.containers.get(CATALOG_ID)
        if record is None or not self._view.may(Level.FENCED):
            return
        before = await self._tables.marks()
        if not before:
            return
        others = [node for node in sorted({*record.replicas, record.leader}) if node != self._node_id]
        their_marks = dict(zip(others, await asyncio.gather(*map(self._ask, others)), strict=True))
        own = dict([*before, *await self._tables.marks()])
        votes = self._node_id in record.replicas
        if differs := differing(own, their_marks, votes=votes, leader=record.leader):
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
    """The nodes from which this node's tables differ, if this node's are the wrong ones; otherwise none.

    Compares at the newest position that another node also knows. `votes`: this node has a replica of the catalog.
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
