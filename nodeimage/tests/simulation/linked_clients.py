"""Producers of topics that have their homes in one of several clusters.

Each producer writes to one partition, at its apparent home, one batch at a time, until the batch is acknowledged. It
identifies its records by their content, since a producer that a home no longer knows starts over with another id, and
gives up its current batch: it is then unknown whether that batch was stored, but it must not be stored twice.
"""

import asyncio
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.base.errors import Code, HeadraceError
from headrace.tables.submission import LIMIT_S
from headrace.wire.batch import build_batch
from simulation.linked_cluster import CommitTo, FetchFrom, FindLeader, LinkedCluster, ProduceTo
from simulation.network import PORT

if TYPE_CHECKING:
    from simulation.linked import World

AGAIN = frozenset(
    {
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.LEADER_NOT_AVAILABLE,
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.REQUEST_TIMED_OUT,
        Code.NOT_ENOUGH_REPLICAS,
        Code.KAFKA_STORAGE_ERROR,
        Code.UNKNOWN_SERVER_ERROR,
        Code.COORDINATOR_LOAD_IN_PROGRESS,
    }
)
FORGOTTEN = frozenset({Code.OUT_OF_ORDER_SEQUENCE_NUMBER, Code.UNKNOWN_PRODUCER_ID, Code.INVALID_PRODUCER_EPOCH})
"""Errors that mean that the home lacks records that the producer was told are stored."""
PATIENCE_S = (0.3, 1.0, 6.0)


class Acknowledged(NamedTuple):
    """A record is stored at an offset, as a cluster acknowledged."""

    cluster: str
    offset: int
    value: bytes


@dataclass(slots=True)
class Written:
    """The history of one partition's writes."""

    topic: str
    partition: int
    acknowledged: list[Acknowledged] = field(default_factory=list)
    sent: dict[bytes, set[str]] = field(default_factory=dict)
    """By record, the clusters to which it was sent."""
    names: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    """By record, producer id and sequence."""
    committed_offsets: dict[tuple[str, str], int] = field(default_factory=dict)
    """By cluster and group, the last acknowledged committed offset."""


