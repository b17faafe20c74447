"""The effects that a link's state machine (link_state.py) requests, and the answers that it takes in. puller.py
carries the effects out. Plain values."""

from dataclasses import dataclass
from typing import NamedTuple

from headrace.base.errors import Code
from headrace.base.ids import LeaderEpoch, NodeId, Offset
from headrace.links.pull.pull_choice import Share
from headrace.links.source.source import NO_EPOCH, NO_NODE, NO_OFFSET, FeedPlace, TopicPartition, Wanted


@dataclass(frozen=True, slots=True)
class Connect:
    """Ask the source for its identity and its nodes. Ends in `greeted` or `not_greeted`."""


@dataclass(frozen=True, slots=True)
class Poll:
    """Wait for changes at a node, for `wait_ms` at most. Ends in `changed` or `poll_failed`."""

    node: NodeId
    since: FeedPlace | None
    wait_ms: int


@dataclass(frozen=True, slots=True)
class ListTopics:
    """List a page of the source's topics, beginning with the first name after `after`. Ends in `listed` or
    `not_listed`."""

    after: str | None


@dataclass(frozen=True, slots=True)
class LookUp:
    """Look up these partitions' copies in this cluster. Ends in `looked_up`."""

    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Locate:
    """Ask the source which nodes lead these topics' partitions. Ends in `located` or `not_located`."""

    topic_ids: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Meet:
    """Compare these partitions with their leader at the source. Ends in `met` or `not_met`."""

    node: NodeId
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Fetch:
    """Fetch these partitions in this order, `max_bytes` in all. Ends in `arrived` or `fetch_failed` with this
    `number`."""

    number: int
    node: NodeId
    wanted: tuple[Wanted, ...]
    max_bytes: int


@dataclass(frozen=True, slots=True)
class FillGap:
    """Let a copy continue at `log_start`, since the source has no records of the partition below it; see gap_fill.py.
    Ends in `gap_filled`."""

    at: TopicPartition
    log_start: Offset


Effect = Connect | Poll | ListTopics | LookUp | Locate | Meet | Fetch | FillGap


class LookUpResult(NamedTuple):
    """The state of this cluster's copy of a partition that changed at the source."""

    at: TopicPartition
    pulled: bool
    """Whether this link pulls it on this node, which leads it; if not, the partition is forgotten."""
    next: Offset = NO_OFFSET
    """The offset after the copy's last record."""
    limit: Offset = NO_OFFSET
    """Where to stop: the start of this cluster's own home, during a move to it. `NO_OFFSET`: no limit."""
    reason: str = ""
    """Why the partition cannot be pulled for the moment; empty if it can."""
    share: Share = Share()
    """This link's share of the work."""
    lacks: bool = False
    """Whether the copy lacks records of former homes; then a meeting must find out whether the source has them."""


class Met(NamedTuple):
    """The result of a meeting with a partition's leader. With a `reason`, nothing is pulled for the moment."""

    at: TopicPartition
    code: Code
    leader_epoch: LeaderEpoch = NO_EPOCH
    high_watermark: Offset = NO_OFFSET
    reason: str = ""
    empty_from: Offset = NO_OFFSET
    """There are no records from this offset up to the high watermark."""


class Arrived(NamedTuple):
    """What a fetch returned for one partition. The bytes themselves stay with the puller."""

    at: TopicPartition
    code: Code
    bytes: int = 0
    high_watermark: Offset = NO_OFFSET
    log_start: Offset = NO_OFFSET
    resume: Offset = NO_OFFSET
    ask: NodeId = NO_NODE
