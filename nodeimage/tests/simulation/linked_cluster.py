"""One of several clusters joined by links: its nodes have links in addition to brokers, and answer the requests of such
runs.

This module connects links and broker as headrace.node does. Links call other clusters with the product's own client,
over byte streams (wan.py), and are answered by the product's own listener.
"""

import random
import struct
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import Home, LeaderEpoch, Millis, Offset
from headrace.catalog.committed_offsets import CommitOffsets, CommittedOffset
from headrace.catalog.rows import INTENDED, RUNNING, LinkRow, PartitionletRow
from headrace.catalog.selects import LINK, link_row
from headrace.catalog.topics import CreatePartitions, CreateTopics, NewTopic
from headrace.kafka.list_offsets import wait_until_rolled
from headrace.links.topics.topic_plan import is_copied
from headrace.node.links import make_links
from headrace.partitions.partition import Partition
from headrace.partitions.partition_tail import read_chain
from headrace.partitions.topics import Topic
from headrace.wire.admin_call import encode_admin_request
from headrace.wire.api_keys import ApiKey
from headrace.wire.header import RequestHeader
from simulation.broker_side import SECRET, BrokerSide, Slot, Talk
from simulation.cluster import Cluster, Shape
from simulation.network import Host, Network
from simulation.wan import PORT

if TYPE_CHECKING:
    from simulation.linked import World

STREAM = "/default"
VERSION = 7
_RESULT = struct.Struct(">ihq")


class ProduceTo(NamedTuple):
    """A client's request, over its one connection: append a batch. The answer: (error code, base offset)."""

    client: int
    topic: str
    partition: int
    batch: bytes


class FindLeader(NamedTuple):
    """A client's request: which node leads a partition, as far as the answering node knows. The answer: a node id."""

    topic: str
    partition: int


class FetchFrom(NamedTuple):
    """A client's request: committed batches from an offset on. The answer: (high watermark, batches)."""

    topic: str
    partition: int
    offset: int


class CommitTo(NamedTuple):
    """A client's request: commit an offset. The answer: an error code."""

    topic: str
    partition: int
    group: str
    offset: int


class MakeTopic(NamedTuple):
    """A request to create a topic of this cluster. `topic_id`: makes a repeat recognisable."""

    name: str
    topic_id: bytes
    partitions: int


class GrowTopic(NamedTuple):
    """A request to give a topic so many partitions, if its home is here."""

    name: str
    partitions: int


class AskEnds(NamedTuple):
    """A request for high watermarks of (topic id, partition). The answer: those that are known."""

    wanted: tuple[tuple[bytes, int], ...]


class Admin(NamedTuple):
    """One of Headrace's own calls, as the command line makes it."""

    method: str
    params: dict[str, Any]


class TopicState(NamedTuple):
    """A topic as one cluster's catalog has it."""

    number: int
    topic_id: bytes
    name: str
    partitions: int
    home: Home
    settled: dict[int, Home]
    histories: dict[int, tuple[tuple[int, str, int], ...]]


class _Network(Network):
    """A network whose kills also affect connections to other clusters."""

    cluster: "LinkedCluster"

    def killed(self, host: Host) -> None:
        super().killed(host)
        if host.number:
            self.cluster.wan.killed(self.cluster.nodes[host.number - 1])

    def back(self, host: Host) -> None:
        super().back(host)
        self.cluster.wan.back(self.cluster.nodes[host.number - 1])