class LinkClient:
    """One producer."""

    def __init__(self, world: "World", number: int, written: Written) -> None:
        self._world = world
        self._chance: random.Random = world.chance
        self._number = number
        self._begun = 0
        self._sequence = 0
        self._sent = 0
        self._bytes = 0
        """Bytes of all batches."""
        self.written = written
        self._at: LinkedCluster | None = None
        self._leader: int | None = None
        self._patience_s = self._chance.choice(PATIENCE_S)
        self.is_through = False
        """Whether the producer's last batch is acknowledged."""
        self.group = f"group-{number}"
        self._unanswered_at = -LIMIT_S
        """When a commit was given up, which may still take effect, after later ones."""
        self.committed_offset_counts = False
        """Whether the last committed offset was committed at the home, and the home stays."""

    @property
    def _producer(self) -> int:
        return 1000 + 100 * self._number + self._begun

    async def run(self) -> None:
        """Produce until the world says that the run is over."""
        pause = 0.05 + self._chance.random() * 0.4
        while not self._world.over:
            await asyncio.sleep(self._chance.random() * pause)
            roll = self._chance.random()
            if roll < 0.15:
                await self._read()
            elif roll < 0.3:
                await self.commit()
            else:
                await self.produce()
        self._patience_s = PATIENCE_S[-1]
        await self.produce(until_through=True)
        self.is_through = True

    async def produce(self, *, until_through: bool = False) -> None:
        """Produce one batch; with `until_through`, more until one is acknowledged."""
        while not self._world.gave_up(self.written):
            if await self._batch() or not until_through or self._world.failed:
                break

    async def once_more(self) -> int:
        """When all is quiet, produce a batch and commit an offset; returns the bytes of the batch."""
        before = self._bytes
        await self.produce(until_through=True)
        if self._world.gave_up(self.written):
            return 0
        await asyncio.sleep(max(0.0, self._unanswered_at + LIMIT_S + 1 - self._world.loop.now))
        while not await self.commit() and not self._world.failed:
            self._at = None
            await asyncio.sleep(0.1)
        self.committed_offset_counts = True
        return self._bytes - before

    async def _batch(self) -> bool:
        """Send one batch, and give it up if it is not acknowledged; returns whether it was."""
        count = self._chance.randint(1, 3)
        size = self._chance.choice((10, 100, 400, 1500))
        values = [f"{self._number}:{self._sent + at} ".encode().ljust(size, b".") for at in range(count)]
        self._sent += count
        rows: Any = [(1, None, value, []) for value in values]
        batch = bytes(build_batch(rows, producer_id=self._producer, producer_epoch=0, base_sequence=self._sequence))
        self._bytes += len(batch)
        written = self.written
        for at, value in enumerate(values):
            written.sent[value] = set()
            written.names[value] = (self._producer, self._sequence + at)
        while not self._world.failed and not self._world.gave_up(written):
            cluster = self._cluster()
            for value in values:
                written.sent[value].add(cluster.name)
            answer = await self._ask(cluster, ProduceTo(self._number, written.topic, written.partition, batch))
            if answer is not None:
                error, base = answer
                if error == Code.NONE:
                    self._sequence += count
                    self._world.checks.acknowledge(written, cluster.name, base, values)
                    return True
                if error in FORGOTTEN:
                    if written.topic not in self._world.forced:
                        self._world.checks.fail(f"{written.topic}: {cluster.name} says {Code(error).name}")
                    self._begun += 1
                    self._sequence = 0
                    return False
                if error == Code.POLICY_VIOLATION:
                    self._at = None
                elif error not in AGAIN:
                    self._world.checks.fail(f"{written.topic}: {cluster.name} tells a producer {Code(error).name}")
            self._leader = None
            if self._chance.random() < 0.2:
                self._at = None
            await asyncio.sleep(0.1)
        return False

    async def _read(self) -> None:
        """Read anywhere, and compare the records at once, unless homes were taken by force."""
        written = self.written
        cluster = self._chance.choice(self._world.clusters)
        known = len(written.acknowledged)
        offset = written.acknowledged[self._chance.randrange(known)].offset if known else 0
        leader, self._leader = self._leader, None
        answer = await self._ask(cluster, FetchFrom(written.topic, written.partition, offset))
        self._leader = leader
        if answer is not None:
            self._world.checks.read(written, cluster.name, answer[1])

    async def commit(self) -> bool:
        """Commit an offset, at the home as far as it is known; returns whether it was acknowledged."""
        written, cluster = self.written, self._cluster()
        own = [each.offset for each in written.acknowledged if each.cluster == cluster.name]
        if not own:
            return False
        offset = own[-1] + 1
        upper = cluster.some(self._chance)
        if upper is None:
            return False
        request = CommitTo(written.topic, written.partition, self.group, offset)
        try:
            code = await self._call(cluster, upper._sim.number, request)
        except HeadraceError:
            self._unanswered_at = self._world.loop.now
            return False
        if code == Code.NONE:
            written.committed_offsets[cluster.name, self.group] = offset
        return bool(code == Code.NONE)

    def _cluster(self) -> LinkedCluster:
        if self._at is None:
            self._at = self._chance.choice(self._world.clusters)
            self._leader = None
            home = self._world.home_of(self.written.topic)
            if home is not None and self._chance.random() < 0.6:
                self._at = home
        return self._at

    async def _ask(self, cluster: LinkedCluster, request: object) -> Any:
        """The answer of the partition's leader in a cluster; None: unknown."""
        try:
            if self._leader is None:
                node = self._chance.choice(cluster.nodes)
                found = await self._call(cluster, node.number, FindLeader(self.written.topic, self.written.partition))
                self._leader = cluster.by_id(found).number
            return await self._call(cluster, self._leader, request)
        except HeadraceError:
            self._leader = None
            return None

    async def _call(self, cluster: LinkedCluster, number: int, request: object) -> Any:
        network = cluster.network
        answer, _ = await network.call(
            network.hosts[0], ("simulated", PORT + number), request, timeout_s=self._patience_s
        )
        return answer
