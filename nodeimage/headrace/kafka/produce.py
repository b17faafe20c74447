"""Produce: check, number and append each partition's batch; answer when all of them are committed.

A request starts when all of its partitions are in memory, none of them is rolling, and their containers have room;
until then it parks its connection, so that a producer's requests keep their order. Then it is handled in one go; one
for many partitions is so a piece at a time, beside other clients' requests.

Errors are per partition (KIP-467 message in versions 8 and above): a batch is refused whole or stored whole. A batch
behind one that was refused for the moment shares its refusal (refusals.py).

What happens when this node ceases to lead while a batch waits for its commit: the producer's connection is closed, for
the batch may be committed by the next primary or be gone. An answer NOT_LEADER_OR_FOLLOWER would say that it is not
stored. The producer sends it again, and a repeat is recognised where it leads then (invariant 11).
"""

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import structlog

from headrace.base.errors import Code, HeadraceError, InvalidBatch, InvalidRecords, KafkaError, StorageFull
from headrace.base.ids import Position
from headrace.container.leader import Container
from headrace.kafka.connection import Connection, Slot
from headrace.kafka.pending_produce import Produce
from headrace.kafka.transactions import NO_TRANSACTIONS
from headrace.log.frames import HEADER_BYTES, MOST_PAYLOAD_BYTES
from headrace.partitions.forwarding import Forwards, must_wait
from headrace.partitions.home_check import is_settled
from headrace.partitions.partition import Partition
from headrace.partitions.producer_state import SequenceGap
from headrace.partitions.refusals import FOR_THE_MOMENT, Refusals, told, why_not_committed
from headrace.partitions.topics import Topic
from headrace.wire.batch import TRANSACTIONAL_BIT, detached, read_batch, stamp_max_timestamp
from headrace.wire.header import RequestHeader
from headrace.wire.produce import PartitionRecords, ProduceRequest, ProduceResult, decode_request
from headrace.wire.records import Checked, check_any, check_records, check_small, is_checked_first

if TYPE_CHECKING:
    from headrace.kafka.dispatch import Broker

log = structlog.get_logger()

OF_THE_ORDER = frozenset({Code.OUT_OF_ORDER_SEQUENCE_NUMBER, Code.INVALID_PRODUCER_EPOCH})
MAX_TRIES = 100
LEAST_WAIT_S = 3.0
MOST_WAIT_S = 10.0
"""How long a request waits until all of it can start: half of the limit that it sets itself, within these bounds."""
MANY: Final = 1000
"""Partitions that are handled at once."""


class _NoChunkReady(StorageFull):
    """Nothing has been done for the batch, which waits for one."""


def handle(broker: "Broker", session: Connection, header: RequestHeader, request: memoryview, slot: Slot) -> None:
    """Start to answer a Produce request. Raises `MalformedRequest`."""
    produce = decode_request(request, header.body, header.api_version)
    if session.refusals is not None:
        session.refusals.expire()
        if session.refusals.too_many:
            log.warning("too many batches are refused to one client, which is cut off", peer=session.peer)
            slot.lose()
            return
        if not session.refusals:
            session.refusals = None
    parts = produce.partitions
    if (
        len(parts) == 1
        and session.refusals is None
        and not is_checked_first(parts[0].records)
        and _start_one(broker, produce, header.api_version, slot, session)
    ):
        return
    if any(is_checked_first(part.records) for part in parts):
        produce, unchecked = _checked(produce)
        if unchecked:
            arrived = time.monotonic()
            pending = _pending(produce, header.api_version, slot)
            broker.counters.produce_requests += 1
            session.park(_start_later(broker, produce, session, pending, arrived), finish=True)
            return
        if (
            len(parts) == 1
            and session.refusals is None
            and _start_one(broker, produce, header.api_version, slot, session)
        ):
            return
    arrived = time.monotonic()
    pending = _pending(produce, header.api_version, slot)
    broker.counters.produce_requests += 1
    partitions = None if len(produce.partitions) > MANY else _ready(broker, produce)
    if partitions is None or broker.saturated:
        session.park(_start_later(broker, produce, session, pending, arrived), finish=True)
    else:
        _start(broker, produce, partitions, session, pending, arrived)
        pending.committed()


