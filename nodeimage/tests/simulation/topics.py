"""Topics of a simulated cluster: producers and readers, and what must hold of partitions across rolls.

There is one truth for each partition: which record is at which offset. Every acknowledgement, every answer to a reader
and at the end every replica must agree with it. Producers are idempotent and send a batch until it is acknowledged.
"""

import asyncio
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.base.errors import Code, HeadraceError
from headrace.base.ids import ContainerId, Offset
from headrace.catalog.rows import INTENDED, OPEN, SEALED, PartitionletRow
from headrace.log.container_log import ContainerLog
from headrace.log.frames import FrameType
from headrace.partitions.rolls.frames import Seal
from headrace.store.records import CATALOG_ID
from headrace.wire.batch import build_batch, iter_batches
from simulation.broker_side import Commit, Committed, Fetch, Find, Produce, Roll, Trim
from simulation.clients import CALL_S
from simulation.network import PORT

if TYPE_CHECKING:
    from simulation.cluster import Cluster
    from simulation.node import Node

ROLL_GAP = 2
"""The least by which a roll raises the leader epoch (invariant 10: with a gap)."""

_AGAIN = frozenset(
    {
        Code.UNKNOWN_TOPIC_OR_PARTITION,  # a node that lags
        Code.LEADER_NOT_AVAILABLE,
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.REQUEST_TIMED_OUT,
        Code.NOT_ENOUGH_REPLICAS,
        Code.KAFKA_STORAGE_ERROR,
        Code.UNKNOWN_SERVER_ERROR,
        Code.COORDINATOR_LOAD_IN_PROGRESS,
    }
)
"""Error codes after which a producer sends its batch again."""

Record = tuple[int, int]
"""A record's name: the producer id, and the record's number within that producer."""


class Truth:
    """The record at each offset of one partition."""

    def __init__(self) -> None:
        self.records: dict[int, Record] = {}
        self.acknowledged: dict[int, Record] = {}
        self.end = 0
        """The offset after the last acknowledged record."""
        self.trimmed = 0
        """Records below this offset may be gone."""
        self.committed_offsets: dict[str, tuple[int, int]] = {}
        """By group, the last acknowledged committed offset, and the last one sent."""
        self.partitionlets: dict[int, tuple[Any, ...]] = {}
        """By id, what any catalog has said about a partitionlet that is open or sealed."""


