"""DescribeCluster and DescribeLogDirs: what Kafka's tools show of the cluster.

Web consoles and `kafka-topics.sh` send these requests when they start. Sizes are read from the containers' logs in
reader threads; unused topics are not loaded into memory for them.
"""

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from headrace.base.errors import Code
from headrace.base.ids import ContainerId, PartitionletId, StreamNumber
from headrace.base.runtime import Runtime
from headrace.catalog.catalog import Catalog
from headrace.catalog.names import shown
from headrace.catalog.reader import Reader
from headrace.catalog.rows import INTENDED, PartitionletRow, TopicRow
from headrace.kafka.api import Api
from headrace.kafka.authorization import Authorization
from headrace.kafka.authorized_operations import NOT_ASKED
from headrace.kafka.connection import Connection
from headrace.partitions.cluster_client import ClusterClient
from headrace.partitions.cluster_layout import Layout, NodeIdentity
from headrace.partitions.lookups import topic_rows, yield_to_loop
from headrace.partitions.partition_states import chains_of
from headrace.partitions.reads.local_reads import Extent
from headrace.partitions.reads.remote_reads import extents_of, replica_of
from headrace.partitions.topics import Topics
from headrace.security.access_rules import Kind
from headrace.security.kafka_acls import AclOperation
from headrace.wire.api_keys import ApiKey, Versions
from headrace.wire.generic_codec import field

BROKERS: Final = 1
"""DescribeCluster's endpoint type for brokers; type 2 requests KRaft controllers (KIP-919)."""
_PAGE: Final = 1000


class ClusterApis:
    """Answers DescribeCluster and DescribeLogDirs."""

    def __init__(
        self,
        *,
        topics: Topics,
        catalog: Catalog,
        cluster: ClusterClient,
        layout: Layout,
        node: NodeIdentity,
        folder: Path,
        runtime: Runtime,
        look_around: Callable[[], None],
        authorization: Authorization,
    ) -> None:
        self._topics = topics
        self._catalog = catalog
        self._cluster = cluster
        self._layout = layout
        self._node = node
        self._folder = folder
        self._runtime = runtime
        self._look_around = look_around
        self._authorization = authorization

    @property
    def apis(self) -> Sequence[Api]:
        """The APIs that this module answers."""
        return (
            Api(ApiKey.DESCRIBE_CLUSTER, Versions(0, 1), self.describe_cluster),
            Api(ApiKey.DESCRIBE_LOG_DIRS, Versions(1, 4), self.describe_log_dirs, has_long_answers=True),
        )

    async def describe_cluster(self, request: Any, session: Connection) -> Mapping[str, object]:
        """DescribeCluster: the live nodes, from which kafka-topics derives which partitions are unavailable."""
        if field(request, "endpoint_type", BROKERS) != BROKERS:
            return {
                "error_code": int(Code.MISMATCHED_ENDPOINT_TYPE),
                "error_message": "this is a broker's address; there are no controllers to connect to",
                "endpoint_type": BROKERS,
            }
        self._look_around()
        return {
            "error_code": 0,
            "error_message": None,
            "endpoint_type": BROKERS,
            "cluster_id": self._node.cluster_id,
            "controller_id": self._node.node_id,
            "brokers": [
                {"broker_id": each.node_id, "host": each.host, "port": each.port, "rack": each.rack}
                for each in self._layout.living(session.listener)
            ],
            "cluster_authorized_operations": (
                self._authorization.operations(session, Kind.CLUSTER)
                if request.include_cluster_authorized_operations
                else NOT_ASKED
            ),
        }

    # --- DescribeLogDirs

    async def describe_log_dirs(self, request: Any, session: Connection) -> Mapping[str, object]:
        """DescribeLogDirs: this node's data folder, with the bytes that it stores of each partition, including replicas
        of containers that other nodes lead. Clients send the request to every node."""
        if not self._authorization.may(session, AclOperation.DESCRIBE, api="DescribeLogDirs"):
            return {"error_code": int(Code.CLUSTER_AUTHORIZATION_FAILED), "results": ()}
        topics = (
            await self._all_sizes(session)
            if request.topics is None
            else await self._sizes_of({topic.topic: set(topic.partitions) for topic in request.topics}, session)
        )
        folder = self._folder
        usage = await self._runtime.loop.run_in_executor(self._runtime.executor, shutil.disk_usage, folder)
        return {
            "error_code": 0,
            "results": [
                {
                    "error_code": 0,
                    "log_dir": str(folder),
                    "topics": topics,
                    "total_bytes": usage.total,
                    "usable_bytes": usage.free,
                }
            ],
        }

    async def _all_sizes(self, session: Connection) -> list[dict[str, object]]:
        found: list[dict[str, object]] = []
        after = (StreamNumber(0), "")
        while True:
            page = await self._catalog.query(partial(_page, after=after))
            found += await self._described([(shown(row.stream, row.name, session.default_stream), row) for row in page])
            if len(page) < _PAGE:
                return found
            after = (page[-1].stream_number, page[-1].name)

    async def _sizes_of(self, wanted: Mapping[str, set[int]], session: Connection) -> list[dict[str, object]]:
        """The existing topics of `wanted`, with the requested partitions only; as in Kafka, missing topics are left out
        silently."""
        names = list(wanted)
        rows = zip(names, await topic_rows(self._catalog, names, default_stream=session.default_stream), strict=True)
        found = await self._described([(name, row) for name, row in rows if isinstance(row, TopicRow)])
        return [
            {
                "name": topic["name"],
                "partitions": [
                    each for each in topic["partitions"] if each["partition_index"] in wanted[topic["name"]]
                ],
            }
            for topic in found
        ]

    async def _described(self, topics: Sequence[tuple[str, TopicRow]]) -> list[dict[str, Any]]:
        chains = await self._catalog.query(lambda reader: chains_of(reader, [row for _, row in topics]))
        stored = await self._stored([row for chain in chains.values() for row in chain])
        described: list[dict[str, Any]] = []
        for index, (name, topic) in enumerate(topics):
            sizes: dict[int, int] = {}
            for row in chains[topic.number]:
                if row.id in stored:
                    sizes[row.partition] = sizes.get(row.partition, 0) + stored[row.id].size
            if sizes:
                partitions = [
                    {"partition_index": partition, "partition_size": size, "offset_lag": 0, "is_future_key": False}
                    for partition, size in sizes.items()
                ]
                described.append({"name": name, "partitions": partitions})
            await yield_to_loop(index)
        return described

    async def _stored(self, rows: Iterable[PartitionletRow]) -> dict[PartitionletId, Extent]:
        """What this node's replicas store of these partitionlets, whichever node leads them."""
        by_container: dict[ContainerId, list[PartitionletId]] = {}
        for row in rows:
            if row.state != INTENDED:
                by_container.setdefault(row.container, []).append(row.id)
        found: dict[PartitionletId, Extent] = {}
        for container, wanted in by_container.items():
            replica = replica_of(self._cluster, container)
            if replica is not None:
                found |= await extents_of(self._runtime, replica, wanted, set())
        return found


def _page(reader: Reader, *, after: tuple[StreamNumber, str]) -> list[TopicRow]:
    """[blocking] The next topics after `after`, at most `_PAGE`."""
    return reader.topics.of_all_streams(after=after, limit=_PAGE)