def _pending(produce: ProduceRequest, version: int, slot: Slot) -> Produce:
    partitions = len(produce.partitions) + 1
    return Produce(slot=slot, version=version, acks=produce.acks, partitions=partitions, timeout_ms=produce.timeout_ms)


def _checked(produce: ProduceRequest) -> tuple[ProduceRequest, bool]:
    """With what the check of small ones gave of those that are checked first; and whether others are left."""
    unchecked = False
    parts = []
    for part in produce.partitions:
        if part.records is not None and is_checked_first(part.records):
            part = part._replace(checked=check_small(part.records))
            unchecked = unchecked or part.checked is None
        parts.append(part)
    return produce._replace(partitions=parts), unchecked


async def _all_checked(broker: "Broker", produce: ProduceRequest) -> ProduceRequest:
    """With what the check gave of all that are checked first."""
    parts = []
    for part in produce.partitions:
        if part.checked is None and part.records is not None and is_checked_first(part.records):
            async with broker.unpacking:
                checked = await broker.loop.run_in_executor(broker.executor, check_any, part.records)
            part = part._replace(checked=checked)
        parts.append(part)
    return produce._replace(partitions=parts)


def _start_one(broker: "Broker", produce: ProduceRequest, version: int, slot: Slot, session: Connection) -> bool:
    """Start a request for one partition (librdkafka sends no others) if nothing stands in its way."""
    (part,) = produce.partitions
    topic = broker.topics.cached(part.topic)
    partition = topic.partitions.get(part.partition) if topic is not None else None
    if (
        topic is None
        or partition is None
        or partition.rolling
        or produce.acks not in (-1, 0, 1)
        or broker.rolls.due(partition)
        or broker.was_saturated
        or (topic.home is not None and must_wait(broker.forwards, topic))
    ):
        return False
    pending = Produce(slot=slot, version=version, acks=produce.acks, partitions=1, timeout_ms=produce.timeout_ms)
    try:
        _append(broker, session, pending, part, topic, partition, now=broker.now())
    except _NoChunkReady:
        return False
    except HeadraceError as error:
        pending.add(_refused(broker, session, part, error, topic, partition.log_start), settled=True)
    broker.counters.produce_requests += 1
    return True


def _ready(broker: "Broker", produce: ProduceRequest) -> list[tuple[Topic, Partition] | None] | None:
    """Each partition's topic and leader, None for one that has to be refused; or None if anything must be awaited."""
    found: list[tuple[Topic, Partition] | None] = []
    for part in produce.partitions:
        topic = broker.topics.cached(part.topic)
        if topic is None:
            return None
        if not 0 <= part.partition < topic.partition_count:
            found.append(None)
            continue
        partition = topic.partitions.get(part.partition)
        if partition is None or partition.rolling:
            return None
        if broker.rolls.due(partition):
            return None
        if topic.home is not None and must_wait(broker.forwards, topic):
            return None
        found.append((topic, partition))
    return None if _without_room(produce, found) else found


def _without_room(produce: ProduceRequest, found: Sequence[tuple[Topic, Partition] | None]) -> list[Container]:
    """The containers that have no room for what the request adds to them. What repeats a stored batch adds nothing."""
    lacking = [container for container, length in _lengths(produce, found).items() if not container.has_room(length)]
    if not lacking:
        return lacking
    new = [
        None if one is None or one[1].container not in lacking or _is_stored(part, *one) else one
        for part, one in zip(produce.partitions, found, strict=True)
    ]
    return [container for container, length in _lengths(produce, new).items() if not container.has_room(length)]


def _is_stored(part: PartitionRecords, topic: Topic, partition: Partition) -> bool:
    try:
        header = read_batch(part.records or b"", check_crc=False)
        return partition.known(header, name=part.topic) is not None
    except HeadraceError:
        return False  # it is refused where it is appended


def _lengths(produce: ProduceRequest, found: Sequence[tuple[Topic, Partition] | None]) -> dict[Container, int]:
    """By container, the bytes that the request adds to its log: they have to fit into one new chunk."""
    if len(produce.partitions) == 1:
        (part,), (one,) = produce.partitions, found
        return {} if one is None else {one[1].container: len(part.records or b"")}
    lengths: dict[Container, int] = {}
    for part, one in zip(produce.partitions, found, strict=True):
        if one is not None:
            container = one[1].container
            lengths[container] = lengths.get(container, 0) + len(part.records or b"") + HEADER_BYTES
    return lengths


