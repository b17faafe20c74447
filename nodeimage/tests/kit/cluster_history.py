"""What clients did to a cluster whose nodes fail, and which of their observations are faults (as in Jepsen's tests).

Clients record calls and answers here, from any thread; `faults_of(history, final)` then returns one line for each
observation that no log may produce, however its nodes failed:

- an acknowledged record that is not at its offset, or nowhere;
- a record that was finally refused but exists all the same, or was delivered to anybody (aborted reads);
- a duplicate record of an idempotent producer, or records of one producer in another order;
- a gap between offsets, or records that no member of a group received although its committed offset passed them;
- an offset with different records in different places, or a record that was read but never existed (uncommitted reads);
- a committed offset that goes back, or that nobody committed;
- a record that was acknowledged before a topic was deleted and created again, and is in the new topic;
- a latest offset below what was acknowledged before the request;
- a topic whose creation was acknowledged but that a node does not have as it was created; a refused or deleted topic
  that a node has; a topic that differs between nodes;
- an error that reached a program.

A partition is identified by its `Where`: a topic that was deleted and created again has another incarnation. `final` is
the content of each partition that still exists, read when everything was quiet. Knows nothing of clients, processes or
faults.
"""

import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

MAX_OF_A_KIND = 5
"""Lines of one kind in a report; one cause often has thousands of effects."""


class Where(NamedTuple):
    """A partition of one incarnation of a topic."""

    topic: str
    partition: int
    incarnation: str = ""


class Outcome(Enum):
    """What the caller of an operation knows of its outcome. FAILED: it did not take effect, and never will.
    UNKNOWN: it got no answer.
    """

    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Write:
    """A record that an idempotent producer sent. Its value is unique."""

    producer: str
    where: Where
    value: bytes
    called: float
    outcome: Outcome = Outcome.UNKNOWN
    returned: float = float("inf")
    offset: int = -1


class Read(NamedTuple):
    """A record that a member of a group received."""

    member: str
    where: Where
    offset: int
    value: bytes
    at: float


@dataclass(slots=True)
class Commit:
    """A committed offset that a member committed: the next offset."""

    group: str
    where: Where
    offset: int
    called: float
    outcome: Outcome = Outcome.UNKNOWN
    returned: float = float("inf")


class CursorSeen(NamedTuple):
    """The answer to a request for a committed offset; -1: there is none."""

    group: str
    where: Where
    offset: int
    called: float
    returned: float


class EndSeen(NamedTuple):
    """The answer to a request for the latest offset of a partition."""

    where: Where
    offset: int
    called: float
    returned: float


@dataclass(slots=True)
class Making:
    """A topic that a program asked to create, under a name that no other topic has until that one is deleted."""

    topic: str
    partitions: int
    called: float
    outcome: Outcome = Outcome.UNKNOWN
    returned: float = float("inf")
    incarnation: str = ""
    """The incarnation as reported to a client after the creation; "": it was not reported."""
    deleted: Outcome | None = None
    """The outcome of deleting the topic; None: nobody tried."""


class Listed(NamedTuple):
    """A topic as a node has it: the number of partitions that have a leader, and the incarnation."""

    partitions: int
    incarnation: str


@dataclass(slots=True)
class History:
    """Everything that clients did. Many threads append to the lists, which are read once these threads have ended."""

    writes: list[Write] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    committed_offsets: list[CursorSeen] = field(default_factory=list)
    ends: list[EndSeen] = field(default_factory=list)
    across: list[Read] = field(default_factory=list)
    """Records received by consumers that outlive topics, and do not know the incarnation."""
    topics: list[Making] = field(default_factory=list)
    listings: dict[str, Mapping[str, Listed]] = field(default_factory=dict)
    """By node, the topics that it has, requested when everything was quiet."""
    errors: list[str] = field(default_factory=list)
    """Errors that reached a program and should not have."""
    acknowledged: threading.Condition = field(default_factory=threading.Condition)
    """Notified at each acknowledgement."""
    newest: dict[Where, float] = field(default_factory=dict)
    """By partition, the latest call of a write that is acknowledged."""
    times: list[float] = field(default_factory=list)
    """Times of acknowledgements, in order."""

    def wrote(self, write: Write, offset: int | None) -> None:
        """A write is acknowledged. Without an offset, its producer only knows from the answer to a later write that it
        was stored.
        """
        now = time.monotonic()
        with self.acknowledged:
            write.outcome, write.returned, write.offset = Outcome.OK, now, -1 if offset is None else offset
            self.newest[write.where] = max(write.called, self.newest.get(write.where, 0.0))
            self.times.append(now)
            self.acknowledged.notify_all()

    def longest_pause(
        self, since: float, until: float, *, apart: Callable[[float, float], float] = lambda _since, _until: 0.0
    ) -> float:
        """The longest time without an acknowledged write, in seconds; `apart` gives the seconds of them that do not
        count.
        """
        times = [since, *(each for each in list(self.times) if since < each < until), until]
        return max(after - before - apart(before, after) for before, after in itertools.pairwise(times))


