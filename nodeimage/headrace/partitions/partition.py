"""One partition as its leader holds it in memory: its end, its high watermark, and the fetches that wait for more.

Responsible for numbering record batches (base offset, leader epoch), for the checks that need the partition's state
(idempotence, invariant 11), and for waking fetches when `high_watermark` moves (invariant 2). A `Partition` is created
when a client uses it and forgotten when it is idle: topics that nobody uses take no memory.

Knows nothing of requests or of the disk: it appends to a `Leader`, which notifies it of commits. When this node ceases
to lead the partition's container, or the partition continues in a container elsewhere, `left` is set, and holders of
the object have to look the partition up again.
"""

from typing import Protocol

from headrace.base.ids import Home, PartitionletId
from headrace.catalog.rows import HomeStart, PartitionletRow
from headrace.container.commit_waiters import Waiting
from headrace.container.leader import Leader
from headrace.partitions.producer_state import KnownBatch, Producers
from headrace.partitions.rolls.frames import Seal
from headrace.wire.batch import BatchHeader, detached, stamp, stamp_append_time


class Watcher(Protocol):
    """A fetch that wants to know when a partition has more to read."""

    def wake(self) -> None: ...


class Feed(Protocol):
    """Reports to other clusters which partitions have more to read."""

    wanted: bool
    """Whether any cluster wants the reports."""

    def note(self, partition: "Partition") -> None:
        """The partition's high watermark has moved. Sets `partition.noted` until that has been reported."""


class Append:
    """One batch being appended: once committed, it moves the partition's high watermark and notifies its request."""

    __slots__ = ("_next_offset", "_partition", "_request")

    def __init__(self, partition: "Partition", next_offset: int, request: Waiting) -> None:
        self._partition = partition
        self._next_offset = next_offset
        self._request = request

    def committed(self) -> None:
        """The batch is committed; the container calls this in the order of the appends."""
        self._partition.advance(self._next_offset)
        self._request.committed()

    def lost(self) -> None:
        """This node no longer leads the container; whether the batch is kept is up to the next leader."""
        self._request.lost()


