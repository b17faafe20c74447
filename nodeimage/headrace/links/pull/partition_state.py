"""This cluster's copies of what a link pulls: which partitions the link pulls on this node, the copies' states, and
whether a source fits them.

Responsible for reading that from memory and the catalog in bulk, and for judging a meeting with the source's leader by
homes and histories (source/histories.py). Changes nothing: failover/home_apply.py brings partitions in line with their
topic's home. A state is remembered while its partition is tracked; a caller that learns that it may have changed must
look it up again.

A partition is pulled by the node that leads it, if its topic's home is elsewhere, or is here by an agreed move whose
records have not all arrived; never before the copy is brought in line with that home; and only from a source that
knows the same home.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import Home, Offset
from headrace.catalog.catalog import Catalog
from headrace.catalog.reader import Reader
from headrace.links.pull.effects import LookUpResult, Met
from headrace.links.pull.pull_choice import Share
from headrace.links.source.histories import ENDLESS, divergence
from headrace.links.source.source import NO_OFFSET, HomeStart, Meeting, TopicPartition
from headrace.partitions.home_check import is_settled
from headrace.partitions.partition import Partition
from headrace.partitions.partitions import Partitions
from headrace.partitions.topic import Topic
from headrace.partitions.topics import Topics

REMEMBERED = 1000
"""States of untracked partitions are forgotten once there are more than twice as many states as tracked partitions,
plus this number."""


@dataclass(slots=True)
class CopyState:
    """The state of one copied partition in this cluster. `end` is updated with each append."""

    home: Home
    origin: str
    history: Sequence[HomeStart]
    end: Offset

    @property
    def home_starts_at(self) -> Offset:
        """The offset at which its present home begins. Missing records below it may exist only at former homes."""
        starts = (start.offset for start in self.history if (start.counter, start.cluster) == self.home)
        return next(starts, Offset(0))


class CopyStates:
    """The states of all copied partitions of one link on this node."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        topics: Topics,
        partitions: Partitions,
        own_cluster: str,
        stream: str,
        share: Callable[[Topic, int], Share | None],
        on_higher: Callable[[bytes], None],
        on_lacking: Callable[[TopicPartition, bool], None],
    ) -> None:
        """`share`: this link's share of the work on a partition of a topic; None if it has none. `on_higher` is called
        with a topic for which the source knows a higher home; `on_lacking` with a partition that lacks records of
        former homes which this source lacks too (True), or lacks none (False)."""
        self._catalog = catalog
        self._topics = topics
        self._partitions = partitions
        self._own = own_cluster
        self._stream = stream
        self._share = share
        self._on_higher = on_higher
        self._on_lacking = on_lacking
        self._known: dict[TopicPartition, CopyState] = {}

    def of(self, at: TopicPartition) -> CopyState | None:
        """The state of a partition at its last look-up; None if there was none."""
        return self._known.get(at)

    def keep(self, tracked: Collection[TopicPartition]) -> None:
        """Forget the states of all other partitions, once there are many."""
        if len(self._known) > 2 * len(tracked) + REMEMBERED:
            self._known = {at: state for at, state in self._known.items() if at in tracked}

    async def look(self, partitions: Sequence[TopicPartition]) -> list[LookUpResult]:
        """Look up these partitions. Raises HeadraceError if the catalog cannot be queried."""
        ids = list(dict.fromkeys(at.topic_id for at in partitions))
        found = dict(zip(ids, await self._topics.resolve_ids(ids), strict=True))
        ours: dict[bytes, Topic] = {
            topic_id: topic for topic_id, topic in found.items() if isinstance(topic, Topic) and self._is_copy(topic)
        }
        wanted = [
            (at, ours[at.topic_id])
            for at in partitions
            if at.topic_id in ours
            and 0 <= at.partition < ours[at.topic_id].partition_count
            and self._share(ours[at.topic_id], at.partition) is not None
        ]
        leaders = await self._partitions.leaders([(topic, at.partition) for at, topic in wanted])
        moved = {topic.row.number for _, topic in wanted if topic.row.home is not None and topic.row.home.counter}
        histories: Mapping[tuple[int, int], Sequence[HomeStart]] = {}
        if moved:
            histories = await self._catalog.query(partial(_histories, topics=moved))
        answers = {at: LookUpResult(at, False) for at in partitions}
        for (at, topic), leader in zip(wanted, leaders, strict=True):
            answers[at] = self._looked(at, topic, leader, histories.get((topic.row.number, at.partition), ()))
        return list(answers.values())

    def _is_copy(self, topic: Topic) -> bool:
        return topic.home is not None and topic.stream == self._stream

    def _looked(
        self, at: TopicPartition, topic: Topic, leader: Partition | KafkaError, history: Sequence[HomeStart]
    ) -> LookUpResult:
        if isinstance(leader, KafkaError):
            if leader.code in (Code.NOT_LEADER_OR_FOLLOWER, Code.UNKNOWN_TOPIC_OR_PARTITION):
                return LookUpResult(at, False)
            return LookUpResult(at, True, reason=str(leader))
        home = topic.home
        if home is None:
            return LookUpResult(at, False)
        if not is_settled(topic, leader):
            return LookUpResult(at, True, reason=f"it is not settled for its home {home.cluster} yet")
        end, limit = Offset(leader.next_offset), NO_OFFSET
        state = self._known[at] = CopyState(home, topic.row.origin or self._own, history, end)
        if end >= state.home_starts_at:
            self._on_lacking(at, False)
        if home.cluster == self._own:
            limit = Offset(leader.home_start)
            if end >= limit:
                return LookUpResult(at, False)
        share = self._share(topic, at.partition)
        if share is None:
            return LookUpResult(at, False)
        return LookUpResult(at, True, end, limit, share=share, lacks=end < state.home_starts_at)

    def judge(self, meeting: Meeting) -> Met:
        """Judge the partition's state at the source's leader: whether it can be pulled from there."""
        at = meeting.at
        if meeting.code is not Code.NONE:
            return Met(at, meeting.code, reason=meeting.message)
        state = self._known.get(at)
        if state is None:
            return Met(at, Code.NONE, reason="its copy has not been looked up yet")
        if meeting.home < state.home:
            return Met(at, Code.NONE, reason=f"the source has not heard yet that its home is {state.home.cluster}")
        if meeting.home > state.home:
            self._on_higher(at.topic_id)
            return Met(at, Code.NONE, reason=f"its home is now {meeting.home.cluster}, according to the source")
        # One home has one history; if there were two, records from the source could belong to the other one.
        diverged_at = divergence(state.history, state.origin, ENDLESS, meeting.history, meeting.origin)
        if diverged_at is not None:
            return Met(at, Code.NONE, reason=f"the source has another history from offset {diverged_at} on")
        if max(state.end, meeting.high_watermark) < state.home_starts_at:
            self._on_lacking(at, True)
        return Met(at, Code.NONE, meeting.leader_epoch, meeting.high_watermark, empty_from=meeting.empty_from)


def _histories(reader: Reader, topics: set[int]) -> Mapping[tuple[int, int], Sequence[HomeStart]]:
    """[blocking] The histories of these topics' partitions, by topic number and partition."""
    return {
        place: tuple(HomeStart(*start) for start in starts) for place, starts in reader.homes.histories(topics).items()
    }
