"""Fetch: returns the records of the client's partitions from its offsets on, now or as soon as there are enough.

A fetch that finds less than `min_bytes` waits: its partitions wake it (`fetch_sessions.WatchedPartition`) when
something is committed, or the node's one timer does when `max_wait` is over. Batches are read from the log's tail in
memory, from disk in a reader thread (the loop never reads a file), or, where partitionlets lie in other nodes'
containers, by `remote_reads`. Records above the high watermark are never returned (invariant 2).

A partition that this node cannot serve gets its own error; the others are served. When this node ceases to lead a
partition, the partition's fetches are woken and answer NOT_LEADER_OR_FOLLOWER; the client's next fetch looks it up
again.

A partition is *bound* when its watcher is attached to the partition in memory. Whether the client may read it is
checked then, before anything is looked up for it, and again after each change of the rules
(`WatchedPartition.rules_version`), before anything about it is returned. When the rules change, waiting fetches are
checked a few at a time: one with a partition that may no longer be read is answered at once.

A waiting fetch is answered early when another request of its client waits behind it, since answers are sent in order.

Requests that name many partitions, and answers for many, are processed in pieces, interleaved with other clients'
requests: a node that leads 100,000 partitions may be asked for all of them at once.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Final

from headrace.base.deadlines import Deadline
from headrace.base.errors import Code, KafkaError
from headrace.base.ids import ContainerId
from headrace.base.runtime import Runtime
from headrace.kafka.answer_budget import AnswerBudget
from headrace.kafka.api import RawApi
from headrace.kafka.authorization import Authorization, refusal_of
from headrace.kafka.connection import Buffer, Connection
from headrace.kafka.counters import Counters
from headrace.kafka.fetch_answer import FetchAnswer, record_count
from headrace.kafka.fetch_sessions import INITIAL_EPOCH, FetchSession, FetchSessions, Key, WatchedPartition
from headrace.kafka.limits import MAX_RESPONSE_BYTES
from headrace.kafka.reading_pace import LARGE_BYTES, ReadingPace
from headrace.kafka.session import Reply
from headrace.kafka.throttle import Throttle
from headrace.partitions.lookups import yield_to_loop
from headrace.partitions.partitions import Partitions
from headrace.partitions.reads.fetch_planner import FetchPlanner, Range, Read
from headrace.partitions.topics import Topic, Topics
from headrace.security.access_rules import Kind
from headrace.security.kafka_acls import AclOperation
from headrace.wire.api_keys import ApiKey, Versions
from headrace.wire.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResult,
    FetchTopicResult,
    decode_request,
    encode_response,
)
from headrace.wire.header import RequestHeader

LONG_BYTES = 64 * 1024
"""Size above which a request is decoded in an executor thread: it may name many thousands of partitions."""
MAX_WAIT_MS = 300_000
"""The longest wait of a fetch, in milliseconds, whatever the client allows; the client then sends it again. Waiting
fetches use memory."""
MANY: Final = 1000
"""Partitions that are looked up, or answered for, in one turn of the loop."""
MAX_SERVED = 5000
"""Partitions with records in one answer."""
MAX_COUNTED = 1024 * 1024
"""Bytes of batches up to which records are counted on the loop, which takes less than a millisecond however small they
are."""


class FetchApi:
    """Answers Fetch."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        topics: Topics,
        partitions: Partitions,
        planner: FetchPlanner,
        sessions: FetchSessions,
        answer_budget: AnswerBudget,
        counters: Counters,
        authorization: Authorization,
        throttle: Throttle,
        read_failed: Callable[[Exception, ContainerId], None],
    ) -> None:
        self.runtime = runtime
        self.topics = topics
        self.partitions = partitions
        self.planner = planner
        self.sessions = sessions
        self.answer_budget = answer_budget
        self.counters = counters
        self.authorization = authorization
        self.throttle = throttle
        self.read_failed = read_failed
        self._recheck_task: asyncio.Task[None] | None = None
        authorization.on_change(self._rules_changed)

    @property
    def apis(self) -> Sequence[RawApi]:
        """The APIs that this module answers."""
        return (RawApi(ApiKey.FETCH, Versions(4, 16), self.handle),)

    def handle(self, connection: Connection, header: RequestHeader, request: memoryview, slot: Reply) -> None:
        """Start to answer a Fetch request. Raises `MalformedRequest`."""
        if len(request) > LONG_BYTES:
            connection.park(self._start_long(connection, header, request, slot))
            return
        asked = decode_request(request, header.body, header.api_version)
        if asked.replica_id >= 0 and not self.authorization.may(connection, AclOperation.CLUSTER_ACTION, api="Fetch"):
            _refuse_replica(slot, header.api_version, asked)
            return
        try:
            session = self.sessions.find(
                session_id=asked.session_id,
                epoch=asked.session_epoch,
                principal=connection.principal,
                default_stream=connection.default_stream,
            )
            _forget(session, asked)
            for key, part in _named(asked):
                session.ask(key, part)
            self.sessions.named(session, begins=asked.session_epoch == INITIAL_EPOCH)
        except KafkaError as error:
            _refuse(slot, header.api_version, asked, error)
            return
        fetch = Fetch(self, connection, slot, session, asked, header.api_version)
        if fetch.bind_cached():
            fetch.start()
        else:
            connection.park(fetch.bind_and_start())

    async def _start_long(
        self, connection: Connection, header: RequestHeader, request: memoryview, slot: Reply
    ) -> None:
        """Start to answer a long request, interleaved with other clients' requests."""
        version = header.api_version
        asked = await self.runtime.loop.run_in_executor(
            self.runtime.executor, decode_request, request, header.body, version
        )
        if asked.replica_id >= 0 and not self.authorization.may(connection, AclOperation.CLUSTER_ACTION, api="Fetch"):
            _refuse_replica(slot, version, asked)
            return
        try:
            session = self.sessions.find(
                session_id=asked.session_id,
                epoch=asked.session_epoch,
                principal=connection.principal,
                default_stream=connection.default_stream,
            )
            _forget(session, asked)
            for index, (key, part) in enumerate(_named(asked)):
                session.ask(key, part)
                await yield_to_loop(index)
            self.sessions.named(session, begins=asked.session_epoch == INITIAL_EPOCH)
        except KafkaError as error:
            _refuse(slot, version, asked, error)
            return
        await Fetch(self, connection, slot, session, asked, version).bind_and_start()

    def _rules_changed(self) -> None:
        if self.authorization.rules_version is not None and (self._recheck_task is None or self._recheck_task.done()):
            self._recheck_task = self.runtime.spawn(self._recheck_permissions())

    async def _recheck_permissions(self) -> None:
        """Wake the fetches of partitions that their clients may no longer read; sessions without a fetch under way are
        covered too."""
        rules_version = None
        while (present := self.authorization.rules_version) is not None and present != rules_version:
            rules_version = present
            checked = 0
            for topic in self.topics.all():
                for partition in list(topic.partitions.values()):
                    for watcher in list(partition.watchers or ()):
                        if isinstance(watcher, WatchedPartition) and watcher.rules_version != rules_version:
                            if self.authorization.may_read(watcher.session.principal, topic.full_name):
                                watcher.rules_version = rules_version
                            else:
                                watcher.wake()
                        checked += 1
                        await yield_to_loop(checked)
                    checked += 1
                    await yield_to_loop(checked)
                if self.authorization.rules_version != rules_version:
                    break


