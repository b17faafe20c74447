"""The audit as a stream: `/system/audit:events`, a JSON record for each event, in the order of each node.

The stream is made with the first event of a cluster whose security is on; administrators alone may read it. Whoever
asks for something never waits for it: events go into a queue, from which a task writes batches to whichever node leads
the partition, each exactly once. What a queue that is full takes no more is counted; the next event says how many were
lost, and the log does. What has not been written when a node ends is in its log alone.

Writing asks nobody for a right, so it makes no events itself.
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
MOST_WAITING: Final = 5_000
"""Events that wait to be written."""
MOST_WAITING_BYTES: Final = 8 << 20
MOST_AT_ONCE: Final = 500
"""Events of one batch."""
GATHER_S: Final = 0.2
"""How long the first event of a batch waits for others."""
ASK_S: Final = 15.0
FIRST_PAUSE_S: Final = 0.5
MOST_PAUSE_S: Final = 30.0
_MOST_SEQUENCE: Final = 1 << 30
_ANEW: Final = frozenset({Code.OUT_OF_ORDER_SEQUENCE_NUMBER, Code.INVALID_PRODUCER_EPOCH, Code.UNKNOWN_PRODUCER_ID})


class Once(Protocol):
    """Appends a batch that bears a token to a partition that this node leads."""

    async def append(self, topic_id: bytes, partition: int, batch: bytearray) -> Offset:
        """Raises HeadraceError."""


class AuditStream:
    """Of one node. Everything is on the loop's thread."""

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
        """`is_on`: whether security is. Before it ever was, no event is taken."""
        self._runtime = runtime
        self._catalog = catalog
        self._cluster = cluster
        self._led = led
        self._placement = placement
        self._once = once
        self._is_on = is_on
        self._was_on = False
        self._waiting: deque[tuple[int, bytes]] = deque()
        """When each event came, and what it is."""
        self._waiting_bytes = 0
        self._due = asyncio.Event()
        self._token = 0
        self._sequence = 0
        self._renew()
        self._fails = False
        self.lost = 0
        """Events that were lost since one was told of it."""

    def take(self, fields: Mapping[str, object]) -> None:
        """A sink of the audit log: write an event soon, or lose it."""
        if not self._was_on:
            if not self._is_on():
                return
            self._was_on = True
        if len(self._waiting) >= MOST_WAITING or self._waiting_bytes >= MOST_WAITING_BYTES:
            self.lost += 1
            return
        at_ms = fields.get("at_ms")
        told: dict[str, object] = {"node": int(self._cluster.node_id), **fields}
        if self.lost:
            told["lost"], self.lost = self.lost, 0
            log.warning("events were lost to the audit's stream, and are in the log", lost=told["lost"])
        event = msgspec.json.encode(told)
        self._waiting.append((at_ms if isinstance(at_ms, int) else self._runtime.now(), event))
        self._waiting_bytes += len(event)
        self._due.set()

    async def run(self) -> None:
        """Write what comes, until cancelled."""
        while True:
            await self._due.wait()
            await asyncio.sleep(GATHER_S)
            self._due.clear()
            while self._waiting:
                await self._write()

    async def _write(self) -> None:
        """Write the next batch, however often that has to be tried."""
        some = list(islice(self._waiting, MOST_AT_ONCE))
        backoff = Backoff(FIRST_PAUSE_S, MOST_PAUSE_S)
        while True:
            try:
                await self._append(await self._topic(), some)
                break
            except (HeadraceError, OSError, sqlite3.Error) as error:
                if isinstance(error, KafkaError) and error.code in _ANEW:
                    self._renew()
                if not self._fails:
                    self._fails = True
                    log.warning("audit events cannot be written to their stream", topic=TOPIC, reason=str(error))
            await asyncio.sleep(backoff.failed())
        if self._fails:
            self._fails = False
            log.info("audit events are written to their stream again")
        self._sequence += len(some)
        if self._sequence > _MOST_SEQUENCE:
            self._renew()
        for _ in some:
            self._waiting_bytes -= len(self._waiting.popleft()[1])

    def _renew(self) -> None:
        """A token of its own: batches that bear it are known when they come again."""
        self._token = -2 - secrets.randbits(62)
        self._sequence = 0

    async def _append(self, topic: TopicRow, some: list[tuple[int, bytes]]) -> None:
        batch = build_batch(
            [(at_ms, None, event, []) for at_ms, event in some],
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
        """The topic, made if need be. Raises KafkaError."""

        def look(reader: Reader) -> TopicRow | None:
            return reader.topics.at(STREAM, TOPIC)

        found = await self._catalog.query(look)
        if found is not None:
            return found
        policy = StreamPolicy(ttl_ms=TTL_MS, auto_create=False, description="who was refused, or let do, what")
        nobody = [(str(permission), "") for permission in Permission]  # but the cluster's administrators
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
    """Call `flush` for as long as this runs, so that what was left out is told though nothing follows."""
    while True:
        await asyncio.sleep(every_s)
        flush()
