"""What a partition remembers of its idempotent producers: pure bookkeeping, no I/O and no clock.

Of each producer the last five batches are kept (Kafka's bound on requests in flight), so that a batch sent again is
known and answered with its first offset (KIP-98, invariant 11), and a gap is refused.

Producer ids below -1 are *tokens*: the name of a task of a Spark query, hashed. Their sequence is the number of the
micro-batch: it only has to rise, gaps are natural, and they never expire, so that a re-run of a micro-batch, however
late, is known. It may have other rows: the sink is told which batch it was taken for (headrace_spark/once.py).
"""

from collections.abc import ItemsView, Iterable, Mapping
from sys import intern
from typing import Final, NamedTuple

from headrace.base.errors import Code, KafkaError
from headrace.partitions.sequence_gap import SequenceGap

BATCHES_KEPT: Final = 5
IDLE_MS: Final = 24 * 3600 * 1000
"""A producer that sent nothing to a partition for so long is forgotten there, as in Kafka."""
EXPIRE_EVERY: Final = 100
"""New producers of a partition between two looks at which are idle."""
MOST_NAMES: Final = 10_000
MOST_KNOWN = 100_000
"""Producers (not tokens) that a partition remembers, those that wrote last: a roll carries them all in one frame."""
_SEQUENCES: Final = 1 << 31


class KnownBatch(NamedTuple):
    """One batch that the partition holds."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    timestamp: int


class Producer:
    """One producer's last batches in one partition, oldest first."""

    __slots__ = ("batches", "epoch", "name", "not_named", "seen", "source", "torn")

    def __init__(self, epoch: int, batches: Iterable[KnownBatch] = (), *, seen: int, torn: bool = False) -> None:
        """`seen`: when it was last heard of, by this node's clock, in milliseconds.

        `torn`: newer batches that it was told are stored may have been lost (invariant 15), so the next may lie ahead.
        """
        self.epoch = epoch
        self.seen = seen
        self.torn = torn
        self.source = 0
        """The number of the connection that it was last heard by; 0 where its batches were read from the log."""
        self.name = ""
        """What it calls the topic; empty where its batches were read from the log, which does not say."""
        self.not_named = ""
        """Where that is not known: a name of the topic by which another batch came than the one that is stored."""
        self.batches = list(batches)[-BATCHES_KEPT:]


def _two_names(producer_id: int, name: str, *, known: str) -> KafkaError:
    """The refusal of a producer that calls a topic `name`, and `known` before; empty: by a name that is not known."""
    names = f"{known!r} and {name!r}" if known else f"{name!r} and another one"
    return KafkaError(
        Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"producer {producer_id} calls one topic by two names, {names}, and counts its batches for each; use one name",
    )


