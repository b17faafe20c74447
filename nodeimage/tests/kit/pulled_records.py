"""The records pulled from a simulated source, and the state of a link."""

import asyncio

from headrace.links.pull.lag import figures
from headrace.links.pull.puller import Puller
from headrace.links.source.source import TopicPartition
from headrace.node.parts import NodeParts
from headrace.partitions.topic import Topic

ID = bytes(range(16))


def shown(puller: Puller) -> str:
    return figures(puller.state, puller.counters, asyncio.get_running_loop().time()).state


def epochless(batches: bytes) -> bytes:
    """One batch without its leader epoch, which each cluster sets itself."""
    return batches[:12] + batches[16:]


async def leader(broker: NodeParts, at: TopicPartition):  # type: ignore[no-untyped-def]
    (topic,) = await broker.topics.resolve_ids([at.topic_id])
    assert isinstance(topic, Topic)
    return await broker.partitions.leader(topic, at.partition)
