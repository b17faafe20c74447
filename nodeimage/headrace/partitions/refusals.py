"""Refusals that hold for the moment, and what they mean for the batches behind them.

An idempotent producer has several requests under way on one connection, and more built. When a batch is refused for the
moment (the partition changes hands, rolls, or has no room), those behind it must not be stored before it comes again:
they would be out of order, and nothing else tells, as a producer that is not known here may begin anywhere
(partitions/producer_state.py). Nor may they be told OUT_OF_ORDER_SEQUENCE_NUMBER: librdkafka then begins a new epoch,
in which it sends again what it had under way to other partitions, stored or not. So they get the same refusal, and the
client sends all of them again, in order.

A batch that is stored already is no part of that: it repeats what went by way of another node, and is known.

A refusal is over when its batch comes again, when the producer begins a new epoch, when the partition's own state says
that a batch is the next one (what was refused here may have been stored by way of another node), and after a while: a
short one if the topic was deleted and made again since, as its new life knows nothing of what the old one stored. What
counts is when a request arrived: it may have waited for longer than that until it could start.

A batch that comes by a new connection *before* the one that it follows is refused for the moment too, for a second, and
only then as OUT_OF_ORDER_SEQUENCE_NUMBER. librdkafka does that when a partition changes hands: the thread of the old
leader's connection counts a refused batch as no longer under way before it has put it back into the queue
(rd_kafka_msgbatch_handle_Produce_result), so that of the new leader may take those behind it first. Where nothing is
known of a producer, a batch that is not its first is early in the same way, and stored only after that second: once a
batch is acknowledged, librdkafka takes all before it for stored (rd_kafka_dr_implicit_ack), and drops them.

Also responsible for what producers are told of faults that are not theirs to understand: the catalog's.
"""

import time
from typing import Final, NamedTuple

from headrace.base.errors import Code, HeadraceError, KafkaError
from headrace.container.leader import Leader
from headrace.partitions.producer_state import Producers
from headrace.wire.batch import read_batch
from headrace.wire.produce import PartitionRecords

REMEMBERED_S: Final = 60.0
REMEMBERED_OF_ANOTHER_LIFE_S: Final = 1.0
"""Where the topic is unknown: here the catalog may only be a moment behind, but if it was deleted, the client gives the
batch up and goes on with the next sequence, should the topic be made again. And where it has been made again."""

MOST_REMEMBERED: Final = 50_000
"""Refusals of one connection, some 0.5 KB each. A producer has one for each partition that it writes to, at most."""

EARLY_S: Final = 1.0
"""For so long a batch that came too early is to be sent again: by then the one that it follows is in the queue."""

FOR_THE_MOMENT: Final = frozenset(
    {
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.LEADER_NOT_AVAILABLE,
        Code.KAFKA_STORAGE_ERROR,
        Code.NOT_ENOUGH_REPLICAS,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.CORRUPT_MESSAGE,
    }
)
"""After these a client sends the batch again, as it was."""