class LinkedCluster(Cluster):
    """See the module."""

    def __init__(self, world: "World", name: str, shape: Shape, folder: Path) -> None:
        self.in_world = world
        self.name = name
        self.wan = world.wan
        folder.mkdir()
        self._lay_out(world.seed, folder, shape=shape, chance=world.chance, loop=world.loop)
        self.network = network = _Network(self.loop, self.chance, self.trace)
        network.cluster = self
        network.hop_s = shape.hop_s
        self.tracing = False

    def trace(self, line: str) -> None:
        """Record an event of this cluster."""
        self.in_world.trace(f"{self.name}: {line}")

    def address(self, number: int) -> tuple[str, int]:
        """See `Cluster`."""
        return self.name, PORT + number

    def addresses(self) -> list[str]:
        """Addresses at which links may connect first."""
        return [f"{self.name}:{PORT + node.number}" for node in self.nodes[:3]]

    async def attach(self, upper: BrokerSide) -> Mapping[type, Callable[..., Awaitable[Any]]]:
        """See `Cluster`; also does what `Node` does."""
        links = upper.links = make_links(
            upper.parts, home_links=upper.home_links, forwarding=upper.forwarding, secret=SECRET
        )
        upper.closing.append(links.close)
        upper.handlers.update(links.handlers())
        upper.replicas.add_container_listener(links)
        await links.start()
        return _Answers(upper).handlers()

    # --- what its catalog says

    def ready(self) -> list[BrokerSide]:
        """The nodes that serve."""
        return [node.upper for node in self.nodes if node.upper is not None and node.upper.is_ready]

    def some(self, chance: random.Random) -> BrokerSide | None:
        """One of the nodes that serve."""
        ready = self.ready()
        return chance.choice(ready) if ready else None

    def links_here(self) -> list[tuple[LinkRow, str]]:
        """The cluster's running links, each with the cluster that it pulls from."""
        ready = self.ready()
        if not ready:
            return []
        found = map(link_row, ready[0].catalog._connection.execute(f"{LINK} ORDER BY l.name"))
        return [(row, row.config.source_cluster) for row in found if row.state == RUNNING]

    def sources_of(self, topic: str) -> list[str]:
        """The clusters from which the cluster's links copy a topic."""
        return [source for row, source in self.links_here() if self.follows(row, topic)]

    @staticmethod
    def follows(row: LinkRow, topic: str) -> bool:
        """Whether a link copies a topic."""
        return is_copied(topic, row.config.topics)

    def topics_here(self) -> dict[str, TopicState]:
        """By name, the topics of the stream under test, as one node has them; empty if no node serves."""
        ready = self.ready()
        return topics_of(ready[0]) if ready else {}


def topics_of(upper: BrokerSide) -> dict[str, TopicState]:
    """The topics as a node's catalog has them."""
    ask = upper.catalog._connection.execute
    settled: dict[int, dict[int, Home]] = {}
    for topic, partition, counter, cluster in ask("SELECT topic, partition, counter, cluster FROM settled_homes"):
        settled.setdefault(topic, {})[partition] = Home(counter, cluster)
    starts: dict[int, dict[int, list[tuple[int, str, int]]]] = {}
    for topic, partition, *start in ask(
        'SELECT topic, partition, counter, cluster, "offset" FROM home_starts ORDER BY 1, 2, 3, 4'
    ):
        starts.setdefault(topic, {}).setdefault(partition, []).append(tuple(start))
    return {
        name: TopicState(
            number,
            topic_id,
            name,
            partitions,
            Home(0, upper.identity.cluster_id) if cluster is None else Home(counter, cluster),
            settled.get(number, {}),
            {partition: tuple(entries) for partition, entries in starts.get(number, {}).items()},
        )
        for number, topic_id, name, partitions, counter, cluster in ask(
            "SELECT number, topic_id, name, partitions, home_counter, home_cluster FROM topics ORDER BY number"
        )
    }


def chains_of(upper: BrokerSide, number: int) -> dict[int, list[PartitionletRow]]:
    """By partition, the partitionlets of a topic, without those that are only intended."""
    found: dict[int, list[PartitionletRow]] = {}
    for row in upper.catalog._connection.execute("SELECT * FROM partitionlets WHERE topic = ? ORDER BY id", (number,)):
        if row[8] != INTENDED:
            found.setdefault(row[2], []).append(PartitionletRow(*row[:9], (), bool(row[10])))
    return found