Log = Sequence[tuple[int, bytes]]
"""(offset, value) of all records of a partition, in the order of reading."""


def faults_of(history: History, final: Mapping[Where, Log]) -> list[str]:
    """The faults, one line each; [] if there are none."""
    found: dict[str, list[str]] = defaultdict(list)
    for error in history.errors:
        found["error"].append(error)
    places = _final_places(final, found)
    _check_writes(history, final, places, found)
    _check_refused(history, final, found)
    _check_meaning(history, final, found)
    _check_lives(history, final, found)
    _check_ends(history, found)
    _check_committed_offsets(history, found)
    _check_groups(history, final, found)
    _check_topics(history, found)
    return _report(found)


def topic_faults_of(history: History) -> list[str]:
    """The faults of topics only: a node may still have to learn of the last ones."""
    found: dict[str, list[str]] = defaultdict(list)
    _check_topics(history, found)
    return _report(found)


def _report(found: Mapping[str, list[str]]) -> list[str]:
    return [line for kind in found for line in _told(kind, found[kind])]


def _told(kind: str, lines: list[str]) -> list[str]:
    told = [f"{kind}: {line}" for line in lines[:MAX_OF_A_KIND]]
    if len(lines) > MAX_OF_A_KIND:
        told.append(f"{kind}: ... and {len(lines) - MAX_OF_A_KIND} more")
    return told


def _final_places(final: Mapping[Where, Log], found: dict[str, list[str]]) -> dict[tuple[Where, bytes], list[int]]:
    places: dict[tuple[Where, bytes], list[int]] = defaultdict(list)
    for where, log in final.items():
        for expected, (offset, value) in enumerate(log):
            if offset != expected and (expected == 0 or log[expected - 1][0] != offset - 1):
                found["gap"].append(f"{where}: {offset} comes after {log[expected - 1][0] if expected else 'nothing'}")
            places[where, value].append(offset)
    for (where, value), offsets in places.items():
        if len(offsets) > 1:
            found["duplicate"].append(f"{where}: {value[:40]!r} is at {offsets}")
    return places


def _check_writes(
    history: History,
    final: Mapping[Where, Log],
    places: Mapping[tuple[Where, bytes], list[int]],
    found: dict[str, list[str]],
) -> None:
    last: dict[tuple[str, Where], tuple[int, bytes]] = {}
    for write in history.writes:  # in the order of the calls, by producer
        if write.where not in final:
            continue
        at = places.get((write.where, write.value), [])
        if write.outcome is Outcome.OK and (not at or write.offset not in (-1, *at)):
            kind = "lost" if not at else "moved"
            found[kind].append(
                f"{write.where}: {write.value!r} of {write.producer} was acknowledged at {write.offset} after "
                f"{write.returned - write.called:.3f} s, at {write.returned:.3f}, and is at {at or 'no offset'}"
            )
        if not at:
            continue
        before = last.get((write.producer, write.where))
        if before is not None and at[0] < before[0]:
            found["reorder"].append(
                f"{write.where}: {write.value!r} at {at[0]} lies before {before[1]!r} at {before[0]}"
            )
        last[write.producer, write.where] = (at[0], write.value)


