"""Applies commands of the catalog to the topics and partitions in memory, and writes open frames.

Applied commands arrive in order, on the loop, whichever node submitted them. After each, memory agrees with the
catalog; reads of the catalog that were under way are repeated. Disk maintenance is notified where records have lost
their owner, or now lie below their partition's log start.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

import structlog

from headrace.base.errors import Code
from headrace.base.ids import ContainerId, Home, Position
from headrace.base.runtime import Runtime
from headrace.catalog.catalog import Change
from headrace.catalog.chains import RollDone, Rolled, RollOutcome, SetLogStart, ShortenChains, Shortened
from headrace.catalog.deletions import ForgetDeleted
from headrace.catalog.homes import SetHome
from headrace.catalog.rows import PartitionletRow, Replaced, TopicRow
from headrace.catalog.streams import AlterStream, DeleteStream
from headrace.catalog.topics import AlterTopic, CreatePartitions, CreateTopics, DeleteTopics, TopicOutcome
from headrace.log.frames import FrameType
from headrace.partitions.cluster_client import ClusterClient
from headrace.partitions.partitions import Partitions
from headrace.partitions.rolls.frames import open_frames
from headrace.partitions.topics import Topic, Topics

log = structlog.get_logger()


class DiskMaintenance(Protocol):
    """Frees the bytes of dead records (implemented by storage.maintenance.Maintenance)."""

    def records_freed(self) -> None:
        """Some records no longer have an owner, or now lie below their partition's log start."""

    def rows_replaced(self) -> None:
        """All rows of the catalog have been replaced."""


class AppliedChanges:
    """Passes applied commands on to topics, partitions and disk maintenance."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        cluster: ClusterClient,
        topics: Topics,
        partitions: Partitions,
        maintenance: DiskMaintenance,
    ) -> None:
        self._runtime = runtime
        self._led = cluster.replicas.led
        self._topics = topics
        self._partitions = partitions
        self._maintenance = maintenance

    def applied(self, changes: Sequence[Change]) -> None:
        """Commands were applied (Catalog.on_applied)."""
        topics = self._topics
        for command, outcome in changes:
            if isinstance(command, Replaced):
                self._replaced()
                continue
            topics.command_applied(command)
            match command:
                case DeleteTopics():
                    self._maintenance.records_freed()
                    for topic_id in command.topic_ids:
                        topics.gone(topic_id)
                case ForgetDeleted():
                    if getattr(outcome, "ended", False):
                        self._maintenance.records_freed()
                case DeleteStream():
                    self._maintenance.records_freed()
                    topics.stream_gone(command.path)
                case CreateTopics():
                    assert isinstance(outcome, list)
                    self._open(outcome)
                case AlterTopic() | CreatePartitions():
                    assert isinstance(outcome, TopicOutcome)
                    if outcome.topic is not None:
                        topics.changed(outcome.topic)
                    if isinstance(command, CreatePartitions):
                        self._open([outcome])
                case AlterStream():
                    stream = getattr(outcome, "stream", None)
                    if stream is not None:
                        topics.stream_changed(stream)
                case SetHome():
                    assert isinstance(outcome, list)
                    for change, code in zip(command.items, outcome, strict=True):
                        if code is Code.NONE:
                            topics.home_moved(change.topic_id, Home(change.counter, change.cluster))
                case SetLogStart():
                    if command.items:
                        self._maintenance.records_freed()
                    assert isinstance(outcome, list)
                    for item, result in zip(command.items, outcome, strict=True):
                        self._log_start_moved(item.topic_id, item.partition, result)
                case ShortenChains():
                    assert isinstance(outcome, list)
                    for shortened, result in zip(command.items, outcome, strict=True):
                        self._shortened(shortened, result)
                case RollDone():
                    assert isinstance(outcome, list)
                    for rolled, roll in zip(command.items, outcome, strict=True):
                        if isinstance(roll, RollOutcome) and roll.code is Code.NONE:
                            self._rolled(rolled)

    def _open(self, outcomes: Sequence[Any]) -> None:
        """Write the open frames of new partitionlets into those of their containers that this node leads, without
        waiting for them."""
        by_container: dict[ContainerId, list[tuple[TopicRow, PartitionletRow]]] = {}
        for made in outcomes:
            if made.code is Code.NONE and made.topic is not None:
                for row in made.partitionlets:
                    by_container.setdefault(row.container, []).append((made.topic, row))
        for container_id, opened in by_container.items():
            container = self._led.get(container_id)
            if container is not None:
                for payload in open_frames(opened):
                    container.append_control(FrameType.OPEN, payload).add_done_callback(_log_failure)

    def _rolled(self, item: Rolled) -> None:
        """A partition continues in another partitionlet, whichever node drove the roll."""
        topic = self._topics.cached_id(item.topic_id)
        self._partitions.chain_changed(item.topic_id, item.partition)
        if item.resume >= 0:
            self._maintenance.records_freed()
        if topic is None:
            return
        topic.encoded = None
        partition = topic.partitions.get(item.partition)
        # While a partition is rolling, this node drives the roll, which updates the partition itself.
        if partition is not None and not partition.rolling and partition.open == item.sealed:
            self._partitions.moved_away(topic, item.partition)

    def _log_start_moved(self, topic_id: bytes, index: int, result: Any) -> None:
        self._partitions.log_start_moved(topic_id, index)
        topic = self._topics.cached_id(topic_id)
        partition = topic.partitions.get(index) if topic is not None else None
        if partition is None or result.code is not Code.NONE:
            return
        partition.log_start = max(partition.log_start, result.offset)
        if result.dropped:
            gone = set(result.dropped)
            # The last partitionlet stays even where it is sealed and dropped: its roll may not know yet, and uses it.
            partition.chain = tuple(row for row in partition.chain[:-1] if row.id not in gone) + partition.chain[-1:]
        partition.wake_all()

    def _shortened(self, item: Shortened, result: Any) -> None:
        topic = self._topics.cached_id(item.topic_id)
        partition = topic.partitions.get(item.partition) if topic is not None else None
        if partition is not None:
            partition.chain = tuple(
                row._replace(end=min(row.end, item.end)) if row.id == item.partitionlet else row
                for row in partition.chain
            )
        self._log_start_moved(item.topic_id, item.partition, result)

    # --- replaced rows

    def _replaced(self) -> None:
        """All rows of the catalog have been replaced."""
        self._partitions.rows_replaced()
        self._topics.rows_replaced()
        self._maintenance.rows_replaced()
        in_use = self._topics.all()
        if in_use:
            self._runtime.spawn(self._update_in_use(in_use))

    async def _update_in_use(self, topics: Sequence[Topic]) -> None:
        await self._topics.look_again(topics)
        await self._partitions.look_again([topic for topic in topics if not topic.deleted])


def _log_failure(appended: "asyncio.Future[Position]") -> None:
    """Log a frame that could not be written. The catalog has its contents, so only a rebuild would miss it."""
    if not appended.cancelled() and (error := appended.exception()) is not None:
        log.warning("an open frame was not written", reason=str(error))