class TopicChecks:
    """The observer of all partitions."""

    more_tables: tuple[str, ...] = ()
    """Further tables of the catalogs that are compared."""

    def __init__(self, cluster: "Cluster") -> None:
        self._cluster = cluster
        self.truths: defaultdict[str, Truth] = defaultdict(Truth)
        self._rows: dict[int, tuple[int, dict[str, Any]]] = {}
        """By applied position, the rows of the first catalog observed there, and its node."""

    def _fail(self, text: str) -> None:
        self._cluster.checks.fail(text)

    # --- records

    def at(self, topic: str, where: str, found: Iterable[tuple[int, Record]]) -> None:
        """These records were observed at these offsets."""
        records = self.truths[topic].records
        for offset, record in found:
            known = records.setdefault(offset, record)
            if known != record:
                self._fail(f"{topic} at {offset}: {where} has {record}, elsewhere it was {known}")

    def acknowledge(self, topic: str, base: int, records: Sequence[Record]) -> None:
        """A producer was told the offset of its batch."""
        truth = self.truths[topic]
        found = [(base + at, record) for at, record in enumerate(records)]
        self.at(topic, "an acknowledgement", found)
        truth.acknowledged.update(found)
        truth.end = max(truth.end, base + len(records))

    # --- catalogs

    def look(self, node: "Node") -> None:
        """Catalogs at one position hold the same rows, and a chain has no gaps."""
        upper = node.upper
        if upper is None or not upper.is_ready:
            return
        rows = upper.rows(*self.more_tables)
        if rows is None:
            return
        ((_, applied),) = [row for row in rows["counters"] if row[0] == "applied"]
        number, known = self._rows.setdefault(applied, (node.number, rows))
        if known is rows:
            self._chains(node, rows)
        elif rows != known:
            table = next(table for table in rows if rows[table] != known[table])
            differing = [*(set(rows[table]) ^ set(known[table]))][:2]
            self._fail(f"the catalogs of nodes {node.number} and {number} at {applied}: {table} differs by {differing}")

    def _chains(self, node: "Node", rows: dict[str, Any]) -> None:
        names = {row[0]: row[3] for row in rows["topics"]}
        chains: defaultdict[tuple[int, int], list[PartitionletRow]] = defaultdict(list)
        for row in sorted(rows["partitionlets"]):
            chains[row[1], row[2]].append(PartitionletRow(*row[:9], ()))
        for (topic, _), chain in chains.items():
            name = names[topic]
            where = f"the catalog of node {node.number}: the chain of {name}"
            states = [row.state for row in chain if row.state != INTENDED]
            if states != [SEALED] * (len(states) - 1) + [OPEN] or len(chain) > len(states) + 1:
                self._fail(f"{where} has states {[row.state for row in chain]}")
            chain = [row for row in chain if row.state != INTENDED]
            for one, other in pairwise(chain):
                if one.end != other.first:
                    self._fail(f"{where}: {one} is followed by {other}")
                if other.leader_epoch < one.leader_epoch + ROLL_GAP:
                    self._fail(f"{where}: the leader epoch of {other} does not rise over {one}")
            known = self.truths[name].partitionlets
            for row in chain:
                said = (row.container, row.first, row.leader_epoch, row.container_epoch)
                before = known.setdefault(row.id, said)
                if before[:4] != said:
                    self._fail(f"{where}: {row} was {before}")
                if row.state == SEALED:
                    if len(before) > 4 and before[4] != row.end:
                        self._fail(f"{where}: {row} was sealed at {before[4]}")
                    known[row.id] = (*said, row.end)

    # --- at the end

    def at_the_end(self) -> None:
        """Each partition is read completely, from every valid, undamaged replica."""
        cluster = self._cluster
        for node in cluster.nodes:
            self.look(node)
        node = next(node for node in cluster.nodes if node.upper is not None and node.upper.is_ready)
        assert node.upper is not None
        rows = node.upper.rows()
        assert rows is not None, "all tables are whole by now"
        starts = {(topic, partition): offset for topic, partition, offset in rows["log_starts"]}
        for topic in rows["topics"]:
            chain = sorted(row for row in rows["partitionlets"] if row[1] == topic[0] and row[8] != INTENDED)
            self._read_whole(topic[3], [PartitionletRow(*row[:9], ()) for row in chain], starts.get((topic[0], 0), 0))
        committed_offsets = {(group, topic): offset for group, topic, _, offset, *_ in rows["cursors"]}
        for topic in rows["topics"]:
            for group, (acknowledged, sent) in self.truths[topic[3]].committed_offsets.items():
                found = committed_offsets.get((group, topic[0]), 0)
                if not acknowledged <= found <= sent:
                    self._fail(f"{group} is at {found}, {acknowledged} was acknowledged")
        for name, truth in self.truths.items():
            if truth.acknowledged and name not in {topic[3] for topic in rows["topics"]}:
                self._fail(f"{name} is gone, with {len(truth.acknowledged)} acknowledged records")

    def _read_whole(self, name: str, chain: list[PartitionletRow], log_start: int) -> None:
        truth = self.truths[name]
        held: dict[int, Record] = {}
        for row in chain:
            record = self._cluster.record(row.container)
            if record is None or record.state == "deleted":
                self._fail(f"{name}: {row} lies in a container that is deleted")
                return
            for node_id, _ in record.in_sync:
                node = self._cluster.by_id(node_id)
                if self._cluster.is_flipped(node, row.container) and self._cluster.is_needed(row.container):
                    continue  # it is damaged, and cannot be spared: the other in-sync ones should have everything
                replica = node.replicas.replica(row.container) if node.replicas is not None else None
                assert replica is not None
                found = {at: each for at, each in _all_of(replica.log, row) if at >= log_start}
                where = f"node {node.number} in partitionlet {row.id} of container {row.container}"
                self.at(name, where, found.items())
                first = max(row.first, log_start)
                if sorted(found) != list(range(first, first + len(found))):
                    self._fail(f"{name}: {where} has a gap: {sorted(found)}, the first is {first}")
                if row.state == SEALED and first < row.end and len(found) != row.end - first:
                    self._fail(f"{name}: {where} ends at {first + len(found)}, sealed at {row.end}")
                if behind := _behind_seal(replica.log, row):
                    self._fail(f"{name}: {where} {behind}")
                held |= found
        for offset, one in truth.acknowledged.items():
            if offset >= log_start and held.get(offset) != one:
                self._fail(f"{name}: {one} was acknowledged at {offset}, where {held.get(offset)} is")
        if log_start > truth.trimmed:
            self._fail(f"{name}: starts at {log_start}, and was asked for {truth.trimmed}")
        if len(set(truth.records.values())) < len(truth.records):
            self._fail(f"{name}: a record is there twice")
        last: dict[int, int] = {}
        for _, (producer, number) in sorted(truth.records.items()):
            if number != last.get(producer, -1) + 1:
                self._fail(f"{name}: record {number} of producer {producer} comes after {last.get(producer, -1)}")
            last[producer] = number


