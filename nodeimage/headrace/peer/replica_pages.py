"""What a node tells of its replicas when it is probed, a page at a time. Both sides of it; no I/O, no clock.

A node with thousands of replicas is asked once a second by every other node, so only what changed is told, and no
answer is longer than a page:

    counter   of the node's process: each replica that is new, changed or gone takes the next number
    since     what the asker has: all that has this number or a lower one; 0: nothing
    begun     the node's counter when the asker's knowledge began: what is gone since then is to be told too

What is told comes in order of its numbers, so an asker that gives the number of the last page gets the next one, and
whatever changes meanwhile comes behind. A node remembers the last few thousand replicas that are gone; who has not
asked since one that is forgotten begins anew. Numbers are of one run of a node: another begins at 0.
"""

import time
from collections import OrderedDict
from typing import Final, NamedTuple

import structlog
from msgspec import structs

from headrace.base.ids import ContainerId
from headrace.peer.messages import ALL_AT_ONCE, NO_REPLICAS, Probe, ProbeAnswer
from headrace.peer.reports import ReplicaState

log = structlog.get_logger()

PAGE_BYTES: Final = 256 * 1024
"""Of one page; a header has room for 1 MiB (peer.framing)."""
WHOLE_BYTES: Final = 900 * 1024
"""Of the answer to an older version, which knows no pages."""
_SAID_AGAIN_S: Final = 60.0
"""After which it is logged again that replicas are left out."""
_GONE_KEPT: Final = 4_096
_GONE_BYTES: Final = 10
_STATE_BYTES: Final = 200
"""Of a replica's state, without what is of any length: names of fields, numbers, flags."""

Change = tuple[ContainerId, ReplicaState | None]
"""A replica as it is told of now; None: there is none any more."""


class Page(NamedTuple):
    """As in ProbeAnswer."""

    replicas: list[ReplicaState]
    gone: list[ContainerId]
    counter: int
    begun: int
    more: bool
    anew: bool


class ReplicaTeller:
    """One node's replicas, as it tells of them."""

    def __init__(self, *, page_bytes: int = PAGE_BYTES, gone_kept: int = _GONE_KEPT) -> None:
        self.counter = 0
        self._page_bytes = page_bytes
        self._gone_kept = gone_kept
        self._told: dict[ContainerId, tuple[int, ReplicaState]] = {}
        """In order of their numbers, as are those that are gone."""
        self._gone: OrderedDict[ContainerId, int] = OrderedDict()
        self._said_at = float("-inf")
        self._forgotten = 0
        """The number of the newest that is gone and forgotten."""

    def note(self, container: ContainerId, state: ReplicaState | None) -> None:
        """A replica is so now; None: there is none. Does nothing where that was told already."""
        before = self._told.get(container)
        if state is None:
            if before is None:
                return
            del self._told[container]
            self.counter += 1
            self._gone[container] = self.counter
            if len(self._gone) > self._gone_kept:
                _, self._forgotten = self._gone.popitem(last=False)
        elif before is None or before[1] != state:
            self._told.pop(container, None)
            self._gone.pop(container, None)
            self.counter += 1
            self._told[container] = self.counter, state

    def containers(self) -> set[ContainerId]:
        """Of which something is told."""
        return set(self._told)

    def all(self) -> list[ReplicaState]:
        """All replicas, however many."""
        return [state for _, state in self._told.values()]

    def whole(self, most_bytes: int = WHOLE_BYTES) -> tuple[list[ReplicaState], int]:
        """All replicas for an older version, which knows no pages, and how many had no room: first those led here."""
        states = self.all()
        if sum(map(_bytes_of, states)) <= most_bytes:
            return states, 0
        states.sort(key=lambda state: state.role != "primary")
        kept = []
        for state in states:
            most_bytes -= _bytes_of(state)
            if most_bytes < 0:
                break
            kept.append(state)
        return kept, len(states) - len(kept)

    def answer(self, asked: Probe, alive: ProbeAnswer) -> ProbeAnswer:
        """What a probe is answered: `alive`, which tells nothing of replicas, with what it asks of them. Whatever is
        wrong with that, a node that answers lives, and says so.
        """
        try:
            if asked.since == NO_REPLICAS:
                return alive
            if asked.since == ALL_AT_ONCE:
                states, left_out = self.whole()
                if left_out:
                    self._say("an older version is not told of all replicas here", left_out=left_out)
                return structs.replace(alive, replicas=states)
            return structs.replace(alive, **self.page(asked.since, asked.begun)._asdict())
        except Exception as error:
            self._say("a probe is answered without what it asks of replicas", reason=repr(error))
            return structs.replace(alive, counter=max(asked.since, ALL_AT_ONCE), begun=asked.begun, more=True)

    def _say(self, text: str, **fields: object) -> None:
        if time.monotonic() - self._said_at > _SAID_AGAIN_S:
            self._said_at = time.monotonic()
            log.error(text, **fields)

    def page(self, since: int, begun: int) -> Page:
        """What is next for an asker that has all up to `since`."""
        anew = not (0 < since <= self.counter and self._forgotten <= max(since, begun))
        if anew:
            since, begun = 0, self.counter
        news: list[tuple[int, ContainerId, ReplicaState | None]] = []
        for container, (number, state) in reversed(self._told.items()):
            if number <= since:
                break
            news.append((number, container, state))
        if not anew:
            for container, number in reversed(self._gone.items()):
                if number <= since:
                    break
                news.append((number, container, None))
        news.sort(key=lambda each: each[0])
        replicas: list[ReplicaState] = []
        gone: list[ContainerId] = []
        left = self._page_bytes
        counter = since
        for number, container, told in news:
            left -= _GONE_BYTES if told is None else _bytes_of(told)
            if left < 0 and (replicas or gone):
                return Page(replicas, gone, counter=counter, begun=begun, more=True, anew=anew)
            counter = number
            if told is None:
                gone.append(container)
            else:
                replicas.append(told)
        return Page(replicas, gone, counter=self.counter, begun=begun, more=False, anew=anew)


