"""A partition's state of its idempotent producers: pure bookkeeping, no I/O and no clock.

The last five batches of each producer are kept (Kafka's bound on requests in flight), so that a batch that is sent
again is recognized and answered with its first offset (KIP-98, invariant 11), and a gap is refused.

Producer ids below -1 are *tokens*: hashed names of tasks of a Spark query. Their sequence is the number of the
micro-batch: it only has to rise, and gaps are normal. Tokens never expire, so that a re-run of a micro-batch is
recognized however late it is. A re-run may have different rows: the answer tells the sink for which batch it was taken
(headrace_spark/once.py).
"""

from collections.abc import ItemsView, Iterable, Mapping
from sys import intern
from typing import Final, NamedTuple

from headrace.base.errors import Code, KafkaError
from headrace.partitions.sequence_gap import SequenceGap

BATCHES_KEPT: Final = 5
IDLE_MS: Final = 24 * 3600 * 1000
"""Milliseconds without a batch after which a partition forgets a producer, as in Kafka."""
EXPIRE_EVERY: Final = 100
"""Number of producers known to a partition between two searches for idle ones."""
MAX_NAMES: Final = 10_000
"""Limit of the producers of a forwarded topic whose names for the topic are remembered, see `Producers.calls`."""
MAX_KNOWN = 100_000
"""Limit of the producers (not tokens) that a partition remembers, those that wrote last: a roll carries all of them in
one frame."""
_SEQUENCES: Final = 1 << 31


class KnownBatch(NamedTuple):
    """The sequences of one stored batch, its base offset, and its largest timestamp in milliseconds."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    timestamp: int


class Producer:
    """One producer's last batches in one partition, oldest first."""

    __slots__ = ("batches", "epoch", "name", "not_named", "seen", "source", "torn")

    def __init__(self, epoch: int, batches: Iterable[KnownBatch] = (), *, seen: int, torn: bool = False) -> None:
        """`seen`: when the producer last sent a batch, by this node's clock, in milliseconds.

        `torn`: newer batches that were acknowledged may have been lost (invariant 15), so its next sequence may be
        higher than expected.
        """
        self.epoch = epoch
        self.seen = seen
        self.torn = torn
        self.source = 0
        """The number of the connection that the producer last used; 0 where its batches were read from the log."""
        self.name = ""
        """What the producer calls the topic; empty if not known, as the log does not record it."""
        self.not_named = ""
        """While `name` is not known: a name under which the producer sent a batch that differs from the stored one."""
        self.batches = list(batches)[-BATCHES_KEPT:]


def _name_conflict(producer_id: int, name: str, *, known: str) -> KafkaError:
    """The refusal of a producer that calls a topic `name`, having called it `known` before (empty: by a name that is
    not known)."""
    names = f"{known!r} and {name!r}" if known else f"{name!r} and another one"
    return KafkaError(
        Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"producer {producer_id} calls one topic by two names, {names}, and counts its batches for each; use one name",
    )


