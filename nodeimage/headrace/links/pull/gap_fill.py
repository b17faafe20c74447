"""Lets a copy go on where its source has something again, which has nothing between our end and there.

A copy that holds records gets batches that say that there are none for the offsets that are missing: whoever reads to
the end comes there, also if nothing comes behind. One that holds none begins there: its log start moves, by a roll;
and so it goes on behind a gap of more offsets than anybody writes, since a source may say anything.
A crash leaves one that has gone on, or has not, or some of these batches: the next look jumps from there.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Final

import structlog

from headrace.base.ids import Offset
from headrace.links.pull.append import Appender, Came, Outdated
from headrace.links.pull.effects import Jump
from headrace.links.pull.partition_state import Standing
from headrace.links.source.source import TopicPartition
from headrace.partitions.partitions import Partitions
from headrace.partitions.rolls.rolls import Rolls
from headrace.partitions.topic import Topic
from headrace.partitions.topics import Topics
from headrace.wire.batch import gap_batches

log = structlog.get_logger(__name__)

LARGEST_GAP: Final = 1 << 40


class _Told:
    """These bytes were never fetched, so no budget holds them."""

    def __init__(self, committed: Callable[[TopicPartition, Offset], None]) -> None:
        self.committed = committed

    def released(self, count: int) -> None:
        """Nothing."""


class GapFill:
    """Lets copies that this node leads go on behind gaps; one object for all links."""

    def __init__(self, *, topics: Topics, partitions: Partitions, rolls: Rolls, appender: Appender) -> None:
        self._topics = topics
        self._partitions = partitions
        self._rolls = rolls
        self._appender = appender

    async def jump(
        self,
        link: str,
        wanted: Jump,
        standing: Standing | None,
        *,
        committed: Callable[[TopicPartition, Offset], None],
    ) -> None:
        """Go on at `wanted.log_start`, or not, if our side is not as it was when that was asked for; see `append.Told`
        for `committed`. Raises HeadraceError."""
        at = wanted.at
        (topic,) = await self._topics.resolve_ids([at.topic_id])
        if not isinstance(topic, Topic):
            raise topic
        partition = await self._partitions.leader(topic, at.partition)
        if standing is None or topic.home != standing.home or partition.next_offset != standing.end:
            return  # it is looked at again
        log.info(
            "a copy goes on behind what its source lacks",
            link=link,
            topic=topic.row.full_name,
            partition=at.partition,
            end=standing.end,
            start=wanted.log_start,
        )
        gap = wanted.log_start - standing.end
        if partition.next_offset == partition.log_start or gap > LARGEST_GAP:
            await self._rolls.apply_home(partition, standing.home, wanted.log_start)
            return
        nothing = [memoryview(batch) for batch in gap_batches(standing.end, wanted.log_start - 1)]
        with suppress(Outdated):  # it is looked at again
            standing.end = await self._appender.append(Came(at, nothing, standing.end, standing.home), _Told(committed))
