"""Sends a record through every node and reads it back: how long it takes, and whether it arrives at all.

Each node is sent a record for a partition that it leads, of a topic of the probe's own, and must return it. So a probe
experiences what a producer and a consumer of that node do: its Kafka port, its log, the replicas that acknowledge. The
topic is created if it is missing, with a partition for each node; partitions are added as nodes join and partitions
move. A node that leads none even so (it is being drained, or has just returned) is only asked for metadata.

`Probe` makes the calls and `Tally` counts; neither knows how results are shown.
"""

import asyncio
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from headrace.base.errors import Code, HeadraceError, KafkaError, code_of
from headrace.base.ids import NodeId
from headrace.cli.bench import percentile
from headrace.kafka_client.client import ANY, Client, Lane
from headrace.partitions.new_streams import PROBE
from headrace.wire.api_keys import ApiKey, Versions
from headrace.wire.batch import build_batch, iter_records
from headrace.wire.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.wire.metadata import TopicMeta
from headrace.wire.produce import PartitionRecords

STREAM: Final = PROBE
TOPIC: Final = f"{STREAM}:records"
TTL_MS: Final = 3_600_000
PARTITIONS_A_NODE: Final = 4
"""Partitions are added up to this many per node."""
MADE_S: Final = 15.0
"""Seconds within which a new topic has leaders."""
PAUSE_S: Final = 0.1
WAIT_MS: Final = 500
"""Milliseconds that a node may hold back the answer to a fetch until there is data."""
MAX_BYTES: Final = 1 << 20
REMEMBERED: Final = 10_000
"""Number of a node's newest latencies that its summary covers."""
CREATE: Final = Versions(2, 7)
ADD: Final = Versions(0, 3)
MOVED: Final = (Code.NOT_LEADER_OR_FOLLOWER, Code.LEADER_NOT_AVAILABLE, Code.UNKNOWN_TOPIC_OR_PARTITION)
"""Errors after which the leaders are looked up again: another node leads now, or will in a moment."""
_ANYTHING: Final = msgspec.msgpack.Decoder()


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of probing one node."""

    node: int
    partition: int | None = None
    """The partition used; None: the node leads none."""
    produce_s: float | None = None
    """Seconds from the request to its acknowledgement."""
    roundtrip_s: float | None = None
    """Seconds from the request until the record was read."""
    error: str = ""
    """What went wrong; empty: nothing."""

    def as_json(self) -> dict[str, object]:
        """The result as JSON fields, times in milliseconds."""
        return {
            "node": self.node,
            "partition": self.partition,
            "produce_ms": _ms(self.produce_s),
            "roundtrip_ms": _ms(self.roundtrip_s),
            "error": self.error or None,
        }


def assigned(leaders: Mapping[int, int], nodes: Sequence[int]) -> dict[int, int]:
    """The first partition by number of each node that leads any; `leaders`: leaders by partition. Pure."""
    found: dict[int, int] = {}
    for partition in sorted(leaders):
        if leaders[partition] in nodes:
            found.setdefault(leaders[partition], partition)
    return found


def wanted_partitions(leaders: Mapping[int, int], nodes: Sequence[int]) -> int:
    """How many partitions the topic should have, so that each node leads one; the present number if more do not
    help."""
    missing = len(set(nodes) - set(assigned(leaders, nodes)))
    most = max(len(leaders), PARTITIONS_A_NODE * len(nodes))
    return min(len(leaders) + missing, most)


class Probe:
    """Probes one cluster."""

    def __init__(self, client: Client, *, size: int = 100, timeout_s: float = 10.0) -> None:
        """`size`: bytes of each record's value. `timeout_s`: total seconds for one node."""
        self._client = client
        self._size = size
        self._timeout_s = timeout_s
        self._nodes: list[int] = []
        """The nodes in the last metadata."""
        self._topic_id = b""
        self._leaders: dict[int, int] = {}
        self._is_complete = False
        """Whether nothing more can be done at present for nodes that lead no partition."""

    async def prepare(self) -> None:
        """Create the topic if it is missing, with a partition for each node if possible. Raises HeadraceError."""
        await self._find_topic()

    async def round(self) -> list[Result]:
        """Probe each node; the results in order of node ids. Never raises HeadraceError."""
        try:
            await self._find_topic()
        except HeadraceError as error:
            if not self._nodes:
                return []
            problem = str(error)
            return [Result(node=node, error=problem) for node in self._nodes]
        return list(await asyncio.gather(*map(self._probed, self._nodes)))

    # --- the topic

    async def _find_topic(self) -> None:
        """Look up the topic, and create what is missing of it. Raises HeadraceError, also if no partition of the topic
        has a leader: then nothing would be probed.
        """
        await self._learn()
        if not self._leaders:
            await self._create()
        await self._add_partitions()

    async def _learn(self) -> None:
        """Look up the nodes, and which partitions of the topic they lead."""
        metadata = await self._client.metadata([(TOPIC, None)])
        nodes = sorted(each.node_id for each in metadata.brokers)
        topic = metadata.topics[0]
        leaders = _leaders(topic)
        if (nodes, leaders) != (self._nodes, self._leaders):
            self._is_complete = False
        self._nodes, self._leaders, self._topic_id = nodes, leaders, topic.topic_id
        if topic.error and code_of(topic.error) not in MOVED:
            raise KafkaError(code_of(topic.error), f"{TOPIC} {_refusal(topic.error)}")

    async def _create(self) -> None:
        policy = {"ttl_ms": TTL_MS, "auto_create": False, "description": "records of `headrace probe`"}
        stream = {"path": STREAM, "policy": policy, "if_not_exists": True}
        await self._client.admin(ANY, "stream.create", stream, _ANYTHING)
        topic = {
            "name": TOPIC,
            "num_partitions": len(self._nodes),
            "replication_factor": -1,
            "assignments": [],
            "configs": [],
        }
        fields = {"topics": [topic], "timeout": int(MADE_S * 1000), "validate_only": False}
        answer = (await self._client.ask(ANY, ApiKey.CREATE_TOPICS, CREATE, fields)).topics[0]
        if int(answer.error_code) not in (0, Code.TOPIC_ALREADY_EXISTS):
            raise KafkaError(code_of(int(answer.error_code)), f"{TOPIC}: {answer.error_message or 'cannot be made'}")
        await self._until(1)

    async def _add_partitions(self) -> None:
        """Add partitions for nodes that lead none, if they may lead any."""
        count = wanted_partitions(self._leaders, self._nodes)
        if self._is_complete or count <= len(self._leaders) or not self._leaders:
            return
        self._is_complete = True  # until something changes: a draining node gets none
        fields = {
            "topics": [{"name": TOPIC, "count": count, "assignments": None}],
            "timeout_ms": int(MADE_S * 1000),
            "timeout": int(MADE_S * 1000),
            "validate_only": False,
        }
        answer = (await self._client.ask(ANY, ApiKey.CREATE_PARTITIONS, ADD, fields)).results[0]
        if int(answer.error_code) not in (0, Code.INVALID_PARTITIONS, Code.TOPIC_AUTHORIZATION_FAILED):
            raise KafkaError(code_of(int(answer.error_code)), f"{TOPIC}: {answer.error_message or 'cannot grow'}")
        if not int(answer.error_code):
            await self._until(count)
        self._is_complete = True

    async def _until(self, count: int) -> None:
        """Wait until `count` partitions have leaders. Raises HeadraceError."""
        deadline = time.monotonic() + MADE_S
        while True:
            await self._learn()
            if len(self._leaders) >= count:
                return
            if time.monotonic() >= deadline:
                raise HeadraceError(f"{TOPIC} has no leaders after {MADE_S:.0f} s: see `headrace status`")
            await asyncio.sleep(PAUSE_S)

    # --- one node

    async def _probed(self, node: int) -> Result:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._probe(NodeId(node))
        except TimeoutError:
            return Result(node=node, error=f"the record was not read back within {self._timeout_s:g} s")
        except HeadraceError as error:
            return Result(node=node, error=str(error))

    async def _probe(self, node: NodeId) -> Result:
        while True:
            partition = assigned(self._leaders, self._nodes).get(node)
            await self._client.reach(node)
            if partition is None:
                await self._client.metadata(node=node)
                return Result(node=node)
            await self._client.reach(node, lane=Lane.FETCHES)
            try:
                return await self._there_and_back(node, partition)
            except KafkaError as error:
                if error.code not in MOVED:
                    raise
                await asyncio.sleep(PAUSE_S)
                await self._learn()

    async def _there_and_back(self, node: NodeId, partition: int) -> Result:
        value = secrets.token_bytes(max(16, self._size))
        batch = build_batch([(int(time.time() * 1000), b"headrace probe", value, ())])
        began = time.perf_counter()
        (produced,) = await self._client.produce(
            node, [PartitionRecords(TOPIC, partition, memoryview(batch))], timeout_ms=int(self._timeout_s * 1000)
        )
        acknowledged = time.perf_counter() - began
        if produced.error:
            raise KafkaError(code_of(produced.error), produced.message or _refusal(produced.error))
        await self._read(node, partition, produced.base_offset, value)
        return Result(node=node, partition=partition, produce_s=acknowledged, roundtrip_s=time.perf_counter() - began)

    async def _read(self, node: NodeId, partition: int, offset: int, value: bytes) -> None:
        """Return once the record was read back. Raises HeadraceError, also if another record is at its offset."""
        asked = FetchPartition(partition, -1, offset, -1, -1, MAX_BYTES)
        request = FetchRequest(WAIT_MS, 1, MAX_BYTES, 0, 0, -1, [FetchTopic(None, self._topic_id, [asked])], [], "")
        while True:
            response = await self._client.fetch(node, request)
            results = [each for topic in response.topics for each in topic.partitions]
            error = response.error or next((each.error for each in results if each.error), 0)
            if error:
                raise KafkaError(code_of(error), f"reading it back: {_refusal(error)}")
            for each in results:
                for records in each.records:
                    for record in iter_records(records):
                        if record.offset == offset:
                            if record.value != value:
                                raise HeadraceError(f"offset {offset} of partition {partition} holds another record")
                            return


