"""What a link's state machine wants done, and what it is told came of it: the words between link_state.py, which
decides, and puller.py, which does. Plain values."""

from dataclasses import dataclass
from typing import NamedTuple

from headrace.base.errors import Code
from headrace.base.ids import LeaderEpoch, NodeId, Offset
from headrace.links.pull.pull_choice import Share
from headrace.links.source.source import NO_EPOCH, NO_NODE, NO_OFFSET, FeedPlace, TopicPartition, Wanted


@dataclass(frozen=True, slots=True)
class Connect:
    """Ask the source who it is, and which nodes it has: `greeted`, or `not_greeted`."""


@dataclass(frozen=True, slots=True)
class Poll:
    """Wait for changes at a node, so long at most: `changed`, or `poll_failed`."""

    node: NodeId
    since: FeedPlace | None
    wait_ms: int


@dataclass(frozen=True, slots=True)
class ListTopics:
    """List a page of the source's topics, with the first beyond `after`: `listed`, or `not_listed`."""

    after: str | None


@dataclass(frozen=True, slots=True)
class LookUp:
    """Look up these partitions here, on the target: `looked`."""

    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Locate:
    """Ask the source who leads these topics' partitions: `located`, or `not_located`."""

    topic_ids: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Meet:
    """Meet these partitions at their leader: `met`, or `not_met`."""

    node: NodeId
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Fetch:
    """Fetch these, in this order, `max_bytes` in all: `arrived`, or `fetch_failed`. `number` names the fetch."""

    number: int
    node: NodeId
    wanted: tuple[Wanted, ...]
    max_bytes: int


@dataclass(frozen=True, slots=True)
class FillGap:
    """The source has no records of this partition below `log_start`: let the copy go on there (by a roll). Then
    `gap_filled`."""

    at: TopicPartition
    log_start: Offset


Effect = Connect | Poll | ListTopics | LookUp | Locate | Meet | Fetch | FillGap


class Looked(NamedTuple):
    """What is known here of a partition that changed at the source."""

    at: TopicPartition
    pulled: bool
    """It is led here, its home is elsewhere, and this link is the one that pulls it. Else it is forgotten."""
    next: Offset = NO_OFFSET
    """Behind our last record."""
    limit: Offset = NO_OFFSET
    """Where to stop: the start of our own home, during a move. `NO_OFFSET`: nowhere."""
    reason: str = ""
    """Why it cannot be pulled for the moment; empty: it can."""
    share: Share = Share()
    """What of it is this link's."""
    lacks: bool = False
    """Of homes before the topic's: it is to be met, to know whether its source has that."""


class Met(NamedTuple):
    """How a meeting with a partition's leader ended. With a `reason`, nothing is pulled for the moment."""

    at: TopicPartition
    code: Code
    leader_epoch: LeaderEpoch = NO_EPOCH
    high_watermark: Offset = NO_OFFSET
    reason: str = ""
    empty_from: Offset = NO_OFFSET
    """Up to the high watermark, no record lies there."""


class Arrived(NamedTuple):
    """What a fetch brought of one partition. The bytes themselves stay with whoever fetched."""

    at: TopicPartition
    code: Code
    bytes: int = 0
    high_watermark: Offset = NO_OFFSET
    log_start: Offset = NO_OFFSET
    resume: Offset = NO_OFFSET
    ask: NodeId = NO_NODE