class Partition:
    """The leader's state of one partition."""

    __slots__ = (
        "bytes",
        "chain",
        "container",
        "deleted",
        "earlier_epochs",
        "feed",
        "gap",
        "high_watermark",
        "home",
        "home_start",
        "index",
        "leader_epoch",
        "led_from",
        "left",
        "log_start",
        "next_offset",
        "noted",
        "open",
        "producers",
        "rolling",
        "seal",
        "topic_id",
        "watchers",
    )

    def __init__(
        self,
        *,
        topic_id: bytes,
        index: int,
        chain: tuple[PartitionletRow, ...],
        container: Leader,
        next_offset: int,
        log_start: int,
        producers: Producers,
        size: int,
        feed: Feed,
        epochs: tuple[tuple[int, int], ...] = (),
        seal: Seal | None = None,
        settled: HomeStart | None = None,
    ) -> None:
        self.topic_id = topic_id
        self.index = index
        self.feed = feed
        self.noted = False
        """The partition is on the feed's list."""
        self.log_start = log_start
        self.deleted = False
        self.left = False
        """This object is out of date: requests get NOT_LEADER_OR_FOLLOWER, and waiting fetches look the partition up
        again."""
        self.rolling = False
        """True while the open partitionlet is being sealed and the next one opened: appends wait."""
        self.watchers: dict[Watcher, None] | None = None
        """Fetches that wait for more; None while there are none, which saves memory for most partitions."""
        self.set_chain(
            chain=chain, container=container, next_offset=next_offset, producers=producers, size=size, epochs=epochs
        )
        self.high_watermark = next_offset
        self.gap: tuple[int, int] | None
        """(offset, high watermark): between the two there was nothing to read, as where a copy was cut. Set by fetches,
        and out of date once the high watermark has moved."""
        self.set_home(settled)
        self.seal = seal
        """The seal that an interrupted roll has already written for the open partitionlet: the partitionlet takes no
        more batches, and the roll has to be finished."""

    def set_chain(
        self,
        *,
        chain: tuple[PartitionletRow, ...],
        container: Leader,
        next_offset: int,
        producers: Producers,
        size: int,
        epochs: tuple[tuple[int, int], ...] = (),
    ) -> None:
        """Replace the chain by `chain`, whose last partitionlet is open in `container`.

        `epochs`: the leader epochs in which that partitionlet's records were appended, each with its first offset.
        """
        self.chain = chain
        self.open: PartitionletId = chain[-1].id
        self.container = container
        self.leader_epoch: int = chain[-1].current_leader_epoch(container.epoch)
        self.earlier_epochs = tuple(each for each in epochs if each[0] < self.leader_epoch)
        """The open partitionlet's leader epochs before the present one, each with its first offset."""
        self.led_from = next((first for epoch, first in epochs if epoch == self.leader_epoch), next_offset)
        """The first offset of the present leader epoch."""
        self.next_offset = next_offset
        self.producers = producers
        self.bytes = size
        self.seal = None
        self.gap = None

    def set_home(self, settled: HomeStart | None) -> None:
        """Set the home that the partition was last rolled for, with its first offset; None: its topic's first home."""
        self.home: Home | None = None if settled is None else Home(settled.counter, settled.cluster)
        self.home_start = 0 if settled is None else settled.offset

    @property
    def idle(self) -> bool:
        """Whether this object can be forgotten now without losing anything."""
        return not self.watchers and not self.rolling and self.high_watermark == self.next_offset

    def known(self, header: BatchHeader, *, name: str = "", same_time: bool = False) -> KnownBatch | None:
        """The stored batch that this one repeats; None if it is new. Raises `KafkaError` if its sequence is refused.

        `name`: what the producer calls the topic. `same_time`: whether a repeat must have the same largest
        timestamp; if not, a batch that was encoded again counts as a repeat, too.
        """
        if header.producer_id == -1:
            return None
        return self.producers.check(
            producer_id=header.producer_id,
            epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            records=header.record_count,
            name=name,
            timestamp=header.max_timestamp if same_time else None,
        )

    def is_doubtful(self, header: BatchHeader, known: KnownBatch) -> bool:
        """Whether a batch may differ from `known` although it has the same sequence, see `batch_comparison`."""
        return (
            header.producer_id >= 0
            and header.max_timestamp != known.timestamp
            and not self.producers.is_named(header.producer_id)
        )

    def append(
        self,
        batch: memoryview,
        header: BatchHeader,
        *,
        append_time: int | None,
        now: int,
        request: Waiting,
        source: int = 0,
        name: str = "",
    ) -> int:
        """Number `batch`, append it to the log, and return its base offset. The container must have room for it.

        `append_time`: the time to stamp the batch with (milliseconds), None to keep its own; `now`: the time of the
        producer's state; `source`: the number of the producer's connection; `name`: what the producer calls the topic.
        """
        first = self.next_offset
        last = first + header.last_offset_delta
        max_timestamp = header.max_timestamp
        if append_time is not None:
            stamp_append_time(batch, append_time)
            max_timestamp = append_time
        stamp(batch, first, self.leader_epoch)
        self.container.append_batch(
            partitionlet=self.open,
            first=first,
            last=last,
            max_timestamp=max_timestamp,
            batch=detached(batch),
            waiting=Append(self, last + 1, request),
        )
        self.next_offset = last + 1
        self.bytes += header.length
        if header.producer_id != -1:
            self.producers.add(
                producer_id=header.producer_id,
                epoch=header.producer_epoch,
                base_sequence=header.base_sequence,
                records=header.record_count,
                base_offset=first,
                timestamp=max_timestamp,
                now=now,
                source=source,
                name=name,
            )
        return first

    def append_copy(self, batch: memoryview, header: BatchHeader, *, now: int, request: Waiting) -> None:
        """Append `batch` at its own offsets, which do not lie below `next_offset`. The container must have room for it.

        Offsets in between become a gap. The producer's state is taken from the batch unchecked: the home has checked
        it.
        """
        first = header.base_offset
        last = first + header.last_offset_delta
        assert first >= self.next_offset, "a copy's offsets only rise"
        if self.led_from == self.next_offset:
            self.led_from = first  # no record of this epoch lies in the gap before it
        stamp(batch, first, self.leader_epoch)
        self.container.append_batch(
            partitionlet=self.open,
            first=first,
            last=last,
            max_timestamp=header.max_timestamp,
            batch=detached(batch),
            waiting=Append(self, last + 1, request),
        )
        self.next_offset = last + 1
        self.bytes += header.length
        if header.producer_id != -1 and header.base_sequence >= 0:
            self.producers.add(
                producer_id=header.producer_id,
                epoch=header.producer_epoch,
                base_sequence=header.base_sequence,
                records=header.last_offset_delta + 1,
                base_offset=first,
                timestamp=header.max_timestamp,
                now=now,
            )

    def ends_in_gap(self, offset: int) -> bool:
        """Whether there is known to be no record from `offset` up to the high watermark."""
        return self.gap is not None and self.gap[0] <= offset and self.gap[1] == self.high_watermark

    @property
    def empty_from(self) -> int:
        """The lowest offset from which there is known to be no record up to the high watermark; a copy may end in a
        gap."""
        end = self.high_watermark
        found = end
        if end <= self.chain[-1].first:
            found = self.chain[-2].end if len(self.chain) > 1 else self.log_start
        if self.gap is not None and self.gap[1] == end:
            found = min(found, self.gap[0])
        return max(min(found, end), self.log_start)

    def epochs(self) -> list[tuple[int, int]]:
        """The (leader epoch, first offset) history of the records that are kept, in order, up to the present epoch.

        As in Kafka, no epoch begins below the log start, and epochs that ended there or before are left out.
        """
        # A partitionlet that an edit of the chain has cut ends before epochs that its seal lists.
        history: list[tuple[int, int]] = [
            (epoch, min(first, row.end)) for row in self.chain[:-1] for epoch, first in row.epochs
        ]
        history += [*self.earlier_epochs, (self.leader_epoch, self.led_from)]
        begun = [number for number, (_, first) in enumerate(history) if first <= self.log_start]
        return [(epoch, max(first, self.log_start)) for epoch, first in history[begun[-1] if begun else 0 :]]

    def advance(self, next_offset: int) -> None:
        """Everything below `next_offset` is committed: move the high watermark, and wake watchers."""
        self.high_watermark = next_offset
        if self.feed.wanted and not self.noted:
            self.feed.note(self)
        if self.watchers:
            for watcher in self.watchers:
                watcher.wake()

    def wake_all(self) -> None:
        """Wake all watchers after another change that they must see: a moved log start, or a deleted topic."""
        for watcher in tuple(self.watchers or ()):
            watcher.wake()

    def leave(self) -> None:
        """Mark this object as out of date, see `left`."""
        self.left = True
        self.wake_all()

    def watch(self, watcher: Watcher) -> None:
        """Wake `watcher` whenever there is more to read, from now on."""
        if self.watchers is None:
            self.watchers = {}
        self.watchers[watcher] = None

    def unwatch(self, watcher: Watcher) -> None:
        """Stop waking `watcher`."""
        if self.watchers is not None:
            self.watchers.pop(watcher, None)
            if not self.watchers:
                self.watchers = None