_CATALOGS: Final = frozenset(
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


def told(error: HeadraceError) -> KafkaError:
    """The error as producers, and who asks where they may produce, are told it."""
    code = Code.LEADER_NOT_AVAILABLE if error.code in _CATALOGS else error.code
    return KafkaError(code, str(error))


def why_not_committed(container: Leader) -> KafkaError | None:
    """Of a batch that would wait until something changes: a follower comes back (invariant 6), or the cluster store.

    NOT_LEADER_OR_FOLLOWER where another node may lead by now, so that clients ask others who does.
    """
    if not container.is_hindered:
        return None
    if outcast := container.outcast:
        text = f"{outcast}, and a replica in sync is out of touch: another node may lead container {container.id}"
        return KafkaError(Code.NOT_LEADER_OR_FOLLOWER, text)
    if stalled := container.stalled:
        return KafkaError(Code.NOT_ENOUGH_REPLICAS, f"container {container.id} takes no records: {stalled}")
    return None


class _Refused(NamedTuple):
    """A batch that is to come again. `topic_id`: as this node knew the topic then. `since`: on the monotonic clock."""

    epoch: int
    sequence: int
    error: KafkaError
    topic_id: bytes | None
    since: float

    def holds(self, topic_id: bytes | None, now: float) -> bool:
        same_life = topic_id == self.topic_id and self.error.code is not Code.UNKNOWN_TOPIC_OR_PARTITION
        return now < self.since + (REMEMBERED_S if same_life else REMEMBERED_OF_ANOTHER_LIFE_S)


class _Early(NamedTuple):
    """A batch came before that with the sequence `expected` (None: nothing is known of its producer)."""

    epoch: int
    expected: int | None
    since: float


Key = tuple[str, int, int]
"""Topic as the client calls it, partition, producer id."""


class Refusals:
    """Those of one connection."""

    __slots__ = ("_early", "_refused")

    def __init__(self) -> None:
        self._refused: dict[Key, _Refused] = {}
        """The oldest first."""
        self._early: dict[Key, _Early] = {}
        """The oldest first."""

    def __bool__(self) -> bool:
        return bool(self._refused or self._early)

    @property
    def too_many(self) -> bool:
        """Nobody can be told to remember any more: the connection has to end, so that its producers begin anew."""
        return len(self._refused) > MOST_REMEMBERED or len(self._early) > MOST_REMEMBERED

    def expire(self) -> None:
        """Forget what has been remembered for long enough, for each request anew: it costs by what is forgotten."""
        now = time.monotonic()
        while self._refused and not (oldest := next(iter(self._refused.items())))[1].holds(oldest[1].topic_id, now):
            del self._refused[oldest[0]]
        while self._early and now >= (first := next(iter(self._early.items())))[1].since + REMEMBERED_S:
            del self._early[first[0]]

    def note(self, part: PartitionRecords, error: HeadraceError, topic_id: bytes | None) -> None:
        """This batch was refused, and not because it shares a refusal: else one would last as long as the client tries.

        `topic_id`: of its topic as far as this node knows.
        """
        if error.code not in FOR_THE_MOMENT or (batch := _idempotent(part)) is None:
            return
        key, epoch, sequence = batch
        now = time.monotonic()
        known = self._refused.pop(key, None)
        same_life = known is not None and (topic_id == known.topic_id or None in (topic_id, known.topic_id))
        if known is not None and same_life and known.epoch == epoch and _behind(sequence, known.sequence):
            self._refused[key] = known._replace(since=now)
        else:
            self._refused[key] = _Refused(epoch, sequence, KafkaError(error.code, str(error)), topic_id, now)

    def is_early(self, part: PartitionRecords, expected: int | None) -> bool:
        """Of a batch that comes before the one that it follows: whether that one may still come.

        `expected`: that one's sequence; None where nothing is known of the producer, so it may be any before this one.
        """
        if (batch := _idempotent(part)) is None:
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
        """The refusal that this batch shares; None: it may be stored, as far as order goes.

        `producers`: of its partition. `topic_id`: of its topic. `arrived`: when it did, on the monotonic clock.
        """
        if (batch := _idempotent(part)) is None:
            return None
        key, epoch, sequence = batch
        known = self._refused.get(key)
        if known is None:
            return None
        expected = producers.next_sequence(producer_id=key[2], epoch=epoch)
        if expected is not None and _behind(expected, sequence):
            return None  # it repeats what is stored, by way of another node perhaps, and puts nothing out of order
        behind = known.epoch == epoch and _behind(sequence, known.sequence)
        if behind and sequence != expected and known.holds(topic_id, arrived):
            return known.error
        del self._refused[key]  # it has come again, or its producer has given it up and begun anew
        return None


def _idempotent(part: PartitionRecords) -> tuple[Key, int, int] | None:
    """Whose batch it is, its producer's epoch and its base sequence; None: it is not idempotent, or no batch."""
    if part.records is None:
        return None
    try:
        header = read_batch(part.records, check_crc=False, from_client=False)
    except HeadraceError:
        return None
    if header.producer_id == -1:
        return None
    return (part.topic, part.partition, header.producer_id), header.producer_epoch, header.base_sequence


def _behind(sequence: int, other: int) -> bool:
    """Whether `sequence` comes after `other`; both wrap at 2**31."""
    return 0 < (sequence - other) % (1 << 31) < 1 << 30