def _forget(session: FetchSession, asked: FetchRequest) -> None:
    for name, topic_id, numbers in asked.forgotten:
        for number in numbers:
            session.forget((name if name is not None else topic_id or b"", number))


def _named(asked: FetchRequest) -> Iterator[tuple[Key, FetchPartition]]:
    for topic in asked.topics:
        name_or_id = topic.topic if topic.topic is not None else topic.topic_id or b""
        for part in topic.partitions:
            yield (name_or_id, part.partition), part


def _refuse(slot: Reply, version: int, asked: FetchRequest, error: KafkaError) -> None:
    slot.failed(error.code)
    slot.answer(encode_response(version, throttle_ms=0, error=error.code, session_id=asked.session_id, topics=[]))


def _refuse_replica(slot: Reply, version: int, asked: FetchRequest) -> None:
    """Refuse a request that claims to come from a replica: nodes replicate by a protocol of their own, so it is a
    client."""
    refused = [
        FetchTopicResult(
            topic.topic,
            topic.topic_id,
            [FetchResult(part.partition, Code.TOPIC_AUTHORIZATION_FAILED) for part in topic.partitions],
        )
        for topic in asked.topics
    ]
    slot.failed(Code.TOPIC_AUTHORIZATION_FAILED)
    slot.answer(encode_response(version, topics=refused))


