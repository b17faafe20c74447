"""Produce: check, number and append each partition's batch; answer when all of them are committed.

A request starts when all of its partitions are in memory, none of them is rolling, and their containers have room;
until then it parks its connection, so that a producer's requests keep their order. Then it is processed in one go; a
request for many partitions is processed in pieces, interleaved with other clients' requests.

Errors are per partition (with a KIP-467 message in versions 8 and above): a batch is refused whole or stored whole. A
batch behind one that was refused temporarily shares its refusal (refusals.py).

If this node ceases to lead while a batch waits for its commit, the producer's connection is closed, because the batch
may be committed by the next leader or be lost. An answer NOT_LEADER_OR_FOLLOWER would say that it is not stored. The
producer sends the batch again, and the new leader recognizes a repeat (invariant 11).
"""

import asyncio
from collections.abc import Mapping, Sequence
from enum import Enum
from time import monotonic
from types import MappingProxyType
from typing import Final

import structlog

from headrace.base.errors import Code, HeadraceError, InvalidBatch, InvalidRecords, KafkaError, StorageFull
from headrace.base.ids import Position
from headrace.base.runtime import Runtime
from headrace.container.leader import Leader
from headrace.kafka.api import RawApi
from headrace.kafka.authorization import Authorization, refusal_of
from headrace.kafka.back_pressure import BackPressure
from headrace.kafka.common_refusals import NO_TRANSACTIONS
from headrace.kafka.counters import Counters
from headrace.kafka.pending_produce import Produce
from headrace.kafka.session import Reply, Session
from headrace.kafka.throttle import Throttle
from headrace.log.frames import HEADER_BYTES, MAX_PAYLOAD_BYTES
from headrace.partitions.batch_comparison import BatchComparison
from headrace.partitions.cluster_client import ClusterClient
from headrace.partitions.forwarding import Forwards, must_wait
from headrace.partitions.home_check import HomeCheck, is_settled
from headrace.partitions.partition import Partition
from headrace.partitions.partitions import Partitions
from headrace.partitions.refusals import RETRIABLE, Refusals, client_error, why_not_committed
from headrace.partitions.rolls.rolls import Rolls
from headrace.partitions.sequence_gap import SequenceGap
from headrace.partitions.topics import Topic, Topics
from headrace.security.access_rules import Kind
from headrace.security.kafka_acls import AclOperation
from headrace.wire.api_keys import ApiKey, Versions
from headrace.wire.batch import TRANSACTIONAL_BIT, detached, read_batch, stamp_max_timestamp
from headrace.wire.header import RequestHeader
from headrace.wire.produce import PartitionRecords, ProduceRequest, ProduceResult, decode_request
from headrace.wire.records import Checked, check_any, check_records, check_small, is_checked_first

log = structlog.get_logger()

OF_THE_ORDER: Final = frozenset({Code.OUT_OF_ORDER_SEQUENCE_NUMBER, Code.INVALID_PRODUCER_EPOCH})
ACKS: Final = frozenset({-1, 0, 1})
MAX_TRIES: Final = 100
MIN_WAIT_S: Final = 3.0
MAX_WAIT_S = 10.0
"""The longest time, in seconds, that a request waits to be started. The wait is half of the request's own timeout, but
not below `MIN_WAIT_S` nor above this."""
MANY = 1000
"""Partitions that are processed in one turn of the loop."""


Known = Mapping[str, Topic]
"""The topics in memory, by the names that the client of a request uses."""
Place = tuple[Topic, Partition]
"""The destination of a batch: its topic, and the partition that this node leads."""


class _Reason(Enum):
    """Why a partition in memory cannot take a batch yet, in words for clients."""

    ROLL = "it is about to be rolled"
    FORWARDING = "too many bytes already wait to be forwarded to its home"


_ROLL: Final = _Reason.ROLL
_FORWARDING: Final = _Reason.FORWARDING


