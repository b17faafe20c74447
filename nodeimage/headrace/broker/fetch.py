"""Fetch: what the client's partitions hold from its offsets on, now or as soon as there is enough.

A fetch that finds less than `min_bytes` waits: its partitions wake it (`fetch_sessions.Interest`) when something is
committed, or the node's one timer when `max_wait` is over. Batches come from the log's tail in memory, from disk in a
reader thread (the loop never reads a file), or, of partitionlets that lie in other nodes' containers, by `old_reads`.
Records above the high watermark are never given out (invariant 2).

What a node cannot answer is the error of that partition alone. A partition that this node leads no more wakes its
fetches, which answer NOT_LEADER_OR_FOLLOWER; the client's next fetch looks it up anew.

A waiting fetch is answered early when another request of its client waits behind it: answers go out in order.
"""

import asyncio
from typing import TYPE_CHECKING, Final

from headrace.broker.cold_reads import Range, locate, read_all
from headrace.broker.deadlines import Deadline
from headrace.broker.fetch_sessions import FetchSession, Interest, Key
from headrace.broker.listener import Buffer, Connection, Slot
from headrace.errors import Code, KafkaError
from headrace.wire.fetch import FetchRequest, FetchResult, FetchTopicResult, decode_request, encode_response
from headrace.wire.header import RequestHeader

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

MAX_RESPONSE_BYTES = 64 * 1024 * 1024
"""Whatever a client asks for, one answer holds no more than this (and one batch)."""


_ANSWERED: Final = frozenset(
    {
        Code.OFFSET_OUT_OF_RANGE,
        Code.CORRUPT_MESSAGE,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.REPLICA_NOT_AVAILABLE,
        Code.TOPIC_AUTHORIZATION_FAILED,
        Code.KAFKA_STORAGE_ERROR,
        Code.FENCED_LEADER_EPOCH,
        Code.UNKNOWN_LEADER_EPOCH,
        Code.UNKNOWN_TOPIC_ID,
        Code.INVALID_TOPIC_EXCEPTION,
    }
)
"""What clients understand in an answer to Fetch; Java's consumer ends at any other code. For those that pass they get
NOT_LEADER_OR_FOLLOWER, and come again."""


def handle(broker: "Broker", connection: Connection, header: RequestHeader, request: memoryview, slot: Slot) -> None:
    """Start to answer a Fetch request. Raises `MalformedRequest`."""
    asked = decode_request(request, header.body, header.api_version)
    try:
        session = broker.fetch_sessions.find(session_id=asked.session_id, epoch=asked.session_epoch)
    except KafkaError as error:
        body = encode_response(
            header.api_version, throttle_ms=0, error=error.code, session_id=asked.session_id, topics=[]
        )
        slot.answer(body)
        return
    for name, topic_id, numbers in asked.forgotten:
        for number in numbers:
            session.forget((name if name is not None else topic_id or b"", number))
    for topic in asked.topics:
        name_or_id = topic.topic if topic.topic is not None else topic.topic_id or b""
        for part in topic.partitions:
            session.ask((name_or_id, part.partition), part)
    fetch = Fetch(broker, connection, slot, session, asked, header.api_version)
    if fetch.bind_cached():
        fetch.start()
    else:
        connection.park(fetch.bind_and_start())