async def _start_later(
    broker: "Broker", produce: ProduceRequest, session: Connection, pending: Produce, arrived: float
) -> None:
    """Start the request piece by piece, each when it is ready."""
    for first in range(0, len(produce.partitions), MANY):
        if first:
            await asyncio.sleep(0)
        piece = produce._replace(partitions=produce.partitions[first : first + MANY])
        if any(part.checked is None and is_checked_first(part.records) for part in piece.partitions):
            piece = await _all_checked(broker, piece)
        partitions = _ready(broker, piece)
        if partitions is None or broker.saturated:
            await _start_when_ready(broker, piece, session, pending, arrived)
        else:
            _start(broker, piece, partitions, session, pending, arrived)
    pending.committed()


async def _start_when_ready(
    broker: "Broker", produce: ProduceRequest, session: Connection, pending: Produce, arrived: float
) -> None:
    """Get everything ready, then start the request; partitions that cannot be got ready in time are refused."""
    refused: dict[int, KafkaError] = {}
    partitions: list[tuple[Topic, Partition] | None] | None = None
    limit = min(MOST_WAIT_S, max(LEAST_WAIT_S, produce.timeout_ms / 2000))
    try:
        async with asyncio.timeout(arrived + limit - time.monotonic()):
            await broker.not_saturated()
            for _ in range(MAX_TRIES):
                await _prepare(broker, produce, refused, session)
                kept = [part for index, part in enumerate(produce.partitions) if index not in refused]
                partitions = _ready(broker, produce._replace(partitions=kept))
                if partitions is not None:
                    break
    except TimeoutError:
        late = KafkaError(Code.LEADER_NOT_AVAILABLE, "the partition is not ready to be written to; try again")
        for index, part in enumerate(produce.partitions):
            if index not in refused and _ready(broker, produce._replace(partitions=[part])) is None:
                refused[index] = late
        kept = [part for index, part in enumerate(produce.partitions) if index not in refused]
        partitions = _ready(broker, produce._replace(partitions=kept))
    except HeadraceError as error:  # the catalog's: nothing could be looked up
        refused = dict.fromkeys(range(len(produce.partitions)), told(error))
        partitions = []
    if partitions is None:
        refused = dict.fromkeys(
            range(len(produce.partitions)), KafkaError(Code.LEADER_NOT_AVAILABLE, "still not ready; try again")
        )
        partitions = []
    rest = iter(partitions)
    merged = [None if index in refused else next(rest) for index in range(len(produce.partitions))]
    _start(broker, produce, merged, session, pending, arrived, refused)


async def _prepare(
    broker: "Broker", produce: ProduceRequest, refused: dict[int, KafkaError], session: Connection
) -> None:
    topics = await broker.topics.resolve([part.topic for part in produce.partitions], session)
    wanted: list[tuple[int, Topic, int]] = []
    for index, (part, topic) in enumerate(zip(produce.partitions, topics, strict=True)):
        if index in refused:
            continue
        if isinstance(topic, KafkaError):
            refused[index] = topic
        elif 0 <= part.partition < topic.partition_count:
            wanted.append((index, topic, part.partition))
    leaders = await broker.partitions.leaders([(topic, number) for _, topic, number in wanted])
    found: list[tuple[Topic, Partition] | None] = [None] * len(produce.partitions)

    async def settle(index: int, topic: Topic, partition: Partition) -> None:
        try:
            await broker.rolls.settle(partition)
            found[index] = (topic, partition)
        except HeadraceError as error:
            refused[index] = told(error)

    settling = []
    for (index, topic, _number), partition in zip(wanted, leaders, strict=True):
        if isinstance(partition, KafkaError):
            refused[index] = partition
        elif partition.rolling or broker.rolls.due(partition):
            settling.append(settle(index, topic, partition))
        else:
            found[index] = (topic, partition)
    await asyncio.gather(*settling)  # at the same time: none waits for the roll of another
    for container in _without_room(produce, found):
        try:
            await container.make_room()
        except StorageFull as full:
            for index, (part, one) in enumerate(zip(produce.partitions, found, strict=True)):
                if one is not None and one[1].container is container and not _is_stored(part, *one):
                    refused[index] = KafkaError(Code.KAFKA_STORAGE_ERROR, str(full))
    if any(one is not None and must_wait(broker.forwards, one[0]) for one in found):
        await broker.forwards.room()  # the last step: whoever is woken goes on at once


