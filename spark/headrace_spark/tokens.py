"""The token by which a partition stores a task's rows once, however often the task runs.

A token is a record batch's producer id below -1, derived from (query, task, part); the base sequence is the number of
the micro-batch. A Headrace partition keeps the last number of each token for ever, also when the partition moves, and
answers a batch whose number is not higher as a repeat, without storing it. A Kafka broker ignores such ids: there the
sink is at-least-once.

The tasks of a batch must not change between attempts: sources must plan them alike (ours does), rows must be assigned
to tasks by their content, and `spark.sql.adaptive.streaming.stateless.enabled` must be false behind a shuffle whose
number of partitions the query does not fix. A query for which that does not hold is at-least-once: once.py checks that
a repeat has the stored rows, and sends different ones under a token derived from them.
"""

import hashlib
from dataclasses import dataclass

from headrace_spark.encode import ProducerToken

_SEQUENCE_MASK = 0x7FFFFFFF


@dataclass(frozen=True, slots=True)
class TaskToken:
    """A task of one query's batch; the same for every attempt."""

    query: str
    """The id of a streaming query, which its checkpoint keeps; or the name of a batch write, one for the whole job."""
    task: int
    batch: int

    def part(self, topic: str, number: int) -> ProducerToken:
        """Return the token of the `number`-th record batch that the task writes to one partition of `topic`."""
        text = "\x00".join((self.query, str(self.task), topic, str(number)))
        return ProducerToken(
            producer_id=_hashed(text.encode()), producer_epoch=0, base_sequence=self.batch & _SEQUENCE_MASK
        )


def made_from_rows(token: ProducerToken, digest: bytes) -> ProducerToken:
    """Return the token for rows that differ from those stored under `token`: another for each batch and digest."""
    text = f"{token.producer_id}\x00{token.base_sequence}\x00".encode()
    return ProducerToken(producer_id=_hashed(text + digest), producer_epoch=0, base_sequence=token.base_sequence)


def _hashed(name: bytes) -> int:
    identity = int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big") >> 1
    return max(-2 - identity, -(1 << 63))
