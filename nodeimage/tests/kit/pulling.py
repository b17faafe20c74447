"""A whole node inside the test's own loop as the target of links, and what the tests request from it."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.base.errors import Code
from headrace.catalog.rows import LinkRow
from headrace.catalog.topics import CreateTopics, NewTopic
from headrace.links.pull.append import Appender
from headrace.links.pull.gap_fill import GapFill
from headrace.links.pull.home_links import HomeLinks
from headrace.links.pull.pull_choice import Share
from headrace.links.pull.puller import Puller
from headrace.links.pull.pullers import Pullers
from headrace.links.source.source import Source, TopicPartition
from headrace.node import Options
from headrace.node.parts import NodeParts
from headrace.partitions.cluster_layout import NodeSettings
from headrace.partitions.lookups import now
from headrace.partitions.topic import Topic
from headrace.wire.batch import Record, iter_records
from kit.played_source import HOME

STREAM = "/copies"
WAIT_S = 100.0


async def until(condition: Callable[[], object], what: str = "") -> None:
    """Wait for a condition that another task brings about; fails after a while."""
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110  # whatever brings it about knows nothing of the test
            await asyncio.sleep(0.002)


def options(folder: Path, **settings: Any) -> Options:
    return Options(
        data=folder / "node-1",
        store=folder / "cluster.sqlite",
        host="127.0.0.1",
        port=0,
        ready_file=None,
        settings=NodeSettings(**({"chunk_bytes": 1 << 20, "disk_reserve": 0, "fsync": False} | settings)),
    )


class Pulling:
    """Creates pullers, and closes them at the end."""

    def __init__(self, broker: NodeParts) -> None:
        self.made: list[Puller] = []
        appender = Appender(
            topics=broker.topics, rolls=broker.rolls, home_check=broker.home_check, back_pressure=broker.back_pressure
        )
        self._parts: dict[str, Any] = {
            "catalog": broker.catalog,
            "topics": broker.topics,
            "partitions": broker.partitions,
            "appender": appender,
            "gap_fill": GapFill(
                topics=broker.topics, partitions=broker.partitions, rolls=broker.rolls, appender=appender
            ),
            "runtime": broker.runtime,
            "own_cluster": broker.node.cluster_id,
        }

    def __call__(self, source: Any, **options: Any) -> Puller:
        options = {
            "name": f"link-{len(self.made)}",
            "stream": STREAM,
            "share": lambda _topic, _at: Share(),
        } | options
        puller = Puller(source=source, randomness=lambda: 0.0, **self._parts, **options)
        self.made.append(puller)
        return puller


def pullers(broker: NodeParts, *, open_source: Callable[[LinkRow], Source]) -> Pullers:
    """All links of a node, in addition to its own."""
    return Pullers(
        catalog=broker.catalog,
        topics=broker.topics,
        partitions=broker.partitions,
        rolls=broker.rolls,
        led=broker.containers,
        home_check=broker.home_check,
        back_pressure=broker.back_pressure,
        runtime=broker.runtime,
        own_cluster=broker.node.cluster_id,
        home_links=HomeLinks(),
        open_source=open_source,
    )


async def copy(broker: NodeParts, name: str, partitions: list[TopicPartition], *, home: str = HOME) -> None:
    """The copy of a source's topic, as the topic syncer creates it."""
    places = broker.placement.place(len(partitions))
    item = NewTopic(
        STREAM,
        name,
        partitions[0].topic_id,
        len(partitions),
        {},
        [container for container, _ in places],
        [epoch for _, epoch in places],
        home=(0, home),
        origin=home,
    )
    (outcome,) = await broker.catalog.submit(CreateTopics([item], now()))
    assert outcome.code is Code.NONE, outcome


class Copies:
    """The contents of the target."""

    def __init__(self, broker: NodeParts) -> None:
        self.parts = broker

    async def bytes(self, at: TopicPartition) -> bytes:
        """All committed batches of a partition."""
        (topic,) = await self.parts.topics.resolve_ids([at.topic_id])
        assert isinstance(topic, Topic), topic
        partition = await self.parts.partitions.leader(topic, at.partition)
        batches = partition.container.read_tail(
            partition.open, partition.chain[-1].first, limit=partition.high_watermark, max_bytes=1 << 30
        )
        assert batches is not None
        return b"".join(map(bytes, batches))

    async def records(self, at: TopicPartition) -> list[Record]:
        return list(iter_records(await self.bytes(at)))

    def end(self, at: TopicPartition) -> int:
        """The committed end of a partition that is in memory; -1 if it is not."""
        topic = self.parts.topics.cached_id(at.topic_id)
        partition = None if topic is None else topic.partitions.get(at.partition)
        return -1 if partition is None else partition.high_watermark
