"""The feed of recent changes on this node, for other clusters that copy its streams (docs/links.md).

Responsible for reporting, by stream: which partitions led here have more records (`note`, called when a high watermark
moves), and which topics and committed offsets have changed (from the catalog, on every node). All are hints to look:
one may be given without reason, none may be missing. A place in the feed is a run and a serial. The run changes
whenever unnoted changes are possible: when the node starts, begins to lead a container, or gets another replica's
catalog. A reader with another run, or with a serial older than what is kept, has to list everything again.

Cost follows changes. Nothing is noted before somebody subscribes, or once nobody has asked for SUBSCRIBED_S; an idle
topic has no entry. On the path of records a partition is put on a list at most once between two drains; a drain assigns
the serials. Readers are woken at once, but not within BATCH_S of the last time. Memory is bounded by MAX_CHANGES.

Knows nothing of links. Streams are identified by number, which partitionlet ids contain; for changes that the catalog
reports by topic id alone, the stream is looked up before they are noted.
"""

import asyncio
import uuid
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import structlog

from headrace.base.errors import Code, HeadraceError, KafkaError
from headrace.base.ids import ContainerId, StreamNumber, stream_of
from headrace.base.runtime import Runtime
from headrace.catalog.catalog import Catalog, Change
from headrace.catalog.chains import RollDone, Rolled, RollOutcome, SetLogStart, ShortenChains
from headrace.catalog.committed_offsets import CommitOffsets, CopyOffsets, DeleteOffsets
from headrace.catalog.groups import DeleteGroups
from headrace.catalog.homes import SetHome
from headrace.catalog.reader import Reader
from headrace.catalog.rows import Replaced, TopicRow
from headrace.catalog.streams import DeleteStream
from headrace.catalog.topics import AlterTopic, CreatePartitions, CreateTopics, DeleteTopics, TopicOutcome
from headrace.links.serving.change_log import COMMITTED_OFFSET, PARTITION, TOPIC, ChangeLog, Key, Page
from headrace.partitions.partition import Partition
from headrace.partitions.topics import Topics

log = structlog.get_logger()

SUBSCRIBED_S: Final = 90.0
BATCH_S: Final = 0.004
ROUNDED_S: Final = 1e-6
"""Added to timers: a deadline in milliseconds, converted to seconds, may be rounded down, and the wait would end too
early."""
MAX_CHANGES = 200_000
"""The maximum number of changes kept for all streams, about 250 bytes each."""
MAX_NOTED: Final = 1000
"""The maximum number of partitions on the list between two drains."""
MAX_UNPLACED = 100_000
"""The maximum number of changes whose stream is being looked up."""
KNOWN_STREAMS: Final = 20_000
"""The maximum number of topics whose stream number is remembered."""
WHOLE_GROUP: Final = (b"", -1)
"""Stands for topic id and partition in a key that means all committed offsets of the group."""


class Place(NamedTuple):
    """How far a reader has read."""

    run: str
    serial: int


class Changes(NamedTuple):
    """What changed since a place, and the place to continue from. With `reset`, anything may have changed."""

    place: Place
    reset: bool
    changes: Sequence[tuple[Key, int]] = ()
    """The keys with their values: the high watermark for partitions."""


class _Subscribed:
    """A stream that somebody reads."""

    __slots__ = ("log", "number", "path", "seen", "waiting")

    def __init__(self, path: str, number: StreamNumber, floor: int) -> None:
        self.path = path
        self.number = number
        self.log = ChangeLog(floor)
        self.waiting: dict[asyncio.Future[None], None] = {}
        """Readers that wait, in order of arrival."""
        self.seen = 0.0
        """The loop's time of the last request."""


