"""The token that lets a partition store a task's rows once, however often the task runs.

A token producer is a record batch's producer id below -1, made of (query, task, part); its base sequence is the number
of the micro-batch. A Headrace partition keeps the last number of each token for ever, and through rolls, and answers a
batch whose number is not above it as a repeat without storing it. A Kafka broker takes such ids for none: there the
sink is at-least-once.

What a task is must not change between attempts of a batch: the sources must plan it alike (ours does), rows must go
to tasks by what they hold, and `spark.sql.adaptive.streaming.stateless.enabled` must be false behind a shuffle whose
number of partitions the query does not fix. A query for which that does not hold is at-least-once: once.py sees that a
repeat has the rows that are stored, and sends other ones under a token that is made from them.
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
        return ProducerToken(
            producer_id=_hashed(text.encode()), producer_epoch=0, base_sequence=self.batch & _SEQUENCE_MASK
        )


def made_from_rows(token: ProducerToken, digest: bytes) -> ProducerToken:
    """The token of rows that are not those that a partition has under `token`: another for each batch and digest."""
    text = f"{token.producer_id}\x00{token.base_sequence}\x00".encode()
    return ProducerToken(producer_id=_hashed(text + digest), producer_epoch=0, base_sequence=token.base_sequence)


def _hashed(name: bytes) -> int:
    identity = int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big") >> 1
    return max(-2 - identity, -(1 << 63))
