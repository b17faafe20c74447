"""Reports of a node's replicas in answers to probes, a page at a time: both sides. No I/O.

Every other node probes a node with thousands of replicas once a second, so a node reports only changes, and no answer
is longer than a page:

    counter   of the node's process: each replica that is new, changed or gone gets the next number
    since     the prober has all changes up to this number; 0: none
    begun     the node's counter when the prober's knowledge began: replicas gone since then must be reported too

Changes are reported in the order of their numbers, so a prober that sends the number of the last page gets the next
page, and changes made meanwhile follow later. A node remembers the last few thousand replicas that are gone; a prober
whose knowledge is older than a forgotten removal starts again from nothing. Numbers belong to one process incarnation
of a node: another one starts at 0.
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
"""The most bytes of one page; a header has room for 1 MiB (peer.framing)."""
WHOLE_BYTES: Final = 900 * 1024
"""The most bytes of replicas in the answer to an older version, which does not know pages."""
_LOG_EVERY_S: Final = 60.0
"""The shortest time, in seconds, between two errors that a reporter logs."""
_GONE_KEPT: Final = 4_096
"""The number of gone replicas that a node remembers."""
_GONE_BYTES: Final = 10
"""The most bytes of one entry of `ProbeAnswer.gone`."""
_STATE_BYTES: Final = 200
"""The most bytes of an encoded ReplicaState without its fields of variable length."""

Change = tuple[ContainerId, ReplicaState | None]
"""A replica and its new state; None: the replica is gone."""


class Page(NamedTuple):
    """The fields of a ProbeAnswer that report replicas."""

    replicas: list[ReplicaState]
    gone: list[ContainerId]
    counter: int
    begun: int
    more: bool
    anew: bool


class ReplicaReporter:
    """The replicas of this node, as it reports them."""

    def __init__(self, *, page_bytes: int = PAGE_BYTES, gone_kept: int = _GONE_KEPT) -> None:
        self.counter = 0
        self._page_bytes = page_bytes
        self._gone_kept = gone_kept
        self._told: dict[ContainerId, tuple[int, ReplicaState]] = {}
        """Each replica with the number of its last change, in order of the numbers."""
        self._gone: OrderedDict[ContainerId, int] = OrderedDict()
        """The replicas that are gone and the numbers of their removal, in order of the numbers."""
        self._logged_at = float("-inf")
        self._forgotten = 0
        """The number of the newest removal that is forgotten."""

    def note(self, container: ContainerId, state: ReplicaState | None) -> None:
        """Records a replica's current state; None: the replica does not exist. Does nothing if that is no change."""
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
        """The containers whose replicas are reported."""
        return set(self._told)

    def all(self) -> list[ReplicaState]:
        """The states of all replicas."""
        return [state for _, state in self._told.values()]

    def whole(self, most_bytes: int = WHOLE_BYTES) -> tuple[list[ReplicaState], int]:
        """The replicas to report to an older version, which does not know pages: all, or as many as fit, leaders first;
        and the number of those that did not fit."""
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
        """The answer to a probe: `alive`, which has no replicas, with the replicas that the probe requests. Never
        raises: on an internal error the answer has no replicas, but shows that the node lives.
        """
        try:
            if asked.since == NO_REPLICAS:
                return alive
            if asked.since == ALL_AT_ONCE:
                states, left_out = self.whole()
                if left_out:
                    self._log_error(
                        "an older version cannot receive all replicas of this node in one answer", left_out=left_out
                    )
                return structs.replace(alive, replicas=states)
            return structs.replace(alive, **self.page(asked.since, asked.begun)._asdict())
        except Exception as error:
            self._log_error("a probe is answered without the replicas that it requests", reason=repr(error))
            return structs.replace(alive, counter=max(asked.since, ALL_AT_ONCE), begun=asked.begun, more=True)

    def _log_error(self, text: str, **fields: object) -> None:
        if time.monotonic() - self._logged_at > _LOG_EVERY_S:
            self._logged_at = time.monotonic()
            log.error(text, **fields)

    def page(self, since: int, begun: int) -> Page:
        """The next page for a prober that has all changes up to `since`."""
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


class ReplicaChanges:
    """The changes of replicas that an answer reported."""

    __slots__ = ("changes", "urgent")

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.urgent = False
        """Whether more than positions changed, so that the controller must react at once."""


class ReportedReplicas:
    """The replicas that one process incarnation of another node has reported."""

    __slots__ = ("_stale", "begun", "complete", "replicas", "since")

    def __init__(self) -> None:
        self.replicas: dict[ContainerId, ReplicaState] = {}
        self.since = 0
        self.begun = 0
        self.complete = False
        """Whether all replicas of the node are known, in their current or a recent state."""
        self._stale: set[ContainerId] = set()
        """Replicas known before the node started to report all again, and not reported again yet."""

    def take(self, answer: ProbeAnswer, *, asked_since: int) -> tuple[ReplicaChanges, bool]:
        """Applies an answer; returns the changes, and whether the answer was applied: it is ignored if another answer
        to the same probe was faster. Afterwards all replicas are known unless `answer.more`."""
        news = ReplicaChanges()
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

    def _take(self, state: ReplicaState, news: ReplicaChanges) -> None:
        container = state.container
        self._stale.discard(container)  # even if it was reported as gone since the node started to report all again
        before = self.replicas.get(container)
        if before == state:
            return
        self.replicas[container] = state
        news.changes.append((container, state))
        if before is None or _duty(before) != _duty(state):
            news.urgent = True

    def _drop(self, container: ContainerId, news: ReplicaChanges) -> None:
        if self.replicas.pop(container, None) is not None:
            news.changes.append((container, None))
            news.urgent = True


def _duty(state: ReplicaState) -> object:
    return state.role, state.epoch, state.stalled, state.format


def _bytes_of(state: ReplicaState) -> int:
    """An upper bound of the encoded size of a state."""
    return _STATE_BYTES + 9 * len(state.in_sync) + len(state.format) + len(state.change)
