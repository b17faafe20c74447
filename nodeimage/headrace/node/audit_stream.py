"""The audit log as a stream: `/system/audit:events`, one JSON record per event, in the order in which each node saw
them.

The stream is created with the first event after a cluster's security is turned on; only administrators may read it. No
request waits for its audit event: events go into a queue, from which a task writes batches to the node that leads the
partition, each batch exactly once. Events that arrive while the queue is full are dropped and counted; the next event
and the log report how many were lost. Events that have not been written when a node ends are in its log only.

Writing to the stream checks no access right, so it produces no audit events itself.
"""

import asyncio
import secrets
import sqlite3
import uuid
from collections import deque
from collections.abc import Callable, Collection, Mapping
from itertools import islice
from typing import Final, Protocol

import msgspec
import structlog

from headrace.base.backoff import Backoff
from headrace.base.errors import Code, HeadraceError, KafkaError
from headrace.base.ids import ContainerId, Offset
from headrace.base.runtime import Runtime
from headrace.catalog.catalog import Catalog
from headrace.catalog.policy import StreamPolicy
from headrace.catalog.reader import Reader
from headrace.catalog.rows import TopicRow
from headrace.catalog.streams import CreateOwnedStream
from headrace.catalog.topics import CreateTopics, NewTopic
from headrace.partitions.cluster_client import ClusterClient
from headrace.partitions.lookups import now
from headrace.partitions.placement import Placement
from headrace.peer.messages import AppendOnce
from headrace.security.access_rules import Permission
from headrace.wire.batch import build_batch

log = structlog.get_logger()

STREAM: Final = "/system/audit"
TOPIC: Final = "events"
TTL_MS: Final = 30 * 24 * 3600 * 1000
MAX_WAITING: Final = 5_000
"""Events that may wait to be written."""
MAX_WAITING_BYTES: Final = 8 << 20
MAX_AT_ONCE: Final = 500
"""Largest number of events in one batch."""
GATHER_S: Final = 0.2
"""Seconds for which the first event of a batch waits for further events."""
ASK_S: Final = 15.0
FIRST_PAUSE_S: Final = 0.5
MAX_PAUSE_S: Final = 30.0
_MAX_SEQUENCE: Final = 1 << 30
_BAD_TOKEN: Final = frozenset(
    {Code.OUT_OF_ORDER_SEQUENCE_NUMBER, Code.INVALID_PRODUCER_EPOCH, Code.UNKNOWN_PRODUCER_ID}
)


class Once(Protocol):
    """Appends a batch exactly once, by the token that it carries, to a partition that this node leads."""

    async def append(self, topic_id: bytes, partition: int, batch: bytearray) -> Offset:
        """Append the batch and return its offset. Raises HeadraceError."""