class ChangeFeed:
    """Notes what changes on this node, and reports it to readers."""

    def __init__(self, *, catalog: Catalog, topics: Topics, led: Collection[ContainerId], runtime: Runtime) -> None:
        """`led`: the containers that this node leads."""
        self._catalog = catalog
        self._topics = topics
        self._led = led
        self._runtime = runtime
        self.wanted = False
        """Whether somebody subscribes, so that moving high watermarks must be noted."""
        self.run = uuid.uuid4().hex
        self._serial = 0
        self._by_path: dict[str, _Subscribed] = {}
        self._by_number: dict[StreamNumber, _Subscribed] = {}
        self._held = 0
        """How many changes all logs hold."""
        self._noted: list[Partition] = []
        self._changed: set[_Subscribed] = set()
        """Streams that changed since their readers were woken."""
        self._due = False
        """Whether a drain is scheduled."""
        self._drained_at = 0.0
        self._numbers: dict[bytes, StreamNumber] = {}
        self._unplaced: list[tuple[bytes, Key]] = []
        self._placing: asyncio.Task[None] | None = None
        self._expires = False
        self._waiters = 0
        self._closed = False

    # --- reading

    async def changes(
        self, path: str, since: Place | None, *, topics: bool, committed_offsets: bool, wait_ms: int, limit: int
    ) -> Changes:
        """What changed in a stream since a place: at once if anything has, else when it does, or after `wait_ms`.

        Always includes partitions, and topics and committed offsets on request; at most `limit` changes, the oldest
        first. Raises KafkaError if there is no such stream, or the node stops."""
        kinds = (PARTITION, *([TOPIC] if topics else []), *([COMMITTED_OFFSET] if committed_offsets else []))
        deadline = self._runtime.monotonic_ms() + wait_ms
        while True:
            subscribed = self._by_path.get(path) or await self._subscribe(path)
            subscribed.seen = self._runtime.loop.time()
            self._drain()
            if since is None or since.run != self.run or not subscribed.log.floor <= since.serial <= self._serial:
                return Changes(Place(self.run, self._serial), reset=True)
            page: Page = subscribed.log.since(since.serial, newest=self._serial, limit=limit, kinds=kinds)
            since = Place(self.run, page.serial)
            if page.changes or self._closed or self._runtime.monotonic_ms() >= deadline:
                return Changes(since, reset=False, changes=page.changes)
            await self._wait(subscribed, deadline)

    async def _subscribe(self, path: str) -> _Subscribed:
        if self._closed:
            raise KafkaError(Code.BROKER_NOT_AVAILABLE, "the node is stopping")
        run = ""
        while run != self.run:  # a replaced catalog may give the path to another stream
            run = self.run
            row = await self._catalog.query(lambda reader: reader.streams.at(path))
        if row is None:
            raise KafkaError(Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no stream {path}")
        subscribed = self._by_path.get(path)
        if subscribed is None:
            # Earlier changes were not noted, and earlier readers have a lower serial.
            self._serial += 1
            subscribed = _Subscribed(path, row.number, self._serial)
            self._by_path[path] = self._by_number[row.number] = subscribed
            self.wanted = True
            self._arm()
        return subscribed

    async def _wait(self, subscribed: _Subscribed, deadline: int) -> None:
        woken: asyncio.Future[None] = self._runtime.loop.create_future()
        subscribed.waiting[woken] = None
        self._waiters += 1
        timer = self._runtime.deadlines.at(deadline / 1000 + ROUNDED_S, lambda: _wake(woken))
        try:
            await woken
        finally:
            timer.cancel()
            self._waiters -= 1
            subscribed.waiting.pop(woken, None)
            subscribed.seen = self._runtime.loop.time()

    # --- noting

    def note(self, partition: Partition) -> None:
        """Note that a high watermark has moved. Must not be called again until `partition.noted` is false."""
        partition.noted = True
        self._noted.append(partition)
        if len(self._noted) >= MAX_NOTED:
            self._drain()
        if not self._due:
            self._wake_soon()

    def restart(self) -> None:
        """Start a new run after possible unnoted changes: all readers list everything again."""
        self.run = uuid.uuid4().hex
        self._numbers.clear()
        self._unplaced.clear()
        for subscribed in list(self._by_path.values()):
            self._drop(subscribed)

    async def close(self) -> None:
        """Answer all waiting readers."""
        self._closed = True
        for subscribed in self._by_path.values():
            _wake_all(subscribed)
        while self._waiters:  # noqa: ASYNC110  # they were woken, and need a turn of the loop
            await asyncio.sleep(0)
        await asyncio.sleep(0)  # their answers are written in the next turn of the loop

    def _note(self, number: StreamNumber, key: Key, value: int = -1) -> None:
        subscribed = self._by_number.get(number)
        if subscribed is not None:
            self._add(subscribed, key, value)
            if not self._due:
                self._wake_soon()

    def _note_of_topic(self, topic_id: bytes, key: Key) -> None:
        """As `_note`, for a topic whose stream may have to be looked up first."""
        number = self._numbers.get(topic_id)
        if number is None and (topic := self._topics.cached_id(topic_id)) is not None:
            number = topic.row.stream_number
        if number is not None:
            self._note(number, key)
            return
        self._unplaced.append((topic_id, key))
        if len(self._unplaced) > MAX_UNPLACED:
            self.restart()
        elif self._placing is None:
            self._placing = self._runtime.spawn(self._place())

    async def _place(self) -> None:
        try:
            while self._unplaced:
                unplaced, self._unplaced = self._unplaced, []
                ids = {topic_id for topic_id, _ in unplaced}
                rows = await self._catalog.query(partial(_topics, ids))
                if len(self._numbers) > KNOWN_STREAMS:
                    self._numbers.clear()
                self._numbers.update((topic_id, row.stream_number) for topic_id, row in rows.items())
                for topic_id, key in unplaced:  # a topic deleted meanwhile was noted as deleted
                    if topic_id in rows:
                        self._note(rows[topic_id].stream_number, key)
        except HeadraceError as error:
            log.warning("changes could not be looked up", reason=str(error))
            self.restart()
        finally:
            self._placing = None

    def _add(self, subscribed: _Subscribed, key: Key, value: int) -> None:
        self._serial += 1
        before = len(subscribed.log)
        subscribed.log.note(key, self._serial, value)
        self._held += len(subscribed.log) - before
        self._changed.add(subscribed)
        if self._held > MAX_CHANGES:
            largest = max(self._by_path.values(), key=lambda each: len(each.log)).log
            gone = (len(largest) + 1) // 2
            largest.forget(gone)
            self._held -= gone

    # --- waking

    def _wake_soon(self) -> None:
        if not self._waiters:
            return  # the next reader drains
        self._due = True
        at = self._drained_at + BATCH_S
        if at <= self._runtime.loop.time():
            self._runtime.loop.call_soon(self._drain_due)
        else:
            self._runtime.deadlines.at(at, self._drain_due)

    def _drain_due(self) -> None:
        self._due = False
        self._drained_at = self._runtime.loop.time()
        self._drain()
        changed, self._changed = self._changed, set()
        for subscribed in changed:
            _wake_all(subscribed)

    def _drain(self) -> None:
        """Assign serials to the noted partitions."""
        noted, self._noted = self._noted, []
        for partition in noted:
            partition.noted = False
            subscribed = self._by_number.get(stream_of(partition.open))
            if subscribed is not None:
                key = (PARTITION, partition.topic_id, partition.index)
                self._add(subscribed, key, partition.high_watermark)

    # --- subscriptions

    def _arm(self) -> None:
        if not self._expires:
            self._expires = True
            self._runtime.deadlines.after(SUBSCRIBED_S, self._expire)

    def _expire(self) -> None:
        self._expires = False
        before = self._runtime.loop.time() - SUBSCRIBED_S
        for subscribed in list(self._by_path.values()):
            if not subscribed.waiting and subscribed.seen <= before:
                self._drop(subscribed)
        if self._by_path:
            self._arm()

    def _drop(self, subscribed: _Subscribed) -> None:
        del self._by_path[subscribed.path]
        del self._by_number[subscribed.number]
        self._held -= len(subscribed.log)
        self._changed.discard(subscribed)
        self.wanted = bool(self._by_path)
        if not self.wanted:
            self._drain()
        _wake_all(subscribed)

    # --- changes in the catalog

    def applied(self, changes: Sequence[Change]) -> None:
        """Handle applied commands (Catalog.on_applied)."""
        for command, outcome in changes:
            if isinstance(command, Replaced):
                self.restart()
            elif self.wanted:
                self._command_applied(command, outcome)

    def _command_applied(self, command: Any, outcome: Any) -> None:
        match command:
            case CreateTopics() | DeleteTopics():
                self._topics_changed(outcome)
            case AlterTopic() | CreatePartitions():
                self._topics_changed([outcome])
            case DeleteStream():
                if (subscribed := self._by_path.get(command.path)) is not None:
                    self._drop(subscribed)
            case SetHome() | SetLogStart() | ShortenChains():
                for topic_id in {item.topic_id for item in command.items}:
                    self._note_of_topic(topic_id, (TOPIC, topic_id))
            case RollDone():
                for item, result in zip(command.items, outcome, strict=True):
                    self._rolled(item, result)
            case CommitOffsets() | CopyOffsets():
                self._committed_offsets_changed(
                    command.group, ((item.topic_id, item.partition) for item in command.items)
                )
            case DeleteOffsets():
                self._committed_offsets_changed(command.group, command.items)
            case DeleteGroups():
                for group in command.groups:
                    for number in list(self._by_number):
                        self._note(number, (COMMITTED_OFFSET, group, *WHOLE_GROUP))

    def _topics_changed(self, outcomes: Iterable[TopicOutcome]) -> None:
        for outcome in outcomes:
            if outcome.topic is not None:
                self._note(outcome.topic.stream_number, (TOPIC, outcome.topic.topic_id))

    def _rolled(self, item: Rolled, result: RollOutcome) -> None:
        """Report a partition that moved to this node, as what its former leader noted may be lost with that leader."""
        opened = result.partitionlet
        if result.code is not Code.NONE or opened is None:
            return
        if item.home is not None:
            self._note(stream_of(opened.id), (TOPIC, item.topic_id))
        if opened.container in self._led:
            topic = self._topics.cached_id(item.topic_id)
            held = None if topic is None else topic.partitions.get(item.partition)
            end = held.high_watermark if held is not None and held.open == opened.id else 0
            self._note(stream_of(opened.id), (PARTITION, item.topic_id, item.partition), max(end, opened.first))

    def _committed_offsets_changed(self, group: str, committed_offsets: Iterable[tuple[bytes, int]]) -> None:
        for topic_id, partition in committed_offsets:
            self._note_of_topic(topic_id, (COMMITTED_OFFSET, group, topic_id, partition))


def _topics(topic_ids: Collection[bytes], reader: Reader) -> dict[bytes, TopicRow]:
    return reader.topics.by_ids(topic_ids)


def _wake(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def _wake_all(subscribed: _Subscribed) -> None:
    for future in subscribed.waiting:
        _wake(future)
