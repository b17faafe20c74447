"""Forwards writes on copies to their home, on one node, for links with `forward_writes`.

A batch goes unchanged to the node that leads its partition at the home, over a client with the link's credentials; the
producer gets the home's answer. The batch gets no offset here, its sequence is not checked, and it is not stored.

Order: the batches of a partition wait in a queue, and one of them is sent at a time. When a batch is refused with a
retriable error, those queued behind it on the same connection share its refusal, as they would at the home
(partitions/refusals.py).

While the home cannot be reached, has another leader, or is no longer home, the batch is retried until its time is up;
each attempt reads the catalog's present state. Then it is refused with a retriable error. If an attempt got no answer,
the home may have stored the batch: a batch of an idempotent producer is sent again, since the home recognizes a repeat;
any other is not, and its producer's connection is closed, to signal that the outcome is unknown (kafka/produce.py).

Bounds: batches of `LIMIT_BYTES` in total wait or are being sent; beyond that the node stops reading from producers that
would add more.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import structlog

from headrace.base.errors import Code, HeadraceError, KafkaError, code_of
from headrace.base.ids import NodeId
from headrace.base.runtime import Runtime
from headrace.catalog.rows import LinkRow
from headrace.kafka_client.client import Client
from headrace.kafka_client.errors import SourceRefuses, SourceUnreachable
from headrace.links.config import is_kafka
from headrace.links.pull.home_links import HomeLinks
from headrace.partitions.forwarding import Done
from headrace.partitions.refusals import RETRIABLE
from headrace.partitions.topic import Topic
from headrace.wire.batch import read_batch
from headrace.wire.produce import PartitionRecords, ProduceResult

__all__ = ["Forwarding"]

log = structlog.get_logger(__name__)

LIMIT_BYTES: Final = 32 << 20
MIN_WAIT_S: Final = 3.0
MAX_WAIT_S: Final = 10.0
"""Limits of a batch's time in seconds: half of its producer's timeout, within these, so that it gets an answer."""
FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 1.0
MAX_LEADERS: Final = 10_000
"""The maximum number of leaders that are remembered; beyond that all are looked up again."""
ELSEWHERE: Final = frozenset(
    {
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.LEADER_NOT_AVAILABLE,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.POLICY_VIOLATION,  # home is another cluster now
    }
)
"""Errors of the home after which the batch is sent again, to the leader that is then found."""


@dataclass(slots=True, eq=False)
class _Batch:
    """A batch in its queue. `until`: the loop's time at which it expires."""

    session: int
    topic: Topic
    part: PartitionRecords
    until: float
    done: Done
    repeatable: bool
    unanswered: bool = False
    """Whether it was sent, and no answer reported its outcome."""

    @property
    def size(self) -> int:
        return len(self.part.records or b"")


@dataclass(slots=True)
class _Queue:
    """The batches of one partition; the first is being sent."""

    batches: deque[_Batch] = field(default_factory=deque)
    task: asyncio.Task[None] | None = None


class _Open(NamedTuple):
    """A link's open client."""

    link: LinkRow
    client: Client


Key = tuple[bytes, int]