class _Answers:
    """A node's answers to the simulator's clients."""

    def __init__(self, upper: BrokerSide) -> None:
        self._upper = upper
        self._broker = upper.parts
        self._talks: dict[int, Talk] = {}

    def handlers(self) -> Mapping[type, Callable[..., Awaitable[Any]]]:
        return {
            ProduceTo: self._produce,
            FindLeader: self._find,
            FetchFrom: self._fetch,
            CommitTo: self._commit,
            MakeTopic: self._make,
            GrowTopic: self._grow,
            AskEnds: self._ends,
            Admin: self._admin,
        }

    async def _topic(self, name: str) -> Topic:
        (topic,) = await self._broker.topics.resolve([f"{STREAM}:{name}"], create=False)
        if isinstance(topic, KafkaError):
            raise topic
        return topic

    async def _find(self, asked: FindLeader, *_: Any) -> int:
        topic = await self._topic(asked.topic)
        chain = await self._broker.catalog.query(lambda reader: read_chain(reader, topic.row.number, asked.partition))
        leader = self._broker.cluster.leader(chain.rows[-1].container) if chain is not None else None
        if leader is None:
            raise KafkaError(Code.LEADER_NOT_AVAILABLE)
        return leader[0]

    async def _produce(self, asked: ProduceTo, *_: Any) -> tuple[int, int]:
        await self._topic(asked.topic)  # a write never creates it here
        name = f"{STREAM}:{asked.topic}".encode()
        head = struct.pack(">hhiih", -1, -1, 4000, 1, len(name)) + name
        head += struct.pack(">iii", 1, asked.partition, len(asked.batch))
        slot: Any = Slot()
        session: Any = self._talks.setdefault(asked.client, Talk(self._broker))
        header = RequestHeader(ApiKey.PRODUCE, VERSION, 0, "", 0)
        self._broker.produce.handle(session, header, memoryview(bytearray(head + asked.batch)), slot)
        answer = await slot.answered
        _, error, base_offset = _RESULT.unpack_from(answer, 4 + 2 + len(name) + 4)
        return error, base_offset

    async def _leader(self, name: str, index: int) -> Partition:
        partition = await self._broker.partitions.leader(await self._topic(name), index)
        if not partition.container.serves or not partition.container.in_touch:
            raise KafkaError(Code.LEADER_NOT_AVAILABLE)
        return partition

    async def _fetch(self, asked: FetchFrom, *_: Any) -> tuple[int, list[bytes]]:
        partition = await self._leader(asked.topic, asked.partition)
        await wait_until_rolled(self._broker.rolls, partition)
        end, log_start = partition.high_watermark, partition.log_start
        offset = Offset(max(asked.offset, log_start))
        row = next((row for row in partition.chain if row.end > offset), partition.chain[-1])
        if row is not partition.chain[-1]:
            found = await self._broker.remote_reads.read(row, offset=offset, limit=row.end, max_bytes=4096)
        else:
            log = partition.container.log
            found = await self._broker.runtime.loop.run_in_executor(
                None, lambda: log.read(row.id, offset, limit=Offset(end), max_bytes=4096)
            )
        return end, [bytes(each) for each in found]

    async def _commit(self, asked: CommitTo, *_: Any) -> Code:
        topic = await self._topic(asked.topic)
        committed_offset = CommittedOffset(topic.topic_id, asked.partition, Offset(asked.offset), LeaderEpoch(-1), "")
        (code,) = await self._broker.catalog.submit(
            CommitOffsets(
                group=asked.group,
                generation=-1,
                member_id="",
                items=[committed_offset],
                now=Millis(self._broker.runtime.now()),
            )
        )
        return code

    async def _make(self, asked: MakeTopic, *_: Any) -> Code:
        places = self._broker.placement.place(asked.partitions, "default")
        item = NewTopic(
            stream=STREAM,
            name=asked.name,
            topic_id=asked.topic_id,
            partitions=asked.partitions,
            configs={},
            container_ids=[container for container, _ in places],
            container_epochs=[epoch for _, epoch in places],
        )
        (made,) = await self._broker.catalog.submit(CreateTopics(items=[item], now=Millis(self._broker.runtime.now())))
        return made.code

    async def _grow(self, asked: GrowTopic, *_: Any) -> bool:
        row = (await self._topic(asked.name)).row
        if row.home is not None and row.home.cluster != self._broker.node.cluster_id:
            return False
        if row.partitions >= asked.partitions:
            return False
        places = self._broker.placement.place(asked.partitions - row.partitions, "default")
        outcome = await self._broker.catalog.submit(
            CreatePartitions(
                topic_id=row.topic_id,
                count=asked.partitions,
                container_ids=[container for container, _ in places],
                container_epochs=[epoch for _, epoch in places],
                now=Millis(self._broker.runtime.now()),
            )
        )
        return outcome.code is Code.NONE

    async def _ends(self, asked: AskEnds, *_: Any) -> dict[tuple[bytes, int], int]:
        return await self._broker.partition_states.ends(asked.wanted)

    async def _admin(self, asked: Admin, *_: Any) -> Any:
        session: Any = Talk(self._broker)
        answer = await self._broker.admin.handle(encode_admin_request(asked.method, asked.params), session)
        said = msgspec.msgpack.decode(answer)
        if said["error"]:
            raise KafkaError(Code(said["error"]), said["message"])
        return said["result"]
