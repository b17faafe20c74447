"""Retriable refusals of batches, and their effect on the batches that follow.

An idempotent producer has several requests in flight on one connection, and further batches built. When a batch is
refused with a retriable error (the partition changes its leader, rolls to another container, or has no room), the
batches behind it must not be stored before it is sent again. They would be out of order, and nothing else would detect
it, since an unknown producer may begin anywhere (partitions/producer_state.py). Nor may they be refused with
OUT_OF_ORDER_SEQUENCE_NUMBER: librdkafka then begins a new epoch, in which it sends again what it had in flight to other
partitions, stored or not. So they get the same refusal, and the client sends all of them again, in order.

A batch that is stored already is exempt: it repeats a batch that was stored by way of another node, and is recognized.

A refusal ends when its batch is sent again, when the producer begins a new epoch, when the partition's own state says
that a batch is the next one (the refused batch may have been stored by way of another node), and after a while: a short
while if the topic was deleted and recreated since, as the new topic knows nothing of what the old one stored. The
age of a refusal is measured at the arrival of a request, since the request may have to wait, before it starts, for
longer than a refusal lasts.

A batch that arrives on a new connection *before* the one that it follows is refused with a retriable error, too, for a
second, and only then with OUT_OF_ORDER_SEQUENCE_NUMBER. librdkafka sends batches in that order when a partition changes
its leader: the thread of the old leader's connection counts a refused batch as no longer in flight before it has put
the batch back into the queue (rd_kafka_msgbatch_handle_Produce_result), so the thread of the new leader's connection
may take the batches behind it first. A batch of an unknown producer that is not its first one is early in the same way,
and is stored only after that second: once a batch is acknowledged, librdkafka considers all batches before it stored
(rd_kafka_dr_implicit_ack), and drops them.

Also responsible for the errors that producers get for faults of the catalog, which clients would not understand.
"""

import time
from typing import Final, NamedTuple

from headrace.base.errors import Code, HeadraceError, KafkaError
from headrace.container.leader import Leader
from headrace.partitions.producer_state import Producers
from headrace.wire.batch import read_batch
from headrace.wire.produce import PartitionRecords

REMEMBERED_S: Final = 60.0
"""Seconds for which a refusal affects the batches behind its batch."""
REMEMBERED_OF_ANOTHER_LIFE_S: Final = 1.0
"""Seconds for which a refusal affects the batches behind its batch, if the topic is unknown or was recreated. An
unknown topic may mean only that this node's catalog is slightly behind; but if the topic was deleted, the client gives
the batch up, and continues with the next sequence if the topic is recreated."""

MAX_REMEMBERED: Final = 50_000
"""Limit of the refusals remembered for one connection, some 0.5 KB each. A producer has one per partition at most."""

EARLY_S: Final = 1.0
"""Seconds for which an early batch is refused with a retriable error: long enough for the client to queue the batch
that it follows."""

RETRIABLE: Final = frozenset(
    {
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.LEADER_NOT_AVAILABLE,
        Code.KAFKA_STORAGE_ERROR,
        Code.NOT_ENOUGH_REPLICAS,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.CORRUPT_MESSAGE,
    }
)
"""Retriable errors: after one of these a client sends the same batch again."""

_CATALOG_FAULTS: Final = frozenset(
    {
        Code.UNKNOWN_SERVER_ERROR,
        Code.REQUEST_TIMED_OUT,
        Code.BROKER_NOT_AVAILABLE,
        Code.REPLICA_NOT_AVAILABLE,
        Code.COORDINATOR_LOAD_IN_PROGRESS,
        Code.COORDINATOR_NOT_AVAILABLE,
        Code.NOT_COORDINATOR,
        Code.NOT_CONTROLLER,
        Code.INVALID_REQUEST,
        Code.FENCED_LEADER_EPOCH,
    }
)


def client_error(error: HeadraceError) -> KafkaError:
    """The error that clients get for one raised while they produce or look up where to: a fault of the catalog becomes
    LEADER_NOT_AVAILABLE."""
    code = Code.LEADER_NOT_AVAILABLE if error.code in _CATALOG_FAULTS else error.code
    return KafkaError(code, str(error))


def why_not_committed(container: Leader) -> KafkaError | None:
    """Why a batch could not be committed in a container until a follower (invariant 6) or the cluster store is back;
    None if nothing hinders commits.

    NOT_LEADER_OR_FOLLOWER if another node may lead by now, so that clients ask other nodes for the leader.
    """
    if not container.is_hindered:
        return None
    if outcast := container.outcast:
        text = f"{outcast}, and an in-sync replica is out of reach: another node may lead container {container.id}"
        return KafkaError(Code.NOT_LEADER_OR_FOLLOWER, text)
    if stalled := container.stalled:
        return KafkaError(Code.NOT_ENOUGH_REPLICAS, f"container {container.id} takes no records: {stalled}")
    return None


