"""Which nodes answer: every other node is probed once a second, and more often while some node is in doubt.

Every node probes, whether it is the controller or not, so that a new controller knows at once which nodes are alive,
and nodes can report to each other which nodes they hear. Probes of healthy nodes are sent together, so that a network
cut shows for all at the same time. Results belong to one process incarnation of a node; another incarnation begins
without results.

Answers also report the nodes' clocks (control.cluster_clock), and the changes of the nodes' replicas, in pages
(peer.replica_pages). The first page of an answer shows that the node is alive, and so does an answer that is an error;
while pages are missing, nothing is concluded about replicas that are not known yet.

If this process was suspended, the silence of other nodes is counted from then on, since their answers may be waiting.
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
from headrace.peer.replica_pages import Change, ReportedReplicas
from headrace.peer.session import PeerUnreachable
from headrace.store.records import NodeRecord

log = structlog.get_logger()

ROUND_S: Final = 1.0
"""Seconds between two probes of a healthy node."""
ROUNDED_S: Final = 1e-6
"""A round due in less than this many seconds counts as begun: otherwise a node could be probed repeatedly while the
clock does not show the new round yet."""
DOUBT_ROUND_S: Final = 0.3
"""Seconds between two probes while some node is in doubt; also the seconds of silence after which a node is in
doubt."""
AGAIN_S: Final = 0.03
"""Seconds before a refused connection is tried again for confirmation."""
MAX_AT_ONCE: Final = 3
"""The maximum number of failures in a row that are confirmed at once: a dying process closes its sessions, then refuses
connections."""
PROBE_S: Final = 2.5
"""Seconds for which an answer is awaited; later probes are already in progress by then."""
MAX_UNDER_WAY: Final = 4
"""The maximum number of probes of one node in progress at the same time."""
MAX_PAGES: Final = 256
"""The maximum number of pages requested one after the other; the next round continues."""
HEARD_S: Final = 2.0
"""Seconds after its last answer for which a node counts as heard."""
LOOK_S: Final = 0.3
"""Longest time, in seconds, that a node waits for the answer of another node about which it was asked."""
BEAT_S: Final = 0.1
"""Seconds between two beats of the prober's timer, which detects that this process was suspended."""
STOOD_STILL_S: Final = 0.6
"""Seconds between two beats of the prober's timer that show that this process was suspended."""


class Nodes(Protocol):
    """The part of the view that the prober needs."""

    @property
    def nodes(self) -> dict[NodeId, NodeRecord]:
        """The registered nodes."""