def _check_refused(history: History, final: Mapping[Where, Log], found: dict[str, list[str]]) -> None:
    """Refused records exist nowhere, in no incarnation: they were never stored, not even for a while."""
    refused = {write.value: write for write in history.writes if write.outcome is Outcome.FAILED}
    if not refused:
        return
    seen = [(where, offset, value, "is there at the end") for where, log in final.items() for offset, value in log]
    given = itertools.chain(history.reads, history.across)
    seen += [(read.where, read.offset, read.value, f"was given to {read.member}") for read in given]
    for where, offset, value, how in seen:
        if value in refused:
            write = refused[value]
            found["aborted"].append(
                f"{where}: {value[:40]!r} of {write.producer}, refused at {write.returned:.3f}, {how}, at {offset}"
            )


def _check_meaning(history: History, final: Mapping[Where, Log], found: dict[str, list[str]]) -> None:
    meaning = {(where, offset): (value, "the end") for where, log in final.items() for offset, value in log}
    ends = {where: log[-1][0] + 1 if log else 0 for where, log in final.items()}
    for read in history.reads:
        if read.offset >= ends.get(read.where, read.offset + 1):
            found["uncommitted"].append(
                f"{read.where}: {read.member} read {read.value!r} at {read.offset}, which is above the end "
                f"{ends[read.where]}"
            )
            continue
        value, who = meaning.setdefault((read.where, read.offset), (read.value, read.member))
        if value != read.value:
            found["meaning"].append(
                f"{read.where}: {read.offset} is {read.value!r} to {read.member} and {value!r} to {who}"
            )
    for write in history.writes:
        value, who = meaning.get((write.where, write.offset), (write.value, ""))
        if write.outcome is Outcome.OK and value != write.value and write.where not in final:
            found["meaning"].append(
                f"{write.where}: {write.value!r} was acknowledged at {write.offset}, which is {value!r} to {who}"
            )


def _check_lives(history: History, final: Mapping[Where, Log], found: dict[str, list[str]]) -> None:
    """Records acknowledged before the creation of an incarnation was requested are not in it, and no consumer returns
    to them.
    """
    lives: dict[str, list[Making]] = defaultdict(list)
    for made in history.topics:
        if made.outcome is Outcome.OK:
            lives[made.topic].append(made)
    lives = {topic: sorted(each, key=lambda made: made.called) for topic, each in lives.items() if len(each) > 1}
    writes = {
        write.value: write for write in history.writes if write.outcome is Outcome.OK and write.where.topic in lives
    }
    seen = [(where, offset, value, "the end") for where, log in final.items() for offset, value in log]
    seen += [(read.where, read.offset, read.value, read.member) for read in history.reads]
    began = {(made.topic, made.incarnation): made.called for each in lives.values() for made in each}
    for where, offset, value, who in seen:
        write = writes.get(value)
        if write is not None and write.returned < began.get((where.topic, where.incarnation), 0.0):
            found["life"].append(
                f"{where}: {offset} is {value[:40]!r} to {who}, which was acknowledged at {write.returned:.3f}, before "
                f"that was made"
            )
    newest: dict[tuple[str, Where], int] = defaultdict(int)
    for read in history.across:
        write = writes.get(read.value)
        if write is None:
            continue
        made_by_then = sum(made.called < write.returned for made in lives[read.where.topic])
        if made_by_then < newest[read.member, read.where]:
            found["life"].append(
                f"{read.where}: {read.member} was given {read.value[:40]!r}, of life {made_by_then} at most, after a "
                f"record of life {newest[read.member, read.where]}"
            )
        made_before = sum(made.returned < write.called for made in lives[read.where.topic])
        newest[read.member, read.where] = max(made_before, newest[read.member, read.where])


def _check_ends(history: History, found: dict[str, list[str]]) -> None:
    """Records acknowledged, or ends returned, before a request for the latest offset must be covered by its answer
    (invariants 8 and 16).
    """
    known: dict[Where, list[tuple[float, int]]] = defaultdict(list)
    for write in history.writes:
        if write.outcome is Outcome.OK:
            known[write.where].append((write.returned, write.offset + 1))
    for end in history.ends:
        known[end.where].append((end.returned, end.offset))
    asked: dict[Where, list[EndSeen]] = defaultdict(list)
    for end in history.ends:
        asked[end.where].append(end)
    for where, ends in asked.items():
        facts = sorted(known[where])
        least, at = 0, 0
        for end in sorted(ends, key=lambda each: each.called):
            while at < len(facts) and facts[at][0] < end.called:
                least = max(least, facts[at][1])
                at += 1
            if end.offset < least:
                found["latest"].append(f"{where}: the latest offset is {end.offset} after {least} was known")