class _Refused(NamedTuple):
    """A refused batch, which its producer is expected to send again. `topic_id`: the topic's id at the refusal, as far
    as this node knew it. `since`: monotonic seconds."""

    epoch: int
    sequence: int
    error: KafkaError
    topic_id: bytes | None
    since: float

    def holds(self, topic_id: bytes | None, now: float) -> bool:
        same_life = topic_id == self.topic_id and self.error.code is not Code.UNKNOWN_TOPIC_OR_PARTITION
        return now < self.since + (REMEMBERED_S if same_life else REMEMBERED_OF_ANOTHER_LIFE_S)


class _Early(NamedTuple):
    """A batch that arrived before the one with the sequence `expected` (None: its producer is unknown)."""

    epoch: int
    expected: int | None
    since: float


Key = tuple[str, int, int]
"""Topic as the client calls it, partition, producer id."""


class Refusals:
    """The retriable refusals of one connection's batches."""

    __slots__ = ("_early", "_refused")

    def __init__(self) -> None:
        self._refused: dict[Key, _Refused] = {}
        """Refused batches, the oldest first."""
        self._early: dict[Key, _Early] = {}
        """Early batches, the oldest first."""

    def __bool__(self) -> bool:
        return bool(self._refused or self._early)

    @property
    def too_many(self) -> bool:
        """Whether the limit is exceeded: the connection has to be closed, so that its producers start over."""
        return len(self._refused) > MAX_REMEMBERED or len(self._early) > MAX_REMEMBERED

    def expire(self) -> None:
        """Forget refusals that are too old. Called for each request; the cost is proportional to what is forgotten."""
        now = time.monotonic()
        while self._refused and not (oldest := next(iter(self._refused.items())))[1].holds(oldest[1].topic_id, now):
            del self._refused[oldest[0]]
        while self._early and now >= (first := next(iter(self._early.items())))[1].since + REMEMBERED_S:
            del self._early[first[0]]

    def note(self, part: PartitionRecords, error: HeadraceError, topic_id: bytes | None) -> None:
        """Remember a refused batch, or renew the refusal of the batch that it is behind. Not to be called for a batch
        that shares a refusal (`stands`), which would then last for as long as the client retries.

        `topic_id`: the topic's id, as far as this node knows it.
        """
        if error.code not in RETRIABLE or (batch := _idempotent_batch(part)) is None:
            return
        key, epoch, sequence = batch
        now = time.monotonic()
        known = self._refused.pop(key, None)
        same_life = known is not None and (topic_id == known.topic_id or None in (topic_id, known.topic_id))
        if known is not None and same_life and known.epoch == epoch and _is_behind(sequence, known.sequence):
            self._refused[key] = known._replace(since=now)
        else:
            self._refused[key] = _Refused(epoch, sequence, KafkaError(error.code, str(error)), topic_id, now)

    def has_grace(self, part: PartitionRecords, expected: int | None) -> bool:
        """Whether to refuse this early batch with a retriable error: true for `EARLY_S` from the first time it is seen.

        `expected`: the sequence of the missing batch; None if the producer is unknown, so that any earlier one may be
        missing.
        """
        if (batch := _idempotent_batch(part)) is None:
            return False
        key, epoch, _ = batch
        now = time.monotonic()
        known = self._early.get(key)
        if known is None or known[:2] != (epoch, expected):
            self._early.pop(key, None)
            known = self._early[key] = _Early(epoch, expected, now)
        return now < known.since + EARLY_S

    def stands(
        self, part: PartitionRecords, producers: Producers, topic_id: bytes | None, *, arrived: float
    ) -> KafkaError | None:
        """The refusal of a batch before this one that this batch has to share; None if the order permits storing it.

        `producers`: those of the batch's partition. `topic_id`: its topic's id. `arrived`: when the batch's request
        arrived, in monotonic seconds.
        """
        if (batch := _idempotent_batch(part)) is None:
            return None
        key, epoch, sequence = batch
        known = self._refused.get(key)
        if known is None:
            return None
        expected = producers.next_sequence(producer_id=key[2], epoch=epoch)
        if expected is not None and _is_behind(expected, sequence):
            return None  # it repeats a stored batch, perhaps stored by way of another node, and keeps the order
        behind = known.epoch == epoch and _is_behind(sequence, known.sequence)
        if behind and sequence != expected and known.holds(topic_id, arrived):
            return known.error
        del self._refused[key]  # the refused batch was sent again, or its producer has given it up and starts over
        return None


def _idempotent_batch(part: PartitionRecords) -> tuple[Key, int, int] | None:
    """The key of a batch's producer, its epoch and base sequence; None if the batch is not idempotent, or not valid."""
    if part.records is None:
        return None
    try:
        header = read_batch(part.records, check_crc=False, from_client=False)
    except HeadraceError:
        return None
    if header.producer_id == -1:
        return None
    return (part.topic, part.partition, header.producer_id), header.producer_epoch, header.base_sequence


def _is_behind(sequence: int, other: int) -> bool:
    """Whether `sequence` comes after `other`; both wrap at 2**31."""
    return 0 < (sequence - other) % (1 << 31) < 1 << 30