def records_in(batches: Iterable[bytes | memoryview]) -> list[tuple[int, Record]]:
    """Offset and name of each record."""
    return [
        (header.base_offset + at, (header.producer_id, header.base_sequence + at))
        for joined in batches
        for header, _ in iter_batches(joined)
        for at in range(header.record_count)
    ]


def _all_of(log: ContainerLog, row: PartitionletRow) -> list[tuple[int, Record]]:
    limit = row.end if row.state == SEALED else 1 << 62
    found: list[tuple[int, Record]] = []
    at: int = row.first
    while batches := log.read(row.id, at, limit=limit, max_bytes=1 << 20):
        found += records_in(batches)
        at = found[-1][0] + 1
    return found


def _behind_seal(log: ContainerLog, row: PartitionletRow) -> str:
    """What a log has after a partitionlet's seal, which is its end whatever the catalog says; "": nothing."""
    seals = [frame for frame in log.controls_of(row.id) if frame.type == FrameType.SEAL]
    ends = [msgspec.msgpack.decode(frame.payload, type=Seal).end for frame in seals]
    if len(ends) > 1:
        return f"is sealed more than once, at {ends}"
    behind = records_in(log.read(row.id, Offset(ends[0]), limit=Offset(1 << 62), max_bytes=1 << 20)) if ends else []
    return f"is sealed at {ends[0]}, and has {behind} behind that" if behind else ""