class Forwarding:
    """Forwards writes, as `Forwards` for Produce. It is created before the links, and finds what it needs to know
    about them in `HomeLinks`."""

    def __init__(
        self,
        *,
        home_links: HomeLinks,
        runtime: Runtime,
        own_cluster: str,
        open_client: Callable[[LinkRow], Client],
        limit_bytes: int = LIMIT_BYTES,
    ) -> None:
        """`open_client` may raise HeadraceError."""
        self._home_links = home_links
        self._runtime = runtime
        self._own = own_cluster
        self._open_client = open_client
        self.limit_bytes = limit_bytes
        self.waiting_bytes = 0
        """Bytes of all batches that wait or are being sent."""
        self._room = asyncio.Event()
        self._queues: dict[Key, _Queue] = {}
        self._clients: dict[str, _Open] = {}
        self._leaders: dict[Key, NodeId] = {}
        self._closed = False

    # --- for Produce

    def accepts(self, topic: Topic) -> bool:
        """As `Forwards` says."""
        return not self._closed and (
            not self._home_links.is_known or self._home_links.forwarding_link(topic) is not None
        )

    @property
    def full(self) -> bool:
        """As `Forwards` says."""
        return self.waiting_bytes >= self.limit_bytes

    async def room(self) -> None:
        """As `Forwards` says."""
        while self.full:
            self._room.clear()
            await self._room.wait()

    def send(self, session: int, topic: Topic, part: PartitionRecords, *, timeout_ms: int, done: Done) -> None:
        """As `Forwards` says."""
        until = self._runtime.loop.time() + min(MAX_WAIT_S, max(MIN_WAIT_S, timeout_ms / 2000))
        repeatable = read_batch(part.records or b"", check_crc=False).producer_id != -1
        batch = _Batch(session, topic, part, until, done, repeatable)
        self.waiting_bytes += batch.size
        key = (topic.topic_id, part.partition)
        queue = self._queues.setdefault(key, _Queue())
        queue.batches.append(batch)
        if queue.task is None:
            queue.task = self._runtime.spawn(self._serve(key, queue))

    async def link_ended(self, name: str) -> None:
        """Close a link's connections, as it has ended on this node or is restarted."""
        held = self._clients.pop(name, None)
        if held is not None:
            await held.client.close()

    async def close(self) -> None:
        """Cancel everything in progress; its outcome is unknown."""
        self._closed = True
        tasks = [queue.task for queue in self._queues.values() if queue.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for name in list(self._clients):
            await self.link_ended(name)

    # --- queues

    async def _serve(self, key: Key, queue: _Queue) -> None:
        try:
            while queue.batches:
                batch = queue.batches[0]
                self._end(key, queue, batch, await self._outcome(key, batch))
        finally:
            del self._queues[key]
            for batch in queue.batches:  # this node stops, or something unforeseen failed
                self._told(batch, None)

    async def _outcome(self, key: Key, batch: _Batch) -> ProduceResult | KafkaError | None:
        try:
            return await self._pass_on(key, batch)
        except HeadraceError as error:
            return KafkaError(error.code, str(error))

    def _end(self, key: Key, queue: _Queue, batch: _Batch, outcome: ProduceResult | KafkaError | None) -> None:
        """Complete the first batch, and those that share its outcome."""
        queue.batches.popleft()
        self._told(batch, outcome)
        if isinstance(outcome, ProduceResult):
            return
        self._leaders.pop(key, None)
        if outcome is None or outcome.code in RETRIABLE:
            behind = [other for other in queue.batches if other.session == batch.session]
            queue.batches = deque(other for other in queue.batches if other.session != batch.session)
            for other in behind:
                self._told(other, outcome, shared=True)

    def _told(self, batch: _Batch, outcome: ProduceResult | KafkaError | None, *, shared: bool = False) -> None:
        self.waiting_bytes -= batch.size
        if not self.full:
            self._room.set()
        batch.done(outcome, shared)

    # --- one batch

    async def _pass_on(self, key: Key, batch: _Batch) -> ProduceResult | KafkaError | None:
        """The home's answer; an error for the producer; None if the outcome is unknown."""
        loop = self._runtime.loop
        pause, error = FIRST_PAUSE_S, KafkaError(Code.LEADER_NOT_AVAILABLE, "its home was not reached; try again")
        while True:
            try:
                found = self._target(batch.topic, name=batch.part.topic)
                if isinstance(found, KafkaError):
                    return None if batch.unanswered else found
                async with asyncio.timeout_at(batch.until):
                    result = await self._ask(key, batch, found)
            except TimeoutError:
                return self._expired(batch, error)
            except (SourceUnreachable, SourceRefuses) as away:
                if batch.unanswered and not batch.repeatable:
                    return None
                error = KafkaError(Code.LEADER_NOT_AVAILABLE, f"its home cannot be reached: {away}; try again")
            else:
                if result.error in (Code.NONE, Code.DUPLICATE_SEQUENCE_NUMBER):
                    return result._replace(topic=batch.part.topic)
                code, message = code_of(result.error), result.message or ""
                if code not in ELSEWHERE:
                    return KafkaError(code, message)
                retriable = Code.LEADER_NOT_AVAILABLE if code is Code.POLICY_VIOLATION else code
                error = KafkaError(retriable, f"its home answers: {message or code.name}; try again")
            self._leaders.pop(key, None)
            if loop.time() + pause >= batch.until:
                return self._expired(batch, error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _expired(self, batch: _Batch, error: KafkaError) -> KafkaError | None:
        if batch.unanswered:
            return None
        log.info("a write could not be forwarded", topic=batch.topic.row.full_name, reason=str(error))
        return error

    def _target(self, topic: Topic, *, name: str) -> _Open | KafkaError:
        """The client for the writes on a topic that the producer calls `name`, or an error. Raises SourceUnreachable if
        it is not known yet."""
        home = topic.home
        if topic.deleted:
            return KafkaError(Code.UNKNOWN_TOPIC_OR_PARTITION, f"{name} has been deleted")
        if home is None or home.cluster == self._own:
            return KafkaError(Code.LEADER_NOT_AVAILABLE, f"{name} has just moved here; try again")
        if not self._home_links.is_known:
            raise SourceUnreachable("this node has just started and does not know its links yet")
        link = self._home_links.forwarding_link(topic)
        if link is None:
            return self._home_links.addresses.elsewhere(name, home)
        held = self._clients.get(link.name)
        if held is None:
            held = self._clients[link.name] = _Open(link, self._open_client(link))
        return held

    async def _ask(self, key: Key, batch: _Batch, found: _Open) -> ProduceResult:
        """Make one attempt. Raises SourceUnreachable, SourceRefuses."""
        leader = self._leaders.get(key)
        if leader is None:
            leader = await self._leader(key, found.client)
            if len(self._leaders) >= MAX_LEADERS:
                self._leaders.clear()
            self._leaders[key] = leader
        await found.client.reach(leader)
        config, name = found.link.config, batch.topic.name
        there = batch.part._replace(topic=name if is_kafka(config) else f"{config.source_stream}:{name}")
        before, batch.unanswered = batch.unanswered, True
        left_ms = max(1, int((batch.until - self._runtime.loop.time()) * 1000))
        (result,) = await found.client.produce(leader, [there], timeout_ms=left_ms)
        # Even if this attempt was refused with a retriable error, an earlier one may have stored the batch.
        batch.unanswered = before and result.error in RETRIABLE | ELSEWHERE
        return result

    async def _leader(self, key: Key, client: Client) -> NodeId:
        """The leader of a partition at the home. Raises SourceUnreachable if there is none."""
        topic_id, index = key
        response = await client.metadata([(None, topic_id)])
        for topic in response.topics:
            for partition in topic.partitions:
                if partition.partition == index and partition.leader >= 0:
                    return NodeId(partition.leader)
        raise SourceUnreachable(f"{client.name} reports no leader of partition {index}")
