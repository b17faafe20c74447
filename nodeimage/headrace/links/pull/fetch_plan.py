"""What a link on one node fetches, and how much at a time. Part of the pure state machine link_state.py.

Responsible for the byte budget and the throttle, for composing fetches of due partitions, and for interpreting their
answers. A partition is in at most one fetch. An answer with an unknown number (its fetch was interrupted) is dropped.
"""

from collections.abc import Iterable, Mapping

from headrace.base.errors import Code
from headrace.base.ids import NodeId
from headrace.links.pull.byte_budget import ByteBudget, ByteRate
from headrace.links.pull.effects import Arrived, Fetch
from headrace.links.pull.limits import Limits
from headrace.links.pull.partition_pull import Pull, Status
from headrace.links.pull.partition_pulls import Pulls
from headrace.links.pull.source_feed import SourceFeed
from headrace.links.source.source import NO_NODE, NO_OFFSET, TopicPartition, Wanted


class Fetching:
    """The fetches in progress."""

    def __init__(self, limits: Limits, feeds: Mapping[NodeId, SourceFeed], pulls: Pulls, byte_rate: ByteRate) -> None:
        self.budget = ByteBudget(limits.budget_bytes)
        self.byte_rate = byte_rate
        self._limits = limits
        self._feeds = feeds
        self._pulls = pulls
        self._under_way: dict[int, Fetch] = {}
        self._serial = 0

    def arrived(self, now: float, number: int, answers: Iterable[Arrived]) -> list[TopicPartition]:
        """Handle the end of an effect `Fetch`. Returns the partitions whose bytes are to be appended; the caller drops
        the other bytes.

        For the returned ones the caller calls one of `Pulls.appended`, `refused` and `outdated`, and accounts for all
        bytes by `released`, when they are committed or dropped."""
        fetch = self._ended(number)
        if fetch is None:
            return []
        if (feed := self._feeds.get(fetch.node)) is not None:
            feed.succeeded()
            feed.fetch_bytes = min(2 * feed.fetch_bytes, self._limits.fetch_bytes)
        kept: list[TopicPartition] = []
        starved: list[Pull] = []
        held = total = 0
        for answer in answers:
            total += answer.bytes
            pull = self._pulls.all.get(answer.at)
            if pull is None or pull.status is not Status.FETCHING or pull.fetch != number:
                continue
            if answer.code is not Code.NONE or pull.stale:
                self._refused(now, pull, answer)
                continue
            pull.known = max(answer.high_watermark, pull.heard)
            if answer.ask != NO_NODE:
                pull.ask = NO_NODE if answer.ask == pull.leader else answer.ask
            if answer.bytes:
                pull.status = Status.APPENDING
                held += answer.bytes
                kept.append(answer.at)
            elif answer.resume > pull.next:
                pull.skip_to(answer.resume, now)
                self._pulls.go_on(now, pull)
            elif not pull.is_behind or answer.ask != NO_NODE:
                pull.skip_to(pull.next, now)
                self._pulls.go_on(now, pull)
            else:
                starved.append(pull)
        for pull in reversed(starved):
            if 2 * total >= fetch.max_bytes:  # the partitions before this one filled the answer
                self._pulls.set(pull, Status.DUE, first=True)
            else:
                self._pulls.fail(now, pull, "the source sends no records although it reports more")
        self.budget.arrived(fetch.max_bytes, held)
        self.byte_rate.pay(total - fetch.max_bytes, now)
        return kept

    def _refused(self, now: float, pull: Pull, answer: Arrived) -> None:
        if pull.stale:
            self._pulls.set(pull, Status.LOOK)
        elif answer.code is Code.OFFSET_OUT_OF_RANGE and answer.log_start > pull.next:
            self._pulls.gap(now, pull, answer.log_start)
        else:
            reason = f"the source answers {answer.code.name}"
            self._pulls.refused_by_node(now, pull, answer.code, reason, answer.ask)

    def failed(self, now: float, number: int, reason: str) -> NodeId | None:
        """Handle the failure of an effect `Fetch`; returns the node that was asked."""
        fetch = self._ended(number)
        if fetch is None:
            return None
        self._refund(fetch, now)
        if (feed := self._feeds.get(fetch.node)) is not None and fetch.max_bytes <= feed.fetch_bytes:
            feed.fetch_bytes = max(fetch.max_bytes // 2, self._limits.least_bytes)
        for wanted in fetch.wanted:
            pull = self._pulls.all.get(wanted.at)
            if pull is not None and pull.status is Status.FETCHING and pull.fetch == number:
                self._pulls.fail_at_node(now, pull, reason)
        return fetch.node

    def released(self, count: int) -> None:
        """Release `count` of the bytes that `arrived` kept, as they are committed or dropped."""
        self.budget.release(count)

    def interrupted(self, now: float) -> None:
        """Handle that all fetches were cancelled."""
        for fetch in self._under_way.values():
            self._refund(fetch, now)
        self._under_way.clear()

    def next(self, now: float, feed: SourceFeed) -> Fetch | None:
        """Begin and return the next fetch from this node; None if nothing is due or there is no room."""
        if not feed.due or feed.fetches >= self._limits.fetches_per_node:
            return None
        most = min(self._room(now), feed.fetch_bytes)
        pulls: list[Pull] = []
        if most:
            while len(pulls) < self._limits.fetch_partitions and (pull := self._pulls.next_due(feed)) is not None:
                pulls.append(pull)
        if not pulls:
            return None
        self._serial += 1
        share = min(most, max(self._limits.partition_bytes, most // len(pulls)))
        for pull in pulls:
            pull.status = Status.FETCHING
            pull.heard = NO_OFFSET
            pull.fetch = self._serial
        wanted = tuple(Wanted(pull.at, pull.next, pull.epoch, share) for pull in pulls)
        fetch = self._under_way[self._serial] = Fetch(self._serial, feed.node, wanted, most)
        feed.fetches += 1
        self.budget.reserve(most)
        self.byte_rate.pay(most, now)
        return fetch

    def ready_at(self, now: float) -> float | None:
        """When the throttle will allow more; None if waiting changes nothing."""
        if not any(feed.due for feed in self._feeds.values()):
            return None
        ready = self.byte_rate.ready_at(self._limits.least_bytes, now)
        return ready if ready > now else None

    def _room(self, now: float) -> int:
        """Bytes of the next fetch, or 0. No node may use up the budget: a slow one would stop the others."""
        least = self._limits.least_bytes
        fair = max(least, self.budget.limit // (2 * len(self._feeds)))
        most = min(self._limits.fetch_bytes, self.budget.free, fair)
        if most < least or self.byte_rate.ready_at(least, now) > now:
            return 0
        allowed = self.byte_rate.allowed(now)
        return most if allowed is None else min(most, max(allowed, 1))

    def _ended(self, number: int) -> Fetch | None:
        fetch = self._under_way.pop(number, None)
        if fetch is not None and (feed := self._feeds.get(fetch.node)) is not None:
            feed.fetches -= 1
        return fetch

    def _refund(self, fetch: Fetch, now: float) -> None:
        self.budget.arrived(fetch.max_bytes, 0)
        self.byte_rate.pay(-fetch.max_bytes, now)
