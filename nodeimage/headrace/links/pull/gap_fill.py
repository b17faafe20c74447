"""Gap filling: where the source has no records between a copy's end and the source's next record, the copy skips to it.

A copy with records gets empty batches for the missing offsets, so that readers get past them even if no record
follows. A copy without records begins after the gap: a roll moves its log start. The same is done for a gap larger than
any real one (`LARGEST_GAP`), since a source may claim any offset. After a crash a copy has skipped the gap, has not,
or has some of the empty batches: the next look-up fills the rest.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Final

import structlog

from headrace.base.ids import Offset
from headrace.links.pull.append import Appender, FetchedBatches, Outdated
from headrace.links.pull.effects import FillGap
from headrace.links.pull.partition_state import CopyState
from headrace.links.source.source import TopicPartition
from headrace.partitions.partitions import Partitions
from headrace.partitions.rolls.rolls import Rolls
from headrace.partitions.topic import Topic
from headrace.partitions.topics import Topics
from headrace.wire.batch import gap_batches

log = structlog.get_logger(__name__)

LARGEST_GAP: Final = 1 << 40


class _NoBudget:
    """Accounts for nothing: these bytes were never fetched, so no budget holds them."""

    def __init__(self, committed: Callable[[TopicPartition, Offset], None]) -> None:
        self.committed = committed

    def released(self, count: int) -> None:
        """Do nothing."""


class GapFill:
    """Lets copies that this node leads skip gaps; one object serves all links."""

    def __init__(self, *, topics: Topics, partitions: Partitions, rolls: Rolls, appender: Appender) -> None:
        self._topics = topics
        self._partitions = partitions
        self._rolls = rolls
        self._appender = appender

    async def fill(
        self,
        link: str,
        wanted: FillGap,
        state: CopyState | None,
        *,
        committed: Callable[[TopicPartition, Offset], None],
    ) -> None:
        """Let the copy continue at `wanted.log_start`, unless it has changed since that was requested. `committed`: see
        `append.AppendProgress`. Raises HeadraceError."""
        at = wanted.at
        (topic,) = await self._topics.resolve_ids([at.topic_id])
        if not isinstance(topic, Topic):
            raise topic
        partition = await self._partitions.leader(topic, at.partition)
        if state is None or topic.home != state.home or partition.next_offset != state.end:
            return  # the partition is looked up again
        log.info(
            "a copy continues after records that its source no longer has",
            link=link,
            topic=topic.row.full_name,
            partition=at.partition,
            end=state.end,
            start=wanted.log_start,
        )
        gap = wanted.log_start - state.end
        if partition.next_offset == partition.log_start or gap > LARGEST_GAP:
            await self._rolls.apply_home(partition, state.home, wanted.log_start)
            return
        nothing = [memoryview(batch) for batch in gap_batches(state.end, wanted.log_start - 1)]
        with suppress(Outdated):  # the partition is looked up again
            state.end = await self._appender.append(
                FetchedBatches(at, nothing, state.end, state.home), _NoBudget(committed)
            )
