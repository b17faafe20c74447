"""One partition as a link pulls it: where it stands, and how far it is behind. Plain bookkeeping of link_state.py."""

from enum import Enum, auto

from headrace.base.ids import LeaderEpoch, Offset
from headrace.links.pull.pull_choice import Share
from headrace.links.source.source import NO_EPOCH, NO_NODE, NO_OFFSET, TopicPartition


class Status(Enum):
    """What comes next for a partition, or is under way. Each waits in one place only, which its status names."""

    LOOK = auto()
    LOOKING = auto()
    LOCATE = auto()
    LOCATING = auto()
    MEET = auto()
    MEETING = auto()
    DUE = auto()
    FETCHING = auto()
    APPENDING = auto()
    JUMP = auto()
    FILLING_GAP = auto()
    IDLE = auto()
    WAITS = auto()
    BLOCKED = auto()


WAITS_AGAIN = {
    Status.LOOKING: Status.LOOK,
    Status.LOCATING: Status.LOCATE,
    Status.MEETING: Status.MEET,
    Status.FETCHING: Status.DUE,
    Status.FILLING_GAP: Status.LOOK,
}
"""What becomes of a step that was under way when the connection was lost."""


class Pull:
    """A partition of which something changed at the source."""

    __slots__ = (
        "appended",
        "ask",
        "at",
        "behind_since",
        "committed",
        "epoch",
        "failures",
        "fetch",
        "gap_at",
        "gap_since",
        "heard",
        "heard_at",
        "known",
        "leader",
        "limit",
        "log_start",
        "mark",
        "met",
        "must_meet",
        "next",
        "reason",
        "retry_at",
        "share",
        "stale",
        "status",
        "waited",
        "waits_at",
    )

    def __init__(self, at: TopicPartition) -> None:
        self.at = at
        self.status = Status.LOOK
        self.leader = NO_NODE
        """Who leads it at the source."""
        self.ask = NO_NODE
        """Who is fetched from where that is another node: it holds old offsets."""
        self.epoch: LeaderEpoch = NO_EPOCH
        """The leader epoch that we met it in. Apache Kafka tells none."""
        self.met = False
        """It has to be before it is fetched."""
        self.next: Offset = NO_OFFSET
        """What is fetched next. Everything below is appended here."""
        self.limit: Offset = NO_OFFSET
        """Where to stop: the start of our own home, during a move."""
        self.fetch = 0
        """The number of the fetch that is, or was last, under way."""
        self.known: Offset = NO_OFFSET
        """The source's high watermark, as far as is known."""
        self.heard: Offset = NO_OFFSET
        """The highest high watermark that was heard of while a fetch was under way."""
        self.committed: Offset = NO_OFFSET
        """Everything below is committed here, as far as is known."""
        self.appended: Offset = NO_OFFSET
        """The end of what was appended last. From there to `next` the source has nothing to copy."""
        self.log_start: Offset = NO_OFFSET
        """Where the gap ends."""
        self.must_meet = False
        """It may have gone on without our hearing of it."""
        self.stale = False
        """What is known of our side is old: look again when what is under way has ended."""
        self.share = Share()
        """What of it is this link's."""
        self.waited = False
        """Other links had the time to bring what the source has, and did not: it is fetched, until it is up to date, or
        another link brings something."""
        self.waits_at: Offset = NO_OFFSET
        """Where it was when it began to wait."""
        self.gap_at: Offset = NO_OFFSET
        self.gap_since = 0.0
        """Where, and since when, the source lacks what comes next."""
        self.failures = 0
        self.retry_at = 0.0
        self.reason = ""
        self.mark: Offset = NO_OFFSET
        """The end that was known when it fell behind; `behind_since` counts from there until it is committed."""
        self.behind_since = 0.0
        self.heard_at = 0.0
        """When `known` last rose."""

    def meets(self, epoch: LeaderEpoch) -> None:
        """Its leader at the source has told how it stands there."""
        self.epoch = epoch
        self.met = True
        self.must_meet = False

    def forget_meeting(self) -> None:
        """It is to be met again before it is fetched."""
        self.epoch = NO_EPOCH
        self.met = False

    @property
    def goal(self) -> Offset:
        """Up to where it is to be pulled."""
        return self.known if self.limit == NO_OFFSET else min(self.known, self.limit)

    @property
    def is_behind(self) -> bool:
        """The source has more."""
        return self.next < self.goal

    def hears(self, high_watermark: Offset, now: float) -> None:
        """The source has everything up to there."""
        if self.status is Status.FETCHING:
            self.heard = max(self.heard, high_watermark)
        if high_watermark > self.known:
            self.known = high_watermark
            self.heard_at = now
            if self.mark == NO_OFFSET and high_watermark > self.committed:
                self.mark, self.behind_since = high_watermark, now

    def appends(self, end: Offset, following: Offset, now: float) -> None:
        """Our log has everything below `end`, and the source nothing from there to `following`."""
        self.appended = end
        self.skips(following, now)

    def skips(self, following: Offset, now: float) -> None:
        """The source has nothing to copy from what was appended to `following`."""
        self.next = following
        if self.committed >= self.appended:
            self.commits(following, now)

    def commits(self, offset: Offset, now: float) -> float | None:
        """Everything below `offset` is committed here. If that is all that was known at some time: seconds since."""
        self.committed = max(self.committed, offset, self.next if offset >= self.appended else NO_OFFSET)
        if self.mark == NO_OFFSET or self.committed < min(self.mark, self.goal):
            return None
        behind_s = now - self.behind_since
        if self.goal > self.committed:
            self.mark, self.behind_since = self.known, min(now, self.heard_at)
        else:
            self.mark = NO_OFFSET
        return behind_s

    def lag_records(self) -> int:
        """Records that the source has and that are not committed here, gaps counted too."""
        return max(0, self.goal - max(self.committed, Offset(0))) if self.known != NO_OFFSET else 0

    def lag_s(self, now: float) -> float:
        """For how long the source has had what is not committed here, as far as we heard of it."""
        return max(0.0, now - self.behind_since) if self.mark != NO_OFFSET else 0.0
