"""The heartbeats between this node and each other node, for all containers that one of them leads and the other
follows.

Owns the sessions that carry these heartbeats (pair_roster.py). A pair of nodes has two sessions, one for the leaders on
each side. The node whose followers want to rest opens the session, and reopens it when it ends. A node of an older
version has no such heartbeats, so its containers do not rest. If the heartbeats of a node with leaders stop while the
session is open, the session is ended and the node is reported as silent.

Also opens the sessions of single followers, a few at a time to each node: hundreds of followers may lose their leader
at the same moment, and would otherwise all connect at once to a node that has just started, or retry in a row where no
node runs.

`tick` is called by the timer of all replicas; all methods run on the loop's thread.
"""

import asyncio
import uuid
from collections.abc import Callable
from typing import Final, NamedTuple

import structlog

from headrace.base.errors import HeadraceError, MalformedRequest
from headrace.base.ids import NodeId
from headrace.container.environment import Environment
from headrace.container.follower import SILENCE_S
from headrace.container.leader_state import STIR_S
from headrace.container.pair_roster import FedFollower, FollowersRoster, LeadersRoster
from headrace.peer.messages import PAIRS_VERSION, Message, PairAnswer, PairBeat, PairUp, Resting
from headrace.peer.session import Session
from headrace.store.records import NodeRecord

log = structlog.get_logger()

MAX_OPENING: Final = 16
"""The maximum number of sessions that are being opened to one node at a time."""
FAILED_S: Final = 0.3
"""Seconds for which a failed attempt to open a session keeps its place among `MAX_OPENING`."""
AGAIN_S: Final = 1.0
"""Seconds between two attempts to open a session for heartbeats to the same node."""
OLDER_AGAIN_S: Final = 30.0
"""Seconds between two attempts to open a session for heartbeats to a node of an older version. Ends early if the node's
record shows a new process incarnation, which may be of this version."""


