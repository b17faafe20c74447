"""The interface by which Produce forwards writes to a copy to the topic's home cluster.

`links/failover/forwarding.py` implements it. A write to a topic whose home was always here involves none of it.
"""

from typing import Protocol

from headrace.base.errors import KafkaError
from headrace.partitions.topic import Topic
from headrace.wire.produce import PartitionRecords, ProduceResult


class Done(Protocol):
    """Called once with a batch's outcome: the home's result, an error, or None where the outcome is not known.

    `shared`: the batch was not sent itself; the outcome is that of an earlier batch that it waited behind.
    """

    def __call__(self, outcome: ProduceResult | KafkaError | None, shared: bool) -> None: ...


class Forwards(Protocol):
    """Forwards batches to the home clusters of their topics."""

    def accepts(self, topic: Topic) -> bool:
        """Whether writes to this copy are forwarded."""
        ...

    @property
    def full(self) -> bool:
        """Whether the bytes that wait are at their limit: await `room` before the next `send`."""
        ...

    async def room(self) -> None:
        """Wait until there is room; a caller that continues without another await may send."""
        ...

    def send(self, session: int, topic: Topic, part: PartitionRecords, *, timeout_ms: int, done: Done) -> None:
        """Forward one valid batch, after those sent before. `session`: the number of the producer's connection."""
        ...


def must_wait(forwards: Forwards, topic: Topic) -> bool:
    """Whether writes to a topic are forwarded to its home, and have to wait for room first."""
    return forwards.full and topic.home is not None and forwards.accepts(topic)
