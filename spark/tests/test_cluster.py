"""The connection to a cluster: the first node that answers, and leaders until they turn out to have moved."""

from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import Code
from headrace.kafka_client.errors import SourceRefuses
from headrace.security.client_security import Security
from headrace.wire.api_keys import ApiKey
from headrace_spark import cluster as module
from headrace_spark.cluster import Address, Cluster
from headrace_spark.errors import BadOption, BrokerError, Refused
from headrace_spark.options import Connection

A, B = ("a", 1), ("b", 2)


class Nodes:
    """Nodes by address, and their responses to Metadata."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.down: set[Address] = set()
        self.topics: dict[str, tuple[int, list[int]]] = {"/s:t": (0, [1, 2])}
        """By name: error code, and the leaders of the partitions."""
        self.asked: list[Address] = []
        self.closed: list[Address] = []
        self.later: list[dict[str, tuple[int, list[int]]]] = []
        """The changes after each further response."""
        nodes = self

        class Broker:
            def __init__(self, host: str, port: int, *_: object, **__: object) -> None:
                self.address = (host, port)

            def call(self, key: int, version: int, body: bytes) -> memoryview:
                assert key == ApiKey.METADATA
                nodes.asked.append(self.address)
                if self.address in nodes.down:
                    raise ConnectionRefusedError("nobody listens")
                return memoryview(nodes.answer())

            is_stale = False

            def close(self) -> None:
                nodes.closed.append(self.address)

        monkeypatch.setattr(module, "BrokerConnection", Broker)
        monkeypatch.setattr(module.metadata, "decode_response", lambda answer, at, version: self.decoded)
        monkeypatch.setattr(Cluster, "retry", lambda self, what: Retries())
        self.decoded: Any = None

    def answer(self) -> bytes:
        brokers = [_Broker(1, *A), _Broker(2, *B)]
        topics = [
            _Topic(name, code, [_Partition(number, leader) for number, leader in enumerate(leaders)])
            for name, (code, leaders) in self.topics.items()
        ]
        self.decoded = _Response(brokers, topics)
        if self.later:
            self.topics = self.later.pop(0)
        return b""


class _Broker:
    def __init__(self, node_id: int, host: str, port: int) -> None:
        self.node_id, self.host, self.port = node_id, host, port


class _Partition:
    def __init__(self, partition: int, leader: int) -> None:
        self.partition, self.leader = partition, leader


class _Topic:
    def __init__(self, name: str, error: int, partitions: list[_Partition]) -> None:
        self.name, self.error, self.partitions = name, error, partitions


class _Response:
    def __init__(self, brokers: list[_Broker], topics: list[_Topic]) -> None:
        self.brokers, self.topics = brokers, topics


class Retries:
    """Pauses that take no time."""

    count = 0

    def pause(self, reason: object) -> None:
        self.count += 1
        assert self.count < 5, reason


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Nodes:
    return Nodes(monkeypatch)


def cluster() -> Cluster:
    return Cluster(Connection(bootstrap=(A, B), timeout_s=1.0))


def test_a_node_that_is_down_is_passed_over(nodes: Nodes) -> None:
    nodes.down = {A}
    with cluster() as one:
        assert one.partition_counts(["/s:t"]) == {"/s:t": 2}
        assert nodes.asked == [A, B]
        one.partition_counts(["/s:t"])
        assert nodes.asked == [A, B, B], "the connection that works is tried first"
    assert nodes.closed == [A, B]


def test_where_none_answers_the_last_reason_is_told(nodes: Nodes) -> None:
    nodes.down = {A, B}
    with pytest.raises(ConnectionRefusedError):
        cluster().leaders([("/s:t", 0)])


def test_leaders_are_asked_for_once_until_they_are_forgotten(nodes: Nodes) -> None:
    one = cluster()
    assert one.leaders([("/s:t", 0), ("/s:t", 1)]) == {("/s:t", 0): 1, ("/s:t", 1): 2}
    one.leaders([("/s:t", 0)])
    assert len(nodes.asked) == 1
    one.forget(("/s:t", 0))
    one.leaders([("/s:t", 1)])
    assert len(nodes.asked) == 1, "that of another is known still"
    one.leaders([("/s:t", 0)])
    assert len(nodes.asked) == 2


def test_what_a_node_led_that_broke_is_asked_for_again(nodes: Nodes) -> None:
    one = cluster()
    one.leaders([("/s:t", 0), ("/s:t", 1)])
    nodes.topics = {"/s:t": (0, [2, 2])}
    one.drop(1)
    assert one.leaders([("/s:t", 0), ("/s:t", 1)]) == {("/s:t", 0): 2, ("/s:t", 1): 2}
    nodes.topics = {"/s:t": (0, [-1, 2])}
    one.forget(("/s:t", 0))
    assert one.leaders([("/s:t", 0)]) == {}, "nobody leads it now"
    assert one.address(2) == B


def test_a_partition_is_absent_only_if_the_cluster_said_so(nodes: Nodes) -> None:
    one = cluster()
    assert not one.is_absent(("/s:t", 5))
    one.partition_counts(["/s:t"])
    assert one.is_absent(("/s:t", 2))
    assert not one.is_absent(("/s:t", 1))


def test_a_topic_that_is_being_made_is_waited_for_and_one_that_is_not_there_left_out(nodes: Nodes) -> None:
    made = {"/s:t": (0, [1]), "/s:u": (int(Code.UNKNOWN_TOPIC_OR_PARTITION), [])}
    nodes.topics = {"/s:t": (int(Code.LEADER_NOT_AVAILABLE), [])}
    nodes.later = [made]
    assert cluster().partition_counts(["/s:t", "/s:u"], create=True) == {"/s:t": 1}
    assert len(nodes.asked) == 2


def test_a_topic_that_is_refused_for_good_is_an_error_with_its_name(nodes: Nodes) -> None:
    nodes.topics = {"/s:t": (int(Code.TOPIC_AUTHORIZATION_FAILED), [])}
    with pytest.raises(BrokerError, match="topic /s:t: the node answers TOPIC_AUTHORIZATION_FAILED"):
        cluster().partition_counts(["/s:t"])


def test_a_session_whose_time_is_over_is_followed_by_another(nodes: Nodes) -> None:
    with cluster() as one:
        one.partition_counts(["/s:t"])
        module.BrokerConnection.is_stale = True  # type: ignore[misc]
        one.partition_counts(["/s:t"])
    assert nodes.asked == [A, A]
    assert nodes.closed == [A, A]


def test_a_refusal_is_told_at_once_and_no_other_node_is_asked(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def refusing(*given: object, **_: object) -> None:
        asked.append(given)
        raise SourceRefuses("h:1: 'alice' is refused: authentication failed")

    monkeypatch.setattr(module, "BrokerConnection", refusing)
    with pytest.raises(Refused, match=r"'alice' is refused: authentication failed; see the options kafka\.security"):
        cluster().partition_counts(["/s:t"])
    assert len(asked) == 1


def test_who_asks_is_said_by_a_file_or_by_options(nodes: Nodes, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        "bootstrap.servers=h:1\nacks=all\nsecurity.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        "sasl.username=alice\nsasl.password=s3cret\n"
    )
    access = module.access_of(Connection(bootstrap=(A,), timeout_s=1.0, properties_file=str(file)))
    assert access.security.username == "alice"
    with pytest.raises(BadOption, match="the option propertiesFile: /nowhere cannot be read"):
        module.access_of(Connection(bootstrap=(A,), timeout_s=1.0, properties_file="/nowhere"))
    missing = Security(tls=True, ca_file="/nowhere")
    with pytest.raises(BadOption, match=r"the options kafka\.ssl: ssl\.ca\.location cannot be used"):
        module.access_of(Connection(bootstrap=(A,), timeout_s=1.0, security=missing))
