"""One partition as a link pulls it: its progress and its lag. Plain bookkeeping of link_state.py."""

from enum import Enum, auto

from headrace.base.ids import LeaderEpoch, Offset
from headrace.links.pull.pull_choice import Share
from headrace.links.source.source import NO_EPOCH, NO_NODE, NO_OFFSET, TopicPartition


class Status(Enum):
    """A partition's next step, or the one in progress. A partition waits in one queue only, which its status names."""

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
"""The status that a partition returns to if its step was in progress when the connection was lost."""


class Pull:
    """A partition that a link tracks, as something changed at the source."""

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
        """The node that leads it at the source."""
        self.ask = NO_NODE
        """The node to fetch from instead of the leader, as it holds old offsets."""
        self.epoch: LeaderEpoch = NO_EPOCH
        """The leader epoch of the last meeting. Apache Kafka reports none."""
        self.met = False
        """Whether the leader has been met, which must happen before a fetch."""
        self.next: Offset = NO_OFFSET
        """The next offset to fetch. Everything below is appended here."""
        self.limit: Offset = NO_OFFSET
        """Where to stop: the start of this cluster's own home, during a move to it."""
        self.fetch = 0
        """The number of the fetch in progress, or of the last one."""
        self.known: Offset = NO_OFFSET
        """The source's high watermark as last heard."""
        self.heard: Offset = NO_OFFSET
        """The highest high watermark that was heard during a fetch."""
        self.committed: Offset = NO_OFFSET
        """As far as is known, everything below this offset is committed here."""
        self.appended: Offset = NO_OFFSET
        """The end of the last append. From there to `next` the source has nothing to copy."""
        self.log_start: Offset = NO_OFFSET
        """Where the gap ends, for JUMP and FILLING_GAP."""
        self.must_meet = False
        """Whether the source may have records that no feed has reported; a meeting finds out."""
        self.stale = False
        """Whether the copy has changed: it is looked up again when the step in progress ends."""
        self.share = Share()
        """This link's share of the work."""
        self.waited = False
        """Whether other links had time to deliver the source's records and did not. Then this link fetches, until the
        partition is up to date or another link delivers something."""
        self.waits_at: Offset = NO_OFFSET
        """The value of `next` when the partition began to wait."""
        self.gap_at: Offset = NO_OFFSET
        self.gap_since = 0.0
        """Where (`gap_at`) and since when (`gap_since`) the source lacks the next records."""
        self.failures = 0
        self.retry_at = 0.0
        self.reason = ""
        self.mark: Offset = NO_OFFSET
        """The end that was known when the partition fell behind; `behind_since` counts until it is committed."""
        self.behind_since = 0.0
        self.heard_at = 0.0
        """When `known` last rose."""

    def record_meeting(self, epoch: LeaderEpoch) -> None:
        """Record a meeting with its leader at the source."""
        self.epoch = epoch
        self.met = True
        self.must_meet = False

    def forget_meeting(self) -> None:
        """Require a new meeting before the next fetch."""
        self.epoch = NO_EPOCH
        self.met = False

    @property
    def goal(self) -> Offset:
        """The offset up to which it is to be pulled."""
        return self.known if self.limit == NO_OFFSET else min(self.known, self.limit)

    @property
    def is_behind(self) -> bool:
        """Whether the source has more records."""
        return self.next < self.goal

    def record_high_watermark(self, high_watermark: Offset, now: float) -> None:
        """Record that the source has everything below `high_watermark`."""
        if self.status is Status.FETCHING:
            self.heard = max(self.heard, high_watermark)
        if high_watermark > self.known:
            self.known = high_watermark
            self.heard_at = now
            if self.mark == NO_OFFSET and high_watermark > self.committed:
                self.mark, self.behind_since = high_watermark, now

    def record_append(self, end: Offset, following: Offset, now: float) -> None:
        """Record that the copy has everything below `end`, and the source nothing from there to `following`."""
        self.appended = end
        self.skip_to(following, now)

    def skip_to(self, following: Offset, now: float) -> None:
        """Record that the source has nothing to copy from the last append to `following`."""
        self.next = following
        if self.committed >= self.appended:
            self.record_commit(following, now)

    def record_commit(self, offset: Offset, now: float) -> float | None:
        """Record that everything below `offset` is committed here. Returns how long it was behind, if that covers
        `mark`."""
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
        """Records of the source that are not committed here, gaps included."""
        return max(0, self.goal - max(self.committed, Offset(0))) if self.known != NO_OFFSET else 0

    def lag_s(self, now: float) -> float:
        """How long the source has had records that are not committed here, in seconds, as far as is known."""
        return max(0.0, now - self.behind_since) if self.mark != NO_OFFSET else 0.0
