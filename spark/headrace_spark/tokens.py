"""The token that lets a partition store a task's rows once, however often the task runs.

A token producer is a record batch's producer id below -1, made of (query, task, part); its base sequence is the number
of the micro-batch. A Headrace partition keeps the last number of each token for ever, and through rolls, and answers a
batch whose number is not above it as a success without storing it. A Kafka broker takes such ids for none: there the
sink is at-least-once.

What a task is must not change between attempts of a batch: the sources must plan it alike (ours does), rows must go
to tasks by what they hold, and `spark.sql.adaptive.streaming.stateless.enabled` must be false behind a shuffle whose
number of partitions the query does not fix. A query for which that does not hold is at-least-once across partitions.
"""

import hashlib
from dataclasses import dataclass

from headrace_spark.encode import ProducerToken

_SEQUENCE_MASK = 0x7FFFFFFF


@dataclass(frozen=True, slots=True)
class TaskToken:
    """A task of one query's batch; the same for every attempt."""

    query: str
    """Of a stream the query's id, which its checkpoint keeps; of a batch write one name for the whole job."""
    task: int
    batch: int

    def part(self, topic: str, number: int) -> ProducerToken:
        """The token of the `number`-th record batch that the task writes to one partition of `topic`."""
        text = "\x00".join((self.query, str(self.task), topic, str(number)))
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        identity = int.from_bytes(digest, "big") >> 1
        return ProducerToken(
            producer_id=max(-2 - identity, -(1 << 63)),
            producer_epoch=0,
            base_sequence=self.batch & _SEQUENCE_MASK,
        )