def to_forget(last: Mapping[int, int]) -> list[int]:
    """The producers to forget in a partition that has too many, by the offset of each one's last batch: the oldest,
    until nine tenths of `MAX_KNOWN` remain, so that not every further producer causes this again."""
    oldest = sorted((offset, each) for each, offset in last.items() if each >= 0)
    return [each for _, each in oldest[: max(0, len(oldest) - MAX_KNOWN * 9 // 10)]]


_NO_PRODUCERS: dict[int, Producer] = {}
"""The empty state, shared by all partitions that no idempotent producer writes to; never modified."""


class Producers:
    """The producers of one partition, by producer id."""

    __slots__ = ("_known", "_names")

    def __init__(self, known: Mapping[int, Producer] | None = None) -> None:
        self._names: dict[tuple[int, int], str] | None = None
        """What producers call a topic whose home is another cluster, by producer id and epoch."""
        self._known: dict[int, Producer] = dict(known) if known else _NO_PRODUCERS
        if len(self._known) > MAX_KNOWN:
            self._forget_oldest()

    def items(self) -> ItemsView[int, Producer]:
        """All producers by id."""
        return self._known.items()

    def __len__(self) -> int:
        return len(self._known)

    def check(
        self,
        *,
        producer_id: int,
        epoch: int,
        base_sequence: int,
        records: int,
        name: str = "",
        timestamp: int | None = None,
    ) -> KnownBatch | None:
        """The stored batch that this one repeats, or None if it is the next one. `name`: what the producer calls the
        topic; empty: not known. `timestamp`: the batch's largest timestamp, if only the very same batch counts as a
        repeat. A producer's repeat is recognized by its sequence alone, as in Kafka, since some clients (kafkajs)
        encode the batch again, with another time.

        An unknown producer may begin with any sequence. Raises `KafkaError`: INVALID_PRODUCER_EPOCH (older epoch),
        OUT_OF_ORDER_SEQUENCE_NUMBER (`SequenceGap`, or a sequence that was used for another batch).

        A producer that calls one topic by two names counts sequences for each name. Taking a batch sent under one name
        for a repeat of a batch sent under the other would lose it silently, so the second name is refused.
        """
        known = self._known.get(producer_id)
        if producer_id < -1:
            if known is None or base_sequence > known.batches[-1].last_sequence:
                return None
            return next((batch for batch in known.batches if batch.base_sequence == base_sequence), known.batches[-1])
        if base_sequence < 0:
            raise KafkaError(Code.INVALID_RECORD, f"producer {producer_id} sent sequence {base_sequence}")
        if known is None:
            # An unknown producer begins anywhere, as in Kafka since KIP-360: it was idle for a day, or its topic was
            # deleted and recreated. Clients keep counting, and librdkafka treats UNKNOWN_PRODUCER_ID as fatal. Whether
            # earlier batches are still to come is up to partitions/refusals.py, which keeps the order on a connection.
            return None
        if epoch < known.epoch:
            raise KafkaError(
                Code.INVALID_PRODUCER_EPOCH, f"producer {producer_id} has epoch {known.epoch}; {epoch} is older"
            )
        if epoch > known.epoch:
            if base_sequence != 0:
                raise SequenceGap(
                    f"producer {producer_id} must start epoch {epoch} at sequence 0, not {base_sequence}",
                    source=known.source,
                    expected=0,
                )
            return None
        if name and known.name and name != known.name:
            raise _name_conflict(producer_id, name, known=known.name)
        if name and name == known.not_named:
            raise _name_conflict(producer_id, name, known="")
        last_sequence = (base_sequence + records - 1) % _SEQUENCES
        for batch in known.batches:
            if batch.base_sequence == base_sequence and batch.last_sequence == last_sequence:
                if timestamp is not None and timestamp != batch.timestamp:
                    break
                return batch
        newest = known.batches[-1].last_sequence
        expected = (newest + 1) % _SEQUENCES
        if base_sequence == expected:
            return None
        if (newest - base_sequence) % _SEQUENCES < _SEQUENCES // 2:
            raise KafkaError(
                Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {producer_id} used sequence {base_sequence} for another batch",
            )
        if known.torn:
            return None
        raise SequenceGap(
            f"producer {producer_id} sent sequence {base_sequence}; {expected} comes next",
            source=known.source,
            expected=expected,
        )

    def calls(self, *, producer_id: int, epoch: int, name: str) -> None:
        """Note the name by which a producer calls a topic, before its batch is forwarded to the topic's home, which
        gets batches under one name only.

        Raises KafkaError: see `check`.
        """
        if self._names is None:
            self._names = {}
        known = self._names.setdefault((producer_id, epoch), intern(name))
        if known != name:
            raise _name_conflict(producer_id, name, known=known)
        if len(self._names) > MAX_NAMES:
            del self._names[next(iter(self._names))]

    def begins_late(self, *, producer_id: int, base_sequence: int) -> bool:
        """Whether a producer is unknown although its batch is not its first one."""
        return base_sequence > 0 and producer_id >= 0 and producer_id not in self._known

    def heard(self, producer_id: int, *, source: int, name: str = "") -> None:
        """The producer has repeated a stored batch on the connection `source`, for the topic under that name."""
        known = self._known.get(producer_id)
        if known is not None:
            known.source = source
            if name:
                known.name = intern(name)
                known.not_named = ""

    def is_named(self, producer_id: int) -> bool:
        """Whether it is known what this producer calls the topic."""
        known = self._known.get(producer_id)
        return known is not None and bool(known.name)

    def is_not_called(self, producer_id: int, name: str) -> None:
        """Note that a batch that the producer sent under that name differs from the stored one, which it therefore sent
        under another name."""
        known = self._known.get(producer_id)
        if known is not None and not known.name:
            known.not_named = intern(name)

    def next_sequence(self, *, producer_id: int, epoch: int) -> int | None:
        """The sequence of this producer's next batch; None if the producer is unknown in that epoch."""
        known = self._known.get(producer_id)
        if known is None or known.epoch != epoch:
            return None
        return (known.batches[-1].last_sequence + 1) % _SEQUENCES

    def add(
        self,
        *,
        producer_id: int,
        epoch: int,
        base_sequence: int,
        records: int,
        base_offset: int,
        timestamp: int,
        now: int,
        source: int = 0,
        name: str = "",
    ) -> None:
        """Remember a batch that `check` accepted and that has its offset now. `timestamp`: the batch's largest, in
        milliseconds; `name`: see `check`."""
        last = base_sequence if producer_id < -1 else (base_sequence + records - 1) % _SEQUENCES
        batch = KnownBatch(base_sequence, last, base_offset, timestamp)
        known = self._known.get(producer_id)
        if known is None or known.epoch != epoch:
            if self._known is _NO_PRODUCERS:
                self._known = {}
            elif len(self._known) % EXPIRE_EVERY == 0:
                self.expire(now - IDLE_MS)
                if len(self._known) > MAX_KNOWN:
                    self._forget_oldest()
            known = self._known[producer_id] = Producer(epoch, (batch,), seen=now)
            known.source = source
            known.name = name and intern(name)
            return
        known.seen = now
        known.source = source
        if name and not known.name:
            known.name = intern(name)
            known.not_named = ""
        known.torn = False
        known.batches.append(batch)
        if len(known.batches) > BATCHES_KEPT:
            del known.batches[0]

    def expire(self, before: int) -> None:
        """Forget producers (not tokens) that sent nothing since `before` (milliseconds, this node's clock)."""
        gone = [
            producer_id for producer_id, producer in self._known.items() if producer_id >= 0 and producer.seen < before
        ]
        for producer_id in gone:
            del self._known[producer_id]

    def _forget_oldest(self) -> None:
        for producer_id in to_forget({each: known.batches[-1].base_offset for each, known in self._known.items()}):
            del self._known[producer_id]

    def cut(self, at: int) -> "Producers":
        """The state after the batches from offset `at` on were removed (invariant 9).

        A producer that lost some of its batches may continue with a higher sequence than expected; a producer or token
        without any batch left is unknown again.
        """
        left: dict[int, Producer] = {}
        for producer_id, producer in self._known.items():
            kept = [batch for batch in producer.batches if batch.base_offset < at]
            if kept:
                torn = producer.torn or len(kept) < len(producer.batches)
                left[producer_id] = Producer(producer.epoch, kept, seen=producer.seen, torn=torn)
        return Producers(left)