def _start(
    broker: "Broker",
    produce: ProduceRequest,
    partitions: list[tuple[Topic, Partition] | None],
    session: Connection,
    pending: Produce,
    arrived: float,
    refused: dict[int, KafkaError] | None = None,
) -> None:
    now = broker.now()
    for index, (part, found) in enumerate(zip(produce.partitions, partitions, strict=True)):
        try:
            if produce.acks not in (-1, 0, 1):
                raise KafkaError(Code.INVALID_REQUIRED_ACKS, f"acks is {produce.acks}; it can be -1, 0 or 1")
            if found is None:
                error = (refused or {}).get(index)
                raise error or KafkaError(Code.UNKNOWN_TOPIC_OR_PARTITION, f"{part.topic} has no such partition")
            if session.refusals is not None:
                topic, partition = found
                shared = session.refusals.stands(part, partition.producers, topic.topic_id, arrived=arrived)
                if shared is not None:
                    pending.add(_refusal(part, shared, partition.log_start), settled=True)
                    continue
            _append(broker, session, pending, part, *found, now=now)
        except HeadraceError as error:
            log_start = found[1].log_start if found is not None else -1
            pending.add(
                _refused(broker, session, part, error, broker.topics.cached(part.topic), log_start), settled=True
            )


def _append(
    broker: "Broker",
    session: Connection,
    pending: Produce,
    part: PartitionRecords,
    topic: Topic,
    partition: Partition,
    *,
    now: int,
) -> None:
    batch = part.records
    if batch is None or len(batch) == 0:
        raise KafkaError(Code.INVALID_RECORD, "no record batch for this partition")
    header = read_batch(batch)
    if header.length != len(batch):
        raise KafkaError(Code.INVALID_RECORD, "more than one record batch for this partition")
    producer_id = header.producer_id
    container = partition.container
    if container.lost:
        raise KafkaError(Code.NOT_LEADER_OR_FOLLOWER, "the partition has just changed hands")
    foreign = None if topic.home is None else broker.home_check.refusal(topic, partition, name=part.topic)
    if foreign is not None:
        if producer_id >= 0:
            partition.producers.calls(producer_id=producer_id, epoch=header.producer_epoch, name=part.topic)
        if not _is_stored(part, topic, partition):
            forwards = broker.forwards
            if foreign.code is not Code.POLICY_VIOLATION or not forwards.accepts(topic):
                raise foreign
            _pass_on(broker, forwards, session, pending, part, topic, partition)
            return
    limit = MOST_PAYLOAD_BYTES
    # A token stands for a task's rows, which are in one batch (DESIGN section 12), whatever the topic's limit.
    if producer_id >= -1 and topic.policy.max_message_bytes < limit:
        limit = topic.policy.max_message_bytes
    if header.length > limit:
        raise KafkaError(
            Code.MESSAGE_TOO_LARGE,
            f"a batch of {header.length} bytes; {part.topic} takes {limit} at most (max.message.bytes)",
        )
    if header.attributes & TRANSACTIONAL_BIT:
        raise KafkaError(Code.INVALID_RECORD, NO_TRANSACTIONS)
    if foreign is not None:
        # Its answer may have been lost in the moment of a move. Once settled, what is here stays here.
        if not is_settled(topic, partition):
            raise KafkaError(Code.LEADER_NOT_AVAILABLE, f"{part.topic} is being moved; try again")
    elif partition.seal is not None:
        raise KafkaError(Code.LEADER_NOT_AVAILABLE, "the partition is about to go on elsewhere")
    known = None if producer_id == -1 else partition.known(header, name=part.topic)
    if known is not None:
        if partition.is_doubtful(header, known):
            broker.repeats.compare(partition, header, batch, known, source=session.number, name=part.topic)
            raise KafkaError(Code.LEADER_NOT_AVAILABLE, f"whether {part.topic} has this batch is looked up; try again")
        partition.producers.heard(producer_id, source=session.number, name=part.topic)
        # Invariant 11: the answer to a duplicate waits until the original is committed.
        result = _result(part, known.base_offset, -1, partition)
        if producer_id < -1:  # a token names a task, whose rows may be others now: who bears it has to know
            result = result._replace(error=Code.DUPLICATE_SEQUENCE_NUMBER)
        pending.add(result, settled=False)
        if partition.high_watermark > known.base_offset:
            pending.committed()
        else:
            container.when_committed(Position(container.log.end), pending)
        return
    if producer_id >= 0 and partition.producers.begins_late(
        producer_id=producer_id, base_sequence=header.base_sequence
    ):
        reason = f"producer {producer_id} is not known, and sequence {header.base_sequence} is not its first"
        if (early := _early(broker, session, part, None, reason)) is not None:
            raise early
    if container.refuses:
        raise StorageFull(container.refuses)
    if not container.has_room(len(batch)):
        raise _NoChunkReady("no chunk is ready for this batch")
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
    # The result goes first: a commit may follow at once.
    base_offset = partition.next_offset
    pending.add(_result(part, base_offset, -1 if append_time is None else append_time, partition), settled=False)
    partition.append(
        batch, header, append_time=append_time, now=now, request=pending, source=session.number, name=part.topic
    )


