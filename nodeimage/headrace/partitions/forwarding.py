"""What Produce knows of writes to copies that are passed on to their home; `links/failover/forwarding.py` does it.

Nothing of it is touched by a write to a topic that was always at home here.
"""

from typing import Protocol

from headrace.base.errors import KafkaError
from headrace.partitions.topic import Topic
from headrace.wire.produce import PartitionRecords, ProduceResult


class Done(Protocol):
    """Told once what came of a batch: the home's result, an error, or None where nobody knows.

    `shared`: it was not tried itself, but stood behind one to which this happened.
    """

    def __call__(self, outcome: ProduceResult | KafkaError | None, shared: bool) -> None: ...


class Forwards(Protocol):
    """Passes on batches."""

    def accepts(self, topic: Topic) -> bool:
        """Whether writes to this copy are passed on."""
        ...

    @property
    def full(self) -> bool:
        """As many bytes wait as may: wait for `room` before the next `send`."""
        ...

    async def room(self) -> None:
        """Until it is not full; whoever goes on at once may send."""
        ...

    def send(self, session: int, topic: Topic, part: PartitionRecords, *, timeout_ms: int, done: Done) -> None:
        """Pass on one sound batch behind those before it. `session`: the number of the producer's connection."""
        ...


def must_wait(forwards: Forwards, topic: Topic) -> bool:
    """Whether what is written to a topic goes to its home, and has to wait for room on the way."""
    return forwards.full and topic.home is not None and forwards.accepts(topic)
