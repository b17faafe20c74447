"""Who answers: a probe to every other node once a second, more often to those in doubt.

Every node probes, whoever is the controller: so a new controller knows at once who lives, and nodes can tell each other
whom they hear. Probes of healthy nodes go out together, so that a cut of the network shows for all at the same time.
What was seen belongs to one run of a node; another run begins unseen.

Answers tell what the nodes' clocks show, too (control.cluster_clock). Of a node's replicas they tell what changed, in
pages (peer.replica_pages). The first page of an answer says that the node lives, and so does an answer that is a
refusal; as long as pages are missing, what is not known of its replicas is just that.

A loop that stood still concludes nothing: the silence of others begins anew then, since their answers may be waiting.
"""

import asyncio
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final, Protocol

import structlog
from msgspec import structs

from headrace.base.errors import HeadraceError
from headrace.base.ids import NodeId
from headrace.control.cluster_clock import Clocks
from headrace.control.container_creation import Peers
from headrace.control.observations import ProbeResult
from headrace.peer.messages import Probe, ProbeAnswer
from headrace.peer.replica_pages import Change, ToldReplicas
from headrace.peer.session import PeerUnreachable
from headrace.store.records import NodeRecord

log = structlog.get_logger()

ROUND_S: Final = 1.0
ROUNDED_S: Final = 1e-6
"""A round that begins so soon has begun: a clock that does not show it yet would have it probed again and again."""
DOUBT_ROUND_S: Final = 0.3
AGAIN_S: Final = 0.03
"""Before a refusal is asked to be confirmed."""
MOST_AT_ONCE: Final = 3
"""Failures in a row that are asked to be confirmed: a process that dies closes its sessions, and then refuses."""
PROBE_S: Final = 2.5
"""An answer that takes longer is not waited for; more probes are under way by then."""
MOST_UNDER_WAY: Final = 4
MOST_PAGES: Final = 256
"""That are asked for one after the other; then the next round goes on."""
HEARD_S: Final = 2.0
LOOK_S: Final = 0.3
"""A node that is asked about another does not wait for that one's answer for longer."""
BEAT_S: Final = 0.1
STOOD_STILL_S: Final = 0.6


class Nodes(Protocol):
    """The part of the view that is probed."""

    @property
    def nodes(self) -> dict[NodeId, NodeRecord]:
        """Those that are registered."""