class News:
    """What an answer tells of replicas that was not known."""

    __slots__ = ("changes", "urgent")

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.urgent = False
        """More than positions: something that is to be looked at at once."""


class ToldReplicas:
    """What another node's run has told of its replicas."""

    __slots__ = ("_stale", "begun", "complete", "replicas", "since")

    def __init__(self) -> None:
        self.replicas: dict[ContainerId, ReplicaState] = {}
        self.since = 0
        self.begun = 0
        self.complete = False
        """All that it has is known: as it was a moment ago, or is."""
        self._stale: set[ContainerId] = set()
        """Known of before it began anew, and not told of again yet."""

    def take(self, answer: ProbeAnswer, *, asked_since: int) -> tuple[News, bool]:
        """What an answer tells, and whether that counts: not where another answer to the same question was faster. All
        is known then unless `answer.more`."""
        news = News()
        whole = answer.counter == ALL_AT_ONCE
        if not whole and asked_since != self.since:
            return news, False
        if whole or answer.anew:
            self._stale = set(self.replicas)
            self.begun = answer.begun
        for state in answer.replicas:
            self._take(state, news)
        for each in answer.gone:
            self._drop(each, news)
        self.since = 0 if whole else answer.counter
        if not answer.more:
            for each in self._stale:
                self._drop(each, news)
            self._stale = set()
            self.complete = True
        return news, True

    def _take(self, state: ReplicaState, news: News) -> None:
        container = state.container
        self._stale.discard(container)  # which may be one that was told to be gone since it began anew
        before = self.replicas.get(container)
        if before == state:
            return
        self.replicas[container] = state
        news.changes.append((container, state))
        if before is None or _duty(before) != _duty(state):
            news.urgent = True

    def _drop(self, container: ContainerId, news: News) -> None:
        if self.replicas.pop(container, None) is not None:
            news.changes.append((container, None))
            news.urgent = True


def _duty(state: ReplicaState) -> object:
    return state.role, state.epoch, state.stalled, state.format


def _bytes_of(state: ReplicaState) -> int:
    """No fewer than it takes."""
    return _STATE_BYTES + 9 * len(state.in_sync) + len(state.format) + len(state.change)