class Pairs:
    """The heartbeat sessions of this node."""

    def __init__(
        self,
        environment: Environment,
        fed: Callable[[NodeId, Resting], FedFollower | None],
        silent: Callable[[NodeId], None],
    ) -> None:
        """`fed`: finds the follower on another node that a leader here feeds. `silent`: called when a node is
        silent."""
        self._env = environment
        self._fed = fed
        self._silent = silent
        self._loop = asyncio.get_running_loop()
        self._followed: dict[NodeId, _FollowersPair] = {}
        """Sessions with nodes whose leaders are followed here."""
        self._fed_nodes: dict[NodeId, _LeadersPair] = {}
        """Sessions with nodes that follow leaders here."""
        self._again: dict[NodeId, _Again] = {}
        self._opening: dict[NodeId, asyncio.Task[None]] = {}
        self._gates: dict[NodeId, asyncio.Semaphore] = {}
        self._closed = False

    async def close(self) -> None:
        """End all sessions; followers and leaders then exchange heartbeats of their own."""
        self._closed = True
        tasks = list(self._opening.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for followers in list(self._followed.values()):
            followers.end()
        for leaders in list(self._fed_nodes.values()):
            leaders.end()

    # --- sessions

    async def connect(self, record: NodeRecord) -> Session:
        """Open a session with a node for one follower; see Environment."""
        gate = self._gates.setdefault(record.node_id, asyncio.Semaphore(MAX_OPENING))
        await gate.acquire()
        held_s = 0.0
        try:
            return await self._env.connect(record)
        except (HeadraceError, OSError, TimeoutError):
            held_s = FAILED_S
            raise
        finally:
            if held_s:
                self._loop.call_later(held_s, gate.release)
            else:
                gate.release()

    # --- the followers' side

    def roster(self, node: NodeId) -> FollowersRoster | None:
        """Return the roster of this node's followers that follow leaders on `node`.

        Returns None if there is no session with it yet; one is then opened if possible.
        """
        pair = self._followed.get(node)
        if pair is not None:
            return pair.roster
        record = self._env.view.nodes.get(node)
        if record is None or self._closed or node in self._opening:
            return None
        again = self._again.get(node)
        if again is not None and again.run == record.run and self._loop.time() < again.at:
            return None
        self._again[node] = _Again(record.run, self._loop.time() + AGAIN_S)
        task = self._opening[node] = self._loop.create_task(self._open(record), name=f"pair with node {node}")
        task.add_done_callback(lambda _: self._opening.pop(node, None))
        return None

    async def _open(self, record: NodeRecord) -> None:
        node = record.node_id
        try:
            session = await self._env.connect(record)
        except (HeadraceError, OSError, TimeoutError) as error:
            log.debug("no session for the heartbeats of a pair", node=node, reason=str(error))
            return
        if self._closed or session.met.version < PAIRS_VERSION:
            self._again[node] = _Again(record.run, self._loop.time() + OLDER_AGAIN_S)
            session.close()
            return
        self._followed[node] = pair = _FollowersPair(self, node, session)
        session.hand_to(pair)
        session.send(PairUp(node=self._env.node_id))

    def followed_ended(self, pair: "_FollowersPair") -> None:
        """The session of this pair has ended."""
        if self._followed.get(pair.node) is pair:
            del self._followed[pair.node]

    # --- the leaders' side

    def accept(self, asked: PairUp, session: Session) -> None:
        """A node whose followers follow leaders here has opened a session."""
        before = self._fed_nodes.get(asked.node)
        if before is not None:
            before.end()
        if self._closed:
            session.close()
            return
        pair = _LeadersPair(self, asked.node, session, self._fed)
        self._fed_nodes[asked.node] = pair
        session.hand_to(pair)
        pair.beat()

    def fed_ended(self, pair: "_LeadersPair") -> None:
        """The session of this pair has ended."""
        if self._fed_nodes.get(pair.node) is pair:
            del self._fed_nodes[pair.node]

    # --- the timer

    def tick(self, *, beats: bool) -> None:
        """Send heartbeats if `beats`, and check for silent nodes."""
        now = self._loop.time()
        for leaders in list(self._fed_nodes.values()):
            if beats:
                leaders.beat()
            if now - leaders.roster.vouch.heard >= STIR_S:
                leaders.roster.stir()
        for pair in list(self._followed.values()):
            if now - pair.heard >= SILENCE_S:
                log.warning("a node is silent", node=pair.node, followers=len(pair.roster))
                pair.end(silent=True)
                self._silent(pair.node)

    def stood_still(self, seconds: float) -> None:
        """This process was suspended for `seconds`: messages from others may still be waiting to be read."""
        for pair in self._followed.values():
            pair.heard += seconds
        for leaders in self._fed_nodes.values():
            leaders.roster.vouch.heard += seconds


class _Again(NamedTuple):
    """The earliest loop time at which to open the next session to one process incarnation of a node."""

    run: uuid.UUID
    at: float


class _FollowersPair:
    """A heartbeat session, on the node with the followers."""

    def __init__(self, pairs: Pairs, node: NodeId, session: Session) -> None:
        self.node = node
        self.roster = FollowersRoster()
        self._pairs = pairs
        self._session = session
        self._loop = asyncio.get_running_loop()
        self.heard = self._loop.time()

    def message_received(self, message: Message, _payload: memoryview) -> None:
        """See SessionListener."""
        if not isinstance(message, PairBeat):
            raise MalformedRequest(f"{type(message).__name__} is no heartbeat of a pair")
        self.heard = self._loop.time()
        self._session.send(self.roster.answer(message))

    def session_closed(self) -> None:
        """See SessionListener."""
        self.end()

    def end(self, *, silent: bool = False) -> None:
        """End the session; its followers exchange heartbeats of their own again."""
        self._pairs.followed_ended(self)
        self._session.close()
        self.roster.end(silent=silent)


class _LeadersPair:
    """A heartbeat session, on the node with the leaders."""

    def __init__(
        self, pairs: Pairs, node: NodeId, session: Session, fed: Callable[[NodeId, Resting], FedFollower | None]
    ) -> None:
        self.node = node
        self._pairs = pairs
        self._session = session
        self._fed = fed
        self._loop = asyncio.get_running_loop()
        self.roster = LeadersRoster(self._loop.time())

    def beat(self) -> None:
        """Send a heartbeat."""
        self._session.send(self.roster.beat(self._loop.time()))

    def message_received(self, message: Message, _payload: memoryview) -> None:
        """See SessionListener."""
        if not isinstance(message, PairAnswer):
            raise MalformedRequest(f"{type(message).__name__} answers no heartbeat of a pair")
        self.roster.answered(message, self._loop.time(), lambda resting: self._fed(self.node, resting))

    def session_closed(self) -> None:
        """See SessionListener."""
        self.end()

    def end(self) -> None:
        """End the session; the leaders here track each follower individually again."""
        self._pairs.fed_ended(self)
        self._session.close()
        self.roster.end()