@dataclass(slots=True)
class _Counted:
    """The counts of one node."""

    probed: int = 0
    failed: int = 0
    produce_s: list[float] = field(default_factory=list)
    roundtrip_s: list[float] = field(default_factory=list)


class Tally:
    """Sums up all rounds. Pure."""

    def __init__(self) -> None:
        self._nodes: dict[int, _Counted] = {}

    @property
    def has_failed(self) -> bool:
        """Whether any probe failed."""
        return any(each.failed for each in self._nodes.values())

    def add(self, results: Sequence[Result]) -> None:
        """Count one round's results."""
        for result in results:
            counted = self._nodes.setdefault(result.node, _Counted())
            counted.probed += 1
            counted.failed += bool(result.error)
            for kept, latency in ((counted.produce_s, result.produce_s), (counted.roundtrip_s, result.roundtrip_s)):
                if latency is not None:
                    kept.append(latency)
                    if len(kept) > REMEMBERED:
                        del kept[0]

    def rows(self) -> list[dict[str, object]]:
        """A row for each node: number of probes and failures, and latencies in milliseconds."""
        rows: list[dict[str, object]] = []
        for node, counted in sorted(self._nodes.items()):
            produce, roundtrip = sorted(counted.produce_s), sorted(counted.roundtrip_s)
            rows.append(
                {
                    "node": node,
                    "probed": counted.probed,
                    "failed": counted.failed,
                    "produce_p50_ms": _share(produce, 0.5),
                    "produce_p99_ms": _share(produce, 0.99),
                    "roundtrip_p50_ms": _share(roundtrip, 0.5),
                    "roundtrip_p99_ms": _share(roundtrip, 0.99),
                    "roundtrip_max_ms": _share(roundtrip, 1.0),
                }
            )
        return rows


def _leaders(topic: TopicMeta) -> dict[int, int]:
    """The leaders by partition, without partitions that have none."""
    return {each.partition: each.leader for each in topic.partitions if not each.error and each.leader >= 0}


def _refusal(code: int) -> str:
    known = code_of(code)
    text = known.name.lower().replace("_", " ")
    if known is Code.TOPIC_AUTHORIZATION_FAILED:
        return f"{text}: an administrator can grant the right (`headrace access set`)"
    return text


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)


def _share(ordered: Sequence[float], share: float) -> float | None:
    return _ms(percentile(ordered, share)) if ordered else None