class Fetch:
    """One request under way."""

    __slots__ = (
        "_asked",
        "_broker",
        "_connection",
        "_deadline",
        "_due",
        "_ended",
        "_session",
        "_slot",
        "_version",
    )

    def __init__(
        self,
        broker: "Broker",
        connection: Connection,
        slot: Slot,
        session: FetchSession,
        asked: FetchRequest,
        version: int,
    ) -> None:
        self._broker = broker
        self._connection = connection
        self._slot = slot
        self._session = session
        self._asked = asked
        self._version = version
        self._deadline: Deadline | None = None
        self._due = False
        self._ended = False

    # --- topics and partitions

    def bind_cached(self) -> bool:
        """Find the partitions of what the client named; false if one has to be looked up on disk."""
        topics = self._broker.topics
        for key, interest in self._session.active.items():
            name_or_id, number = key
            topic = topics.cached(name_or_id) if isinstance(name_or_id, str) else topics.cached_id(name_or_id)
            if topic is None:  # even if there was none the last time: it may have been made
                return False
            partition = topic.partitions.get(number)
            if partition is None:
                if 0 <= number < topic.partition_count:
                    return False
                interest.error = KafkaError(Code.UNKNOWN_TOPIC_OR_PARTITION)
            else:
                interest.error = None
                interest.watch(partition)
        return True

    async def bind_and_start(self) -> None:
        """Look up what is not in memory, then start."""
        try:
            await self._bind()
        except BaseException:  # nobody will answer: let go of the partitions that are bound already
            self._cancel()
            raise
        self.start()

    async def _bind(self) -> None:
        # Others join meanwhile, when something is committed: these are bound already.
        asked = list(self._session.active.items())
        names = list({key[0] for key, _ in asked if isinstance(key[0], str)})
        ids = list({key[0] for key, _ in asked if isinstance(key[0], bytes)})
        topics = dict(zip(names, await self._broker.topics.resolve(names, self._connection), strict=True))
        by_id = dict(zip(ids, await self._broker.topics.resolve_ids(ids), strict=True))
        wanted = []
        for key, interest in asked:
            topic = topics[key[0]] if isinstance(key[0], str) else by_id[key[0]]
            if isinstance(topic, KafkaError):
                interest.error = topic
                interest.watch(None)
            elif not 0 <= key[1] < topic.partition_count:
                interest.error = KafkaError(Code.UNKNOWN_TOPIC_OR_PARTITION)
            else:
                wanted.append((interest, topic, key[1]))
        leaders = await self._broker.partitions.leaders([(topic, number) for _, topic, number in wanted])
        for (interest, _topic, _number), partition in zip(wanted, leaders, strict=True):
            if isinstance(partition, KafkaError):
                interest.error = partition
                interest.watch(None)
            elif self._session.interests.get(interest.key) is interest:
                interest.error = None
                interest.watch(partition)

    # --- waiting

    def start(self) -> None:
        """Answer now, or wait for `min_bytes` or `max_wait`."""
        if self._connection.closed:
            self._cancel()
            return
        self._broker.counters.fetch_requests += 1
        if self._try(final=self._asked.max_wait_ms <= 0 or self._slot.is_followed):
            return
        self._session.waiting = self._woken
        self._deadline = self._broker.deadlines.after(self._asked.max_wait_ms / 1000, self._expired)
        self._connection.waiting_fetches.append(self._expired)
        self._connection.on_close.append(self._cancel)

    def _woken(self) -> None:
        if not self._due and not self._ended:
            self._due = True
            self._broker.loop.call_soon(self._try_again)

    def _try_again(self) -> None:
        self._due = False
        if not self._ended:
            self._try(final=False)

    def _expired(self) -> None:
        if not self._ended:
            self._try(final=True)

    def _cancel(self) -> None:
        self._end()
        if self._session.id:
            self._broker.fetch_sessions.close(self._session.id)
        else:
            self._session.close()

    def _end(self) -> None:
        self._ended = True
        self._session.waiting = None
        if self._deadline is not None:
            self._deadline.cancel()
            if self._expired in self._connection.waiting_fetches:
                self._connection.waiting_fetches.remove(self._expired)
            if self._cancel in self._connection.on_close:
                self._connection.on_close.remove(self._cancel)

    # --- reading

    def _try(self, *, final: bool) -> bool:
        """Answer if there is enough, or if `final`; false: go on waiting."""
        budget = max(1, min(self._asked.max_bytes, MAX_RESPONSE_BYTES))  # one batch comes whatever the limit
        found: dict[Key, list[Buffer]] = {}
        cold: list[tuple[Interest, Range]] = []
        total = 0
        failed = False
        quiet = []
        for key, interest in self._session.active.items():
            error = self._check(interest)
            if error is not None:
                failed = True
                continue
            partition = interest.partition
            assert partition is not None
            if interest.asked.offset >= partition.high_watermark or partition.ends_in_gap(interest.asked.offset):
                if (
                    interest.told_high_watermark == partition.high_watermark
                    and interest.told_log_start == partition.log_start
                ):
                    quiet.append(key)
                continue
            if total >= budget:
                continue
            where = locate(self._broker, partition, interest.asked.offset)
            if where.offset >= where.limit:
                continue  # between there and the end records were lost (invariant 15): it waits for the next one
            most = min(interest.asked.max_bytes, budget - total)
            batches = None
            if where.container is not None:
                batches = where.container.read_tail(where.row.id, where.offset, limit=where.limit, max_bytes=most)
            if batches is None or (not batches and where.row.cut):  # it may end in a gap
                cold.append((interest, where))
                continue
            found[key] = list(batches)
            total += sum(map(len, batches))
        for key in quiet:
            del self._session.active[key]
        if cold:
            self._end()
            self._session.waiting = _nothing  # the session is busy until the answer
            self._connection.on_close.append(self._cancel)  # the client may go away before the reading begins
            reading = self._read_cold(found, cold, budget - total)
            if self._connection.parked:
                self._connection.hold(self._broker.spawn(reading))
            else:
                self._connection.park(reading)
            return True
        if total >= min(self._asked.min_bytes, budget) or failed or final:
            self._end()
            self._answer(found)
            return True
        return False

    async def _read_cold(self, found: dict[Key, list[Buffer]], cold: list[tuple[Interest, Range]], budget: int) -> None:
        connection = self._connection
        if self._cancel in connection.on_close:
            connection.on_close.remove(self._cancel)
        try:
            await connection.turn_to_read(self._slot)
            try:
                budget = min(budget, self._broker.answer_budget.bytes())
                asked = [(interest.key, where, interest.asked.max_bytes) for interest, where in cold]
                read = await read_all(self._broker, asked, budget)
            finally:
                connection.read_over()
        except asyncio.CancelledError:
            self._cancel()
            raise
        for interest, where in cold:
            match read.get(interest.key):
                case None:
                    pass  # the others took all the room
                case list(batches):
                    found[interest.key] = batches
                    held = where.partition
                    same = held.high_watermark == where.high_watermark and where.row in held.chain
                    if not batches and where.row.cut and same:  # it was not cut and filled again meanwhile
                        held.gap = (where.offset, where.high_watermark)
                case KafkaError() as refused:
                    interest.error = refused
                case error:  # of this partition alone: the others are served
                    self._broker.read_failed(error, where.row.container)
                    interest.error = KafkaError(Code.KAFKA_STORAGE_ERROR, str(error))
            partition = interest.partition
            if partition is not None and partition.left and interest.key not in found and interest.error is None:
                interest.error = _left()
        self._session.waiting = None
        if self._connection.closed:
            self._cancel()
            return
        self._answer(found)

    def _check(self, interest: Interest) -> KafkaError | None:
        """The error that the client gets for this partition, if any."""
        partition = interest.partition
        if partition is None:
            return interest.error or KafkaError(Code.UNKNOWN_TOPIC_OR_PARTITION)
        if partition.deleted:
            interest.error = KafkaError(
                Code.UNKNOWN_TOPIC_OR_PARTITION if isinstance(interest.key[0], str) else Code.UNKNOWN_TOPIC_ID
            )
            return interest.error
        if partition.left:
            interest.error = _left()
            return interest.error
        interest.error = None
        epoch = interest.asked.current_leader_epoch
        if epoch != -1 and epoch != partition.leader_epoch:
            stale = epoch < partition.leader_epoch
            interest.error = KafkaError(Code.FENCED_LEADER_EPOCH if stale else Code.UNKNOWN_LEADER_EPOCH)
        elif not partition.log_start <= interest.asked.offset <= partition.next_offset:
            interest.error = KafkaError(Code.OFFSET_OUT_OF_RANGE)
        return interest.error

    # --- answering

    def _answer(self, found: dict[Key, list[Buffer]]) -> None:
        session = self._session
        incremental = session.incremental
        grouped: dict[str | bytes, list[FetchResult]] = {}
        chosen = list(session.active.items()) if incremental else list(session.interests.items())
        for key, interest in chosen:
            result = self._result(interest, found.get(key))
            if incremental and not self._is_news(interest, result):
                continue
            interest.told_high_watermark = result.high_watermark
            interest.told_log_start = result.log_start
            grouped.setdefault(key[0], []).append(result)
            if result.records and key in session.active:  # served: behind the others, next time
                session.active[key] = session.active.pop(key)
            self._broker.counters.bytes_out += sum(map(len, result.records))
        topics = [
            FetchTopicResult(
                topic=key if isinstance(key, str) else None,
                topic_id=key if isinstance(key, bytes) else None,
                partitions=results,
            )
            for key, results in grouped.items()
        ]
        session_id = session.id
        self._broker.fetch_sessions.advance(session)
        self._slot.answer(encode_response(self._version, throttle_ms=0, error=0, session_id=session_id, topics=topics))

    @staticmethod
    def _is_news(interest: Interest, result: FetchResult) -> bool:
        return (
            bool(result.records)
            or result.error != 0
            or result.high_watermark != interest.told_high_watermark
            or result.log_start != interest.told_log_start
        )

    def _result(self, interest: Interest, records: list[Buffer] | None) -> FetchResult:
        partition = interest.partition
        error = interest.error
        if partition is None or error is not None:
            known = partition is not None and not partition.deleted and not partition.left
            code = error.code if error is not None else Code.UNKNOWN_TOPIC_OR_PARTITION
            return FetchResult(
                partition=interest.key[1],
                error=code if code in _ANSWERED else Code.NOT_LEADER_OR_FOLLOWER,
                high_watermark=partition.high_watermark if known and partition is not None else -1,
                last_stable=-1,
                log_start=partition.log_start if known and partition is not None else -1,
                records=[],
            )
        return FetchResult(
            partition=interest.key[1],
            error=0,
            high_watermark=partition.high_watermark,
            last_stable=partition.high_watermark,
            log_start=partition.log_start,
            records=records or [],
        )


def _nothing() -> None:
    """What a wake-up does while an answer is being read."""


def _left() -> KafkaError:
    return KafkaError(Code.NOT_LEADER_OR_FOLLOWER, "this node leads the partition no more")