class AuditStream:
    """Writes one node's audit events to the stream. Runs on the event loop's thread only."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        catalog: Catalog,
        cluster: ClusterClient,
        led: Collection[ContainerId],
        placement: Placement,
        once: Once,
        is_on: Callable[[], bool],
    ) -> None:
        """`is_on`: returns whether security is on. Events are discarded until it first returns true."""
        self._runtime = runtime
        self._catalog = catalog
        self._cluster = cluster
        self._led = led
        self._placement = placement
        self._once = once
        self._is_on = is_on
        self._was_on = False
        self._waiting: deque[tuple[int, bytes]] = deque()
        """The events that wait: (time in ms, JSON)."""
        self._waiting_bytes = 0
        self._due = asyncio.Event()
        self._token = 0
        self._sequence = 0
        self._start_token()
        self._is_failing = False
        self.lost = 0
        """Events that were dropped since the last report."""

    def take(self, fields: Mapping[str, object]) -> None:
        """Queue an event for writing, or drop and count it if the queue is full. A sink of the audit log."""
        if not self._was_on:
            if not self._is_on():
                return
            self._was_on = True
        if len(self._waiting) >= MAX_WAITING or self._waiting_bytes >= MAX_WAITING_BYTES:
            self.lost += 1
            return
        at_ms = fields.get("at_ms")
        event_fields: dict[str, object] = {"node": int(self._cluster.node_id), **fields}
        if self.lost:
            event_fields["lost"], self.lost = self.lost, 0
            log.warning(
                "audit events could not be written to their stream, and are in the log", lost=event_fields["lost"]
            )
        event = msgspec.json.encode(event_fields)
        self._waiting.append((at_ms if isinstance(at_ms, int) else self._runtime.now(), event))
        self._waiting_bytes += len(event)
        self._due.set()

    async def run(self) -> None:
        """Write queued events until cancelled."""
        while True:
            await self._due.wait()
            await asyncio.sleep(GATHER_S)
            self._due.clear()
            while self._waiting:
                await self._write()

    async def _write(self) -> None:
        """Write the next batch, retrying until it succeeds."""
        batch_events = list(islice(self._waiting, MAX_AT_ONCE))
        backoff = Backoff(FIRST_PAUSE_S, MAX_PAUSE_S)
        while True:
            try:
                await self._append(await self._topic(), batch_events)
                break
            except (HeadraceError, OSError, sqlite3.Error) as error:
                if isinstance(error, KafkaError) and error.code in _BAD_TOKEN:
                    self._start_token()
                if not self._is_failing:
                    self._is_failing = True
                    log.warning("audit events cannot be written to their stream", topic=TOPIC, reason=str(error))
            await asyncio.sleep(backoff.failed())
        if self._is_failing:
            self._is_failing = False
            log.info("audit events are written to their stream again")
        self._sequence += len(batch_events)
        if self._sequence > _MAX_SEQUENCE:
            self._start_token()
        for _ in batch_events:
            self._waiting_bytes -= len(self._waiting.popleft()[1])

    def _start_token(self) -> None:
        """Start a new token, which is a negative producer id, and a new sequence. By these the partition's leader
        recognizes a repeated batch."""
        self._token = -2 - secrets.randbits(62)
        self._sequence = 0

    async def _append(self, topic: TopicRow, batch_events: list[tuple[int, bytes]]) -> None:
        batch = build_batch(
            [(at_ms, None, event, []) for at_ms, event in batch_events],
            producer_id=self._token,
            producer_epoch=0,
            base_sequence=self._sequence,
        )
        opened = await self._catalog.query(lambda reader: reader.chains.open_of([topic.number]))
        container = next((each.container for each in opened.get(topic.number, ()) if each.partition == 0), None)
        if container is None:
            raise KafkaError(Code.LEADER_NOT_AVAILABLE, f"{topic.full_name} has no partition yet")
        if container in self._led:
            await self._once.append(topic.topic_id, 0, batch)
        else:
            asked = AppendOnce(topic.topic_id, 0)
            await self._cluster.ask_leader(container, asked, [bytes(batch)], timeout_s=ASK_S)

    async def _topic(self) -> TopicRow:
        """The stream's topic, created if it does not exist. Raises KafkaError."""

        def look(reader: Reader) -> TopicRow | None:
            return reader.topics.at(STREAM, TOPIC)

        found = await self._catalog.query(look)
        if found is not None:
            return found
        policy = StreamPolicy(ttl_ms=TTL_MS, auto_create=False, description="who was refused, or allowed to do, what")
        nobody = [(str(permission), "") for permission in Permission]  # administrators may always read it
        await self._catalog.submit(CreateOwnedStream(STREAM, policy, nobody, now()))
        ((container, epoch),) = self._placement.place(1, policy.volume)
        item = NewTopic(
            stream=STREAM,
            name=TOPIC,
            topic_id=uuid.uuid4().bytes,
            partitions=1,
            configs={},
            container_ids=[container],
            container_epochs=[epoch],
        )
        (made,) = await self._catalog.submit(CreateTopics(items=[item], now=now()))
        if made.code not in (Code.NONE, Code.TOPIC_ALREADY_EXISTS) or made.topic is None:
            raise KafkaError(made.code, made.message or f"{STREAM}:{TOPIC} could not be made")
        return made.topic


async def tell_now_and_then(flush: Callable[[], object], *, every_s: float) -> None:
    """Call the audit log's `flush` every `every_s` seconds until cancelled, so that the events that it has left out are
    reported even if no event follows."""
    while True:
        await asyncio.sleep(every_s)
        flush()