def _check_committed_offsets(history: History, found: dict[str, list[str]]) -> None:
    commits: dict[tuple[str, Where], list[Commit]] = defaultdict(list)
    for commit in history.commits:
        commits[commit.group, commit.where].append(commit)
    seen: dict[tuple[str, Where], list[CursorSeen]] = defaultdict(list)
    for committed_offset in history.committed_offsets:
        seen[committed_offset.group, committed_offset.where].append(committed_offset)
    for (group, where), committed_offsets in seen.items():
        asked_for = commits[group, where]
        facts = [(each.returned, each.offset) for each in asked_for if each.outcome is Outcome.OK]
        facts = sorted([*facts, *((each.returned, each.offset) for each in committed_offsets)])
        first_called: dict[int, float] = {}
        for each in asked_for:
            first_called[each.offset] = min(each.called, first_called.get(each.offset, each.called))
        least, at = -1, 0
        for committed_offset in sorted(committed_offsets, key=lambda each: each.called):
            while at < len(facts) and facts[at][0] < committed_offset.called:
                least = max(least, facts[at][1])
                at += 1
            if committed_offset.offset < least:
                found["cursor"].append(f"{group} {where}: went back from {least} to {committed_offset.offset}")
            if (
                committed_offset.offset >= 0
                and first_called.get(committed_offset.offset, committed_offset.returned) >= committed_offset.returned
            ):
                found["cursor"].append(f"{group} {where}: is {committed_offset.offset}, which nobody committed")


def _check_groups(history: History, final: Mapping[Where, Log], found: dict[str, list[str]]) -> None:
    """Below a committed offset, some member received every record: nothing is skipped."""
    given: dict[Where, set[int]] = defaultdict(set)
    for read in history.reads:
        given[read.where].add(read.offset)
    committed_offset: dict[tuple[str, Where], int] = defaultdict(int)
    for commit in history.commits:
        if commit.outcome is Outcome.OK:
            committed_offset[commit.group, commit.where] = max(
                commit.offset, committed_offset[commit.group, commit.where]
            )
    for (group, where), offset in committed_offset.items():
        skipped = [each for each, _ in final.get(where, ()) if each < offset and each not in given[where]]
        if skipped:
            found["skipped"].append(
                f"{group} {where}: nobody was given {len(skipped)} records below the cursor {offset}, "
                f"such as {skipped[0]}"
            )


def _check_topics(history: History, found: dict[str, list[str]]) -> None:
    wanted = {made.topic for made in history.topics if made.outcome is not Outcome.FAILED}
    for node, listing in history.listings.items():
        for made in history.topics:
            there = listing.get(made.topic)
            told = f"{made.topic}: {made.partitions} partitions, {made.incarnation or 'no incarnation told'}"
            match made.outcome, made.deleted:
                case Outcome.OK, None:
                    incarnation = made.incarnation or (there and there.incarnation)
                    if there != (made.partitions, incarnation):
                        found["topic"].append(f"{told}, made at {made.returned:.3f}; {node} has {there or 'nothing'}")
                case Outcome.OK, Outcome.OK:
                    if there is not None and there.incarnation == made.incarnation:
                        found["topic"].append(f"{told}, is deleted, and {node} has it")
                case Outcome.FAILED, _:
                    if there is not None and made.topic not in wanted:
                        found["topic"].append(f"{told}, refused at {made.returned:.3f}; {node} has {there}")
    for topic in sorted(wanted):
        views = {node: listing.get(topic) for node, listing in history.listings.items()}
        if len(set(views.values())) > 1:
            found["topic"].append(f"{topic}: nodes have {views}")


__all__ = [
    "Commit",
    "CursorSeen",
    "EndSeen",
    "History",
    "Listed",
    "Log",
    "Making",
    "Outcome",
    "Read",
    "Where",
    "Write",
    "faults_of",
    "topic_faults_of",
]