class ProduceApi:
    """Answers Produce."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        cluster: ClusterClient,
        topics: Topics,
        partitions: Partitions,
        rolls: Rolls,
        home_check: HomeCheck,
        batch_comparison: BatchComparison,
        forwards: Forwards,
        back_pressure: BackPressure,
        counters: Counters,
        authorization: Authorization,
        throttle: Throttle,
    ) -> None:
        self._runtime = runtime
        self._now = runtime.clock.now
        self._cluster = cluster
        self._topics = topics
        self._partitions = partitions
        self._rolls = rolls
        self._due = rolls.due
        self._home_check = home_check
        self._batch_comparison = batch_comparison
        self._forwards = forwards
        self._back_pressure = back_pressure
        self._counters = counters
        self._authorization = authorization
        self._throttle = throttle
        self._unpacking = asyncio.Semaphore(1)
        """Lets one large batch be checked at a time: a compressed one may take the memory and the time of 128 MiB."""

    @property
    def apis(self) -> Sequence[RawApi]:
        """The APIs that this module answers."""
        # Versions 0 to 2 are declared for librdkafka, which compresses nothing without them (KAFKA-18659). The message
        # formats that they carry are refused.
        return (RawApi(ApiKey.PRODUCE, Versions(0, 11), self.handle),)

    def handle(self, session: Session, header: RequestHeader, request: memoryview, slot: Reply) -> None:
        """Start to answer a request. Raises `MalformedRequest`."""
        self._counters.bytes_in += len(request)
        if self._throttle.is_on:
            self._throttle.produced(session, slot, len(request))
        produce = decode_request(request, header.body, header.api_version)
        if session.refusals is not None:
            session.refusals.expire()
            if session.refusals.too_many:
                log.warning("client disconnected, as too many of its batches are refused", peer=session.peer)
                slot.lose()
                return
            if not session.refusals:
                session.refusals = None
        self._counters.produce_requests += 1
        known = self._topics.by_name(session.default_stream)
        refused: list[ProduceResult] = []
        parts = produce.partitions
        if (rules := self._authorization.rules_version) is not None:
            grant = session.write_grants.get(parts[0].topic) if len(parts) == 1 else None
            is_granted = grant is not None and grant[0] == rules and grant[1] is session.principal
            if (not is_granted or produce.transactional_id is not None) and (
                refused := self._forbidden(session, produce, known, rules)
            ):
                parts = _others(parts, refused)
                produce = produce._replace(partitions=parts)
        unchecked = False
        if is_checked_first(parts[0].records) if len(parts) == 1 else any(map(_is_first, parts)):
            produce, unchecked = _checked(produce)
            parts = produce.partitions
        if (
            len(parts) == 1
            and not unchecked
            and not refused
            and self._start_at_once(produce, known, session, header.api_version, slot)
        ):
            return
        pending = _pending(produce, header.api_version, slot, more=1 + len(refused))
        for result in refused:
            pending.add(result, complete=True)
        places = (
            None
            if unchecked or len(parts) > MANY or self._back_pressure.was_saturated
            else self._resolved(parts, known)
        )
        if places is None:
            session.park(self._start_later(produce, known, session, pending, monotonic()), finish=True)
        else:
            self._start(produce, places, known, session, pending)
            pending.committed()

    def _start_at_once(
        self, produce: ProduceRequest, known: Known, session: Session, version: int, slot: Reply
    ) -> bool:
        """Start a request for one partition, the common case, if nothing prevents it: the same steps as `_start`,
        without lists."""
        (part,) = produce.partitions
        place = self._place(part, known)
        if (
            place is None
            or session.refusals is not None
            or produce.acks not in ACKS
            or not place[1].container.has_room(len(part.records or b""))
            or self._back_pressure.was_saturated
        ):
            return False
        topic, partition = place
        pending = _pending(produce, version, slot)
        try:
            self._append(session, pending, part, topic, partition, now=self._now())
        except HeadraceError as error:
            pending.add(self._refused(session, part, error, topic, partition.log_start), complete=True)
        return True

    # --- what the client may do

    def _forbidden(self, session: Session, produce: ProduceRequest, known: Known, rules: int) -> list[ProduceResult]:
        """The refusals of partitions to which the client may not write; nothing else has been done for them yet."""
        if produce.transactional_id is not None:
            transaction = AclOperation.WRITE, Kind.TRANSACTIONAL_ID, produce.transactional_id
            if not self._authorization.may(session, *transaction, api="Produce"):
                error = refusal_of(session, *transaction)
                return [_refusal(part, error, -1) for part in produce.partitions]
        grants, principal = session.write_grants, session.principal
        errors: dict[str, KafkaError] = {}
        refused: list[ProduceResult] = []
        for part in produce.partitions:
            name = part.topic
            grant = grants.get(name)
            if grant is not None and grant[0] == rules and grant[1] is principal:
                continue
            if name not in errors:
                why = self._why_forbidden(session, name, known.get(name))
                if why is None:
                    continue
                errors[name] = why
            refused.append(_refusal(part, errors[name], -1))
        return refused

    def _why_forbidden(self, session: Session, name: str, topic: Topic | None) -> KafkaError | None:
        if topic is None:
            return self._authorization.refused_topic(session, AclOperation.WRITE, name, api="Produce")
        if self._authorization.may(session, AclOperation.WRITE, Kind.TOPIC, topic.full_name, api="Produce"):
            self._authorization.keep_grant(session, session.write_grants, AclOperation.WRITE, name)
            return None
        return refusal_of(session, AclOperation.WRITE, Kind.TOPIC, name)

    # --- resolving: where each batch goes, and whether it can go there now

    def _resolved(self, parts: Sequence[PartitionRecords], known: Known) -> list[Place | None] | None:
        """The place of each batch, None for a batch that has to be refused; or None for all if anything must be
        awaited."""
        found: list[Place | None] = []
        for part in parts:
            place = self._place(part, known)
            if place is None:
                topic = known.get(part.topic)
                if topic is None or 0 <= part.partition < topic.partition_count:
                    return None
            found.append(place)
        return None if self._without_room(parts, found) else found

    def _place(self, part: PartitionRecords, known: Known) -> Place | None:
        """The place of a batch, if its partition is in memory and accepts batches now; room in the container is not
        checked."""
        topic = known.get(part.topic)
        if topic is None:
            return None
        partition = topic.partitions.get(part.partition)
        if partition is None or self._why_not_ready(topic, partition) is not None:
            return None
        return topic, partition

    def _why_not_ready(self, topic: Topic, partition: Partition) -> _Reason | None:
        """Why a partition accepts no batch now; None if it accepts one, provided that its container has room."""
        if partition.rolling or self._due(partition):
            return _ROLL
        if topic.home is not None and must_wait(self._forwards, topic):
            return _FORWARDING
        return None

    def _without_room(self, parts: Sequence[PartitionRecords], places: Sequence[Place | None]) -> list[Leader]:
        """The containers without room for what the request adds. A repeat of a stored batch adds nothing."""
        lacking = [container for container, length in _lengths(parts, places).items() if not container.has_room(length)]
        if not lacking:
            return lacking
        new = [
            None if place is None or place[1].container not in lacking or _is_stored(part, *place) else place
            for part, place in zip(parts, places, strict=True)
        ]
        return [container for container, length in _lengths(parts, new).items() if not container.has_room(length)]

    async def _start_later(
        self, produce: ProduceRequest, known: Known, session: Session, pending: Produce, arrived: float
    ) -> None:
        """Start the request in pieces, each as soon as it is ready."""
        for first in range(0, len(produce.partitions), MANY):
            if first:
                await asyncio.sleep(0)
            piece = produce._replace(partitions=produce.partitions[first : first + MANY])
            if any(part.checked is None and is_checked_first(part.records) for part in piece.partitions):
                piece = await self._all_checked(piece)
            places = None if self._back_pressure.saturated else self._resolved(piece.partitions, known)
            if places is None:
                await self._start_when_ready(piece, known, session, pending, arrived)
            else:
                self._start(piece, places, known, session, pending, arrived=arrived)
        pending.committed()

    async def _all_checked(self, produce: ProduceRequest) -> ProduceRequest:
        """The request with the results of checking all batches that have to be checked before they are appended."""
        parts = []
        for part in produce.partitions:
            if part.checked is None and part.records is not None and is_checked_first(part.records):
                async with self._unpacking:
                    checked = await self._runtime.loop.run_in_executor(self._runtime.executor, check_any, part.records)
                part = part._replace(checked=checked)
            parts.append(part)
        return produce._replace(partitions=parts)

    async def _start_when_ready(
        self, produce: ProduceRequest, known: Known, session: Session, pending: Produce, arrived: float
    ) -> None:
        """Prepare all partitions, then start the request; partitions that are not ready in time are refused."""
        parts = produce.partitions
        refused: dict[int, KafkaError] = {}
        places: list[Place | None] | None = None
        limit = min(MAX_WAIT_S, max(MIN_WAIT_S, produce.timeout_ms / 2000))
        try:
            async with asyncio.timeout(arrived + limit - monotonic()):
                await self._back_pressure.not_saturated()
                for _ in range(MAX_TRIES):
                    await self._prepare(parts, refused, session)
                    places = self._resolved([part for index, part in enumerate(parts) if index not in refused], known)
                    if places is not None:
                        break
        except TimeoutError:
            for index, part in enumerate(parts):
                if index not in refused and self._resolved([part], known) is None:
                    refused[index] = self._late(part, known)
            places = self._resolved([part for index, part in enumerate(parts) if index not in refused], known)
        except HeadraceError as error:  # an error of the catalog: nothing could be looked up
            refused = dict.fromkeys(range(len(parts)), client_error(error))
            places = []
        if places is None:
            refused = {index: self._late(part, known) for index, part in enumerate(parts)}
            places = []
        rest = iter(places)
        merged = [None if index in refused else next(rest) for index in range(len(parts))]
        self._start(produce, merged, known, session, pending, arrived=arrived, refused=refused)

    def _late(self, part: PartitionRecords, known: Known) -> KafkaError:
        """The refusal of a batch whose partition was not ready in time, with the reason if it is known."""
        topic = known.get(part.topic)
        partition = None if topic is None else topic.partitions.get(part.partition)
        why = None if topic is None or partition is None else self._why_not_ready(topic, partition)
        reason = "" if why is None else f": {why.value}"
        return KafkaError(Code.LEADER_NOT_AVAILABLE, f"the partition is not ready to be written to{reason}; try again")

    async def _prepare(
        self, parts: Sequence[PartitionRecords], refused: dict[int, KafkaError], session: Session
    ) -> None:
        topics = await self._topics.resolve([part.topic for part in parts], session)
        wanted: list[tuple[int, Topic, int]] = []
        for index, (part, topic) in enumerate(zip(parts, topics, strict=True)):
            if index in refused:
                continue
            if isinstance(topic, KafkaError):
                refused[index] = topic
            elif 0 <= part.partition < topic.partition_count:
                wanted.append((index, topic, part.partition))
        leaders = await self._partitions.leaders([(topic, number) for _, topic, number in wanted])
        places: list[Place | None] = [None] * len(parts)

        async def rolled(index: int, topic: Topic, partition: Partition) -> None:
            try:
                await self._rolls.wait_for_roll(partition)
                places[index] = (topic, partition)
            except HeadraceError as error:
                refused[index] = client_error(error)

        rolling = []
        for (index, topic, _number), partition in zip(wanted, leaders, strict=True):
            if isinstance(partition, KafkaError):
                refused[index] = partition
            elif self._why_not_ready(topic, partition) is _Reason.ROLL:
                rolling.append(rolled(index, topic, partition))
            else:
                places[index] = (topic, partition)
        await asyncio.gather(*rolling)  # concurrently: no partition waits for another's roll
        for container in self._without_room(parts, places):
            try:
                await container.make_room()
            except StorageFull as full:
                for index, (part, place) in enumerate(zip(parts, places, strict=True)):
                    if place is not None and place[1].container is container and not _is_stored(part, *place):
                        refused[index] = KafkaError(Code.KAFKA_STORAGE_ERROR, str(full))
        if any(place is not None and must_wait(self._forwards, place[0]) for place in places):
            await self._forwards.room()  # the last step: a woken request continues at once

    # --- checking, appending, answering

    def _start(
        self,
        produce: ProduceRequest,
        places: Sequence[Place | None],
        known: Known,
        session: Session,
        pending: Produce,
        *,
        arrived: float = 0.0,
        refused: Mapping[int, KafkaError] = MappingProxyType({}),
    ) -> None:
        """Append the batches that are allowed, refuse the others. `arrived`: when the request arrived, if it has
        waited."""
        now = self._now()
        for index, (part, place) in enumerate(zip(produce.partitions, places, strict=True)):
            try:
                if produce.acks not in ACKS:
                    raise KafkaError(Code.INVALID_REQUIRED_ACKS, f"acks is {produce.acks}; it can be -1, 0 or 1")
                if place is None:
                    error = refused.get(index)
                    raise error or KafkaError(Code.UNKNOWN_TOPIC_OR_PARTITION, f"{part.topic} has no such partition")
                if session.refusals is not None:
                    topic, partition = place
                    shared = session.refusals.stands(
                        part, partition.producers, topic.topic_id, arrived=arrived or monotonic()
                    )
                    if shared is not None:
                        pending.add(_refusal(part, shared, partition.log_start), complete=True)
                        continue
                self._append(session, pending, part, *place, now=now)
            except HeadraceError as error:
                log_start = place[1].log_start if place is not None else -1
                pending.add(self._refused(session, part, error, known.get(part.topic), log_start), complete=True)

    def _append(
        self,
        session: Session,
        pending: Produce,
        part: PartitionRecords,
        topic: Topic,
        partition: Partition,
        *,
        now: int,
    ) -> None:
        batch = part.records
        size = 0 if batch is None else len(batch)
        if batch is None or size == 0:
            raise KafkaError(Code.INVALID_RECORD, "no record batch for this partition")
        header = read_batch(batch)
        if header.length != size:
            raise KafkaError(Code.INVALID_RECORD, "more than one record batch for this partition")
        producer_id = header.producer_id
        container = partition.container
        if container.lost:
            raise KafkaError(Code.NOT_LEADER_OR_FOLLOWER, "the partition has just changed hands")
        foreign = None if topic.home is None else self._home_check.refusal(topic, partition, name=part.topic)
        if foreign is not None:
            if producer_id >= 0:
                partition.producers.calls(producer_id=producer_id, epoch=header.producer_epoch, name=part.topic)
            if not _is_stored(part, topic, partition):
                if foreign.code is not Code.POLICY_VIOLATION or not self._forwards.accepts(topic):
                    raise foreign
                self._pass_on(session, pending, part, topic, partition)
                return
        limit = MAX_PAYLOAD_BYTES
        # A token identifies a task's rows, which are in one batch, whatever the topic's limit.
        if producer_id >= -1 and topic.policy.max_message_bytes < limit:
            limit = topic.policy.max_message_bytes
        if size > limit:
            raise KafkaError(
                Code.MESSAGE_TOO_LARGE,
                f"a batch of {size} bytes; {part.topic} accepts at most {limit} (max.message.bytes)",
            )
        if header.attributes & TRANSACTIONAL_BIT:
            if self._authorization.rules_version is not None and not pending.is_transactional:
                # Decided by the batch, not by the request's field, which a client may leave out (CVE-2018-17196).
                raise KafkaError(
                    Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "records of a transaction, without its transactional id"
                )
            raise KafkaError(Code.INVALID_RECORD, NO_TRANSACTIONS)
        if foreign is not None:
            # The answer to the original may have been lost during a failover. Once the partition is settled, a batch
            # that is stored here stays here.
            if not is_settled(topic, partition):
                raise KafkaError(Code.LEADER_NOT_AVAILABLE, f"{part.topic} is being moved; try again")
        elif partition.seal is not None:
            raise KafkaError(Code.LEADER_NOT_AVAILABLE, "the partition is about to be rolled")
        known = None if producer_id == -1 else partition.known(header, name=part.topic)
        if known is not None:
            if partition.is_doubtful(header, known):
                self._batch_comparison.compare(partition, header, batch, known, source=session.number, name=part.topic)
                raise KafkaError(
                    Code.LEADER_NOT_AVAILABLE, f"it is being checked whether {part.topic} has this batch; try again"
                )
            partition.producers.heard(producer_id, source=session.number, name=part.topic)
            # Invariant 11: the answer to a duplicate waits until the original is committed.
            result = _result(part, known.base_offset, -1, partition)
            if producer_id < -1:  # a token names a task, whose rows may differ now: its owner has to know
                result = result._replace(error=Code.DUPLICATE_SEQUENCE_NUMBER)
            pending.add(result, complete=False)
            if partition.high_watermark > known.base_offset:
                pending.committed()
            else:
                container.when_committed(Position(container.log.end), pending)
            return
        if producer_id >= 0 and partition.producers.begins_late(
            producer_id=producer_id, base_sequence=header.base_sequence
        ):
            reason = f"producer {producer_id} is not known, and sequence {header.base_sequence} is not its first"
            if (early := self._early(session, part, None, reason)) is not None:
                raise early
        if container.refuses:
            raise StorageFull(container.refuses)
        if container.is_hindered and (why_not := why_not_committed(container)) is not None:
            raise why_not
        checked = part.checked or check_records(header, batch, keys=topic.policy.compacted)
        if isinstance(checked, InvalidBatch):
            raise checked
        if checked.keyless and topic.policy.compacted:
            raise _keyless(part, checked)
        if checked.max_timestamp != header.max_timestamp and not topic.policy.append_time:
            stamp_max_timestamp(batch, checked.max_timestamp)
            header = header._replace(max_timestamp=checked.max_timestamp)
        append_time = now if topic.policy.append_time else None
        # The result is added first, as the commit may follow at once.
        base_offset = partition.next_offset
        pending.add(_result(part, base_offset, -1 if append_time is None else append_time, partition), complete=False)
        partition.append(
            batch, header, append_time=append_time, now=now, request=pending, source=session.number, name=part.topic
        )
        if (timed := pending.slot.timed) is not None:
            timed.mark_appended(container)
        traffic = topic.traffic
        traffic.in_bytes += size
        traffic.in_records += header.record_count

    def _pass_on(
        self,
        session: Session,
        pending: Produce,
        part: PartitionRecords,
        topic: Topic,
        partition: Partition,
    ) -> None:
        """Forward a batch to its topic's home, which checks it; the home's answer becomes the answer."""
        number = pending.later()

        def done(outcome: ProduceResult | KafkaError | None, shared: bool) -> None:
            if outcome is None:
                pending.lost()
            elif isinstance(outcome, ProduceResult):
                pending.complete(number, outcome)
            elif shared:
                pending.complete(number, _refusal(part, outcome, partition.log_start))
            else:
                if outcome.code is Code.OUT_OF_ORDER_SEQUENCE_NUMBER:
                    outcome = self._early(session, part, None, str(outcome)) or outcome
                pending.complete(number, self._refused(session, part, outcome, topic, partition.log_start))

        waits = part._replace(records=None if part.records is None else detached(part.records))
        self._forwards.send(session.number, topic, waits, timeout_ms=pending.timeout_ms, done=done)

    def _refused(
        self,
        session: Session,
        part: PartitionRecords,
        error: HeadraceError,
        topic: Topic | None,
        log_start: int,
    ) -> ProduceResult:
        if isinstance(error, SequenceGap) and error.source != session.number:
            error = self._early(session, part, error.expected, str(error)) or error
        if error.code in RETRIABLE:
            session.refusals = session.refusals or Refusals()
            session.refusals.note(part, error, None if topic is None else topic.topic_id)
        elif error.code in OF_THE_ORDER:  # rare, and hard to investigate later
            log.warning(
                "a batch is out of order",
                topic=part.topic,
                partition=part.partition,
                peer=session.peer,
                reason=str(error),
            )
        return _refusal(part, error, log_start)

    def _early(self, session: Session, part: PartitionRecords, expected: int | None, reason: str) -> KafkaError | None:
        """A temporary refusal of a batch whose predecessor may still arrive; None if it will not. `expected`: the
        sequence that should come next."""
        if self._cluster.node_count == 1:  # no other node may have, or receive, the predecessor
            return None
        session.refusals = session.refusals or Refusals()
        if not session.refusals.has_grace(part, expected):
            return None
        log.info("a batch is early", topic=part.topic, partition=part.partition, peer=session.peer, reason=reason)
        return KafkaError(Code.LEADER_NOT_AVAILABLE, f"{reason}; send it again")


def _lengths(parts: Sequence[PartitionRecords], places: Sequence[Place | None]) -> dict[Leader, int]:
    """By container, the bytes that the request adds to its log: they have to fit into one new chunk."""
    if len(parts) == 1:
        (part,), (place,) = parts, places
        return {} if place is None else {place[1].container: len(part.records or b"")}
    lengths: dict[Leader, int] = {}
    for part, place in zip(parts, places, strict=True):
        if place is not None:
            container = place[1].container
            lengths[container] = lengths.get(container, 0) + len(part.records or b"") + HEADER_BYTES
    return lengths


def _is_stored(part: PartitionRecords, topic: Topic, partition: Partition) -> bool:
    try:
        header = read_batch(part.records or b"", check_crc=False)
        return partition.known(header, name=part.topic) is not None
    except HeadraceError:
        return False  # `_append` refuses it


def _pending(produce: ProduceRequest, version: int, slot: Reply, *, more: int = 0) -> Produce:
    """The pending request. `more`: outcomes, beyond those of the partitions, that must be complete before it is
    answered."""
    return Produce(
        slot=slot,
        version=version,
        acks=produce.acks,
        partitions=len(produce.partitions) + more,
        timeout_ms=produce.timeout_ms,
        is_transactional=produce.transactional_id is not None,
    )


def _others(parts: Sequence[PartitionRecords], refused: Sequence[ProduceResult]) -> list[PartitionRecords]:
    """The partitions whose topics are not refused."""
    names = {result.topic for result in refused}
    return [part for part in parts if part.topic not in names]


def _is_first(part: PartitionRecords) -> bool:
    return is_checked_first(part.records)


def _checked(produce: ProduceRequest) -> tuple[ProduceRequest, bool]:
    """The request with the results of checking small batches that must be checked first; and whether larger ones are
    left."""
    unchecked = False
    parts = []
    for part in produce.partitions:
        if part.records is not None and is_checked_first(part.records):
            part = part._replace(checked=check_small(part.records))
            unchecked = unchecked or part.checked is None
        parts.append(part)
    return produce._replace(partitions=parts), unchecked


def _keyless(part: PartitionRecords, checked: Checked) -> InvalidRecords:
    reason = "a record of a compacted topic needs a key"
    return InvalidRecords(
        f"{len(checked.keyless)} records without a key, but {part.topic} is compacted by key",
        [(index, reason) for index in checked.keyless],
    )


def _refusal(part: PartitionRecords, error: HeadraceError, log_start: int) -> ProduceResult:
    return ProduceResult(
        topic=part.topic,
        partition=part.partition,
        error=error.code,
        log_start=log_start,
        message=str(error),
        record_errors=error.records if isinstance(error, InvalidRecords) else (),
    )


def _result(part: PartitionRecords, base_offset: int, append_time: int, partition: Partition) -> ProduceResult:
    return ProduceResult(part.topic, part.partition, 0, base_offset, append_time, partition.log_start)
