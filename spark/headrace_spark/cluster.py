"""The connections to the nodes of a cluster, its topics, and the leaders of partitions.

Finds the right node for a request while nodes come and go. Knows nothing about Spark, plans or the content of records.
A Cluster is used by one thread only. The API versions are those that Kafka 2.8 and later and Headrace all support, so
none are negotiated.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from headrace.base.closing import Closing
from headrace.base.errors import Code, HeadraceError
from headrace.base.properties import parse_properties
from headrace.kafka_client.blocking_client import Access, BrokerConnection
from headrace.kafka_client.errors import SourceRefuses
from headrace.security import secret_files
from headrace.security.client_security import of_security, security_of
from headrace.wire import metadata
from headrace.wire.api_keys import ApiKey
from headrace_spark.errors import RETRIABLE, BadOption, BrokerError, Refused, Unreachable, code_name
from headrace_spark.options import Connection, Partition
from headrace_spark.retry import Retry

CLIENT_ID = "headrace-spark"
METADATA_VERSION = 9
CONNECT_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 40.0
"""Seconds without a response after which a connection counts as lost."""
LARGEST_ANSWER = 1 << 30
"""The maximum number of bytes of an accepted response."""
BROKEN = (OSError, HeadraceError)
"""Errors of a connection to a dying or wrong node: lost, refused, slow, or an invalid response."""

Address = tuple[str, int]


class Cluster(Closing):
    """The cluster behind `connection.bootstrap`. Use it as a context manager, or close it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._nodes: dict[int, Address] = {}
        self._leaders: dict[Partition, int] = {}
        self._counts: dict[str, int] = {}
        self._open: dict[Address, BrokerConnection] = {}
        self._access: Access | None = None

    def close(self) -> None:
        """Close every connection."""
        for connection in self._open.values():
            connection.close()
        self._open.clear()

    def retry(self, what: str) -> Retry:
        """Return a Retry with the time that the options allow; `what` completes "cannot <what>"."""
        return Retry(self._connection.timeout_s, what=what)

    # --- nodes ---

    def address(self, node: int) -> Address:
        """Return a node's address. Raises KeyError for a node that the cluster has not named."""
        return self._nodes[node]

    def to_node(self, node: int) -> BrokerConnection:
        """Return a connection to a node by its id, kept for later calls. Raises OSError, KeyError for an unknown node,
        and Refused, BadOption for faults of the security options.
        """
        return self._to(self._nodes[node])

    def drop(self, node: int) -> None:
        """Close a broken connection to a node, and forget which partitions it leads."""
        self._close(self._nodes.get(node))
        self._leaders = {partition: leader for partition, leader in self._leaders.items() if leader != node}

    def call(self, address: Address, api_key: int, version: int, body: bytes) -> memoryview:
        """Send one request to one node; return the body of the response. Raises one of BROKEN."""
        try:
            return self._to(address).call(api_key, version, body)
        except BROKEN:
            self._close(address)
            raise

    def call_any(self, api_key: int, version: int, body: bytes) -> memoryview:
        """Return the response body of the first node that gives one. Raises the last node's error."""
        reason: Exception = Unreachable("the option bootstrap names no node")
        for address in dict.fromkeys((*self._open, *self._connection.bootstrap, *self._nodes.values())):
            try:
                return self.call(address, api_key, version, body)
            except BROKEN as error:
                reason = error
        raise reason

    def _to(self, address: Address) -> BrokerConnection:
        found = self._open.get(address)
        if found is not None and found.is_stale:
            self._close(address)
            found = None
        if found is None:
            if self._access is None:
                self._access = access_of(self._connection)
            try:
                found = self._open[address] = BrokerConnection(
                    *address,
                    CLIENT_ID,
                    ANSWER_TIMEOUT_S,
                    connect_timeout_s=CONNECT_TIMEOUT_S,
                    answer_bytes=LARGEST_ANSWER,
                    access=self._access,
                )
            except SourceRefuses as error:
                raise Refused(f"{error}; see the options kafka.security, kafka.sasl and kafka.ssl") from None
        return found

    def _close(self, address: Address | None) -> None:
        broken = None if address is None else self._open.pop(address, None)
        if broken is not None:
            broken.close()

    # --- topics and leaders ---

    def partition_counts(self, topics: Sequence[str] | None, *, create: bool = False) -> dict[str, int]:
        """Return how many partitions each topic has; None: of all topics. Absent topics are left out.

        `create` lets the cluster create absent topics, if its policy allows. Raises SourceError.
        """
        retry = self.retry("read the cluster's topics")
        while True:
            try:
                answer = self._metadata(topics, create=create)
            except BROKEN as error:
                retry.pause(error)
                continue
            counts: dict[str, int] = {}
            again = 0
            for topic in answer.topics:
                if topic.error == Code.NONE:
                    counts[topic.name or ""] = len(topic.partitions)
                elif topic.error == Code.LEADER_NOT_AVAILABLE:
                    again = topic.error
                elif topic.error != Code.UNKNOWN_TOPIC_OR_PARTITION:
                    if topic.error not in RETRIABLE:
                        raise BrokerError(topic.error, f"topic {topic.name}: the node answers {code_name(topic.error)}")
                    again = topic.error
            if not again:
                return counts
            retry.pause(again)

    def leaders(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the leader of each partition, as far as known; asks the cluster about unknown ones.

        Raises one of BROKEN if no node answers.
        """
        wanted = list(partitions)
        unknown = sorted({topic for topic, number in wanted if (topic, number) not in self._leaders})
        if unknown:
            self._metadata(unknown, create=False)
        return {partition: self._leaders[partition] for partition in wanted if partition in self._leaders}

    def is_absent(self, partition: Partition) -> bool:
        """Return whether the cluster's last answer does not contain the partition."""
        topic, number = partition
        return number >= self._counts.get(topic, number + 1)

    def forget(self, partition: Partition) -> None:
        """Forget the leader of a partition; the next `leaders` asks the cluster again."""
        self._leaders.pop(partition, None)

    def _metadata(self, topics: Sequence[str] | None, *, create: bool) -> metadata.MetadataResponse:
        names: list[tuple[str | None, bytes | None]] | None = None
        if topics is not None:
            names = [(topic, None) for topic in topics]
        request = metadata.encode_request(METADATA_VERSION, metadata.MetadataRequest(names, create))
        answer = self.call_any(ApiKey.METADATA, METADATA_VERSION, request)
        response = metadata.decode_response(answer, 0, METADATA_VERSION)
        self._nodes = {node.node_id: (node.host, node.port) for node in response.brokers}
        for topic in response.topics:
            if topic.error in (Code.NONE, Code.UNKNOWN_TOPIC_OR_PARTITION):
                self._counts[topic.name or ""] = len(topic.partitions)
            for partition in topic.partitions:
                key = (topic.name or "", partition.partition)
                if partition.leader >= 0:
                    self._leaders[key] = partition.leader
                else:
                    self._leaders.pop(key, None)
        return response


def access_of(connection: Connection) -> Access:
    """Return the access that the options or the properties file describe. Raises BadOption."""
    if not connection.properties_file:
        security, source = connection.security, "the options kafka.ssl"
    else:
        source = "the option propertiesFile"
    try:
        if connection.properties_file:
            text = secret_files.read_text(Path(connection.properties_file))
            security = security_of(of_security(parse_properties(text)))
        return Access(security)
    except HeadraceError as error:
        raise BadOption(f"{source}: {error}") from None