def to_forget(last: Mapping[int, int]) -> list[int]:
    """Of a partition's producers with the offsets of their last batches, those that it may forget where they are too
    many: all but nine tenths of `MOST_KNOWN`, so that it need not be done each time that another one comes."""
    oldest = sorted((offset, each) for each, offset in last.items() if each >= 0)
    return [each for _, each in oldest[: max(0, len(oldest) - MOST_KNOWN * 9 // 10)]]


_NOBODY: dict[int, Producer] = {}
"""Shared by all partitions that no idempotent producer writes to; never changed."""


class Producers:
    """The producers of one partition, by producer id."""

    __slots__ = ("_known", "_names")

    def __init__(self, known: Mapping[int, Producer] | None = None) -> None:
        self._names: dict[tuple[int, int], str] | None = None
        """What producers call a topic that is at home elsewhere, by id and epoch."""
        self._known: dict[int, Producer] = dict(known) if known else _NOBODY
        if len(self._known) > MOST_KNOWN:
            self._forget_oldest()

    def items(self) -> ItemsView[int, Producer]:
        """Producer ids and what is known of them."""
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
        """The batch that this one repeats, or None if it is the next one. `name`: what the producer calls the topic;
        empty: not known. `timestamp`: the batch's largest, where it has to be the very same batch: of a repeat by its
        producer the sequence alone tells, as at Kafka, since some clients (kafkajs) encode it anew, at another time.

        A producer of which nothing is known begins where it likes. Raises `KafkaError`: INVALID_PRODUCER_EPOCH (older
        epoch), OUT_OF_ORDER_SEQUENCE_NUMBER (`SequenceGap`, or a sequence that was used for something else).

        A producer that calls one topic by two names counts for each. To take a batch of the one for a repeat of what it
        sent to the other would lose it without a word, so the second name is refused.
        """
        known = self._known.get(producer_id)
        if producer_id < -1:
            if known is None or base_sequence > known.batches[-1].last_sequence:
                return None
            return next((batch for batch in known.batches if batch.base_sequence == base_sequence), known.batches[-1])
        if base_sequence < 0:
            raise KafkaError(Code.INVALID_RECORD, f"producer {producer_id} sent sequence {base_sequence}")
        if known is None:
            # Wherever it begins, as Kafka does since KIP-360: it was idle for a day, or its topic was deleted and made
            # again. A client counts on, and librdkafka takes UNKNOWN_PRODUCER_ID for the end of its producer. That its
            # first batch is not still to come is for partitions/refusals.py, which keeps the order on a connection.
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
            raise _two_names(producer_id, name, known=known.name)
        if name and name == known.not_named:
            raise _two_names(producer_id, name, known="")
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
        """A producer's batch is about to be passed on to the topic's home, which hears one name of the topic alone.

        Raises KafkaError: see `check`.
        """
        if self._names is None:
            self._names = {}
        known = self._names.setdefault((producer_id, epoch), intern(name))
        if known != name:
            raise _two_names(producer_id, name, known=known)
        if len(self._names) > MOST_NAMES:
            del self._names[next(iter(self._names))]

    def begins_late(self, *, producer_id: int, base_sequence: int) -> bool:
        """Whether nothing is known of this producer, and yet it does not begin with its first batch."""
        return base_sequence > 0 and producer_id >= 0 and producer_id not in self._known

    def heard(self, producer_id: int, *, source: int, name: str = "") -> None:
        """A batch that it repeats came by the connection `source`, for the topic by that name."""
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
        """What this producer sent to the topic by that name is not what is stored: it has another name for it."""
        known = self._known.get(producer_id)
        if known is not None and not known.name:
            known.not_named = intern(name)

    def next_sequence(self, *, producer_id: int, epoch: int) -> int | None:
        """The sequence that this producer's next batch has; None if nothing is known of it in that epoch."""
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
        """Remember a batch that `check` let pass and that now has its offset. `timestamp`: its largest; `name`: see
        `check`."""
        last = base_sequence if producer_id < -1 else (base_sequence + records - 1) % _SEQUENCES
        batch = KnownBatch(base_sequence, last, base_offset, timestamp)
        known = self._known.get(producer_id)
        if known is None or known.epoch != epoch:
            if self._known is _NOBODY:
                self._known = {}
            elif len(self._known) % EXPIRE_EVERY == 0:
                self.expire(now - IDLE_MS)
                if len(self._known) > MOST_KNOWN:
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
        """Forget producers (not tokens) that were last heard of before `before` (milliseconds, this node's clock)."""
        gone = [
            producer_id for producer_id, producer in self._known.items() if producer_id >= 0 and producer.seen < before
        ]
        for producer_id in gone:
            del self._known[producer_id]

    def _forget_oldest(self) -> None:
        for producer_id in to_forget({each: known.batches[-1].base_offset for each, known in self._known.items()}):
            del self._known[producer_id]

    def cut(self, at: int) -> "Producers":
        """What is known when the batches from offset `at` on are gone (invariant 9).

        A producer that lost batches may go on ahead of those that are left; a token whose batches are all gone is new
        again. So is a producer that has none left.
        """
        left: dict[int, Producer] = {}
        for producer_id, producer in self._known.items():
            kept = [batch for batch in producer.batches if batch.base_offset < at]
            if kept:
                torn = producer.torn or len(kept) < len(producer.batches)
                left[producer_id] = Producer(producer.epoch, kept, seen=producer.seen, torn=torn)
        return Producers(left)