class Fetch:
    """One fetch under way."""

    __slots__ = (
        "_answering",
        "_api",
        "_asked",
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
        api: FetchApi,
        connection: Connection,
        slot: Reply,
        session: FetchSession,
        asked: FetchRequest,
        version: int,
    ) -> None:
        self._api = api
        self._connection = connection
        self._slot = slot
        self._session = session
        self._asked = asked
        self._version = version
        self._answering: asyncio.Task[None] | None = None
        self._deadline: Deadline | None = None
        self._due = False
        self._ended = False

    # --- topics and partitions

    def bind_cached(self) -> bool:
        """Bind the partitions that the client named, using only what is in memory; false if any has to be looked up on
        disk."""
        topics = self._api.topics
        rules_version, by_name = self._api.authorization.rules_version, topics.by_name(self._connection.default_stream)
        for key, interest in self._session.active.items():
            name_or_id, number = key
            topic = by_name.get(name_or_id) if isinstance(name_or_id, str) else topics.cached_id(name_or_id)
            if topic is None:  # even if it was missing last time: it may have been created since
                return False
            if (
                rules_version is not None
                and interest.rules_version != rules_version
                and not self._may_read(interest, topic)
            ):
                continue
            partition = topic.partitions.get(number)
            if partition is None:
                if 0 <= number < topic.partition_count:
                    return False
                interest.error = KafkaError(Code.UNKNOWN_TOPIC_OR_PARTITION)
            else:
                interest.error = None
                interest.watch(partition, topic)
        return True

    async def bind_and_start(self) -> None:
        """Look up partitions that are not in memory, then start. The connection stays parked while a long answer is
        built, so that the next long request starts after it."""
        try:
            await self._bind()
        except BaseException:  # no answer will follow: release the partitions that are bound already
            self._cancel()
            raise
        self.start()
        if self._answering is not None:
            await asyncio.wait([self._answering])

    async def _bind(self) -> None:
        # More partitions become active meanwhile, when something is committed: these are bound already.
        asked = list(self._session.active.items())
        for first in range(0, len(asked), MANY):
            if first:
                await asyncio.sleep(0)
            await self._bind_piece(asked[first : first + MANY])

    async def _bind_piece(self, asked: Sequence[tuple[Key, WatchedPartition]]) -> None:
        authorization = self._api.authorization
        named = {key[0] for key, _ in asked if isinstance(key[0], str)}
        refused = await authorization.refused_topics(self._connection, AclOperation.READ, named, api="Fetch")
        names = list(named - refused.keys())
        ids = list({key[0] for key, _ in asked if isinstance(key[0], bytes)})
        topics = {
            **refused,
            **dict(zip(names, await self._api.topics.resolve(names, self._connection), strict=True)),
        }
        by_id = dict(zip(ids, await self._api.topics.resolve_ids(ids), strict=True))
        wanted = []
        for key, interest in asked:
            topic = topics[key[0]] if isinstance(key[0], str) else by_id[key[0]]
            if isinstance(topic, KafkaError):
                interest.error = topic
                interest.unwatch()
            elif (
                authorization.rules_version is not None
                and interest.rules_version != authorization.rules_version
                and not self._may_read(interest, topic)
            ):
                pass
            elif not 0 <= key[1] < topic.partition_count:
                interest.error = KafkaError(Code.UNKNOWN_TOPIC_OR_PARTITION)
            else:
                wanted.append((interest, topic, key[1]))
        leaders = await self._api.partitions.leaders([(topic, number) for _, topic, number in wanted])
        for (interest, topic, _number), partition in zip(wanted, leaders, strict=True):
            if isinstance(partition, KafkaError):
                interest.error = partition
                interest.unwatch()
            elif self._session.interests.get(interest.key) is interest:
                interest.error = None
                interest.watch(partition, topic)

    def _may_read(self, interest: WatchedPartition, topic: Topic) -> bool:
        """Whether the client may read a topic now; if not, set the interest's error and stop watching its partition."""
        authorization, connection, key = self._api.authorization, self._connection, interest.key[0]
        grant = connection.read_grants.get(key)
        if grant is not None and grant[0] == authorization.rules_version and grant[1] is connection.principal:
            interest.rules_version = grant[0]
            return True
        refused: KafkaError | None = None
        if isinstance(key, str) or interest.partition is not None:  # the client knows of a topic that it reads already
            if not authorization.may(connection, AclOperation.READ, Kind.TOPIC, topic.full_name, api="Fetch"):
                name = key if isinstance(key, str) else topic.full_name
                refused = refusal_of(connection, AclOperation.READ, Kind.TOPIC, name)
        else:
            refused = authorization.refused_id(connection, AclOperation.READ, key, topic.full_name, api="Fetch")
        if refused is None:
            interest.rules_version = -1 if authorization.rules_version is None else authorization.rules_version
            authorization.keep_grant(connection, connection.read_grants, AclOperation.READ, key)
            return True
        interest.error = refused
        interest.unwatch()
        return False

    def _recheck(self, interest: WatchedPartition, rules_version: int) -> None:
        """If a watched partition was bound under other rules, stop watching it unless those of `rules_version` let
        the client read it too."""
        partition = interest.partition
        if partition is None or interest.rules_version == rules_version:
            return
        topic = self._api.topics.cached_id(partition.topic_id)
        if topic is not None:
            self._may_read(interest, topic)
        elif not partition.deleted:  # the client's next fetch looks it up again
            interest.error = _not_leader()
            interest.unwatch()

    # --- waiting

    def start(self) -> None:
        """Answer now, or wait for `min_bytes` or `max_wait`."""
        if self._connection.closed:
            self._cancel()
            return
        self._api.counters.fetch_requests += 1
        pace = self._connection.reading_pace
        hold_s = 0.0 if pace is None else min(pace.asked(monotonic()), self._asked.max_wait_ms / 1000)
        if hold_s > 0.0 and not self._slot.is_followed:
            self._session.fetch_waits(_ignore_wake)  # commits meanwhile do not answer it
            self._wait(hold_s, partial(self._held, hold_s))
        elif not self._try(final=self._asked.max_wait_ms <= 0 or self._slot.is_followed):
            self._session.fetch_waits(self._woken)
            self._wait(min(self._asked.max_wait_ms, MAX_WAIT_MS) / 1000, self._expired)

    def _wait(self, seconds: float, then: Callable[[], None]) -> None:
        self._deadline = self._api.runtime.deadlines.after(seconds, then)
        self._connection.add_waiting_fetch(self._expired)
        self._connection.add_close_listener(self._cancel)

    def _held(self, hold_s: float) -> None:
        """Try to answer after the delay that the reading pace imposed; the client's wait includes it."""
        if self._ended or self._try(final=False):
            return
        self._session.fetch_waits(self._woken)
        wait_s = max(0.0, min(self._asked.max_wait_ms, MAX_WAIT_MS) / 1000 - hold_s)
        self._deadline = self._api.runtime.deadlines.after(wait_s, self._expired)

    def _woken(self) -> None:
        if not self._due and not self._ended:
            self._due = True
            self._api.runtime.loop.call_soon(self._try_again)

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
            self._api.sessions.close(self._session.id)
        else:
            self._session.close()

    def _end(self) -> None:
        self._ended = True
        self._session.fetch_ended()
        if self._deadline is not None:
            self._deadline.cancel()
            self._connection.remove_waiting_fetch(self._expired)
            self._connection.remove_close_listener(self._cancel)

    # --- reading

    def _try(self, *, final: bool) -> bool:
        """Answer if there is enough, or if `final`; false if the fetch continues to wait."""
        # At least one batch is returned, whatever the limit. Batches from memory stay in memory until the client has
        # read them.
        budget = max(1, min(self._asked.max_bytes, MAX_RESPONSE_BYTES, self._api.answer_budget.bytes()))
        if self._api.throttle.is_on and (most := self._api.throttle.most_fetched(self._connection)) is not None:
            budget = max(1, min(budget, most))
        found: dict[Key, list[Buffer]] = {}
        cold: list[tuple[WatchedPartition, Range]] = []
        total = 0
        failed = full = False
        quiet = []
        rules_version = self._api.authorization.rules_version
        for key, interest in self._session.active.items():
            if rules_version is not None and interest.rules_version != rules_version:
                self._recheck(interest, rules_version)
            error = self._check(interest)
            if error is not None:
                failed = True
                continue
            partition = interest.partition
            assert partition is not None
            if interest.asked.offset >= partition.high_watermark or partition.ends_in_gap(interest.asked.offset):
                if (
                    interest.sent_high_watermark == partition.high_watermark
                    and interest.sent_log_start == partition.log_start
                ):
                    quiet.append(key)
                continue
            if full or total >= budget:
                continue
            where = self._api.planner.locate(partition, interest.asked.offset)
            if where.offset >= where.limit:
                continue  # records between here and the end were lost (invariant 15): wait for the next record
            most = min(interest.asked.max_bytes, budget - total)
            batches = None
            if where.container is not None:
                batches = where.container.read_tail(where.row.id, where.offset, limit=where.limit, max_bytes=most)
            full = len(found) + len(cold) + 1 == MAX_SERVED
            if batches is None or (not batches and where.row.cut):  # it may end in a gap
                cold.append((interest, where))
                continue
            found[key] = list(batches)
            total += sum(map(len, batches))
        for key in quiet:
            del self._session.active[key]
        nothing = not self._session.interests  # a session that ends; Kafka does not wait then either
        enough = (
            total >= min(self._asked.min_bytes, budget) or failed or full or final or nothing or self._session.closed
        )
        if cold or (enough and len(self._session.reportable) > MANY):
            self._end()
            self._session.fetch_waits(_ignore_wake)  # the session is busy until the answer
            self._connection.add_close_listener(self._cancel)  # the client may go away before the coroutine begins
            answering = self._answer_later(found, cold, budget - total)
            if self._connection.parked:
                self._answering = self._api.runtime.spawn(answering)
                self._connection.hold(self._answering)
            else:
                self._connection.park(answering)
            return True
        if enough:
            self._end()
            answer = self._filled(found)
            self._send(answer, answer.encode(self._version, self._throttled(answer)))
        return enough

    def _filled(self, found: Mapping[Key, list[Buffer]], counts: Mapping[Key, int] | None = None) -> FetchAnswer:
        answer = FetchAnswer(self._session, counts)
        rules_version = self._api.authorization.rules_version
        for interest in list(self._session.reportable.values()):
            # The rules may have changed while it was read, or while it was quiet.
            if rules_version is not None and interest.rules_version != rules_version:
                self._recheck(interest, rules_version)
            answer.add(interest, found.get(interest.key))
        return answer

    async def _answer_later(
        self, found: dict[Key, list[Buffer]], cold: Sequence[tuple[WatchedPartition, Range]], budget: int
    ) -> None:
        """Read from disk what is not in memory, then answer, interleaved with other clients' requests."""
        connection = self._connection
        connection.remove_close_listener(self._cancel)
        try:
            await connection.turn_to_read(self._slot)
            try:
                counts = None
                if cold:
                    counts = await self._read_cold(found, cold, min(budget, self._api.answer_budget.bytes()))
                if len(self._session.reportable) <= MANY:
                    answer = self._filled(found, counts)
                    body = answer.encode(self._version, self._throttled(answer))
                else:
                    answer, body = await self._filled_in_turns(found, counts)
            finally:
                connection.read_over()
        except BaseException:  # no answer will follow
            self._cancel()
            raise
        self._session.fetch_ended()
        if connection.closed:
            self._cancel()
        else:
            self._send(answer, body)

    async def _filled_in_turns(
        self, found: Mapping[Key, list[Buffer]], counts: Mapping[Key, int] | None
    ) -> tuple[FetchAnswer, list[Buffer]]:
        answer = FetchAnswer(self._session, counts)
        for index, interest in enumerate(list(self._session.reportable.values())):
            rules_version = self._api.authorization.rules_version
            if rules_version is not None and interest.rules_version != rules_version:
                self._recheck(interest, rules_version)
            answer.add(interest, found.get(interest.key))
            await yield_to_loop(index)
        return answer, await self._api.runtime.loop.run_in_executor(
            self._api.runtime.executor, answer.encode, self._version, self._throttled(answer)
        )

    def _throttled(self, answer: FetchAnswer) -> int:
        """Count the complete answer against the client's quotas; returns the milliseconds for which the client should
        wait."""
        if self._api.throttle.is_on:
            self._api.throttle.fetched(self._connection, self._slot, answer.bytes)
        return self._slot.throttle_ms

    def _send(self, answer: FetchAnswer, body: list[Buffer]) -> None:
        self._api.counters.bytes_out += answer.bytes
        pace = self._connection.reading_pace
        if pace is None and answer.bytes >= LARGE_BYTES:
            pace = self._connection.reading_pace = ReadingPace(monotonic())
        if pace is not None:
            pace.answered(monotonic(), answer.bytes)
        self._api.sessions.advance(self._session)
        for code in answer.errors:
            self._slot.failed(code)
        self._slot.answer(body)

    async def _read_cold(
        self, found: dict[Key, list[Buffer]], cold: Sequence[tuple[WatchedPartition, Range]], budget: int
    ) -> dict[Key, int]:
        """Read the ranges that are not in memory into `found`; returns the number of records read for each
        partition."""
        asked = [(interest.key, where, interest.asked.max_bytes) for interest, where in cold]
        read = await self._api.planner.read_all(asked, budget)
        counts = await self._counts(read)
        for interest, where in cold:
            match read.get(interest.key):
                case None:
                    pass  # the other partitions used up the limit
                case list(batches):
                    found[interest.key] = batches
                    held = where.partition
                    same = held.high_watermark == where.high_watermark and where.row in held.chain
                    if not batches and where.row.cut and same:  # it was not truncated and refilled meanwhile
                        held.gap = (where.offset, where.high_watermark)
                case KafkaError() as refused:
                    interest.error = refused
                case error:  # an error of this partition only: the others are served
                    self._api.read_failed(error, where.row.container)
                    interest.error = KafkaError(Code.KAFKA_STORAGE_ERROR, str(error))
            partition = interest.partition
            if partition is not None and partition.left and interest.key not in found and interest.error is None:
                interest.error = _not_leader()
        return counts

    async def _counts(self, read: Read) -> dict[Key, int]:
        """The number of records in each range; counted in an executor thread if there may be many batches."""
        if sum(sum(map(len, batches)) for batches in read.values() if isinstance(batches, list)) <= MAX_COUNTED:
            return _counts_of(read)
        return await self._api.runtime.loop.run_in_executor(self._api.runtime.executor, _counts_of, read)

    def _check(self, interest: WatchedPartition) -> KafkaError | None:
        """The error of this partition for the client, if any."""
        partition = interest.partition
        if partition is None:
            return interest.error or KafkaError(Code.UNKNOWN_TOPIC_OR_PARTITION)
        if partition.deleted:
            interest.error = KafkaError(
                Code.UNKNOWN_TOPIC_OR_PARTITION if isinstance(interest.key[0], str) else Code.UNKNOWN_TOPIC_ID
            )
            return interest.error
        if partition.left:
            interest.error = _not_leader()
            return interest.error
        interest.error = None
        epoch = interest.asked.current_leader_epoch
        if epoch != -1 and epoch != partition.leader_epoch:
            stale = epoch < partition.leader_epoch
            interest.error = KafkaError(Code.FENCED_LEADER_EPOCH if stale else Code.UNKNOWN_LEADER_EPOCH)
        elif not partition.log_start <= interest.asked.offset <= partition.next_offset:
            interest.error = KafkaError(Code.OFFSET_OUT_OF_RANGE)
        return interest.error


def _counts_of(read: Read) -> dict[Key, int]:
    return {key: record_count(batches) for key, batches in read.items() if isinstance(batches, list)}


def _ignore_wake() -> None:
    """Ignores wake-ups while an answer is being read, or held back by the reading pace."""


def _not_leader() -> KafkaError:
    return KafkaError(Code.NOT_LEADER_OR_FOLLOWER, "this node no longer leads the partition")