def _keyless(part: PartitionRecords, checked: Checked) -> InvalidRecords:
    reason = "a record of a compacted topic needs a key"
    return InvalidRecords(
        f"{len(checked.keyless)} records without a key, which {part.topic} is compacted by",
        [(index, reason) for index in checked.keyless],
    )


def _pass_on(
    broker: "Broker",
    forwards: Forwards,
    session: Connection,
    pending: Produce,
    part: PartitionRecords,
    topic: Topic,
    partition: Partition,
) -> None:
    """Have a batch go to its topic's home, which checks it; the answer is the home's."""
    number = pending.later()

    def done(outcome: ProduceResult | KafkaError | None, shared: bool) -> None:
        if outcome is None:
            pending.lost()
        elif isinstance(outcome, ProduceResult):
            pending.settle(number, outcome)
        elif shared:
            pending.settle(number, _refusal(part, outcome, partition.log_start))
        else:
            if outcome.code is Code.OUT_OF_ORDER_SEQUENCE_NUMBER:
                outcome = _early(broker, session, part, None, str(outcome)) or outcome
            pending.settle(number, _refused(broker, session, part, outcome, topic, partition.log_start))

    waits = part._replace(records=None if part.records is None else detached(part.records))
    forwards.send(session.number, topic, waits, timeout_ms=pending.timeout_ms, done=done)


def _refused(
    broker: "Broker",
    session: Connection,
    part: PartitionRecords,
    error: HeadraceError,
    topic: Topic | None,
    log_start: int,
) -> ProduceResult:
    if isinstance(error, SequenceGap) and error.source != session.number:
        error = _early(broker, session, part, error.expected, str(error)) or error
    if error.code in FOR_THE_MOMENT:
        session.refusals = session.refusals or Refusals()
        session.refusals.note(part, error, None if topic is None else topic.topic_id)
    elif error.code in OF_THE_ORDER:  # rare, and what came of it is hard to find out later
        log.warning(
            "a batch is out of order", topic=part.topic, partition=part.partition, peer=session.peer, reason=str(error)
        )
    return _refusal(part, error, log_start)


def _early(
    broker: "Broker", session: Connection, part: PartitionRecords, expected: int | None, reason: str
) -> KafkaError | None:
    """The refusal of a batch whose predecessor, of the sequence `expected`, may still come; None: it will not."""
    if broker.node_count == 1:  # nobody else may hold the one, or be sent it
        return None
    session.refusals = session.refusals or Refusals()
    if not session.refusals.is_early(part, expected):
        return None
    log.info("a batch is early", topic=part.topic, partition=part.partition, peer=session.peer, reason=reason)
    return KafkaError(Code.LEADER_NOT_AVAILABLE, f"{reason}; send it again")


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
