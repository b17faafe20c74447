"""A cluster of one node in the test's loop, called as its clients and its links would."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from headrace.base.addresses import parse_addresses
from headrace.base.errors import Code, KafkaError
from headrace.base.ids import LeaderEpoch, Millis, NodeId, Offset
from headrace.catalog.committed_offsets import CommitOffsets, CommittedOffset
from headrace.catalog.links import DeleteLink
from headrace.catalog.reader import Reader
from headrace.catalog.rows import LinkRow, TopicRow
from headrace.kafka.connection import Connection
from headrace.kafka_client.client import Client
from headrace.links.failover.home_apply import HomeApplier
from headrace.links.source.source import Source
from headrace.links.topics.topic_syncer import TopicSyncer
from headrace.node import Node
from headrace.node.parts import NodeParts
from headrace.partitions.partition import Partition
from headrace.partitions.topics import Topic
from headrace.security.client_security import Security
from headrace.tracing.tracer import NO_TRACER, Tracer
from headrace.wire.admin_call import encode_admin_request
from headrace.wire.batch import Record, build_batch, iter_batches, iter_records, read_batch
from headrace.wire.produce import PartitionRecords


async def until(holds: Callable[[], bool] | Callable[[], Awaitable[bool]], timeout_s: float = 100) -> None:
    """Return when the condition holds."""
    async with asyncio.timeout(timeout_s):
        while True:
            answer = holds()
            if await answer if not isinstance(answer, bool) else answer:
                return
            await asyncio.sleep(0.01)


class Committed:
    def __init__(self) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def committed(self) -> None:
        self.future.set_result(None)

    def lost(self) -> None:
        self.future.set_exception(AssertionError("the node ceased to lead"))


class OneNode:
    """A node, and what tests request from it."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.parts: NodeParts = node.parts

    @property
    def cluster_id(self) -> str:
        return self.parts.node.cluster_id

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.parts.node.port}"

    def home_applier(self) -> HomeApplier:
        """A home applier in addition to the node's own, to be run by the test."""
        return HomeApplier(
            catalog=self.parts.catalog,
            topics=self.parts.topics,
            partitions=self.parts.partitions,
            rolls=self.parts.rolls,
            led=self.parts.containers,
            quarantine=self.node.links.home_applier._quarantine,
            own_cluster=self.cluster_id,
        )

    def topic_syncer(self, link: LinkRow, source: Source, tracer: Tracer = NO_TRACER) -> TopicSyncer:
        """A topic syncer in addition to the node's own, to be run by the test."""
        return TopicSyncer(
            link,
            source,
            catalog=self.parts.catalog,
            states=self.parts.partition_states,
            applier=self.node.links._applier,
            own_cluster=self.cluster_id,
            bootstrap=lambda: ["south:9092"],
            randomness=random.Random(1),
            tracer=tracer,
        )

    async def append_once(self, topic_id: bytes, partition: int, batch: bytearray) -> int:
        """See `OnceAppender`."""
        return await self.node.links._once.append(topic_id, partition, batch)

    async def admin(self, method: str, **params: Any) -> Any:
        """The result of one of Headrace's own calls. Raises KafkaError."""
        body = encode_admin_request(method, params)
        answer = msgspec.msgpack.decode(await self.parts.admin.handle(body, Connection(self.parts.dispatcher)))
        if answer["error"]:
            raise KafkaError(answer["error"], answer["message"])
        return answer["result"]

    async def admin_delete_link(self, name: str) -> None:
        await self.parts.catalog.submit(DeleteLink(name=name))

    async def row(self, name: str, stream: str = "/s") -> TopicRow | None:
        def look(reader: Reader) -> TopicRow | None:
            return reader.topics.at(stream, name)

        return await self.parts.catalog.query(look)

    async def topic(self, name: str, stream: str = "/s", *, create: bool = False) -> Topic:
        (found,) = await self.parts.topics.resolve([f"{stream}:{name}"], create=create)
        if isinstance(found, KafkaError):
            raise found
        return found

    async def partition(self, name: str, index: int = 0, stream: str = "/s") -> Partition:
        async with asyncio.timeout(30):
            while True:
                try:
                    return await self.parts.partitions.leader(await self.topic(name, stream), index)
                except KafkaError as error:  # it rolls
                    if error.code not in (Code.NOT_LEADER_OR_FOLLOWER, Code.LEADER_NOT_AVAILABLE):
                        raise
                await asyncio.sleep(0.01)

    async def append(self, name: str, *values: bytes, partition: int = 0, stream: str = "/s") -> int:
        """Append records as one batch, whichever cluster is home; returns the high watermark after their commit."""
        await self.topic(name, stream, create=True)
        leader = await self.partition(name, partition, stream)
        batch = build_batch([(int(time.time() * 1000), None, value, []) for value in values])
        if not leader.container.has_room(len(batch)):
            await leader.container.make_room()
        waiting = Committed()
        leader.append(memoryview(batch), read_batch(batch), append_time=None, now=0, request=waiting)
        await waiting.future
        return leader.high_watermark

    async def produce(self, name: str, *values: bytes, partition: int = 0, stream: str = "/s") -> None:
        """Produce as a client would, until the batch is accepted or finally refused. Raises KafkaError."""
        await self.topic(name, stream, create=True)
        client = Client(parse_addresses([self.bootstrap]), security=Security())
        batch = build_batch([(int(time.time() * 1000), None, value, []) for value in values])
        part = PartitionRecords(f"{stream}:{name}", partition, memoryview(batch))
        try:
            async with asyncio.timeout(30):
                while True:
                    (result,) = await client.produce(NodeId(1), [part])
                    if not result.error:
                        return
                    if result.error not in (Code.LEADER_NOT_AVAILABLE, Code.NOT_LEADER_OR_FOLLOWER):
                        raise KafkaError(Code(result.error), result.message or "")
                    await asyncio.sleep(0.02)
        finally:
            await client.close()

    async def records(self, name: str, partition: int = 0, stream: str = "/s") -> list[Record]:
        """All committed records, as a consumer reads them."""
        found, _ = await self.read(name, partition, stream)
        return found

    async def read(self, name: str, partition: int = 0, stream: str = "/s") -> tuple[list[Record], int]:
        """All committed records, and the offset that a consumer reaches with them and with empty batches."""
        leader = await self.partition(name, partition, stream)
        found: list[Record] = []
        at = leader.log_start
        while at < leader.high_watermark:
            key = (leader.topic_id, partition)
            read = await self.parts.fetch_planner.read_all(
                [(key, self.parts.fetch_planner.locate(leader, at), 1 << 20)], 1 << 20
            )
            runs = read[key]
            assert not isinstance(runs, Exception), runs
            found += [record for run in runs for record in iter_records(run) if record.offset >= at]
            nexts = [head.base_offset + head.last_offset_delta + 1 for run in runs for head, _ in iter_batches(run)]
            if max(nexts, default=0) <= at:
                break
            at = max(nexts)
        return found, at

    async def values(self, name: str, partition: int = 0, stream: str = "/s") -> list[bytes | None]:
        return [record.value for record in await self.records(name, partition, stream)]

    async def commit(self, group: str, name: str, offset: int, *, partition: int = 0, now: int = 0) -> Sequence[Any]:
        row = await self.row(name)
        assert row is not None
        committed_offset = CommittedOffset(row.topic_id, partition, Offset(offset), LeaderEpoch(-1), "")
        command = CommitOffsets(
            group=group,
            generation=-1,
            member_id="",
            items=[committed_offset],
            now=Millis(now or int(time.time() * 1000)),
        )
        return await self.parts.catalog.submit(command)

    async def committed_offset(self, group: str, name: str, partition: int = 0) -> int | None:
        rows = await self.parts.catalog.query(lambda reader: reader.groups.committed_offsets(group))
        return next((row.offset for row in rows if (row.name, row.partition) == (name, partition)), None)