class TopicClient:
    """A producer that also reads its topic, and sometimes deletes records. The answers that it gets are checked at
    once.
    """

    def __init__(self, cluster: "Cluster", number: int, topic: str) -> None:
        self._cluster = cluster
        self._chance: random.Random = cluster.chance
        self._id = 1000 + number
        self.topic = topic
        self._sent = 0
        self._given_up = 0
        self._patience_s = self._chance.choice((0.1, 1.0, 2 * CALL_S))
        """So short that an unanswered batch is often stored."""
        self._leader: int | None = None
        self.is_through = False
        """Whether the producer's last batch is acknowledged."""

    async def run(self) -> None:
        """Produce until the cluster says that the run is over."""
        pause = 0.02 + self._chance.random() * 0.3
        while not self._cluster.over:
            await asyncio.sleep(self._chance.random() * pause)
            roll = self._chance.random()
            if roll < 0.15:
                await self._read()
            elif roll < 0.17:
                await self._trim()
            elif roll < 0.35:
                await self._commit()
            elif roll < 0.5 and self._cluster.table_faults:
                await self._read_committed_offset()
            else:
                await self._produce()
        self._patience_s = 2 * CALL_S
        await self._produce()
        self.is_through = True

    async def _produce(self) -> None:
        count = self._chance.randint(1, 3)
        value = b"." * self._chance.choice((10, 100, 400, 1500))
        batch = bytes(
            build_batch(
                [(1, None, value, [])] * count, producer_id=self._id, producer_epoch=0, base_sequence=self._sent
            )
        )
        records = [(self._id, self._sent + at) for at in range(count)]
        checks = self._cluster.topics
        while self._cluster.checks.failure is None:
            answer = await self._ask(Produce(self.topic, batch))
            if answer is not None:
                error, base = answer
                if error == Code.NONE:
                    checks.acknowledge(self.topic, base, records)
                    break
                if error not in _AGAIN:
                    self._cluster.checks.fail(f"{self.topic}: producer {self._id} is told {Code(error).name}")
            self._leader = None
            if self._chance.random() < 0.3:  # the batch may be stored: a repeat finds the partition elsewhere
                await self._ask(Roll(self.topic))
            else:
                await asyncio.sleep(0.1)
        self._sent += count

    async def _read(self) -> None:
        checks = self._cluster.topics
        truth = checks.truths[self.topic]
        known, offset = truth.end, self._chance.randint(truth.trimmed, truth.end)
        answer = await self._ask(Fetch(self.topic, offset))
        if answer is None:
            return
        end, batches = answer
        where = f"node {self._leader}, asked for {offset},"
        if end < known:
            self._cluster.checks.fail(f"{self.topic}: {where} says that it ends at {end}, {known} is acknowledged")
        found = records_in(batches)
        checks.at(self.topic, where, found)
        if found and found[0][0] > offset >= truth.trimmed:
            self._cluster.checks.fail(f"{self.topic}: {where} gives {found[0][0]} on")
        if found and found[-1][0] >= end:
            self._cluster.checks.fail(f"{self.topic}: {where} gives {found[-1][0]}, not committed: it ends at {end}")

    async def _trim(self) -> None:
        truth = self._cluster.topics.truths[self.topic]
        offset = truth.trimmed + (truth.end - truth.trimmed) // 2
        truth.trimmed = offset
        await self._ask(Trim(self.topic, offset))

    async def _commit(self) -> None:
        truth = self._cluster.topics.truths[self.topic]
        group = f"group-{self._id}-{self._given_up}"
        acknowledged, sent = truth.committed_offsets.get(group, (0, 0))
        truth.committed_offsets[group] = acknowledged, sent + 1
        node = self._chance.choice(self._cluster.nodes)
        try:
            code, _ = await self._call(
                node.number, Commit(self.topic, group, sent + 1, "." * self._chance.choice((0, 100, 400)))
            )
        except HeadraceError:
            self._given_up += 1  # it may still be committed, after the next batch
            return
        if code == Code.NONE:
            truth.committed_offsets[group] = sent + 1, sent + 1

    async def _read_committed_offset(self) -> None:
        """The committed offset must be the acknowledged one, or a later one."""
        truth = self._cluster.topics.truths[self.topic]
        group = f"group-{self._id}-{self._given_up}"
        acknowledged, sent = truth.committed_offsets.get(group, (0, 0))
        node = self._chance.choice(self._cluster.nodes)
        try:
            found, _ = await self._call(node.number, Committed(self.topic, group))
        except HeadraceError:
            return
        if not acknowledged <= found <= sent:
            self._cluster.checks.fail(f"{group} is at {found} by node {node.number}, {acknowledged} was acknowledged")

    async def _ask(self, request: object) -> Any:
        """The answer of the partition's leader; None: nothing is known."""
        try:
            if self._leader is None:
                node = self._chance.choice(self._cluster.nodes)
                found, _ = await self._call(node.number, Find(self.topic))
                self._leader = self._cluster.by_id(found).number
            answer, _ = await self._call(self._leader, request)
        except HeadraceError:
            self._leader = None
            return None
        return answer

    async def _call(self, number: int, request: object) -> tuple[Any, Any]:
        network = self._cluster.network
        return await network.call(network.hosts[0], ("simulated", PORT + number), request, timeout_s=self._patience_s)


def lives_in(cluster: "Cluster", container_id: ContainerId) -> bool:
    """Whether a partitionlet may be in a container, or intended for it, according to any catalog; the catalog's
    container always counts.
    """
    if container_id == CATALOG_ID:
        return True
    return any(_may_live_in(node, container_id) for node in cluster.nodes)


def _may_live_in(node: "Node", container_id: ContainerId) -> bool:
    rows = node.upper.rows() if node.upper is not None and node.upper.is_ready else None
    return rows is None or any(row[3] == container_id for row in rows["partitionlets"])