class Prober:
    """Keeps a ProbeResult of each other node. `changed` is called when a result changes in a way that matters to a plan
    at once; `told` with each answer: the node, the changes of its replicas (which are not in its ProbeResult), and
    whether it has told of all of them by now.
    """

    def __init__(
        self,
        *,
        own: NodeId,
        view: Nodes,
        peers: Peers,
        changed: Callable[[], None],
        told: Callable[[NodeId, Sequence[Change], bool], None] = lambda _node, _changes, _whole: None,
    ) -> None:
        self._told = told
        self._own = own
        self._view = view
        self._peers = peers
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self.clocks = Clocks(own=own, monotonic=self._loop.time)
        self._origin = self._beat_at = self._loop.time()
        self._counted_from = float("-inf")
        self._results: dict[NodeId, ProbeResult] = {}
        self._watched: dict[NodeId, _Watched] = {}
        self._beating = self._loop.create_task(self._beat(), name="prober")
        self.nodes_changed()

    async def close(self) -> None:
        """Probe no more."""
        tasks = [self._beating, *(task for each in self._watched.values() for task in each.tasks())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def nodes_changed(self) -> None:
        """Nodes were registered, started again or removed."""
        for node, watched in list(self._watched.items()):
            record = self._view.nodes.get(node)
            if record is None or (record.run, *record.peer_address) != watched.place:
                for task in watched.tasks():
                    task.cancel()
                del self._watched[node], self._results[node]
                self._told(node, [(container, None) for container in watched.told.replicas], False)
                if record is None:
                    self.clocks.forget(node)
        for node, record in self._view.nodes.items():
            if node != self._own and node not in self._watched and record.peer_port:  # it has been up, that is
                self._results[node] = ProbeResult(partly=True)
                self.clocks.expect(node)
                watched = self._watched[node] = _Watched(record)
                watched.ticker = self._loop.create_task(self._watch(watched), name=f"probe node {node}")

    def results(self) -> dict[NodeId, ProbeResult]:
        """What was seen of the other nodes."""
        return dict(self._results)

    def counted_from(self) -> float:
        """When this process last stood still: the silence of others counts from then on."""
        now = self._loop.time()
        if now - self._beat_at > STOOD_STILL_S:
            self._counted_from = self._beat_at = now
        return self._counted_from

    def is_in_doubt(self) -> bool:
        """Whether it is not clear of some node how it is."""
        now = self._loop.time()
        return any(_is_doubtful(result, now) for result in self._results.values())

    def heard(self) -> set[NodeId]:
        """The nodes that answered within the last 2 s."""
        now = self._loop.time()
        return {
            node
            for node, result in self._results.items()
            if result.heard_at is not None and now - result.heard_at < HEARD_S and not result.refused_twice
        }

    def look_at(self, node: NodeId) -> None:
        """Probe a node now: somebody noticed that something is wrong with it."""
        if node in self._watched:
            self._watched[node].wake.set()

    def ask_about(self, node: NodeId, witnesses: Iterable[NodeId]) -> None:
        """Probe others now, and have them try a node that refuses this one."""
        for each in witnesses:
            if (watched := self._watched.get(each)) is not None:
                watched.doubted.add(node)
                watched.wake.set()

    async def look_and_tell(self, nodes: Iterable[NodeId]) -> None:
        """Return once it is known of these nodes whether they answer, or do not within a moment."""
        told = []
        for node in nodes:
            if (watched := self._watched.get(node)) is not None:
                told.append(watched.told_next())
                watched.wake.set()
        if told:
            await asyncio.wait(told, timeout=LOOK_S)

    # --- one node

    async def _watch(self, watched: "_Watched") -> None:
        while True:
            if len(watched.under_way) < MOST_UNDER_WAY:
                task = self._loop.create_task(self._probe(watched), name="probe")
                watched.under_way.add(task)
                task.add_done_callback(watched.under_way.discard)
            try:
                async with asyncio.timeout(self._pause(watched.node)):
                    await watched.wake.wait()
            except TimeoutError:
                pass
            watched.wake.clear()

    def _pause(self, node: NodeId) -> float:
        """Until the next probe: when the next round begins, or soon while it is not clear how anybody is."""
        if self.is_in_doubt() and not self._results[node].refused_twice:
            return DOUBT_ROUND_S
        left = ROUND_S - (self._loop.time() - self._origin) % ROUND_S
        return left if left > ROUNDED_S else left + ROUND_S

    async def _probe(self, watched: "_Watched") -> None:
        for _ in range(MOST_PAGES):
            if not await self._ask(watched):
                return

    async def _ask(self, watched: "_Watched") -> bool:
        """Probe once; whether there is more to be told at once."""
        node = watched.node
        asked_at = self._loop.time()
        doubted, watched.doubted = tuple(sorted(watched.doubted)), set()
        asked = Probe(watched.told.since, watched.told.begun, doubted)
        result = self._results[node]
        if result.silent_since is None:
            self._results[node] = replace(result, silent_since=asked_at)
        try:
            answer, _ = await self._peers.call(watched.address, asked, timeout_s=PROBE_S)
        except PeerUnreachable as error:
            if self._watched.get(node) is watched and not error.timed_out:
                await self._refused(watched, error, asked_at)
            return False
        except HeadraceError as error:
            if self._watched.get(node) is watched:
                self._spoke(watched, str(error))
            return False
        except Exception:
            log.exception("a probe went wrong", node=node)
            return False
        if self._watched.get(node) is not watched or answer.node != node or answer.run != watched.run:
            return False
        more = self._answered(watched, answer, asked_at, asked)
        if asked.doubted:
            self._changed()
        return more

    def _spoke(self, watched: "_Watched", reason: str) -> None:
        """A node refused to say how it is, or could not: it lives, and what it said before still counts."""
        if watched.refused_for != reason:
            log.warning("a node cannot say how it is", node=watched.node, reason=reason)
            watched.refused_for = reason
        before = self._results[watched.node]
        watched.refusals = watched.failures = 0
        self._results[watched.node] = replace(
            before, heard_at=self._loop.time(), silent_since=None, refused_twice=False, told_at=watched.told_at
        )
        watched.tell()
        if before.refused_twice:
            self._changed()

    def _answered(self, watched: "_Watched", answer: ProbeAnswer, asked_at: float, asked: Probe) -> bool:
        before, now = self._results[watched.node], self._loop.time()
        watched.refusals = watched.failures = 0
        watched.refused_for = ""
        news, known = watched.told.take(answer, asked_since=asked.since)
        if known:
            self._told(watched.node, news.changes, not answer.more)
        if known and not answer.more:
            watched.told_at = now
        self._results[watched.node] = ProbeResult(
            # Its replicas are told apart.
            structs.replace(answer, replicas=[], gone=[]),
            now,
            asked_at=asked_at,
            partly=not watched.told.complete,
            told_at=watched.told_at,
        )
        watched.tell()
        if now - asked_at <= PROBE_S:  # else this process stood still, and the answer waited
            self.clocks.told(watched.node, answer.clock)
        if (
            news.urgent
            or before.answer is None
            or before.refused_twice
            or before.partly != (not watched.told.complete)
            or _essence(before.answer) != _essence(answer)
        ):
            self._changed()
        return known and answer.more and watched.told.since > asked.since

    async def _refused(self, watched: "_Watched", error: PeerUnreachable, asked_at: float) -> None:
        result = self._results[watched.node]
        if result.heard_at is not None and result.heard_at > asked_at:
            return  # it has answered since
        watched.failures += 1
        watched.refusals = watched.refusals + 1 if error.refused else 0
        if watched.refusals >= 2:
            if not result.refused_twice:
                self._results[watched.node] = replace(result, refused_twice=True, refused_at=self._loop.time())
                self._changed()
            watched.tell()
        elif not result.refused_twice and watched.failures <= MOST_AT_ONCE:
            await asyncio.sleep(AGAIN_S)
            watched.wake.set()

    async def _beat(self) -> None:
        while True:
            self.counted_from()
            self._beat_at = self._loop.time()
            self.clocks.look()
            await asyncio.sleep(BEAT_S)


class _Watched:
    """One run of a node, and the probes to it."""

    __slots__ = (
        "address",
        "doubted",
        "failures",
        "node",
        "place",
        "refusals",
        "refused_for",
        "run",
        "ticker",
        "to_tell",
        "told",
        "told_at",
        "under_way",
        "wake",
    )

    def __init__(self, record: NodeRecord) -> None:
        self.node = record.node_id
        self.run: uuid.UUID = record.run
        self.address = record.peer_address
        self.place = (record.run, *record.peer_address)
        self.refusals = 0
        self.failures = 0
        self.refused_for = ""
        """Why it could not say how it is, last."""
        self.told = ToldReplicas()
        self.told_at: float | None = None
        """When all of its replicas were known last."""
        self.wake = asyncio.Event()
        self.ticker: asyncio.Task[None] | None = None
        self.under_way: set[asyncio.Task[None]] = set()
        self.doubted: set[NodeId] = set()
        """Nodes that it is to be asked about with the next probe."""
        self.to_tell: list[asyncio.Future[None]] = []

    def told_next(self) -> asyncio.Future[None]:
        """Done once it answers again, or refuses twice."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.to_tell.append(future)
        return future

    def tell(self) -> None:
        told, self.to_tell = self.to_tell, []
        for each in told:
            if not each.done():
                each.set_result(None)

    def tasks(self) -> list[asyncio.Task[None]]:
        return [*self.under_way, *([] if self.ticker is None else [self.ticker])]


def _is_doubtful(result: ProbeResult, now: float) -> bool:
    """Not answering, and not for so long that it would be in vain to ask often."""
    if result.refused_twice and now - result.refused_at < 1.0:
        return True  # others are asked about it
    if result.refused_twice or result.silent_since is None:
        return False
    return DOUBT_ROUND_S <= now - result.silent_since < 10


def _essence(answer: ProbeAnswer) -> object:
    """What a plan would look at at once; loads can wait for the next round."""
    return answer.reaches_store, answer.ready, sorted(answer.heard)