class Prober:
    """Maintains a ProbeResult for each other node.

    `changed` is called when a result changes in a way that matters to a plan at once. `told` is called with each
    answer: the node, the changes of its replicas (which are not in its ProbeResult), and whether it has now reported
    all of them.
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
        """Stop probing."""
        tasks = [self._beating, *(task for each in self._watched.values() for task in each.tasks())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def nodes_changed(self) -> None:
        """Nodes were registered, restarted or removed."""
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
            if node != self._own and node not in self._watched and record.peer_port:  # it has been up once
                self._results[node] = ProbeResult(partly=True)
                self.clocks.expect(node)
                watched = self._watched[node] = _Watched(record)
                watched.ticker = self._loop.create_task(self._watch(watched), name=f"probe node {node}")

    def results(self) -> dict[NodeId, ProbeResult]:
        """Return the results for the other nodes."""
        return dict(self._results)

    def counted_from(self) -> float:
        """Return when this process continued after its last suspension: the silence of other nodes counts from then
        on."""
        now = self._loop.time()
        if now - self._beat_at > STOOD_STILL_S:
            self._counted_from = self._beat_at = now
        return self._counted_from

    def is_in_doubt(self) -> bool:
        """Return whether the state of some node is unclear."""
        now = self._loop.time()
        return any(_is_doubtful(result, now) for result in self._results.values())

    def heard(self) -> set[NodeId]:
        """Return the nodes that answered within the last 2 s."""
        now = self._loop.time()
        return {
            node
            for node, result in self._results.items()
            if result.heard_at is not None and now - result.heard_at < HEARD_S and not result.refused_twice
        }

    def look_at(self, node: NodeId) -> None:
        """Probe a node now because something seems wrong with it."""
        if node in self._watched:
            self._watched[node].wake.set()

    def ask_about(self, node: NodeId, witnesses: Iterable[NodeId]) -> None:
        """Probe the witnesses now, and have them probe `node`, which refuses this node's connections."""
        for each in witnesses:
            if (watched := self._watched.get(each)) is not None:
                watched.doubted.add(node)
                watched.wake.set()

    async def look_and_tell(self, nodes: Iterable[NodeId]) -> None:
        """Probe `nodes`; return once each has answered or refused twice, at most after `LOOK_S`."""
        told = []
        for node in nodes:
            if (watched := self._watched.get(node)) is not None:
                told.append(watched.next_outcome())
                watched.wake.set()
        if told:
            await asyncio.wait(told, timeout=LOOK_S)

    # --- one node

    async def _watch(self, watched: "_Watched") -> None:
        while True:
            if len(watched.under_way) < MAX_UNDER_WAY:
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
        """Return the seconds until the next probe: until the next round, or less while some node is in doubt."""
        if self.is_in_doubt() and not self._results[node].refused_twice:
            return DOUBT_ROUND_S
        left = ROUND_S - (self._loop.time() - self._origin) % ROUND_S
        return left if left > ROUNDED_S else left + ROUND_S

    async def _probe(self, watched: "_Watched") -> None:
        for _ in range(MAX_PAGES):
            if not await self._ask(watched):
                return

    async def _ask(self, watched: "_Watched") -> bool:
        """Probe once; return whether more pages are to be requested at once."""
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
                self._answered_with_error(watched, str(error))
            return False
        except Exception:
            log.exception("a probe failed unexpectedly", node=node)
            return False
        if self._watched.get(node) is not watched or answer.node != node or answer.run != watched.run:
            return False
        more = self._answered(watched, answer, asked_at, asked)
        if asked.doubted:
            self._changed()
        return more

    def _answered_with_error(self, watched: "_Watched", reason: str) -> None:
        """A node answered with an error: it is alive, and its last report is still valid."""
        if watched.refused_for != reason:
            log.warning("a node answers a probe with an error", node=watched.node, reason=reason)
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
            # Its replicas are reported separately.
            structs.replace(answer, replicas=[], gone=[]),
            now,
            asked_at=asked_at,
            partly=not watched.told.complete,
            told_at=watched.told_at,
        )
        watched.tell()
        if now - asked_at <= PROBE_S:  # otherwise this process was suspended while the answer was waiting
            self.clocks.told(watched.node, answer.clock)
        if (
            news.urgent
            or before.answer is None
            or before.refused_twice
            or before.partly != (not watched.told.complete)
            or _urgent_part(before.answer) != _urgent_part(answer)
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
        elif not result.refused_twice and watched.failures <= MAX_AT_ONCE:
            await asyncio.sleep(AGAIN_S)
            watched.wake.set()

    async def _beat(self) -> None:
        while True:
            self.counted_from()
            self._beat_at = self._loop.time()
            self.clocks.look()
            await asyncio.sleep(BEAT_S)


class _Watched:
    """One process incarnation of a node, and the probes sent to it."""

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
        "told",
        "told_at",
        "under_way",
        "waiters",
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
        """The error with which it last answered."""
        self.told = ReportedReplicas()
        self.told_at: float | None = None
        """When all of its replicas were last known."""
        self.wake = asyncio.Event()
        self.ticker: asyncio.Task[None] | None = None
        self.under_way: set[asyncio.Task[None]] = set()
        self.doubted: set[NodeId] = set()
        """Nodes about which the next probe asks it."""
        self.waiters: list[asyncio.Future[None]] = []

    def next_outcome(self) -> asyncio.Future[None]:
        """Return a future that completes when the node next answers, or refuses twice."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiters.append(future)
        return future

    def tell(self) -> None:
        """Complete the futures of `next_outcome`."""
        told, self.waiters = self.waiters, []
        for each in told:
            if not each.done():
                each.set_result(None)

    def tasks(self) -> list[asyncio.Task[None]]:
        return [*self.under_way, *([] if self.ticker is None else [self.ticker])]


def _is_doubtful(result: ProbeResult, now: float) -> bool:
    """Return whether a node does not answer, but not yet for so long that frequent probes would be useless."""
    if result.refused_twice and now - result.refused_at < 1.0:
        return True  # others are asked about it
    if result.refused_twice or result.silent_since is None:
        return False
    return DOUBT_ROUND_S <= now - result.silent_since < 10


def _urgent_part(answer: ProbeAnswer) -> object:
    """Return the part of an answer that matters to a plan at once; loads can wait for the next round."""
    return answer.reaches_store, answer.ready, sorted(answer.heard)
